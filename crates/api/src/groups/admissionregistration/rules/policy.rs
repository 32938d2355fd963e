//! ValidatingAdmissionPolicy.

use k8s_openapi::api::admissionregistration::v1::{
    AuditAnnotation, ValidatingAdmissionPolicy, ValidatingAdmissionPolicySpec, Validation,
};

use super::policy_scope::{PolicyScope, default_scope, policy_scope};
use crate::{
    field::{Errors, FieldError, Path},
    strategy::Rules,
    validation::{
        check::{list, optional_one_of, shown, text, unique},
        names,
    },
};

pub struct ValidatingAdmissionPolicyRules;

const REASONS: &[&str] = &["Forbidden", "Invalid", "RequestEntityTooLarge"];
const MAX_ANNOTATIONS: usize = 20;
const MAX_ANNOTATION_EXPRESSION: usize = 5 * 1024;

impl Rules for ValidatingAdmissionPolicyRules {
    type Object = ValidatingAdmissionPolicy;

    fn default(object: &mut ValidatingAdmissionPolicy) {
        let spec = object.spec.get_or_insert_default();
        default_scope(&mut spec.failure_policy, &mut spec.match_constraints);
    }

    fn prepare_create(object: &mut ValidatingAdmissionPolicy) {
        object.status = Some(Default::default());
    }

    fn validate(object: &ValidatingAdmissionPolicy, errors: &mut Errors) {
        if let Some(spec) = &object.spec {
            validate_spec(spec, text(&object.metadata.name), &Path::new("spec"), errors);
        }
    }
}

fn validate_spec(spec: &ValidatingAdmissionPolicySpec, name: &str, path: &Path, errors: &mut Errors) {
    let expressions = policy_scope!(spec).validate(path, errors);
    let (validations, annotations) = (list(&spec.validations), list(&spec.audit_annotations));
    if validations.is_empty() && annotations.is_empty() {
        let words = "validations or auditAnnotations must contain at least one item";
        errors.push(FieldError::required(&path.child("validations"), words));
        errors.push(FieldError::required(&path.child("auditAnnotations"), words));
    }
    for (i, validation) in validations.iter().enumerate() {
        let path = path.child("validations").index(i);
        validate_validation(validation, &path, errors);
        expressions.check_bool(&validation.expression, &path.child("expression"), errors);
        let message = text(&validation.message_expression);
        expressions.check_string(message, &path.child("messageExpression"), errors);
    }
    for (i, annotation) in annotations.iter().enumerate() {
        let path = path.child("auditAnnotations").index(i).child("valueExpression");
        expressions.check_annotation(&annotation.value_expression, &path, errors);
    }
    validate_annotations(annotations, name, &path.child("auditAnnotations"), errors);
}

fn validate_validation(validation: &Validation, path: &Path, errors: &mut Errors) {
    if validation.expression.trim().is_empty() {
        errors.push(FieldError::required(&path.child("expression"), "expression is not specified"));
    }
    for (name, value) in [("messageExpression", &validation.message_expression), ("message", &validation.message)] {
        let value = text(value);
        if !value.is_empty() && value.trim().is_empty() {
            errors.push(FieldError::invalid(&path.child(name), value, "must be non-empty if specified"));
        } else if name == "message" && value.trim().contains(['\n', '\r']) {
            errors.push(FieldError::invalid(&path.child(name), value, "must not contain line breaks"));
        }
    }
    optional_one_of(&validation.reason, REASONS, &path.child("reason"), errors);
}

