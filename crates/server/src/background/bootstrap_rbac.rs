//! Brings a cluster to the roles and bindings of `bootstrap_policy`, as upstream does at every start: what is missing is
//! made, rules and subjects that are missing are added, what people added stays. An object whose annotation
//! `rbac.authorization.kubernetes.io/autoupdate` is `"false"` is left alone.

use futures::{StreamExt, stream};
use http::{Method, StatusCode};
use mainstay_api::wellknown::namespace::SYSTEM;
use serde_json::{Map, Value, json};

use super::bootstrap::{BootstrapClient, BootstrapError, failed};
use crate::authorize::rbac::{
    PolicyRule,
    bootstrap_policy::{
        AGGREGATED_ROLES, CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES, NAMESPACED_ROLES, RuleSpec, SubjectSpec,
    },
    controller_policy::{CONTROLLERS, PARTS},
    missing,
};

const ROOT: &str = "/apis/rbac.authorization.k8s.io/v1";
const GROUP: &str = "rbac.authorization.k8s.io";
const AUTOUPDATE: &str = "rbac.authorization.kubernetes.io/autoupdate";
/// How many objects are looked at and written at a time.
const AT_ONCE: usize = 16;

/// One wanted object and where it belongs.
struct BootstrapObject {
    collection: String,
    object: Value,
}

impl BootstrapObject {
    fn name(&self) -> &str {
        self.object["metadata"]["name"].as_str().unwrap_or_default()
    }
}

pub async fn reconcile(client: &BootstrapClient<'_>) -> Result<(), BootstrapError> {
    let wanted = cluster_roles().into_iter().chain(bindings()).chain(namespaced()).chain(own_parts());
    let mut results = stream::iter(wanted).map(|wanted| ensure(client, wanted)).buffer_unordered(AT_ONCE);
    while let Some(result) = results.next().await {
        result?;
    }
    Ok(())
}

async fn ensure(client: &BootstrapClient<'_>, wanted: BootstrapObject) -> Result<(), BootstrapError> {
    let path = format!("{}/{}", wanted.collection, wanted.name());
    let (code, mut existing) = client.call(Method::GET, &path, None).await;
    let (code, status) = match code {
        StatusCode::NOT_FOUND => client.call(Method::POST, &wanted.collection, Some(&wanted.object)).await,
        StatusCode::OK if complete(&mut existing, &wanted.object) => {
            client.call(Method::PUT, &path, Some(&existing)).await
        }
        _ => (code, existing),
    };
    match code {
        // Another server may be faster.
        StatusCode::OK | StatusCode::CREATED | StatusCode::CONFLICT => Ok(()),
        _ => Err(failed(&wanted.collection, wanted.name(), &status)),
    }
}

/// Adds to an existing object what it lacks; whether it lacked anything.
fn complete(existing: &mut Value, wanted: &Value) -> bool {
    if existing["metadata"]["annotations"][AUTOUPDATE] == "false" {
        return false;
    }
    let before = existing.clone();
    for field in ["labels", "annotations"] {
        let Some(entries) = wanted["metadata"][field].as_object() else { continue };
        let own = &mut existing["metadata"][field];
        if !own.is_object() {
            *own = Value::Object(Map::new());
        }
        for (key, value) in entries {
            own[key] = value.clone();
        }
    }
    if let Some(aggregation) = wanted.get("aggregationRule") {
        add_missing(&mut existing["aggregationRule"]["clusterRoleSelectors"], &aggregation["clusterRoleSelectors"]);
    } else {
        add_rules(&mut existing["rules"], &wanted["rules"]);
    }
    add_missing(&mut existing["subjects"], &wanted["subjects"]);
    *existing != before
}

/// Rules of `wanted` that the existing ones do not cover.
fn add_rules(existing: &mut Value, wanted: &Value) {
    let parse = |rules: &Value| serde_json::from_value::<Vec<PolicyRule>>(rules.clone()).unwrap_or_default();
    let lacking = missing(&parse(existing), &parse(wanted));
    if !lacking.is_empty() {
        let rules = existing.as_array().cloned().unwrap_or_default();
        *existing = rules.into_iter().chain(lacking.iter().map(|rule| json!(rule))).collect();
    }
}

fn add_missing(existing: &mut Value, wanted: &Value) {
    for item in wanted.as_array().into_iter().flatten() {
        if !existing.as_array().is_some_and(|items| items.contains(item)) {
            let items = existing.as_array().cloned().unwrap_or_default();
            *existing = items.into_iter().chain([item.clone()]).collect();
        }
    }
}

fn metadata(name: &str) -> Value {
    json!({
        "name": name,
        "labels": { "kubernetes.io/bootstrapping": "rbac-defaults" },
        "annotations": { AUTOUPDATE: "true" },
    })
}

fn aggregate_label(role: &str) -> String {
    format!("{GROUP}/aggregate-to-{role}")
}

fn cluster_roles() -> Vec<BootstrapObject> {
    let collection = || format!("{ROOT}/clusterroles");
    let plain = CLUSTER_ROLES.iter().map(|role| {
        let mut object = json!({ "metadata": metadata(role.name), "rules": rules(role.rules) });
        for target in role.aggregate_to {
            object["metadata"]["labels"][aggregate_label(target)] = json!("true");
        }
        BootstrapObject { collection: collection(), object }
    });
    let aggregated = AGGREGATED_ROLES.iter().map(|role| {
        let selector = json!({ "matchLabels": { aggregate_label(role.selects): "true" } });
        let mut object =
            json!({ "metadata": metadata(role.name), "aggregationRule": { "clusterRoleSelectors": [selector] } });
        for target in role.labelled_itself {
            object["metadata"]["labels"][aggregate_label(target)] = json!("true");
        }
        BootstrapObject { collection: collection(), object }
    });
    plain.chain(aggregated).collect()
}

