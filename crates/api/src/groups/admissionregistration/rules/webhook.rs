//! Webhooks that judge objects, and webhooks that change them.

use k8s_openapi::{
    api::admissionregistration::v1::{
        MatchCondition, MutatingWebhook, MutatingWebhookConfiguration, RuleWithOperations, ValidatingWebhook,
        ValidatingWebhookConfiguration, WebhookClientConfig,
    },
    apimachinery::pkg::apis::meta::v1::LabelSelector,
};

use super::{
    expressions::PolicyExpressions,
    matching::{MATCH_POLICIES, Rule, validate_conditions},
    webhook_client,
};
use crate::{
    field::{Errors, FieldError, Path},
    strategy::Rules,
    validation::{
        check::{fill, list, one_of, optional_one_of, shown, unique},
        labels, names,
    },
};

pub struct ValidatingWebhookConfigurationRules;
pub struct MutatingWebhookConfigurationRules;

const SIDE_EFFECTS: &[&str] = &["None", "NoneOnDryRun"];
const REVIEW_VERSIONS: &[&str] = &["v1", "v1beta1"];

/// What both kinds of webhook have; generated types share no trait.
struct Hook<'a> {
    name: &'a str,
    client: &'a WebhookClientConfig,
    rules: &'a [RuleWithOperations],
    failure_policy: &'a Option<String>,
    match_policy: &'a Option<String>,
    namespace_selector: &'a Option<LabelSelector>,
    object_selector: &'a Option<LabelSelector>,
    side_effects: &'a str,
    timeout_seconds: Option<i32>,
    review_versions: &'a [String],
    conditions: &'a [MatchCondition],
}

macro_rules! hook {
    ($hook:expr) => {
        Hook {
            name: &$hook.name,
            client: &$hook.client_config,
            rules: list(&$hook.rules),
            failure_policy: &$hook.failure_policy,
            match_policy: &$hook.match_policy,
            namespace_selector: &$hook.namespace_selector,
            object_selector: &$hook.object_selector,
            side_effects: &$hook.side_effects,
            timeout_seconds: $hook.timeout_seconds,
            review_versions: &$hook.admission_review_versions,
            conditions: list(&$hook.match_conditions),
        }
    };
}

macro_rules! default_hook {
    ($hook:expr) => {
        fill(&mut $hook.failure_policy, "Fail");
        fill(&mut $hook.match_policy, "Equivalent");
        $hook.namespace_selector.get_or_insert_default();
        $hook.object_selector.get_or_insert_default();
        $hook.timeout_seconds.get_or_insert(10);
        webhook_client::default(&mut $hook.client_config);
        $hook.rules.iter_mut().flatten().for_each(|rule| fill(&mut rule.scope, "*"));
    };
}

impl Rules for ValidatingWebhookConfigurationRules {
    type Object = ValidatingWebhookConfiguration;

    fn default(object: &mut ValidatingWebhookConfiguration) {
        for hook in object.webhooks.iter_mut().flatten() {
            default_hook!(hook);
        }
    }

    fn validate(object: &ValidatingWebhookConfiguration, errors: &mut Errors) {
        let hooks: Vec<_> = list(&object.webhooks).iter().map(|hook: &ValidatingWebhook| hook!(hook)).collect();
        validate_hooks(&hooks, errors);
    }
}

impl Rules for MutatingWebhookConfigurationRules {
    type Object = MutatingWebhookConfiguration;

    fn default(object: &mut MutatingWebhookConfiguration) {
        for hook in object.webhooks.iter_mut().flatten() {
            default_hook!(hook);
            fill(&mut hook.reinvocation_policy, "Never");
        }
    }

    fn validate(object: &MutatingWebhookConfiguration, errors: &mut Errors) {
        let hooks: Vec<_> = list(&object.webhooks).iter().map(|hook: &MutatingWebhook| hook!(hook)).collect();
        validate_hooks(&hooks, errors);
        for (i, hook) in list(&object.webhooks).iter().enumerate() {
            let path = Path::new("webhooks").index(i).child("reinvocationPolicy");
            optional_one_of(&hook.reinvocation_policy, &["IfNeeded", "Never"], &path, errors);
        }
    }
}

