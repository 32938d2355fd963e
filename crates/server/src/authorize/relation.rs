//! Whether a machine has anything to do with an object: a pod that was placed on it refers to it.
//!
//! Looked up when asked, from the pods themselves, so that there is no second account of them to
//! keep true.

use mainstay_store::List;
use serde_json::Value;

use crate::{api::Api, keys, object, status::ApiResult};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relation {
    pub node: String,
    pub kind: RelationKind,
    pub namespace: String,
    pub name: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RelationKind {
    Pod,
    Secret,
    ConfigMap,
    Claim,
    Volume,
    ServiceAccount,
}

pub async fn holds(api: &Api, relation: &Relation) -> ApiResult<bool> {
    if relation.kind != RelationKind::Volume {
        return any_pod(api, &relation.node, &relation.namespace, relation.kind, &relation.name).await;
    }
    // A volume belongs to whoever its claim belongs to, and to the one machine that has it.
    let Some(volume) = api.core_object("persistentvolumes", None, &relation.name).await? else { return Ok(false) };
    if is_only_on(&volume, &relation.node) {
        return Ok(true);
    }
    let claim = &volume["spec"]["claimRef"];
    let (Some(namespace), Some(name)) = (claim["namespace"].as_str(), claim["name"].as_str()) else { return Ok(false) };
    any_pod(api, &relation.node, namespace, RelationKind::Claim, name).await
}

/// Whether a volume names this machine as the only one it can be reached from.
fn is_only_on(volume: &Value, node: &str) -> bool {
    let terms = volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"].as_array();
    let named = |requirement: &Value| {
        requirement["key"] == "metadata.name"
            && requirement["operator"] == "In"
            && requirement["values"].as_array().is_some_and(|names| names.len() == 1 && names[0] == node)
    };
    terms.is_some_and(|terms| {
        !terms.is_empty()
            && terms.iter().all(|term| term["matchFields"].as_array().is_some_and(|fields| fields.iter().any(named)))
    })
}

async fn any_pod(api: &Api, node: &str, namespace: &str, kind: RelationKind, name: &str) -> ApiResult<bool> {
    let Some(pods) = api.registry.find("", "v1", "pods").filter(|_| keys::is_segment(namespace)) else {
        return Ok(false);
    };
    let node_field = pods.selectable.iter().position(|field| field.label == "spec.nodeName");
    let prefix = keys::prefix(pods, Some(namespace));
    let listing = api.store.list(List { prefix: &prefix, ..List::default() }).await?;
    let mut here = listing.entries.iter().filter(|entry| {
        object::with_picked(pods, entry, |picked| {
            node_field.and_then(|at| picked.fields.get(at)).is_some_and(|placed| &**placed == node)
        })
    });
    Ok(here.any(|entry| refers(&object::value_of(pods, entry), kind, name)))
}

/// Whether a pod refers to this object of its namespace.
fn refers(pod: &Value, kind: RelationKind, name: &str) -> bool {
    let spec = &pod["spec"];
    match kind {
        RelationKind::Pod => pod["metadata"]["name"] == name,
        RelationKind::ServiceAccount => spec["serviceAccountName"] == name,
        RelationKind::Secret => {
            let pulls = spec["imagePullSecrets"].as_array();
            pulls.is_some_and(|pulls| pulls.iter().any(|pull| pull["name"] == name))
                || mentions(spec, &|key, value| match key {
                    "secretName" => value == name,
                    "secret" | "secretRef" | "secretKeyRef" | "nodePublishSecretRef" => value["name"] == name,
                    _ => false,
                })
        }
        RelationKind::ConfigMap => mentions(spec, &|key, value| {
            ["configMap", "configMapRef", "configMapKeyRef"].contains(&key) && value["name"] == name
        }),
        RelationKind::Claim => spec["volumes"].as_array().is_some_and(|volumes| {
            volumes.iter().any(|volume| {
                let own = || format!("{}-{}", text(&pod["metadata"]["name"]), text(&volume["name"]));
                volume["persistentVolumeClaim"]["claimName"] == name
                    || (volume["ephemeral"].is_object() && own() == name)
            })
        }),
        RelationKind::Volume => false,
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Whether any field in here is one that is looked for. References have the same few names wherever they are.
fn mentions(value: &Value, wanted: &dyn Fn(&str, &Value) -> bool) -> bool {
    match value {
        Value::Object(fields) => fields.iter().any(|(key, value)| wanted(key, value) || mentions(value, wanted)),
        Value::Array(items) => items.iter().any(|item| mentions(item, wanted)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_volume_on_one_machine_is_that_machines() {
        let on = |terms: Value| {
            let volume = json!({"spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": terms}}}});
            is_only_on(&volume, "a")
        };
        let named =
            |names: Value| json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": names}]});
        assert!(on(json!([named(json!(["a"]))])));
        assert!(!on(json!([named(json!(["b"]))])));
        assert!(!on(json!([named(json!(["a", "b"]))])));
        assert!(!on(json!([named(json!(["a"])), named(json!(["b"]))])));
        assert!(!on(json!([])) && !on(Value::Null));
    }

    #[test]
    fn a_pod_refers_to_what_its_volumes_containers_and_account_name() {
        let pod = json!({
            "metadata": {"name": "web"},
            "spec": {
                "serviceAccountName": "bot",
                "imagePullSecrets": [{"name": "pull"}],
                "initContainers": [{"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "key", "key": "k"}}}]}],
                "containers": [{"envFrom": [{"secretRef": {"name": "env"}}, {"configMapRef": {"name": "conf"}}]}],
                "volumes": [
                    {"name": "a", "secret": {"secretName": "vol"}},
                    {"name": "b", "projected": {"sources": [
                        {"secret": {"name": "part"}}, {"configMap": {"name": "kube-root-ca.crt"}},
                    ]}},
                    {"name": "c", "persistentVolumeClaim": {"claimName": "data"}},
                    {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {}}},
                    {"name": "d", "configMap": {"name": "files"}},
                ],
            },
        });
        for name in ["pull", "key", "env", "vol", "part"] {
            assert!(refers(&pod, RelationKind::Secret, name), "{name}");
            assert!(!refers(&pod, RelationKind::ConfigMap, name), "{name}");
        }
        for name in ["conf", "kube-root-ca.crt", "files"] {
            assert!(refers(&pod, RelationKind::ConfigMap, name), "{name}");
            assert!(!refers(&pod, RelationKind::Secret, name), "{name}");
        }
        assert!(refers(&pod, RelationKind::Claim, "data"));
        assert!(refers(&pod, RelationKind::Claim, "web-scratch"));
        assert!(!refers(&pod, RelationKind::Claim, "other"));
        assert!(refers(&pod, RelationKind::ServiceAccount, "bot"));
        assert!(!refers(&pod, RelationKind::ServiceAccount, "default"));
        assert!(refers(&pod, RelationKind::Pod, "web"));
    }
}
