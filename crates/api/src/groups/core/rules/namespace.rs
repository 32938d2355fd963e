//! Namespaces.

use k8s_openapi::api::core::v1::{Namespace, NamespaceStatus};

use crate::{
    field::{Errors, FieldError, Path},
    strategy::Rules,
    validation::{
        check::{list, text},
        names,
    },
};

/// The label by which selectors find a namespace by its name.
const NAME_LABEL: &str = "kubernetes.io/metadata.name";
/// Held until everything in the namespace is gone.
const FINALIZER: &str = "kubernetes";

/// The kind `Namespace`.
pub struct NamespaceRules;

impl Rules for NamespaceRules {
    type Object = Namespace;

    fn default(namespace: &mut Namespace) {
        if let Some(name) = namespace.metadata.name.clone().filter(|name| !name.is_empty()) {
            namespace.metadata.labels.get_or_insert_default().insert(NAME_LABEL.to_owned(), name);
        }
    }

    fn prepare_create(namespace: &mut Namespace) {
        let finalizers = namespace.spec.get_or_insert_default().finalizers.get_or_insert_default();
        if !finalizers.iter().any(|finalizer| finalizer == FINALIZER) {
            finalizers.push(FINALIZER.to_owned());
        }
        namespace.status = Some(NamespaceStatus { phase: Some("Active".to_owned()), ..NamespaceStatus::default() });
    }

    fn prepare_update(namespace: &mut Namespace, old: &Namespace) {
        // Only `/finalize` lets go of finalizers.
        namespace.spec.clone_from(&old.spec);
    }

    fn validate(namespace: &Namespace, errors: &mut Errors) {
        let path = Path::new("spec").child("finalizers");
        for finalizer in namespace.spec.iter().flat_map(|spec| list(&spec.finalizers)) {
            validate_finalizer(finalizer, &path, errors);
        }
    }

    fn validate_status(namespace: &Namespace, _: &Namespace, errors: &mut Errors) {
        let phase = namespace.status.as_ref().map_or("", |status| text(&status.phase));
        let (expected, state) = match namespace.metadata.deletion_timestamp {
            None => ("Active", "empty"),
            Some(_) => ("Terminating", "not empty"),
        };
        if phase != expected {
            errors.push(FieldError::invalid(
                &Path::new("status").child("Phase"),
                phase,
                format!("may only be '{expected}' if `deletionTimestamp` is {state}"),
            ));
        }
    }
}

/// Judges one finalizer of a namespace's spec.
pub fn validate_finalizer(finalizer: &str, path: &Path, errors: &mut Errors) {
    names::refuse(finalizer, path, names::qualified_name, errors);
    if !finalizer.contains('/') && !matches!(finalizer, FINALIZER | "orphan" | "foregroundDeletion") {
        let detail = "name is neither a standard finalizer name nor is it fully qualified";
        errors.push(FieldError::invalid(path, finalizer, detail));
    }
}
