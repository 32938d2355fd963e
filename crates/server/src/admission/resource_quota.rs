//! ResourceQuota: what a write uses is added to the quotas of its namespace in the very transaction of the write.
//!
//! The transaction compares the revision of every quota that it charges. However many clients and servers write at the
//! same time, `status.used` therefore never falls behind what was admitted, and nothing is admitted beyond
//! `status.hard`. Writes of one server into one namespace with quotas wait for each other instead of colliding. A
//! namespace without quotas costs one look into a cache.
//!
//! What is given back (deleted objects, ended pods) the quota controller takes off. Limits hold from the moment when it has
//! counted what was there before, as upstream's do: until then a quota has no `status.hard`.

use std::{
    hash::{BuildHasher, RandomState},
    sync::Arc,
};

use async_trait::async_trait;
use jiff::Timestamp;
use mainstay_api::{
    descriptor::Descriptor,
    quota::{self, Amounts, QuotaResource},
};
use mainstay_store::{Compare, Expect, Op};
use serde_json::{Value, json};
use tokio::sync::{Mutex, OwnedMutexGuard};

use super::{Plugin, Request, TxnAdditions};
use crate::{
    api,
    http::status::{ApiError, ApiResult},
    objects::{guaranteed_update::Part, keys, metadata, object},
};

/// One for each namespace that is written to at the same time, more or less.
const LOCKS: usize = 64;

/// Locks by namespace; two namespaces may share one.
pub struct QuotaLocks {
    locks: Vec<Arc<Mutex<()>>>,
    hasher: RandomState,
}

impl Default for QuotaLocks {
    fn default() -> Self {
        Self { locks: (0..LOCKS).map(|_| Arc::default()).collect(), hasher: RandomState::new() }
    }
}

impl QuotaLocks {
    async fn lock(&self, namespace: &str) -> OwnedMutexGuard<()> {
        let index = self.hasher.hash_one(namespace) as usize % self.locks.len();
        self.locks[index].clone().lock_owned().await
    }
}

pub struct ResourceQuota;

#[async_trait]
impl Plugin for ResourceQuota {
    fn name(&self) -> &'static str {
        "ResourceQuota"
    }

    /// Events tell of other writes and are not charged, as upstream's are not.
    fn handles(&self, d: &Descriptor) -> bool {
        d.namespaced() && d.plural != "events"
    }

    async fn create(&self, request: &Request<'_>, object: &mut Value, txn: &mut TxnAdditions) -> ApiResult<()> {
        charge(request, object, None, txn).await
    }

    async fn update(
        &self,
        request: &Request<'_>,
        object: &mut Value,
        old: &Value,
        txn: &mut TxnAdditions,
    ) -> ApiResult<()> {
        let d = &request.target.d;
        let may_use_more = match request.part {
            Part::Main => resource(d).is_charged_on_update() && !d.is_core("Pod"),
            Part::Spec(_) => true,
            Part::Status | Part::Approval | Part::Finalize | Part::Placement => false,
        };
        if may_use_more { charge(request, object, Some(old), txn).await } else { Ok(()) }
    }
}

fn resource(d: &Descriptor) -> QuotaResource<'_> {
    QuotaResource { group: &d.group, plural: &d.plural }
}

async fn charge(request: &Request<'_>, object: &Value, old: Option<&Value>, txn: &mut TxnAdditions) -> ApiResult<()> {
    let Request { api, target, .. } = request;
    let Some(namespace) = target.namespace.as_deref() else { return Ok(()) };
    let quotas = api.admission_cache.list("resourcequotas", Some(namespace));
    let limits = |quota: &Value| limited_names(resource(&target.d), quota).next().is_some();
    if !quotas.iter().any(|quota| limits(&quota.value)) {
        return Ok(());
    }
    let Some(d) = api.registry.find("", "v1", "resourcequotas") else { return Ok(()) };
    if !request.dry_run {
        txn.locks.push(api.quota_locks.lock(namespace).await);
    }
    for quota in quotas {
        let quota_name = metadata::string_field(&quota.value, "name").unwrap_or_default();
        let (entry, _) = api.store.get(&keys::key(d, Some(namespace), quota_name)).await?;
        let Some(entry) = entry else { continue };
        let mut quota = object::parse(d, &entry)?;
        let name = metadata::string_field(object, "name").unwrap_or_default();
        let used = use_quota(resource(&target.d), &quota, object, old, api::now())
            .map_err(|why| ApiError::forbidden(&target.d, name, &why))?;
        if let Some(used) = used {
            for (name, amount) in used {
                quota["status"]["used"][name] = json!(amount.to_string());
            }
            let key = entry.key.clone();
            txn.compares.push(Compare { key: key.clone(), expect: Expect::ModifiedAt(entry.modified) });
            txn.ops.push(Op::Put { key, value: object::to_stored(d, &quota).json().clone() });
        }
    }
    Ok(())
}

/// Of what a quota limits, what objects of this resource can use.
fn limited_names<'a>(resource: QuotaResource<'a>, quota: &'a Value) -> impl Iterator<Item = &'a String> {
    let hard = quota["status"]["hard"].as_object();
    hard.into_iter().flatten().map(|(name, _)| name).filter(move |name| resource.uses(name))
}

