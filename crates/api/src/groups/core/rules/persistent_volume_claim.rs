//! PersistentVolumeClaims, and the claims that templates make.

use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, PersistentVolumeClaimSpec, PersistentVolumeClaimStatus, TypedLocalObjectReference,
    TypedObjectReference,
};

use crate::{
    field::{Errors, FieldError, Path},
    quantity::Quantity as Amount,
    strategy::Rules,
    validation::{
        check::{self, fill, list, shown, text},
        diff, labels, names, resources,
    },
    wellknown::kubernetes::BETA_STORAGE_CLASS,
};

/// Where classes were named before they had a field.
pub(super) const ACCESS_MODES: &[&str] = &["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];
pub(super) const VOLUME_MODES: &[&str] = &["Block", "Filesystem"];

/// The kind `PersistentVolumeClaim`.
pub struct PersistentVolumeClaimRules;

impl Rules for PersistentVolumeClaimRules {
    type Object = PersistentVolumeClaim;

    fn default(claim: &mut PersistentVolumeClaim) {
        default_spec(claim.spec.get_or_insert_default());
    }

    fn prepare_create(claim: &mut PersistentVolumeClaim) {
        claim.status = Some(PersistentVolumeClaimStatus { phase: Some("Pending".to_owned()), ..Default::default() });
        agree_on_source(claim.spec.get_or_insert_default());
    }

    fn validate(claim: &PersistentVolumeClaim, errors: &mut Errors) {
        let missing = PersistentVolumeClaimSpec::default();
        validate_spec(claim.spec.as_ref().unwrap_or(&missing), &Path::new("spec"), errors);
    }

    fn validate_update(claim: &PersistentVolumeClaim, old: &PersistentVolumeClaim, errors: &mut Errors) {
        let (Some(new), Some(before)) = (&claim.spec, &old.spec) else { return };
        let bound = old.status.as_ref().is_some_and(|status| text(&status.phase) == "Bound");
        validate_class_annotation(claim, old, errors);
        let (allowed, retained) = (shown(&with_changes_undone(new, before, bound)), shown(before));
        if !diff::same(&retained, &allowed) {
            errors.push(FieldError::forbidden(
                &Path::new("spec"),
                format!(
                    "spec is immutable after creation except resources.requests and volumeAttributesClassName for \
                     bound claims\n{}",
                    diff::describe(&retained, &allowed)
                ),
            ));
        }
        let capacity = old.status.as_ref().and_then(|status| resources::find(&status.capacity, "storage"));
        if storage(new) < storage(before) && storage(new) <= capacity.unwrap_or_default() {
            errors.push(FieldError::forbidden(
                &Path::new("spec").child("resources").child("requests").child("storage"),
                "field can not be less than status.capacity",
            ));
        }
        check::immutable(&new.volume_mode, &before.volume_mode, &Path::new("volumeMode"), errors);
        let class_at = Path::new("spec").child("volumeAttributesClassName");
        match (&new.volume_attributes_class_name, &before.volume_attributes_class_name) {
            (None, Some(_)) => {
                errors.push(FieldError::forbidden(&class_at, "update from non-nil value to nil is forbidden"));
            }
            (Some(class), Some(_)) if class.is_empty() => {
                let detail = "update from non-nil value to an empty string is forbidden";
                errors.push(FieldError::forbidden(&class_at, detail));
            }
            _ => {}
        }
    }

    fn validate_status(claim: &PersistentVolumeClaim, _: &PersistentVolumeClaim, errors: &mut Errors) {
        let capacity = claim.status.iter().flat_map(|status| status.capacity.iter().flatten());
        for (name, quantity) in capacity {
            if resources::amount(quantity).is_negative() {
                let at = Path::new("status").child("capacity").key(name);
                errors.push(FieldError::invalid(&at, quantity.0.as_str(), "must be a valid resource quantity"));
            }
        }
    }
}

/// Defaults of a claim's spec, in a claim or in a template of one.
pub fn default_spec(spec: &mut PersistentVolumeClaimSpec) {
    fill(&mut spec.volume_mode, "Filesystem");
    let requirements = spec.resources.get_or_insert_default();
    resources::canonicalize(&mut requirements.limits);
    resources::canonicalize(&mut requirements.requests);
}

/// Judges a claim's spec, in a claim or in a template of one.
pub fn validate_spec(spec: &PersistentVolumeClaimSpec, path: &Path, errors: &mut Errors) {
    if list(&spec.access_modes).is_empty() {
        errors.push(FieldError::required(&path.child("accessModes"), "at least 1 access mode is required"));
    }
    if let Some(selector) = &spec.selector {
        labels::validate_selector(selector, &path.child("selector"), errors);
    }
    validate_access_modes(list(&spec.access_modes), &path.child("accessModes"), errors);
    let storage_at = path.child("resources").key("storage");
    match spec.resources.as_ref().and_then(|resources| resources.requests.as_ref()?.get("storage")) {
        None => errors.push(FieldError::required(&storage_at, "")),
        Some(quantity) => resources::validate_positive(quantity, &storage_at, errors),
    }
    if !text(&spec.storage_class_name).is_empty() {
        let at = path.child("storageClassName");
        names::refuse(text(&spec.storage_class_name), &at, names::dns1123_subdomain, errors);
    }
    check::optional_one_of(&spec.volume_mode, VOLUME_MODES, &path.child("volumeMode"), errors);
    validate_sources(spec, path, errors);
    if !text(&spec.volume_attributes_class_name).is_empty() {
        let at = path.child("volumeAttributesClassName");
        names::refuse(text(&spec.volume_attributes_class_name), &at, names::dns1123_subdomain, errors);
    }
}

/// The ways in which a volume may be shared.
pub(super) fn validate_access_modes(modes: &[String], path: &Path, errors: &mut Errors) {
    for mode in modes {
        check::one_of(mode, ACCESS_MODES, path, errors);
    }
    let alone = |mode: &&String| *mode == "ReadWriteOncePod";
    let shared = |mode: &&String| *mode != "ReadWriteOncePod" && ACCESS_MODES.contains(&mode.as_str());
    if modes.iter().any(|mode| alone(&mode)) && modes.iter().any(|mode| shared(&mode)) {
        errors.push(FieldError::forbidden(path, "may not use ReadWriteOncePod with other access modes"));
    }
}

fn validate_sources(spec: &PersistentVolumeClaimSpec, path: &Path, errors: &mut Errors) {
    if let Some(source) = &spec.data_source {
        validate_source(&source.name, &source.kind, &source.api_group, &path.child("dataSource"), errors);
    }
    if let Some(source) = &spec.data_source_ref {
        let at = path.child("dataSourceRef");
        validate_source(&source.name, &source.kind, &source.api_group, &at, errors);
        if !text(&source.namespace).is_empty() {
            names::refuse(text(&source.namespace), &at.child("namespace"), names::dns1123_label, errors);
        }
    }
    if let (Some(source), Some(reference)) = (&spec.data_source, &spec.data_source_ref) {
        let at = path.child("dataSource").to_string();
        if !text(&reference.namespace).is_empty() {
            let detail = "may not be specified when dataSourceRef.namespace is specified";
            errors.push(FieldError::invalid(path, at, detail));
        } else if (&source.api_group, &source.kind, &source.name)
            != (&reference.api_group, &reference.kind, &reference.name)
        {
            errors.push(FieldError::invalid(path, at, "must match dataSourceRef"));
        }
    }
}

fn validate_source(name: &str, kind: &str, group: &Option<String>, path: &Path, errors: &mut Errors) {
    check::present(name, &path.child("name"), errors);
    check::present(kind, &path.child("kind"), errors);
    if text(group).is_empty() {
        if kind != "PersistentVolumeClaim" {
            let detail = "must be 'PersistentVolumeClaim' when referencing the default apiGroup";
            errors.push(FieldError::invalid(path, kind, detail));
        }
    } else {
        names::refuse(text(group), &path.child("apiGroup"), names::dns1123_subdomain, errors);
    }
}

/// The source goes by two fields; whichever is given fills the other.
fn agree_on_source(spec: &mut PersistentVolumeClaimSpec) {
    match (&spec.data_source, &spec.data_source_ref) {
        (Some(source), None) => {
            spec.data_source_ref = Some(TypedObjectReference {
                api_group: source.api_group.clone(),
                kind: source.kind.clone(),
                name: source.name.clone(),
                namespace: None,
            });
        }
        (None, Some(reference)) if text(&reference.namespace).is_empty() => {
            spec.data_source = Some(TypedLocalObjectReference {
                api_group: reference.api_group.clone(),
                kind: reference.kind.clone(),
                name: reference.name.clone(),
            });
        }
        _ => {}
    }
}

fn storage(spec: &PersistentVolumeClaimSpec) -> Amount {
    spec.resources.as_ref().and_then(|resources| resources::find(&resources.requests, "storage")).unwrap_or_default()
}

/// The new spec with the old values wherever a change is allowed: the volume once, a class once,
/// and of a bound claim its size and attributes.
fn with_changes_undone(
    new: &PersistentVolumeClaimSpec,
    old: &PersistentVolumeClaimSpec,
    bound: bool,
) -> PersistentVolumeClaimSpec {
    let mut spec = new.clone();
    if text(&old.volume_name).is_empty() {
        spec.volume_name.clone_from(&old.volume_name);
    }
    if old.storage_class_name.is_none() {
        spec.storage_class_name = None;
    }
    if bound {
        let before = old.resources.as_ref().and_then(|resources| resources.requests.as_ref()?.get("storage"));
        let requests = spec.resources.as_mut().and_then(|resources| resources.requests.as_mut());
        if let (Some(requests), Some(before)) = (requests, before) {
            requests.insert("storage".to_owned(), before.clone());
        }
        if spec.volume_attributes_class_name.is_some() {
            spec.volume_attributes_class_name.clone_from(&old.volume_attributes_class_name);
        }
    }
    spec
}

fn validate_class_annotation(claim: &PersistentVolumeClaim, old: &PersistentVolumeClaim, errors: &mut Errors) {
    let class = |claim: &PersistentVolumeClaim| {
        claim.metadata.annotations.as_ref().and_then(|map| map.get(BETA_STORAGE_CLASS)).cloned().unwrap_or_default()
    };
    let moved_to_field =
        !class(old).is_empty() && claim.spec.as_ref().is_some_and(|spec| text(&spec.storage_class_name) == class(old));
    if class(claim) != class(old) && !moved_to_field {
        let at = Path::new("metadata").child("annotations").child(BETA_STORAGE_CLASS);
        errors.push(FieldError::invalid(&at, class(claim), check::IMMUTABLE));
    }
}
