//! Which requests a webhook or an admission policy is about: operations, resources, scope and selectors.
//!
//! Pure: the namespace is given by whoever read it.

use std::sync::Arc;

use mainstay_api::{descriptor::Descriptor, registry::Registry, selector::Labels};
use serde_json::{Value, json};

use crate::objects::guaranteed_update::Part;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Create,
    Update,
    Delete,
    /// A stream or a proxied request.
    Connect,
}

impl Operation {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Create => "CREATE",
            Self::Update => "UPDATE",
            Self::Delete => "DELETE",
            Self::Connect => "CONNECT",
        }
    }
}

/// A request as rules look at it, in one of the versions that its resource is served in.
#[derive(Clone, Copy)]
pub struct Attributes<'a> {
    pub operation: Operation,
    pub d: &'a Descriptor,
    pub subresource: &'a str,
    pub namespace: Option<&'a str>,
    pub name: &'a str,
}

/// The subresource by which an update reaches a part of an object; nothing for parts that no rule can name.
pub fn subresource_of(part: Part) -> Option<&'static str> {
    use mainstay_api::strategy::SpecPart;
    match part {
        Part::Main => Some(""),
        Part::Status => Some("status"),
        Part::Scale => Some("scale"),
        Part::Approval => Some("approval"),
        Part::Finalize => Some("finalize"),
        Part::Spec(SpecPart::EphemeralContainers) => Some("ephemeralcontainers"),
        Part::Spec(SpecPart::Resources) => Some("resize"),
        Part::Placement => None,
    }
}

/// The kind of object that a request carries if it is not the resource's own: a Scale, an Eviction, options of a connection.
pub fn other_kind<'v>(own: &Descriptor, object: Option<&'v Value>) -> Option<(&'v str, &'v str, &'v str)> {
    let object = object?;
    let kind = object["kind"].as_str().filter(|kind| *kind != &*own.kind)?;
    let api_version = object["apiVersion"].as_str()?;
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    Some((group, version, kind))
}

/// `kind` and `requestKind` of an AdmissionRequest; `matched` is the version of the resource that a rule matched.
pub fn request_kinds(matched: &Descriptor, own: &Descriptor, object: Option<&Value>) -> (Value, Value) {
    if let Some((group, version, kind)) = other_kind(own, object) {
        let kind = json!({"group": group, "version": version, "kind": kind});
        return (kind.clone(), kind);
    }
    let kind = |d: &Descriptor| json!({"group": d.group, "version": d.version, "kind": d.kind});
    (kind(matched), kind(own))
}

fn strings<'v>(rule: &'v Value, field: &str) -> impl Iterator<Item = &'v str> {
    rule[field].as_array().into_iter().flatten().filter_map(Value::as_str)
}

/// Whether a rule (`RuleWithOperations`, or one with `resourceNames`) covers a request.
pub fn rule_matches(rule: &Value, request: &Attributes<'_>) -> bool {
    let has = |field: &str, wanted: &str| strings(rule, field).any(|entry| entry == "*" || entry == wanted);
    let resource = |entry: &str| {
        let (resource, subresource) = entry.split_once('/').unwrap_or((entry, ""));
        (resource == "*" || resource == request.d.plural) && (subresource == "*" || subresource == request.subresource)
    };
    let is_namespace = request.d.is_core("Namespace");
    let in_scope = match rule["scope"].as_str() {
        Some("Namespaced") => request.d.namespaced(),
        Some("Cluster") => is_namespace || !request.d.namespaced(),
        _ => true,
    };
    let mut names = strings(rule, "resourceNames").peekable();
    has("operations", request.operation.as_str())
        && has("apiGroups", &request.d.group)
        && has("apiVersions", &request.d.version)
        && strings(rule, "resources").any(resource)
        && in_scope
        && (names.peek().is_none() || names.any(|name| name == request.name))
}

/// Whether `matchConstraints` or `matchResources` cover a request, selectors apart. Without rules, everything is covered.
pub fn rules_match(resources: &Value, request: &Attributes<'_>) -> bool {
    let rules = |field: &str| resources[field].as_array().into_iter().flatten();
    let excluded = rules("excludeResourceRules").any(|rule| rule_matches(rule, request));
    let mut included = rules("resourceRules").peekable();
    !excluded && (included.peek().is_none() || included.any(|rule| rule_matches(rule, request)))
}

/// The version of a resource that rules cover: the request's own, or, unless `matchPolicy` is `Exact`, another in which the same
/// objects are served, so that nobody evades a rule by an older version.
pub fn matched_version(
    served: &Registry,
    own: &Arc<Descriptor>,
    match_policy: &Value,
    covers: impl Fn(&Descriptor) -> bool,
) -> Option<Arc<Descriptor>> {
    if covers(own) {
        return Some(own.clone());
    }
    if match_policy == "Exact" {
        return None;
    }
    let mut others = served.iter().filter(|d| d.storage == own.storage && d.api_version() != own.api_version());
    others.find(|d| covers(d)).cloned()
}

