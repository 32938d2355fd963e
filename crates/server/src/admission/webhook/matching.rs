//! Which webhooks a write concerns: rules, scope, and selectors of namespaces and objects.
//!
//! `matchPolicy` is taken as `Exact`: a rule for one version of a kind does not match requests for another.

use mainstay_api::{
    descriptor::{Descriptor, Scope},
    selector::Labels,
};
use serde_json::Value;

/// A write, as rules see it.
#[derive(Clone, Copy)]
pub struct Subject<'a> {
    pub d: &'a Descriptor,
    pub subresource: &'a str,
    /// `CREATE`, `UPDATE`, `DELETE`.
    pub operation: &'a str,
    pub object: Option<&'a Value>,
    pub old: Option<&'a Value>,
}

/// Nobody can lock themselves out of the repair of admission itself: as upstream, no webhook is asked about these.
pub fn is_exempt(d: &Descriptor) -> bool {
    d.group == "admissionregistration.k8s.io"
}

/// `namespace_labels` are those of the object's namespace; none for kinds without namespaces.
pub fn matches(hook: &Value, subject: &Subject<'_>, namespace_labels: Option<&Value>) -> bool {
    let rules = hook["rules"].as_array().into_iter().flatten();
    !is_exempt(subject.d)
        && rules.into_iter().any(|rule| matches_rule(rule, subject))
        && in_namespace(hook, subject, namespace_labels)
        && matches_object(hook, subject)
}

fn contains(list: &Value, value: &str) -> bool {
    list.as_array().is_some_and(|list| list.iter().any(|own| own == "*" || own == value))
}

fn matches_rule(rule: &Value, subject: &Subject<'_>) -> bool {
    let d = subject.d;
    let scope = match rule["scope"].as_str() {
        Some("Namespaced") => d.scope == Scope::Namespaced,
        Some("Cluster") => d.scope == Scope::Cluster,
        _ => true,
    };
    let names = |resource: &Value| {
        let (own, sub) = resource.as_str().map(|text| text.split_once('/').unwrap_or((text, ""))).unwrap_or_default();
        (own == "*" || own == d.plural) && (sub == "*" || sub == subject.subresource)
    };
    scope
        && contains(&rule["operations"], subject.operation)
        && contains(&rule["apiGroups"], &d.group)
        && contains(&rule["apiVersions"], &d.version)
        && rule["resources"].as_array().is_some_and(|resources| resources.iter().any(names))
}

/// A selector that cannot be read selects nothing, but validation lets none be stored.
fn selector(selector: &Value) -> Labels {
    if selector.is_null() {
        return Labels::everything();
    }
    Labels::from_selector(selector).unwrap_or_else(|_| Labels::nothing())
}

/// Kinds without namespaces are never left out by the selector; a Namespace is selected by its own labels.
fn in_namespace(hook: &Value, subject: &Subject<'_>, namespace_labels: Option<&Value>) -> bool {
    let selector = selector(&hook["namespaceSelector"]);
    if subject.d.is_core("Namespace") {
        let namespace = subject.object.or(subject.old);
        return selector.matches_map(namespace.and_then(|namespace| namespace["metadata"].get("labels")));
    }
    subject.d.scope == Scope::Cluster || selector.matches_map(namespace_labels)
}

/// It is enough that the object matched before, or does now.
fn matches_object(hook: &Value, subject: &Subject<'_>) -> bool {
    let selector = selector(&hook["objectSelector"]);
    let selects = |object: &Value| selector.matches_map(object["metadata"].get("labels"));
    selector.is_empty() || subject.object.is_some_and(selects) || subject.old.is_some_and(selects)
}

