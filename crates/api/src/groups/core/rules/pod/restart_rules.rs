//! How one container is restarted, where that differs from its pod: `restartPolicy` and `restartPolicyRules`.

use k8s_openapi::api::core::v1::{Container, ContainerRestartRule};

use crate::{
    field::{Errors, FieldError, Path},
    validation::check::{list, one_of, optional_one_of, required_one_of, shown},
};

const MAX_RULES: usize = 20;
const MAX_EXIT_CODES: usize = 255;
const POLICIES: &[&str] = &["Always", "Never", "OnFailure"];
const ACTIONS: &[&str] = &["Restart", "RestartAllContainers"];

pub(super) fn validate(container: &Container, path: &Path, errors: &mut Errors) {
    optional_one_of(&container.restart_policy, POLICIES, &path.child("restartPolicy"), errors);
    let (rules, at) = (list(&container.restart_policy_rules), path.child("restartPolicyRules"));
    if !rules.is_empty() && container.restart_policy.is_none() {
        let words = "must specify restartPolicy when restart rules are used";
        errors.push(FieldError::required(&path.child("restartPolicy"), words));
    }
    if rules.len() > MAX_RULES {
        errors.push(FieldError::too_many(&at, rules.len(), MAX_RULES));
    }
    for (i, rule) in rules.iter().enumerate() {
        validate_rule(rule, &at.index(i), errors);
    }
}

fn validate_rule(rule: &ContainerRestartRule, path: &Path, errors: &mut Errors) {
    required_one_of(&rule.action, ACTIONS, &path.child("action"), errors);
    let at = path.child("exitCodes");
    let Some(codes) = &rule.exit_codes else {
        errors.push(FieldError::required(&at, "must be specified"));
        return;
    };
    one_of(&codes.operator, &["In", "NotIn"], &at.child("operator"), errors);
    let (values, at) = (list(&codes.values), at.child("values"));
    if values.is_empty() {
        errors.push(FieldError::invalid(&at, shown(&values), "at least one value must be specified"));
    } else if values.len() > MAX_EXIT_CODES {
        errors.push(FieldError::too_many(&at, values.len(), MAX_EXIT_CODES));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn complaints(container: Value) -> Vec<String> {
        let mut errors = Errors::new();
        validate(&serde_json::from_value(container).unwrap(), &Path::new("c"), &mut errors);
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn rules_need_a_policy_an_action_and_exit_codes() {
        let rule = json!({"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}});
        let named = |policy: Value, rules: Value| {
            complaints(json!({"name": "c", "restartPolicy": policy, "restartPolicyRules": rules}))
        };
        assert_eq!(named(json!("Never"), json!([rule])), [""; 0]);
        assert_eq!(
            named(Value::Null, json!([rule])),
            ["c.restartPolicy: Required value: must specify restartPolicy when restart rules are used"]
        );
        assert_eq!(
            named(
                json!("Sometimes"),
                json!([{"action": "Dance"}, {"action": "Restart", "exitCodes": {"operator": "Is"}}])
            ),
            [
                r#"c.restartPolicy: Unsupported value: "Sometimes": supported values: "Always", "Never", "OnFailure""#,
                r#"c.restartPolicyRules[0].action: Unsupported value: "Dance": supported values: "Restart", "RestartAllContainers""#,
                "c.restartPolicyRules[0].exitCodes: Required value: must be specified",
                r#"c.restartPolicyRules[1].exitCodes.operator: Unsupported value: "Is": supported values: "In", "NotIn""#,
                "c.restartPolicyRules[1].exitCodes.values: Invalid value: []: at least one value must be specified",
            ]
        );
    }
}
