//! What a write depends on beyond the object itself: its namespace, and addresses that are given
//! out once. Dependencies become compares of the same transaction, so that they still hold at
//! the moment of the commit.

use std::sync::Arc;

use mainstay_store::{Compare, Entry, Expect, Op};
use serde_json::{Value, json};
use tokio::sync::OwnedMutexGuard;

use crate::{
    allocation,
    api::{Api, Target},
    auth::User,
    keys, object, pod_ranges, priority, service_accounts,
    status::{ApiError, ApiResult},
    storage_class,
};

/// Namespaces that are part of the furniture.
const UNDELETABLE: [&str; 3] = ["default", "kube-system", "kube-public"];

#[derive(Default)]
pub struct Admitted {
    pub compares: Vec<Compare>,
    pub ops: Vec<Op>,
    /// Held until the write is done or given up.
    pub turn: Option<OwnedMutexGuard<()>>,
}

/// Puts in who asks, where the object says so: nobody may ask for a certificate in another's name.
pub fn sign(user: &User, target: &Target, object: &mut Value) {
    if target.d.kind == "CertificateSigningRequest" {
        let spec = &mut object["spec"];
        if spec.is_null() {
            return;
        }
        spec["username"] = json!(user.name);
        spec["groups"] = json!(user.groups);
        for (field, value) in [("uid", Some(json!(user.uid)).filter(|_| !user.uid.is_empty())), ("extra", extra(user))]
        {
            match (value, spec.as_object_mut()) {
                (Some(value), Some(spec)) => drop(spec.insert(field.to_owned(), value)),
                (None, Some(spec)) => drop(spec.remove(field)),
                (_, None) => {}
            }
        }
    }
}

fn extra(user: &User) -> Option<Value> {
    Some(json!(user.extra)).filter(|_| !user.extra.is_empty())
}

pub async fn create(api: &Api, target: &Target, name: &str, object: &mut Value) -> ApiResult<Admitted> {
    let mut admitted = Admitted::default();
    if let Some(namespace) = target.namespace.as_deref().filter(|_| target.d.namespaced()) {
        let entry = active_namespace(api, target, namespace, name).await?;
        admitted.compares.push(Compare { key: entry.key.clone(), expect: Expect::ModifiedAt(entry.modified) });
    }
    if allocation::concerns(&target.d) {
        allocation::on_create(api, object, &mut admitted).await?;
    }
    if service_accounts::concerns(&target.d) {
        service_accounts::on_create(api, target, object, &mut admitted).await?;
        priority::on_create(api, target, object).await?;
    }
    if pod_ranges::concerns(&target.d) {
        pod_ranges::settle(api, object, None, &mut admitted).await?;
    }
    if storage_class::concerns(&target.d) {
        storage_class::on_create(api, object).await?;
    }
    Ok(admitted)
}

pub async fn update(api: &Api, target: &Target, object: &mut Value, old: &Value) -> ApiResult<Admitted> {
    let mut admitted = Admitted::default();
    if allocation::concerns(&target.d) {
        allocation::on_update(api, object, old, &mut admitted).await?;
    }
    if pod_ranges::concerns(&target.d) {
        pod_ranges::settle(api, object, Some(old), &mut admitted).await?;
    }
    Ok(admitted)
}

pub fn delete(target: &Target) -> ApiResult<()> {
    let d = &target.d;
    if d.kind == "Namespace" && d.group.is_empty() && UNDELETABLE.contains(&target.name.as_str()) {
        return Err(ApiError::forbidden(d, &target.name, "this namespace may not be deleted"));
    }
    Ok(())
}

/// What the removal of an object gives back.
pub fn released(target: &Target, old: &Value) -> Vec<Op> {
    if allocation::concerns(&target.d) {
        allocation::on_delete(old)
    } else if pod_ranges::concerns(&target.d) {
        pod_ranges::released(old)
    } else {
        Vec::new()
    }
}

async fn active_namespace(api: &Api, target: &Target, namespace: &str, name: &str) -> ApiResult<Arc<Entry>> {
    let Some(namespaces) = api.registry.find("", "v1", "namespaces") else {
        return Err(ApiError::internal("namespaces are not served"));
    };
    let (entry, _) = api.store.get(&keys::key(namespaces, None, namespace)).await?;
    let entry = entry.ok_or_else(|| ApiError::not_found(namespaces, namespace))?;
    let phase = namespaces.selectable.iter().position(|field| field.label == "status.phase");
    let terminating = object::with_picked(namespaces, &entry, |picked| {
        phase.and_then(|at| picked.fields.get(at)).is_some_and(|phase| &**phase == "Terminating")
    });
    if terminating { Err(ApiError::namespace_terminating(&target.d, name, namespace)) } else { Ok(entry) }
}