/// Whether an object belongs to what serves a webhook: the Service itself, its endpoints, pods that it selects, and
/// workloads whose pods it selects. While nobody serves the webhook, these can be repaired without it.
pub fn serves(service: Option<&Value>, name: &str, d: &Descriptor, object: &Value) -> bool {
    let metadata = &object["metadata"];
    let by_selector = |labels: &Value| {
        let selector = service.map_or(&Value::Null, |service| &service["spec"]["selector"]);
        selector.as_object().is_some_and(|selector| !selector.is_empty())
            && Labels::from_map(selector).matches_map(Some(labels))
    };
    match (&*d.group, &*d.plural) {
        ("", "services" | "endpoints") => metadata["name"] == name,
        ("discovery.k8s.io", "endpointslices") => metadata["labels"]["kubernetes.io/service-name"] == name,
        ("", "pods") => by_selector(&metadata["labels"]),
        ("apps", "deployments" | "replicasets" | "statefulsets" | "daemonsets") | ("", "replicationcontrollers") => {
            by_selector(&object["spec"]["template"]["metadata"]["labels"])
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use mainstay_api::registry::Registry;
    use serde_json::json;

    use super::*;

    fn hook(rule: Value) -> Value {
        let mut all = json!({
            "operations": ["*"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "scope": "*",
        });
        all.as_object_mut().unwrap().extend(rule.as_object().unwrap().clone());
        json!({ "rules": [all] })
    }

    fn asked(hook: &Value, plural: &str, subresource: &str, operation: &str, labels: Value) -> bool {
        let registry = Registry::builtin();
        let d = registry.find("", "v1", plural).unwrap();
        let object = json!({ "metadata": { "labels": labels } });
        let subject = Subject { d, subresource, operation, object: Some(&object), old: None };
        matches(hook, &subject, Some(&json!({ "team": "a" })))
    }

    #[test]
    fn rules_match_by_resource_operation_and_scope() {
        let none = || json!({});
        for (rule, plural, subresource, operation, expected) in [
            (json!({}), "pods", "", "CREATE", true),
            (json!({}), "pods", "status", "UPDATE", false),
            (json!({}), "services", "", "CREATE", false),
            (json!({ "operations": ["DELETE"] }), "pods", "", "CREATE", false),
            (json!({ "apiVersions": ["v2"] }), "pods", "", "CREATE", false),
            (json!({ "apiGroups": ["*"], "resources": ["*"] }), "services", "", "CREATE", true),
            (json!({ "resources": ["*"] }), "pods", "status", "UPDATE", false),
            (json!({ "resources": ["*/*"] }), "pods", "status", "UPDATE", true),
            (json!({ "resources": ["pods/*"] }), "pods", "", "UPDATE", true),
            (json!({ "resources": ["pods/status"] }), "pods", "status", "UPDATE", true),
            (json!({ "resources": ["*/status"] }), "pods", "", "UPDATE", false),
            (json!({ "scope": "Cluster" }), "pods", "", "CREATE", false),
            (json!({ "scope": "Namespaced", "resources": ["*"] }), "nodes", "", "CREATE", false),
        ] {
            let shown = rule.to_string();
            assert_eq!(
                asked(&hook(rule), plural, subresource, operation, none()),
                expected,
                "{shown} {plural}/{subresource}"
            );
        }
    }

    #[test]
    fn selectors_narrow_by_labels_of_namespace_and_object() {
        let with = |field: &str, selector: Value| {
            let mut hook = hook(json!({ "resources": ["*"] }));
            hook[field] = selector;
            hook
        };
        let label = |value: &str| json!({ "matchLabels": { "team": value } });
        assert!(asked(&with("namespaceSelector", label("a")), "pods", "", "CREATE", json!({})));
        assert!(!asked(&with("namespaceSelector", label("b")), "pods", "", "CREATE", json!({})));
        assert!(asked(&with("namespaceSelector", label("b")), "nodes", "", "CREATE", json!({})), "no namespace");
        assert!(asked(&with("namespaceSelector", label("c")), "namespaces", "", "CREATE", json!({ "team": "c" })));
        assert!(asked(&with("objectSelector", label("x")), "pods", "", "CREATE", json!({ "team": "x" })));
        assert!(!asked(&with("objectSelector", label("x")), "pods", "", "CREATE", json!({ "team": "y" })));
    }

    #[test]
    fn no_webhook_is_asked_about_webhooks() {
        let registry = Registry::builtin();
        let d = registry.find("admissionregistration.k8s.io", "v1", "validatingwebhookconfigurations").unwrap();
        let hook = hook(json!({ "apiGroups": ["*"], "resources": ["*"] }));
        let subject = Subject { d, subresource: "", operation: "CREATE", object: None, old: None };
        assert!(!matches(&hook, &subject, None));
    }

    #[test]
    fn what_serves_a_webhook_is_known_by_its_service() {
        let registry = Registry::builtin();
        let service = json!({ "metadata": { "name": "hook" }, "spec": { "selector": { "app": "hook" } } });
        let served = |group: &str, plural: &str, object: Value| {
            serves(Some(&service), "hook", registry.find(group, "v1", plural).unwrap(), &object)
        };
        let labels = json!({ "app": "hook", "v": "2" });
        assert!(served("", "pods", json!({ "metadata": { "labels": labels } })));
        assert!(!served("", "pods", json!({ "metadata": { "labels": { "app": "web" } } })));
        let template = json!({ "spec": { "template": { "metadata": { "labels": labels } } } });
        assert!(served("apps", "deployments", template));
        assert!(served("", "services", json!({ "metadata": { "name": "hook" } })));
        assert!(!served("", "configmaps", json!({ "metadata": { "name": "hook", "labels": labels } })));
    }
}
