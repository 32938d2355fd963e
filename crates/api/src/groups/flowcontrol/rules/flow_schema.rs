//! FlowSchema: which requests go to which priority level.

use k8s_openapi::api::flowcontrol::v1::{FlowSchema, FlowSchemaSpec};

use super::{policy_rules::validate_rules, validate_conditions};
use crate::{
    field::{Errors, FieldError, Path},
    groups::flowcontrol::bootstrap,
    strategy::Rules,
    validation::{
        check::{fill_number, list, shown, text},
        names,
    },
};

pub struct FlowSchemaRules;

const DEFAULT_PRECEDENCE: i32 = 1000;
const MAX_PRECEDENCE: i32 = 10_000;
/// The one schema that may come first.
const EXEMPT: &str = "exempt";

impl Rules for FlowSchemaRules {
    type Object = FlowSchema;

    fn default(object: &mut FlowSchema) {
        fill_number(&mut object.spec.matching_precedence, DEFAULT_PRECEDENCE);
    }

    fn prepare_create(object: &mut FlowSchema) {
        object.status = Some(Default::default());
    }

    fn validate(object: &FlowSchema, errors: &mut Errors) {
        let (name, path) = (text(&object.metadata.name), Path::new("spec"));
        validate_spec(name, &object.spec, &path, errors);
        let fixed = bootstrap::mandatory_flow_schemas().into_iter().find(|schema| text(&schema.metadata.name) == name);
        if fixed.is_some_and(|fixed| fixed.spec != object.spec) {
            let words = format!("spec of '{name}' must equal the fixed value");
            errors.push(FieldError::invalid(&path, shown(&object.spec), words));
        }
    }

    fn validate_status(object: &FlowSchema, _: &FlowSchema, errors: &mut Errors) {
        let Some(status) = &object.status else { return };
        validate_conditions(list(&status.conditions).iter().map(|condition| condition.type_.as_str()), errors);
    }
}

fn validate_spec(name: &str, spec: &FlowSchemaSpec, path: &Path, errors: &mut Errors) {
    let (precedence, at) = (spec.matching_precedence.unwrap_or_default(), path.child("matchingPrecedence"));
    if precedence <= 0 {
        errors.push(FieldError::invalid(&at, precedence, "must be a positive value"));
    }
    if precedence > MAX_PRECEDENCE {
        errors.push(FieldError::invalid(&at, precedence, format!("must not be greater than {MAX_PRECEDENCE}")));
    }
    if precedence == 1 && name != EXEMPT {
        let words = "only the schema named 'exempt' may have matchingPrecedence 1";
        errors.push(FieldError::invalid(&at, precedence, words));
    }
    if let Some(method) = &spec.distinguisher_method {
        let supported = ["ByNamespace", "ByUser"];
        if !supported.contains(&method.type_.as_str()) {
            let at = path.child("distinguisherMethod").child("type");
            errors.push(FieldError::not_supported(&at, shown(method), &supported));
        }
    }
    let (level, at) = (&spec.priority_level_configuration.name, path.child("priorityLevelConfiguration").child("name"));
    if level.is_empty() {
        errors.push(FieldError::required(&at, "must reference a priority level"));
    } else {
        names::refuse(level, &at, names::dns1123_subdomain, errors);
    }
    for (i, rule) in list(&spec.rules).iter().enumerate() {
        validate_rules(rule, &path.child("rules").index(i), errors);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::validation::testing::{assert_refused, assert_status, completed, with};

    fn schema() -> Value {
        json!({
            "apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": "FlowSchema", "metadata": {"name": "mine"},
            "spec": {
                "matchingPrecedence": 500, "priorityLevelConfiguration": {"name": "workload-low"},
                "rules": [{
                    "subjects": [{"kind": "Group", "group": {"name": "dev"}}],
                    "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "namespaces": ["*"]}],
                }],
            },
        })
    }

    #[test]
    fn a_schema_without_a_precedence_gets_upstreams() {
        let given = with(&schema(), json!({"spec": {"matchingPrecedence": null}}));
        assert_eq!(completed::<FlowSchemaRules>(given)["spec"]["matchingPrecedence"], 1000);
    }

    #[test]
    fn bad_schemas_are_refused_with_upstreams_messages() {
        assert_refused::<FlowSchemaRules>(schema(), &[]);
        let cases: &[(Value, &[&str])] = &[
            (
                json!({"matchingPrecedence": 10001}),
                &["spec.matchingPrecedence: Invalid value: 10001: must not be greater than 10000"],
            ),
            (
                json!({"matchingPrecedence": 1}),
                &[
                    "spec.matchingPrecedence: Invalid value: 1: only the schema named 'exempt' may have matchingPrecedence 1",
                ],
            ),
            (
                json!({"matchingPrecedence": -1, "priorityLevelConfiguration": {"name": ""}}),
                &[
                    "spec.matchingPrecedence: Invalid value: -1: must be a positive value",
                    "spec.priorityLevelConfiguration.name: Required value: must reference a priority level",
                ],
            ),
            (
                json!({"distinguisherMethod": {"type": "ByMoon"}}),
                &[
                    r#"spec.distinguisherMethod.type: Unsupported value: {"type":"ByMoon"}: supported values: "ByNamespace", "ByUser""#,
                ],
            ),
        ];
        for (change, expected) in cases {
            assert_refused::<FlowSchemaRules>(with(&schema(), json!({"spec": change})), expected);
        }
    }

    #[test]
    fn the_mandatory_ones_keep_their_spec() {
        for fixed in bootstrap::mandatory_flow_schemas() {
            let mut object = serde_json::to_value(&fixed).unwrap();
            assert_refused::<FlowSchemaRules>(object.clone(), &[]);
            object["spec"]["priorityLevelConfiguration"]["name"] = json!("workload-low");
            let spec = object["spec"].to_string();
            let name = text(&fixed.metadata.name);
            let expected = format!("spec: Invalid value: {spec}: spec of '{name}' must equal the fixed value");
            assert_refused::<FlowSchemaRules>(object, &[&expected]);
        }
    }

    #[test]
    fn a_condition_is_there_once() {
        assert_status::<FlowSchemaRules>(
            &schema(),
            json!({"status": {"conditions": [{"type": "Dangling"}, {"type": "Dangling"}, {"type": ""}]}}),
            &[
                r#"status.conditions[1].type: Duplicate value: "Dangling""#,
                "status.conditions[2].type: Required value: must not be empty",
            ],
        );
    }
}
