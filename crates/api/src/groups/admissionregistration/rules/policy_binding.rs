//! ValidatingAdmissionPolicyBinding and MutatingAdmissionPolicyBinding.

use k8s_openapi::api::admissionregistration::v1::{
    MutatingAdmissionPolicyBinding, ParamRef, ValidatingAdmissionPolicyBinding,
};

use super::matching::{default_resources, validate_match};
use crate::{
    field::{Errors, FieldError, Path},
    strategy::Rules,
    validation::{
        check::{one_of, required_one_of, shown, text, unique},
        labels, names,
    },
};

pub struct ValidatingAdmissionPolicyBindingRules;
pub struct MutatingAdmissionPolicyBindingRules;

const ACTIONS: &[&str] = &["Audit", "Deny", "Warn"];

impl Rules for ValidatingAdmissionPolicyBindingRules {
    type Object = ValidatingAdmissionPolicyBinding;

    fn default(object: &mut ValidatingAdmissionPolicyBinding) {
        if let Some(resources) = &mut object.spec.match_resources {
            default_resources(resources);
        }
    }

    fn validate(object: &ValidatingAdmissionPolicyBinding, errors: &mut Errors) {
        let (path, spec) = (Path::new("spec"), &object.spec);
        names::require(&spec.policy_name, &path.child("policyName"), names::dns1123_subdomain, errors);
        if let Some(reference) = &spec.param_ref {
            validate_param_ref(reference, &path.child("paramRef"), errors);
        }
        if let Some(resources) = &spec.match_resources {
            validate_match(resources, &path.child("matchResources"), errors);
        }
        validate_actions(&spec.validation_actions, &path.child("validationActions"), errors);
    }
}

impl Rules for MutatingAdmissionPolicyBindingRules {
    type Object = MutatingAdmissionPolicyBinding;

    fn default(object: &mut MutatingAdmissionPolicyBinding) {
        if let Some(resources) = object.spec.as_mut().and_then(|spec| spec.match_resources.as_mut()) {
            default_resources(resources);
        }
    }

    fn validate(object: &MutatingAdmissionPolicyBinding, errors: &mut Errors) {
        let (path, Some(spec)) = (Path::new("spec"), &object.spec) else {
            errors.push(FieldError::required(&Path::new("spec").child("policyName"), ""));
            return;
        };
        names::require(text(&spec.policy_name), &path.child("policyName"), names::dns1123_subdomain, errors);
        if let Some(reference) = &spec.param_ref {
            validate_param_ref(reference, &path.child("paramRef"), errors);
        }
        if let Some(resources) = &spec.match_resources {
            validate_match(resources, &path.child("matchResources"), errors);
        }
    }
}

fn validate_actions(actions: &[String], path: &Path, errors: &mut Errors) {
    let each = || actions.iter().enumerate().map(|(i, action)| (path.index(i), action.as_str()));
    each().for_each(|(path, action)| one_of(action, ACTIONS, &path, errors));
    unique(each(), errors);
    let has = |wanted: &str| actions.iter().any(|action| action == wanted);
    if has("Deny") && has("Warn") {
        let words = "must not contain both Deny and Warn (repeating the same validation failure information in the API response and headers serves no purpose)";
        errors.push(FieldError::invalid(path, shown(&actions), words));
    }
    if actions.is_empty() {
        errors.push(FieldError::required(path, "at least one validation action is required"));
    }
}

fn validate_param_ref(reference: &ParamRef, path: &Path, errors: &mut Errors) {
    let name = text(&reference.name);
    if !name.is_empty() {
        names::refuse(name, &path.child("name"), names::path_segment_name, errors);
    }
    let words = "name and selector are mutually exclusive";
    match &reference.selector {
        Some(_) if !name.is_empty() => errors.push(FieldError::forbidden(&path.child("name"), words)),
        Some(selector) => labels::validate_selector(selector, &path.child("selector"), errors),
        None if name.is_empty() => {
            errors.push(FieldError::required(path, "one of name or selector must be specified"));
        }
        None => {}
    }
    let action = text(&reference.parameter_not_found_action);
    required_one_of(action, &["Allow", "Deny"], &path.child("parameterNotFoundAction"), errors);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::validation::testing::{assert_completes, assert_refused, with};

    #[test]
    fn a_binding_says_what_to_do() {
        let binding = json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": "few"}, "spec": {"policyName": "few", "validationActions": ["Deny"]},
        });
        assert_completes::<ValidatingAdmissionPolicyBindingRules>(binding.clone(), binding.clone());
        assert_refused::<ValidatingAdmissionPolicyBindingRules>(
            with(&binding, json!({"spec": {"policyName": null, "validationActions": [], "paramRef": {}}})),
            &[
                "spec.policyName: Required value",
                "spec.paramRef: Required value: one of name or selector must be specified",
                "spec.paramRef.parameterNotFoundAction: Required value",
                "spec.validationActions: Required value: at least one validation action is required",
            ],
        );
        assert_refused::<ValidatingAdmissionPolicyBindingRules>(
            with(&binding, json!({"spec": {"validationActions": ["Deny", "Deny", "Shout"]}})),
            &[
                r#"spec.validationActions[2]: Unsupported value: "Shout": supported values: "Audit", "Deny", "Warn""#,
                r#"spec.validationActions[1]: Duplicate value: "Deny""#,
            ],
        );
    }
}
