//! MutatingAdmissionPolicy.

use k8s_openapi::api::admissionregistration::v1::{MutatingAdmissionPolicy, MutatingAdmissionPolicySpec, Mutation};

use super::{
    expressions::PolicyExpressions,
    policy_scope::{PolicyScope, default_scope, policy_scope},
};
use crate::{
    field::{Errors, FieldError, Path},
    strategy::Rules,
    validation::check::{fill, list, required_one_of, text, unshown},
};

pub struct MutatingAdmissionPolicyRules;

const JSON_PATCH: &str = "JSONPatch";
const APPLY_CONFIGURATION: &str = "ApplyConfiguration";

impl Rules for MutatingAdmissionPolicyRules {
    type Object = MutatingAdmissionPolicy;

    fn default(object: &mut MutatingAdmissionPolicy) {
        let spec = object.spec.get_or_insert_default();
        default_scope(&mut spec.failure_policy, &mut spec.match_constraints);
        fill(&mut spec.reinvocation_policy, "Never");
    }

    fn validate(object: &MutatingAdmissionPolicy, errors: &mut Errors) {
        if let Some(spec) = &object.spec {
            validate_spec(spec, &Path::new("spec"), errors);
        }
    }
}

fn validate_spec(spec: &MutatingAdmissionPolicySpec, path: &Path, errors: &mut Errors) {
    let expressions = policy_scope!(spec).validate(path, errors);
    let (mutations, at) = (list(&spec.mutations), path.child("mutations"));
    if mutations.is_empty() {
        errors.push(FieldError::required(&at, "mutations must contain at least one item"));
    }
    for (i, mutation) in mutations.iter().enumerate() {
        validate_mutation(mutation, &expressions, &at.index(i), errors);
    }
    let policies = ["IfNeeded", "Never"];
    required_one_of(text(&spec.reinvocation_policy), &policies, &path.child("reinvocationPolicy"), errors);
}

fn validate_mutation(mutation: &Mutation, expressions: &PolicyExpressions, path: &Path, errors: &mut Errors) {
    let apply = mutation.apply_configuration.as_ref().map(|own| text(&own.expression));
    let patch = mutation.json_patch.as_ref().map(|own| text(&own.expression));
    let kind = mutation.patch_type.as_str();
    let (field, wanted, other, unwanted) = match kind {
        JSON_PATCH => ("jsonPatch", patch, "applyConfiguration", apply),
        APPLY_CONFIGURATION => ("applyConfiguration", apply, "jsonPatch", patch),
        _ => {
            required_one_of(kind, &[APPLY_CONFIGURATION, JSON_PATCH], &path.child("patchType"), errors);
            return;
        }
    };
    if unwanted.is_some() {
        let words = format!("must not be specified when patchType is {kind}");
        errors.push(unshown(&path.child(other), &words));
    }
    match wanted {
        None => {
            let words = format!("must be specified when patchType is {kind}");
            errors.push(FieldError::required(&path.child(field), words));
        }
        Some(expression) if expression.trim().is_empty() => {
            errors.push(FieldError::required(&path.child(field).child("expression"), ""));
        }
        Some(expression) => {
            let at = path.child(field).child("expression");
            match kind {
                JSON_PATCH => expressions.check_json_patch(expression, &at, errors),
                _ => expressions.check_configuration(expression, &at, errors),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::validation::testing::{assert_refused, completed, with};

    fn policy() -> Value {
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingAdmissionPolicy",
            "metadata": {"name": "team"},
            "spec": {
                "matchConstraints": {"resourceRules": [
                    {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]},
                ]},
                "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {
                    "expression": "Object{metadata: Object.metadata{labels: {\"team\": \"a\"}}}",
                }}],
            },
        })
    }

    #[test]
    fn a_minimal_policy_is_completed() {
        let spec = completed::<MutatingAdmissionPolicyRules>(policy())["spec"].take();
        assert_eq!((&spec["failurePolicy"], &spec["reinvocationPolicy"]), (&json!("Fail"), &json!("Never")));
        assert_eq!(spec["matchConstraints"]["resourceRules"][0]["scope"], "*");
    }

    #[test]
    fn bad_policies_are_refused_with_upstreams_messages() {
        let cases: &[(Value, &[&str])] = &[
            (json!({"mutations": []}), &["spec.mutations: Required value: mutations must contain at least one item"]),
            (
                json!({"reinvocationPolicy": "Often", "mutations": [{"patchType": "Odd"}]}),
                &[
                    r#"spec.mutations[0].patchType: Unsupported value: "Odd": supported values: "ApplyConfiguration", "JSONPatch""#,
                    r#"spec.reinvocationPolicy: Unsupported value: "Often": supported values: "IfNeeded", "Never""#,
                ],
            ),
            (
                json!({"mutations": [{"patchType": "JSONPatch"}, {"patchType": "JSONPatch", "jsonPatch": {"expression": " "}}]}),
                &[
                    "spec.mutations[0].jsonPatch: Required value: must be specified when patchType is JSONPatch",
                    "spec.mutations[1].jsonPatch.expression: Required value",
                ],
            ),
            (
                json!({"mutations": [
                    {"patchType": "JSONPatch", "jsonPatch": {"expression": "Object{}"}},
                    {"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": "1"}},
                ]}),
                &[
                    r#"spec.mutations[0].jsonPatch.expression: Invalid value: "Object{}": must evaluate to list(JSONPatch)"#,
                    r#"spec.mutations[1].applyConfiguration.expression: Invalid value: "1": must evaluate to Object"#,
                ],
            ),
            (json!({"matchConstraints": null}), &["spec.matchConstraints: Required value"]),
        ];
        for (change, expected) in cases {
            assert_refused::<MutatingAdmissionPolicyRules>(with(&policy(), json!({"spec": change})), expected);
        }
    }
}
