//! Which webhooks a write concerns, by the rules and selectors that policies have as well.

use std::sync::Arc;

use mainstay_api::{descriptor::Descriptor, registry::Registry, selector::Labels};
use serde_json::Value;

use crate::admission::matching::{self, Attributes, Operation};

/// A write, as rules see it.
#[derive(Clone, Copy)]
pub struct Subject<'a> {
    pub d: &'a Descriptor,
    pub subresource: &'a str,
    pub operation: Operation,
    pub object: Option<&'a Value>,
    pub old: Option<&'a Value>,
}

/// Nobody can lock themselves out of the repair of admission itself: as upstream, no webhook is asked about these.
pub fn is_exempt(d: &Descriptor) -> bool {
    d.group == "admissionregistration.k8s.io"
}

/// The version of the resource in which a webhook is asked about a write; nothing if it is not. `namespace` is the object's.
pub fn matched_version(
    hook: &Value,
    served: &Registry,
    own: &Arc<Descriptor>,
    subject: &Subject<'_>,
    namespace: Option<&Value>,
) -> Option<Arc<Descriptor>> {
    if is_exempt(own) || !matching::object_matches(hook, subject.object, subject.old) {
        return None;
    }
    let namespace = if own.is_core("Namespace") { subject.object.or(subject.old) } else { namespace };
    if !matching::namespace_matches(hook, namespace) {
        return None;
    }
    let covers = |d: &Descriptor| {
        let Subject { operation, subresource, .. } = *subject;
        let attributes = Attributes { operation, d, subresource, namespace: None, name: "" };
        hook["rules"].as_array().into_iter().flatten().any(|rule| matching::rule_matches(rule, &attributes))
    };
    matching::matched_version(served, own, &hook["matchPolicy"], covers)
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
        let operation = match operation {
            "CREATE" => Operation::Create,
            "UPDATE" => Operation::Update,
            _ => Operation::Delete,
        };
        let subject = Subject { d, subresource, operation, object: Some(&object), old: None };
        let namespace = json!({ "metadata": { "labels": { "team": "a" } } });
        matched_version(hook, &registry, d, &subject, d.namespaced().then_some(&namespace)).is_some()
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
    fn a_rule_for_another_version_of_the_same_objects_matches_unless_it_is_exact() {
        let registry = Registry::builtin();
        let own = registry.find("autoscaling", "v1", "horizontalpodautoscalers").unwrap();
        let object = json!({});
        let subject =
            Subject { d: own, subresource: "", operation: Operation::Create, object: Some(&object), old: None };
        let mut hook = hook(json!({
            "apiGroups": ["autoscaling"], "apiVersions": ["v2"], "resources": ["horizontalpodautoscalers"],
        }));
        let matched = |hook: &Value| matched_version(hook, &registry, own, &subject, None).map(|d| d.api_version());
        assert_eq!(matched(&hook).as_deref(), Some("autoscaling/v2"));
        hook["matchPolicy"] = json!("Exact");
        assert_eq!(matched(&hook), None);
    }

    #[test]
    fn no_webhook_is_asked_about_webhooks() {
        let registry = Registry::builtin();
        let d = registry.find("admissionregistration.k8s.io", "v1", "validatingwebhookconfigurations").unwrap();
        let hook = hook(json!({ "apiGroups": ["*"], "resources": ["*"] }));
        let subject = Subject { d, subresource: "", operation: Operation::Create, object: None, old: None };
        assert!(matched_version(&hook, &registry, d, &subject, None).is_none());
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