/// What a quota has used with this write: the amounts that change, if any do. Errors are why the write is refused.
fn use_quota(
    resource: QuotaResource<'_>,
    quota: &Value,
    object: &Value,
    old: Option<&Value>,
    now: Timestamp,
) -> Result<Option<Amounts>, String> {
    let names: Vec<String> = limited_names(resource, quota).cloned().collect();
    if names.is_empty() || !resource.in_scopes(quota, object) {
        return Ok(None);
    }
    let quota_name = metadata::string_field(quota, "name").unwrap_or_default();
    let is_pod = resource == QuotaResource { group: "", plural: "pods" };
    if let Some(missing) = is_pod.then(|| quota::missing_requirements(object, &names)).flatten() {
        return Err(format!("failed quota: {quota_name}: {missing}"));
    }
    let (hard, used) = (quota::parse_amounts(&quota["status"]["hard"]), quota::parse_amounts(&quota["status"]["used"]));
    if names.iter().any(|name| !used.contains_key(name)) {
        return Err(format!("status unknown for quota: {quota_name}, resources: {}", names.join(",")));
    }
    let mut requested = resource.usage(object, now);
    // What was in other scopes before was not charged here.
    if let Some(old) = old.filter(|old| resource.in_scopes(quota, old)) {
        for (name, amount) in resource.usage(old, now) {
            let change = requested.entry(name).or_default();
            *change = *change - amount;
        }
    }
    requested.retain(|name, amount| names.contains(name) && !amount.is_zero());
    let total =
        |name: &str| used.get(name).copied().unwrap_or_default() + requested.get(name).copied().unwrap_or_default();
    // Who uses less is let through even where a limit was lowered below what is used.
    let exceeds = |name: &str| !requested[name].is_negative() && hard.get(name).is_some_and(|hard| total(name) > *hard);
    let exceeded: Vec<&String> = requested.keys().filter(|name| exceeds(name)).collect();
    if !exceeded.is_empty() {
        let show = |amounts: &Amounts| {
            let picked = exceeded.iter().map(|name| ((*name).clone(), amounts.get(*name).copied().unwrap_or_default()));
            quota::format_amounts(&picked.collect())
        };
        let (requested, used, limited) = (show(&requested), show(&used), show(&hard));
        return Err(format!("exceeded quota: {quota_name}, requested: {requested}, used: {used}, limited: {limited}"));
    }
    let changed: Amounts = requested.keys().map(|name| (name.clone(), total(name))).collect();
    Ok((!changed.is_empty()).then_some(changed))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PODS: QuotaResource<'_> = QuotaResource { group: "", plural: "pods" };
    const SERVICES: QuotaResource<'_> = QuotaResource { group: "", plural: "services" };

    fn quota(hard: Value, used: Value) -> Value {
        json!({ "metadata": { "name": "q" }, "spec": { "hard": hard }, "status": { "hard": hard, "used": used } })
    }

    fn pod(cpu: &str) -> Value {
        json!({ "spec": { "containers": [{ "name": "c", "resources": { "requests": { "cpu": cpu } } }] } })
    }

    fn charged(
        resource: QuotaResource<'_>,
        quota: &Value,
        object: &Value,
        old: Option<&Value>,
    ) -> Result<String, String> {
        let used = use_quota(resource, quota, object, old, Timestamp::UNIX_EPOCH)?;
        Ok(used.map(|used| quota::format_amounts(&used)).unwrap_or_default())
    }

    #[test]
    fn a_write_uses_the_quota_until_it_is_exceeded() {
        let limits = json!({ "pods": "2", "requests.cpu": "1" });
        let free = quota(limits.clone(), json!({ "pods": "0", "requests.cpu": "0" }));
        assert_eq!(charged(PODS, &free, &pod("500m"), None).unwrap(), "pods=1,requests.cpu=500m");
        let tight = quota(limits.clone(), json!({ "pods": "2", "requests.cpu": "900m" }));
        assert_eq!(
            charged(PODS, &tight, &pod("50m"), None).unwrap_err(),
            "exceeded quota: q, requested: pods=1, used: pods=2, limited: pods=2"
        );
        assert_eq!(
            charged(PODS, &tight, &pod("1"), None).unwrap_err(),
            "exceeded quota: q, requested: pods=1,requests.cpu=1, used: pods=2,requests.cpu=900m, limited: \
             pods=2,requests.cpu=1"
        );
        let uncounted = quota(limits, json!({}));
        let words = "status unknown for quota: q, resources: pods,requests.cpu";
        assert_eq!(charged(PODS, &uncounted, &pod("1"), None).unwrap_err(), words);
        let without = json!({ "spec": { "containers": [{ "name": "c" }] } });
        let words = "failed quota: q: must specify requests.cpu for: c";
        assert_eq!(charged(PODS, &tight, &without, None).unwrap_err(), words);
        assert_eq!(charged(SERVICES, &tight, &json!({}), None).unwrap(), "", "not limited here");
    }

    #[test]
    fn an_update_is_charged_by_its_difference_and_may_always_use_less() {
        let over = quota(json!({ "services.nodeports": "1" }), json!({ "services.nodeports": "3" }));
        let service =
            |ports: usize| json!({ "spec": { "type": "NodePort", "ports": vec![json!({ "port": 1 }); ports] } });
        assert_eq!(charged(SERVICES, &over, &service(1), Some(&service(3))).unwrap(), "services.nodeports=1");
        assert_eq!(charged(SERVICES, &over, &service(3), Some(&service(3))).unwrap(), "");
        let words = "exceeded quota: q, requested: services.nodeports=1, used: services.nodeports=3, limited: services.nodeports=1";
        assert_eq!(charged(SERVICES, &over, &service(4), Some(&service(3))).unwrap_err(), words);
    }
}