fn validate_annotations(annotations: &[AuditAnnotation], policy: &str, path: &Path, errors: &mut Errors) {
    if annotations.len() > MAX_ANNOTATIONS {
        let words = format!("must not have more than {MAX_ANNOTATIONS} auditAnnotations");
        errors.push(FieldError::invalid(path, shown(&annotations), words));
    }
    for (i, annotation) in annotations.iter().enumerate() {
        let path = path.index(i);
        names::refuse(&format!("{policy}/{}", annotation.key), &path.child("key"), names::qualified_name, errors);
        let at = path.child("valueExpression");
        match annotation.value_expression.trim().len() {
            0 => errors.push(FieldError::required(&at, "valueExpression is not specified")),
            length if length > MAX_ANNOTATION_EXPRESSION => {
                let words = format!("must not exceed {MAX_ANNOTATION_EXPRESSION} bytes in length");
                errors.push(FieldError::required(&at, words));
            }
            _ => {}
        }
    }
    unique(annotations.iter().enumerate().map(|(i, a)| (path.index(i).child("key"), a.key.as_str())), errors);
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::validation::testing::{assert_completes, assert_refused, with};

    fn policy() -> Value {
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
            "metadata": {"name": "few"},
            "spec": {
                "matchConstraints": {"resourceRules": [
                    {"apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["deployments"]},
                ]},
                "validations": [{"expression": "object.spec.replicas <= 5"}],
            },
        })
    }

    #[test]
    fn a_minimal_policy_is_completed() {
        let completed = json!({"status": {}, "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"matchPolicy": "Equivalent", "namespaceSelector": {}, "objectSelector": {}, "resourceRules": [
                {"apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["deployments"], "scope": "*"},
            ]},
        }});
        assert_completes::<ValidatingAdmissionPolicyRules>(policy(), with(&policy(), completed));
    }

    #[test]
    fn bad_policies_are_refused_with_upstreams_messages() {
        let cases: &[(Value, &[&str])] = &[
            (
                json!({"matchConstraints": null, "validations": null}),
                &[
                    "spec.matchConstraints: Required value",
                    "spec.validations: Required value: validations or auditAnnotations must contain at least one item",
                    "spec.auditAnnotations: Required value: validations or auditAnnotations must contain at least one item",
                ],
            ),
            (
                json!({"matchConstraints": {"resourceRules": []}, "failurePolicy": "Warn"}),
                &[
                    r#"spec.failurePolicy: Unsupported value: "Warn": supported values: "Fail", "Ignore""#,
                    "spec.matchConstraints.resourceRules: Required value",
                ],
            ),
            (
                json!({"validations": [{"expression": " ", "message": "a\nb", "reason": "Teapot"}]}),
                &[
                    "spec.validations[0].expression: Required value: expression is not specified",
                    r#"spec.validations[0].message: Invalid value: "a\nb": must not contain line breaks"#,
                    r#"spec.validations[0].reason: Unsupported value: "Teapot": supported values: "Forbidden", "Invalid", "RequestEntityTooLarge""#,
                ],
            ),
            (
                json!({"paramKind": {"apiVersion": "a/b/c"}}),
                &[
                    r#"spec.paramKind.apiVersion: Invalid value: "a/b/c": unexpected GroupVersion string: a/b/c"#,
                    "spec.paramKind.kind: Required value",
                ],
            ),
            (
                json!({"auditAnnotations": [{"key": "a", "valueExpression": ""}, {"key": "a", "valueExpression": "'x'"}]}),
                &[
                    "spec.auditAnnotations[0].valueExpression: Required value: valueExpression is not specified",
                    r#"spec.auditAnnotations[1].key: Duplicate value: "a""#,
                ],
            ),
            (
                json!({"validations": [{"expression": "object.spec.replicas +", "messageExpression": "1"}, {"expression": "params.x"}]}),
                &[
                    "spec.validations[0].expression: Invalid value: \"object.spec.replicas +\": compilation failed: ERROR: <input>:1:23: Syntax error: mismatched input '<EOF>' expecting {'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}\n | object.spec.replicas +\n | ......................^",
                    r#"spec.validations[0].messageExpression: Invalid value: "1": must evaluate to string"#,
                    "spec.validations[1].expression: Invalid value: \"params.x\": compilation failed: ERROR: <input>:1:1: undeclared reference to 'params' (in container '')\n | params.x\n | ^",
                ],
            ),
            (
                json!({
                    "variables": [{"name": "a", "expression": "variables.b"}, {"name": "b", "expression": "1"}],
                    "matchConditions": [{"name": "c", "expression": "'x'"}],
                    "validations": [{"expression": "variables.b + 1"}],
                }),
                &[
                    r#"spec.matchConditions[0].expression: Invalid value: "'x'": must evaluate to bool"#,
                    "spec.variables[0].expression: Invalid value: \"variables.b\": compilation failed: ERROR: <input>:1:1: undeclared reference to 'variables' (in container '')\n | variables.b\n | ^",
                    r#"spec.validations[0].expression: Invalid value: "variables.b + 1": must evaluate to bool"#,
                ],
            ),
        ];
        for (change, expected) in cases {
            assert_refused::<ValidatingAdmissionPolicyRules>(with(&policy(), json!({"spec": change})), expected);
        }
    }
}