fn validate_hooks(hooks: &[Hook<'_>], errors: &mut Errors) {
    let path = Path::new("webhooks");
    for (i, hook) in hooks.iter().enumerate() {
        hook.validate(&path.index(i), errors);
    }
    let named = hooks.iter().enumerate().filter(|(_, hook)| !hook.name.is_empty());
    unique(named.map(|(i, hook)| (path.index(i).child("name"), hook.name)), errors);
}

impl Hook<'_> {
    fn validate(&self, path: &Path, errors: &mut Errors) {
        validate_name(self.name, &path.child("name"), errors);
        for (i, rule) in self.rules.iter().enumerate() {
            Rule::from(rule).validate(&path.child("rules").index(i), errors);
        }
        optional_one_of(self.failure_policy, &["Fail", "Ignore"], &path.child("failurePolicy"), errors);
        optional_one_of(self.match_policy, MATCH_POLICIES, &path.child("matchPolicy"), errors);
        let at = path.child("sideEffects");
        if self.side_effects.is_empty() {
            errors.push(FieldError::required(&at, format!("must specify one of {}", SIDE_EFFECTS.join(", "))));
        } else {
            one_of(self.side_effects, SIDE_EFFECTS, &at, errors);
        }
        if let Some(timeout) = self.timeout_seconds.filter(|timeout| !(1..=30).contains(timeout)) {
            let words = "the timeout value must be between 1 and 30 seconds";
            errors.push(FieldError::invalid(&path.child("timeoutSeconds"), timeout, words));
        }
        for (name, selector) in
            [("namespaceSelector", self.namespace_selector), ("objectSelector", self.object_selector)]
        {
            if let Some(selector) = selector {
                labels::validate_selector(selector, &path.child(name), errors);
            }
        }
        webhook_client::validate(self.client, &path.child("clientConfig"), errors);
        let at = path.child("matchConditions");
        validate_conditions(self.conditions, &at, errors);
        let expressions = PolicyExpressions::for_webhook();
        for (i, condition) in self.conditions.iter().enumerate() {
            expressions.check_bool(&condition.expression, &at.index(i).child("expression"), errors);
        }
        validate_versions(self.review_versions, &path.child("admissionReviewVersions"), errors);
    }
}

/// A domain name of at least three parts.
fn validate_name(name: &str, path: &Path, errors: &mut Errors) {
    let complaints = names::dns1123_subdomain(name);
    if name.is_empty() {
        errors.push(FieldError::required(path, ""));
    } else if !complaints.is_empty() {
        errors.push(FieldError::invalid(path, name, complaints.join(",")));
    } else if name.split('.').count() < 3 {
        let words = "should be a domain with at least three segments separated by dots";
        errors.push(FieldError::invalid(path, name, words));
    }
}

