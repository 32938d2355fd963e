//! Pods made from the template of their owner.

use serde_json::{Map, Value, json};

use super::controller_ref::Owner;

/// A pod as the template of its owner has it, ready to be posted.
pub fn pod(owner: &Owner, template: &Value, name: &str) -> Value {
    let given = &template["metadata"];
    let mut metadata = Map::new();
    metadata.insert("name".to_owned(), json!(name));
    metadata.insert("namespace".to_owned(), json!(owner.key.namespace));
    metadata.insert("generateName".to_owned(), json!(format!("{}-", owner.key.name)));
    metadata.insert("ownerReferences".to_owned(), json!([owner.reference()]));
    for field in ["labels", "annotations", "finalizers"] {
        if !given[field].is_null() {
            metadata.insert(field.to_owned(), given[field].clone());
        }
    }
    if let Some(finalizer) = owner.kind.finalizer {
        let finalizers = metadata.entry("finalizers").or_insert_with(|| json!([]));
        let there = finalizers.as_array().is_some_and(|all| all.iter().any(|one| one == finalizer));
        if let Some(all) = finalizers.as_array_mut().filter(|_| !there) {
            all.push(json!(finalizer));
        }
    }
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"] })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::{apps::v1::ReplicaSet, batch::v1::Job};
    use kube::api::ObjectMeta;

    use super::*;
    use crate::workloads::controller_ref::OwnerKind;

    fn meta() -> ObjectMeta {
        let meta = json!({ "name": "web", "namespace": "ns", "uid": "u" });
        serde_json::from_value(meta).unwrap()
    }

    #[test]
    fn a_pod_is_its_template_with_a_name_and_an_owner() {
        let owner = Owner::new(&OwnerKind::new::<ReplicaSet>("replicaset-controller"), &meta());
        let template = json!({
            "metadata": { "labels": { "a": "b" }, "annotations": { "c": "d" }, "name": "ignored" },
            "spec": { "containers": [{ "name": "c" }] },
        });
        let expected = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": "web-x", "namespace": "ns", "generateName": "web-",
                "labels": { "a": "b" }, "annotations": { "c": "d" },
                "ownerReferences": [{
                    "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "u",
                    "controller": true, "blockOwnerDeletion": true,
                }],
            },
            "spec": { "containers": [{ "name": "c" }] },
        });
        assert_eq!(pod(&owner, &template, "web-x"), expected);
    }

    #[test]
    fn owners_that_count_their_pods_add_a_finalizer() {
        let owner = Owner::new(&OwnerKind::with_finalizer::<Job>("job-controller", Some("tracking")), &meta());
        let template = json!({ "metadata": { "finalizers": ["own"] }, "spec": {} });
        assert_eq!(pod(&owner, &template, "web-x")["metadata"]["finalizers"], json!(["own", "tracking"]));
    }
}