fn selector(resources: &Value, field: &str) -> Option<Labels> {
    let selector = &resources[field];
    let is_empty = selector.as_object().is_none_or(serde_json::Map::is_empty);
    // What cannot be parsed was refused when it was written.
    if is_empty { None } else { Labels::from_selector(selector).ok() }
}

/// Whether `objectSelector` matches: the object's labels, or those it had.
pub fn object_matches(resources: &Value, object: Option<&Value>, old: Option<&Value>) -> bool {
    let Some(selector) = selector(resources, "objectSelector") else { return true };
    [object, old].into_iter().flatten().any(|object| selector.matches_map(object["metadata"].get("labels")))
}

/// Whether `namespaceSelector` matches. A Namespace is selected by its own labels; other objects of the cluster always.
pub fn namespace_matches(resources: &Value, namespace: Option<&Value>) -> bool {
    match (selector(resources, "namespaceSelector"), namespace) {
        (Some(selector), Some(namespace)) => selector.matches_map(namespace["metadata"].get("labels")),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use mainstay_api::registry::Registry;
    use serde_json::json;

    use super::*;

    fn matches(rule: Value, group: &str, plural: &str, subresource: &str) -> bool {
        let registry = Registry::builtin();
        let d = registry.find(group, "v1", plural).expect("a kind");
        let namespace = d.namespaced().then_some("default");
        rule_matches(&rule, &Attributes { operation: Operation::Create, d, subresource, namespace, name: "x" })
    }

    fn rule(change: Value) -> Value {
        let mut rule =
            json!({"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]});
        for (field, value) in change.as_object().into_iter().flatten() {
            rule[field] = value.clone();
        }
        rule
    }

    #[test]
    fn rules_match_as_upstreams_do() {
        for (change, group, plural, subresource, expected) in [
            (json!({}), "", "pods", "", true),
            (json!({}), "", "pods", "status", false),
            (json!({}), "", "configmaps", "", false),
            (json!({}), "apps", "deployments", "", false),
            (json!({"operations": ["UPDATE"]}), "", "pods", "", false),
            (json!({"operations": ["*"]}), "", "pods", "", true),
            (json!({"apiGroups": ["*"], "resources": ["*"]}), "apps", "deployments", "", true),
            (json!({"resources": ["*"]}), "", "pods", "status", false),
            (json!({"resources": ["pods/*"]}), "", "pods", "status", true),
            (json!({"resources": ["*/status"]}), "", "pods", "status", true),
            (json!({"apiVersions": ["v2"]}), "", "pods", "", false),
            (json!({"scope": "Cluster"}), "", "pods", "", false),
            (json!({"scope": "Namespaced"}), "", "pods", "", true),
            (json!({"scope": "Cluster", "resources": ["namespaces"]}), "", "namespaces", "", true),
            (json!({"resourceNames": ["x"]}), "", "pods", "", true),
            (json!({"resourceNames": ["y"]}), "", "pods", "", false),
        ] {
            assert_eq!(
                matches(rule(change.clone()), group, plural, subresource),
                expected,
                "{change} {plural}/{subresource}"
            );
        }
    }

    #[test]
    fn excluded_rules_win_and_selectors_look_at_both_versions() {
        let registry = Registry::builtin();
        let d = registry.find("", "v1", "pods").expect("pods");
        let request =
            Attributes { operation: Operation::Create, d, subresource: "", namespace: Some("default"), name: "x" };
        assert!(rules_match(&json!({}), &request));
        assert!(rules_match(&json!({"resourceRules": [rule(json!({}))]}), &request));
        let both = json!({"resourceRules": [rule(json!({}))], "excludeResourceRules": [rule(json!({}))]});
        assert!(!rules_match(&both, &request));
        let selector = json!({"objectSelector": {"matchLabels": {"a": "b"}}, "namespaceSelector": {}});
        let (with, without) = (json!({"metadata": {"labels": {"a": "b"}}}), json!({"metadata": {}}));
        assert!(object_matches(&selector, Some(&without), Some(&with)));
        assert!(!object_matches(&selector, Some(&without), None));
        assert!(namespace_matches(&selector, Some(&without)));
        let selector = json!({"namespaceSelector": {"matchLabels": {"a": "b"}}});
        assert!(namespace_matches(&selector, Some(&with)) && !namespace_matches(&selector, Some(&without)));
        assert!(namespace_matches(&selector, None), "an object of the cluster");
    }
}