fn validate_versions(versions: &[String], path: &Path, errors: &mut Errors) {
    let known = REVIEW_VERSIONS.join(", ");
    if versions.is_empty() {
        errors.push(FieldError::required(path, format!("must specify one of {known}")));
        return;
    }
    for (i, version) in versions.iter().enumerate() {
        if versions[..i].contains(version) {
            errors.push(FieldError::invalid(&path.index(i), version.as_str(), "duplicate version"));
        } else {
            names::refuse(version, &path.index(i), names::dns1035_label, errors);
        }
    }
    if !versions.iter().any(|version| REVIEW_VERSIONS.contains(&version.as_str())) {
        errors.push(FieldError::invalid(path, shown(&versions), format!("must include at least one of {known}")));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::validation::testing::{assert_completes, assert_refused, with};

    fn hook() -> Value {
        json!({
            "name": "check.example.com", "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "clientConfig": {"service": {"name": "check", "namespace": "default"}},
            "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}],
        })
    }

    fn configuration(kind: &str, hooks: Value) -> Value {
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": "check"}, "webhooks": hooks,
        })
    }

    #[test]
    fn a_minimal_webhook_is_completed() {
        let stored = with(
            &hook(),
            json!({
                "failurePolicy": "Fail", "matchPolicy": "Equivalent", "namespaceSelector": {}, "objectSelector": {},
                "timeoutSeconds": 10, "clientConfig": {"service": {"port": 443}},
                "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "scope": "*"}],
            }),
        );
        assert_completes::<ValidatingWebhookConfigurationRules>(
            configuration("ValidatingWebhookConfiguration", json!([hook()])),
            configuration("ValidatingWebhookConfiguration", json!([stored])),
        );
        assert_completes::<MutatingWebhookConfigurationRules>(
            configuration("MutatingWebhookConfiguration", json!([hook()])),
            configuration(
                "MutatingWebhookConfiguration",
                json!([with(&stored, json!({"reinvocationPolicy": "Never"}))]),
            ),
        );
    }

    #[test]
    fn bad_webhooks_are_refused_with_upstreams_messages() {
        let cases: &[(Value, &[&str])] = &[
            (
                json!({"name": "check"}),
                &[
                    r#"webhooks[0].name: Invalid value: "check": should be a domain with at least three segments separated by dots"#,
                ],
            ),
            (
                json!({"sideEffects": null}),
                &["webhooks[0].sideEffects: Required value: must specify one of None, NoneOnDryRun"],
            ),
            (
                json!({"sideEffects": "Some", "timeoutSeconds": 31, "failurePolicy": "Warn"}),
                &[
                    r#"webhooks[0].failurePolicy: Unsupported value: "Warn": supported values: "Fail", "Ignore""#,
                    r#"webhooks[0].sideEffects: Unsupported value: "Some": supported values: "None", "NoneOnDryRun""#,
                    "webhooks[0].timeoutSeconds: Invalid value: 31: the timeout value must be between 1 and 30 seconds",
                ],
            ),
            (
                json!({"clientConfig": {"service": null}}),
                &["webhooks[0].clientConfig: Required value: exactly one of url or service is required"],
            ),
            (
                json!({"clientConfig": {"service": null, "url": "http://me@host/?a=b"}}),
                &[
                    r#"webhooks[0].clientConfig.url: Invalid value: "http": 'https' is the only allowed URL scheme; desired format: https://host[/path]"#,
                    r#"webhooks[0].clientConfig.url: Invalid value: "me": user information is not permitted in the URL"#,
                    r#"webhooks[0].clientConfig.url: Invalid value: "a=b": query parameters are not permitted in the URL"#,
                ],
            ),
            (
                json!({"admissionReviewVersions": ["v2"]}),
                &[
                    r#"webhooks[0].admissionReviewVersions: Invalid value: ["v2"]: must include at least one of v1, v1beta1"#,
                ],
            ),
            (
                json!({"rules": [{"operations": ["*", "READ"], "apiGroups": [""], "resources": ["pods/*", "pods/log", "*", "a"]}]}),
                &[
                    r#"webhooks[0].rules[0].operations: Invalid value: ["*","READ"]: if '*' is present, must not specify other operations"#,
                    r#"webhooks[0].rules[0].operations[1]: Unsupported value: "READ": supported values: "*", "CONNECT", "CREATE", "DELETE", "UPDATE""#,
                    "webhooks[0].rules[0].apiVersions: Required value",
                    r#"webhooks[0].rules[0].resources[1]: Invalid value: "pods/log": if 'pods/*' is present, must not specify pods/log"#,
                    r#"webhooks[0].rules[0].resources: Invalid value: ["pods/*","pods/log","*","a"]: if '*' is present, must not specify other resources without subresources"#,
                ],
            ),
            (
                json!({"matchConditions": [{"name": "", "expression": " "}]}),
                &[
                    "webhooks[0].matchConditions[0].expression: Required value",
                    "webhooks[0].matchConditions[0].name: Required value",
                ],
            ),
        ];
        for (change, expected) in cases {
            let hooks = json!([with(&hook(), change.clone())]);
            assert_refused::<ValidatingWebhookConfigurationRules>(
                configuration("ValidatingWebhookConfiguration", hooks),
                expected,
            );
        }
        assert_refused::<MutatingWebhookConfigurationRules>(
            configuration(
                "MutatingWebhookConfiguration",
                json!([hook(), with(&hook(), json!({"reinvocationPolicy": "Often"}))]),
            ),
            &[
                r#"webhooks[1].name: Duplicate value: "check.example.com""#,
                r#"webhooks[1].reinvocationPolicy: Unsupported value: "Often": supported values: "IfNeeded", "Never""#,
            ],
        );
    }
}
