//! IngressClass.

use k8s_openapi::api::{
    core::v1::TypedLocalObjectReference,
    networking::v1::{IngressClass, IngressClassParametersReference, IngressClassSpec},
};

use super::validate_reference;
use crate::{
    field::{Errors, FieldError, Path},
    strategy::Rules,
    validation::{
        check::{domain_prefixed_path, fill, immutable, text},
        names,
    },
};

pub struct IngressClassRules;

const MAX_CONTROLLER: usize = 250;

impl Rules for IngressClassRules {
    type Object = IngressClass;

    fn default(object: &mut IngressClass) {
        if let Some(parameters) = object.spec.as_mut().and_then(|spec| spec.parameters.as_mut()) {
            fill(&mut parameters.scope, "Cluster");
        }
    }

    fn validate(object: &IngressClass, errors: &mut Errors) {
        let (path, nothing) = (Path::new("spec"), IngressClassSpec::default());
        let spec = object.spec.as_ref().unwrap_or(&nothing);
        let (controller, at) = (text(&spec.controller), path.child("controller"));
        if controller.len() > MAX_CONTROLLER {
            errors.push(FieldError::too_long(&at, MAX_CONTROLLER));
        }
        domain_prefixed_path(controller, &at, errors);
        if let Some(parameters) = &spec.parameters {
            validate_parameters(parameters, &path.child("parameters"), errors);
        }
    }

    fn validate_update(object: &IngressClass, old: &IngressClass, errors: &mut Errors) {
        let controller = |class: &IngressClass| class.spec.as_ref().and_then(|spec| spec.controller.clone());
        immutable(&controller(object), &controller(old), &Path::new("spec").child("controller"), errors);
    }
}

fn validate_parameters(parameters: &IngressClassParametersReference, path: &Path, errors: &mut Errors) {
    let reference = TypedLocalObjectReference {
        api_group: parameters.api_group.clone(),
        kind: parameters.kind.clone(),
        name: parameters.name.clone(),
    };
    validate_reference(&reference, path, errors);
    let at = path.child("namespace");
    match (text(&parameters.scope), &parameters.namespace) {
        ("Namespace", None) => errors.push(FieldError::required(&at, "`parameters.scope` is set to 'Namespace'")),
        ("Namespace", Some(namespace)) => names::refuse(namespace, &at, names::dns1123_label, errors),
        ("Cluster", None) => {}
        ("Cluster", Some(_)) => errors.push(FieldError::forbidden(&at, "`parameters.scope` is set to 'Cluster'")),
        (other, _) => {
            errors.push(FieldError::not_supported(&path.child("scope"), other, &["Cluster", "Namespace"]));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::validation::testing::{assert_completes, assert_refused, assert_update, with};

    #[test]
    fn a_class_names_its_controller_once() {
        let class = json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "IngressClass", "metadata": {"name": "nginx"},
            "spec": {"controller": "k8s.io/nginx", "parameters": {"kind": "Config", "name": "main"}},
        });
        assert_completes::<IngressClassRules>(
            class.clone(),
            with(&class, json!({"spec": {"parameters": {"scope": "Cluster"}}})),
        );
        assert_refused::<IngressClassRules>(
            with(&class, json!({"spec": {"controller": null, "parameters": {"kind": null, "namespace": "x"}}})),
            &[
                "spec.controller: Required value",
                "spec.parameters.kind: Required value",
                "spec.parameters.namespace: Forbidden: `parameters.scope` is set to 'Cluster'",
            ],
        );
        assert_update::<IngressClassRules>(
            &class,
            json!({"spec": {"controller": "k8s.io/other"}}),
            &[r#"spec.controller: Invalid value: "k8s.io/other": field is immutable"#],
        );
    }
}
