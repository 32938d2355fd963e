//! ServiceAccount: a new pod gets the image pull secrets of its service account, and a volume with a token for the API.
//!
//! Upstream's plugin, with its messages. One thing is kinder: a pod that comes so soon after
//! its namespace that the account `default` is not there yet brings it along, in the same transaction.

use async_trait::async_trait;
use mainstay_api::{
    descriptor::Descriptor,
    references::{self, Referent},
    wellknown::kubernetes::MIRROR_POD,
};
use mainstay_store::{Compare, Expect, Op};
use serde_json::{Value, json};
use uuid::Uuid;

use super::{Plugin, Request, TxnAdditions};
use crate::{
    api,
    http::status::{ApiError, ApiResult},
    objects::{
        keys, metadata,
        object::{self, Wire},
    },
};

const DEFAULT: &str = "default";
const VOLUME: &str = "kube-api-access-";
const MOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const TOKEN_SECONDS: i64 = 3607;

pub struct ServiceAccount;

#[async_trait]
impl Plugin for ServiceAccount {
    fn name(&self) -> &'static str {
        "ServiceAccount"
    }

    fn handles(&self, d: &Descriptor) -> bool {
        d.is_core("Pod")
    }

    async fn admit_create(&self, request: &Request<'_>, object: &mut Value, txn: &mut TxnAdditions) -> ApiResult<()> {
        set_account(request, object, txn).await
    }
}

async fn set_account(request: &Request<'_>, pod: &mut Value, txn: &mut TxnAdditions) -> ApiResult<()> {
    let Request { api, target, .. } = request;
    let name = metadata::string_field(pod, "name").unwrap_or_default().to_owned();
    let forbid = |why: &str| ApiError::forbidden(&target.d, &name, why);
    if pod["metadata"]["annotations"].get(MIRROR_POD).is_some() {
        return mirror_objection(pod).map_or(Ok(()), |why| Err(forbid(why)));
    }
    let (Some(d), Some(namespace)) = (api.registry.find("", "v1", "serviceaccounts"), target.namespace.as_deref())
    else {
        return Ok(());
    };
    let wanted =
        pod["spec"]["serviceAccountName"].as_str().filter(|name| !name.is_empty()).unwrap_or(DEFAULT).to_owned();
    let key = keys::key(d, Some(namespace), &wanted);
    let found = if keys::is_segment(&wanted) { api.store.get(&key).await?.0 } else { None };
    let account = match found {
        Some(entry) => object::parse(d, &entry)?,
        None if wanted == DEFAULT => {
            let account = default_account(namespace);
            txn.compares.push(Compare { key: key.clone(), expect: Expect::Absent });
            txn.ops.push(Op::Put { key, value: Wire::encode(&account).json().clone() });
            account
        }
        None => {
            let why =
                format!("error looking up service account {namespace}/{wanted}: serviceaccount {wanted:?} not found");
            return Err(forbid(&why));
        }
    };
    apply_account(&mut pod["spec"], &wanted, &account);
    Ok(())
}

fn default_account(namespace: &str) -> Value {
    json!({
        "kind": "ServiceAccount", "apiVersion": "v1",
        "metadata": {
            "name": DEFAULT, "namespace": namespace, "uid": Uuid::new_v4(), "creationTimestamp": api::now().to_string(),
        },
    })
}

/// What a mirror pod may not refer to, whoever creates it.
fn mirror_objection(pod: &Value) -> Option<&'static str> {
    let references = references::pod_references(pod);
    let refers = |to: Referent| references.iter().any(|reference| reference.to == to);
    if refers(Referent::ServiceAccount) {
        Some("a mirror pod may not reference service accounts")
    } else if refers(Referent::Secret) {
        Some("a mirror pod may not reference secrets")
    } else if !references::token_audiences(pod).is_empty() {
        Some("a mirror pod may not use ServiceAccountToken volume projections")
    } else {
        None
    }
}

fn apply_account(spec: &mut Value, name: &str, account: &Value) {
    spec["serviceAccountName"] = json!(name);
    spec["serviceAccount"] = json!(name);
    let automount = |value: &Value| value["automountServiceAccountToken"].as_bool();
    if automount(spec).or_else(|| automount(account)).unwrap_or(true) {
        mount_token(spec);
    }
    let given = spec["imagePullSecrets"].as_array().is_some_and(|secrets| !secrets.is_empty());
    if let (false, Some(secrets)) = (given, account["imagePullSecrets"].as_array().filter(|s| !s.is_empty())) {
        spec["imagePullSecrets"] = json!(secrets);
    }
}