fn bindings() -> Vec<BootstrapObject> {
    let wanted = CLUSTER_ROLE_BINDINGS.iter().map(|binding| BootstrapObject {
        collection: format!("{ROOT}/clusterrolebindings"),
        object: cluster_binding(binding.name, binding.role, binding.subjects),
    });
    wanted.collect()
}

/// A role and a binding of the same name for each of our own parts.
fn own_parts() -> impl Iterator<Item = BootstrapObject> {
    let parts = PARTS.iter().map(|(role, subject)| (role.name.to_owned(), role.rules, *subject));
    let controllers = CONTROLLERS.iter().map(|controller| {
        let subject = SubjectSpec::SystemAccount(controller.account);
        (format!("system:controller:{}", controller.account), controller.rules, subject)
    });
    parts.chain(controllers).flat_map(|(name, role_rules, subject)| {
        let role = json!({ "metadata": metadata(&name), "rules": rules(role_rules) });
        [
            BootstrapObject { collection: format!("{ROOT}/clusterroles"), object: role },
            BootstrapObject {
                collection: format!("{ROOT}/clusterrolebindings"),
                object: cluster_binding(&name, &name, &[subject]),
            },
        ]
    })
}

fn cluster_binding(name: &str, role: &str, to: &[SubjectSpec]) -> Value {
    json!({
        "metadata": metadata(name),
        "roleRef": { "apiGroup": GROUP, "kind": "ClusterRole", "name": role },
        "subjects": subjects(to),
    })
}

fn namespaced() -> Vec<BootstrapObject> {
    let pairs = NAMESPACED_ROLES.iter().flat_map(|role| {
        let collection = |plural: &str| format!("{ROOT}/namespaces/{}/{plural}", role.namespace);
        [
            BootstrapObject {
                collection: collection("roles"),
                object: json!({ "metadata": metadata(role.name), "rules": rules(role.rules) }),
            },
            BootstrapObject {
                collection: collection("rolebindings"),
                object: json!({
                    "metadata": metadata(role.name),
                    "roleRef": { "apiGroup": GROUP, "kind": "Role", "name": role.name },
                    "subjects": subjects(role.subjects),
                }),
            },
        ]
    });
    pairs.collect()
}

fn rules(specs: &[RuleSpec]) -> Value {
    let owned = |items: &[&str]| items.iter().map(|item| (*item).to_owned()).collect();
    let rules = specs.iter().map(|spec| PolicyRule {
        api_groups: owned(spec.groups),
        non_resource_urls: owned(spec.urls),
        resource_names: owned(spec.names),
        resources: owned(spec.resources),
        verbs: owned(spec.verbs),
    });
    rules.map(|rule| json!(rule)).collect()
}

fn subjects(specs: &[SubjectSpec]) -> Value {
    let subjects = specs.iter().map(|subject| match subject {
        SubjectSpec::User(name) => json!({ "apiGroup": GROUP, "kind": "User", "name": name }),
        SubjectSpec::Group(name) => json!({ "apiGroup": GROUP, "kind": "Group", "name": name }),
        SubjectSpec::SystemAccount(name) => json!({ "kind": "ServiceAccount", "namespace": SYSTEM, "name": name }),
    });
    subjects.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reader() -> Value {
        json!({
            "metadata": metadata("reader"),
            "rules": [{ "apiGroups": [""], "resources": ["pods", "nodes"], "verbs": ["get"] }],
        })
    }

    #[test]
    fn what_people_added_stays_and_what_is_missing_comes() {
        let mut existing = json!({
            "metadata": { "name": "reader", "labels": { "team": "a" } },
            "rules": [
                { "apiGroups": [""], "resources": ["pods"], "verbs": ["get"] },
                { "apiGroups": ["apps"], "resources": ["*"], "verbs": ["*"] },
            ],
        });
        assert!(complete(&mut existing, &reader()));
        assert_eq!(existing["metadata"]["labels"]["team"], "a");
        assert_eq!(existing["metadata"]["labels"]["kubernetes.io/bootstrapping"], "rbac-defaults");
        assert_eq!(
            existing["rules"],
            json!([
                { "apiGroups": [""], "resources": ["pods"], "verbs": ["get"] },
                { "apiGroups": ["apps"], "resources": ["*"], "verbs": ["*"] },
                { "apiGroups": [""], "resources": ["nodes"], "verbs": ["get"] },
            ])
        );
        assert!(!complete(&mut existing, &reader()), "a second look finds nothing to do");
    }

    #[test]
    fn an_object_that_is_not_to_be_updated_is_left_alone() {
        let mut existing = json!({ "metadata": { "annotations": { AUTOUPDATE: "false" } }, "rules": [] });
        assert!(!complete(&mut existing, &reader()));
        assert_eq!(existing["rules"], json!([]));
    }

    #[test]
    fn subjects_that_were_taken_off_come_back() {
        let wanted = bindings().into_iter().find(|binding| binding.name() == "system:basic-user").unwrap().object;
        let mut existing = json!({ "metadata": {}, "subjects": [{ "kind": "User", "name": "ann" }] });
        assert!(complete(&mut existing, &wanted));
        assert_eq!(existing["subjects"].as_array().map(Vec::len), Some(2));
    }
}