/// Mounts a token in every container that has nothing at its place yet.
fn mount_token(spec: &mut Value) {
    let volumes = spec["volumes"].as_array().into_iter().flatten();
    let existing = volumes.filter_map(|volume| volume["name"].as_str()).find(|name| name.starts_with(VOLUME));
    let existing = existing.map(str::to_owned);
    let volume = existing.clone().unwrap_or_else(|| metadata::generate_name(VOLUME));
    let mut needed = false;
    for list in ["initContainers", "containers"] {
        let containers = spec.get_mut(list).and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten() {
            let mounts = container["volumeMounts"].as_array();
            if mounts.is_some_and(|mounts| mounts.iter().any(|mount| mount["mountPath"] == MOUNT)) {
                continue;
            }
            needed = true;
            push(&mut container["volumeMounts"], json!({ "name": volume, "readOnly": true, "mountPath": MOUNT }));
        }
    }
    if needed && existing.is_none() {
        push(&mut spec["volumes"], token_volume(&volume));
    }
}

fn push(list: &mut Value, item: Value) {
    match list {
        Value::Array(items) => items.push(item),
        other => *other = json!([item]),
    }
}

fn token_volume(name: &str) -> Value {
    json!({
        "name": name,
        "projected": {
            "defaultMode": 0o644,
            "sources": [
                { "serviceAccountToken": { "expirationSeconds": TOKEN_SECONDS, "path": "token" } },
                { "configMap": { "name": mainstay_api::wellknown::ROOT_CA_CONFIG_MAP, "items": [{ "key": "ca.crt", "path": "ca.crt" }] } },
                { "downwardAPI": { "items": [{
                    "path": "namespace", "fieldRef": { "apiVersion": "v1", "fieldPath": "metadata.namespace" },
                }] } },
            ],
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(changes: Value) -> Value {
        let mut spec = json!({
            "serviceAccountName": "default",
            "initContainers": [{"name": "i"}],
            "containers": [{"name": "a"}, {"name": "b", "volumeMounts": [{"name": "x", "mountPath": MOUNT}]}],
        });
        spec.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        spec
    }

    fn with_account(changes: Value, account: Value) -> Value {
        let mut spec = pod(changes);
        apply_account(&mut spec, "default", &account);
        spec
    }

    #[test]
    fn every_container_gets_a_token_unless_something_is_mounted_there() {
        let spec = with_account(json!({}), json!({}));
        let name = spec["volumes"][0]["name"].as_str().unwrap();
        assert!(name.starts_with("kube-api-access-") && name.len() == "kube-api-access-".len() + 5, "{name}");
        assert_eq!(spec["volumes"][0]["projected"]["sources"][0]["serviceAccountToken"]["expirationSeconds"], 3607);
        for container in [&spec["containers"][0], &spec["initContainers"][0]] {
            assert_eq!(container["volumeMounts"], json!([{"mountPath": MOUNT, "name": name, "readOnly": true}]));
        }
        assert_eq!(spec["containers"][1]["volumeMounts"].as_array().unwrap().len(), 1);
    }

    #[test]
    fn pod_and_account_can_do_without_and_the_pod_decides() {
        let none = |spec: &Value| spec.get("volumes").is_none();
        let no = json!({"automountServiceAccountToken": false});
        let yes = json!({"automountServiceAccountToken": true});
        assert!(none(&with_account(no.clone(), json!({}))));
        assert!(none(&with_account(json!({}), no.clone())));
        assert!(none(&with_account(no.clone(), yes.clone())));
        assert!(!none(&with_account(yes, no)));
    }

    #[test]
    fn a_volume_of_the_kind_that_is_there_is_used() {
        let given = json!({"volumes": [{"name": "kube-api-access-mine", "projected": {}}]});
        let spec = with_account(given, json!({}));
        assert_eq!(spec["volumes"].as_array().unwrap().len(), 1);
        assert_eq!(spec["containers"][0]["volumeMounts"][0]["name"], "kube-api-access-mine");
    }

    #[test]
    fn secrets_for_images_come_from_the_account_if_the_pod_has_none() {
        let account = json!({"imagePullSecrets": [{"name": "pull"}]});
        assert_eq!(with_account(json!({}), account.clone())["imagePullSecrets"], json!([{"name": "pull"}]));
        let own = json!({"imagePullSecrets": [{"name": "own"}]});
        assert_eq!(with_account(own, account)["imagePullSecrets"], json!([{"name": "own"}]));
    }

    #[test]
    fn a_mirror_pod_refers_to_nothing() {
        assert_eq!(mirror_objection(&json!({"spec": {"containers": []}})), None);
        for (spec, words) in [
            (json!({"serviceAccountName": "x"}), "a mirror pod may not reference service accounts"),
            (json!({"volumes": [{"secret": {"secretName": "s"}}]}), "a mirror pod may not reference secrets"),
            (json!({"imagePullSecrets": [{"name": "s"}]}), "a mirror pod may not reference secrets"),
            (
                json!({"volumes": [{"projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}]}),
                "a mirror pod may not use ServiceAccountToken volume projections",
            ),
        ] {
            assert_eq!(mirror_objection(&json!({ "spec": spec })), Some(words));
        }
    }
}
