//! ResourceQuota: what a write uses is added to the quotas of its namespace in the very transaction of the write.
//!
//! The transaction compares the revision of every quota that it charges. However many clients and servers write at the
//! same time, `status.used` therefore never falls behind what was admitted, and nothing is admitted beyond
//! `status.hard`. Writes of one server into one namespace with quotas wait for each other instead of colliding. A
//! namespace without quotas costs one look into a cache.
//!
//! What is given back (deleted objects, ended pods) the quota controller takes off. Limits hold from the moment when it has
//! counted what was there before. No write escapes the first count:
//!
//! 1. A new quota, or one that limits other things, also writes its namespace. Every create compares the namespace's revision, so
//!    whoever was admitted without the quota is admitted anew, and who comes later knows it.
//! 2. The controller announces the count by writing `status.hard`. Until then writes are not charged, but compare the quota's revision: none
//!    that was admitted before the announcement is committed after it.
//! 3. From then on writes wait until `status.used` is there, which is counted after the announcement. If nobody counts, they are refused
//!    as upstream refuses them.

use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use jiff::Timestamp;
use mainstay_api::{
    descriptor::Descriptor,
    quota::{self, Amounts, QuotaResource},
};
use mainstay_store::{Compare, Entry, Expect, List, Op, Revision};
use serde_json::{Value, json};
use tokio::{
    sync::{Mutex, OwnedMutexGuard},
    time::Instant,
};

use super::{Plugin, Request, TxnAdditions};
use crate::{
    api,
    http::status::{ApiError, ApiResult},
    objects::{guaranteed_update::Part, keys, metadata, object},
};

/// One for each namespace that is written to at the same time, more or less.
const LOCKS: usize = 64;
/// How long a write waits for the first count of a quota. It takes milliseconds, unless no controller runs.
const COUNT_TIMEOUT: Duration = Duration::from_secs(5);
/// Namespaces whose quotas are known to be in the cache; beyond that all are looked at anew.
const MAX_VERIFIED: usize = 10_000;

/// Locks by namespace; two namespaces may share one.
pub struct QuotaLocks {
    locks: Vec<Arc<Mutex<()>>>,
    hasher: RandomState,
    /// The revision of each namespace at which the cache had all of its quotas.
    verified: parking_lot::Mutex<HashMap<String, Revision>>,
}

impl Default for QuotaLocks {
    fn default() -> Self {
        let locks = (0..LOCKS).map(|_| Arc::default()).collect();
        Self { locks, hasher: RandomState::new(), verified: parking_lot::Mutex::default() }
    }
}

impl QuotaLocks {
    async fn lock(&self, namespace: &str) -> OwnedMutexGuard<()> {
        let index = self.hasher.hash_one(namespace) as usize % self.locks.len();
        self.locks[index].clone().lock_owned().await
    }

    fn is_verified(&self, namespace: &str, revision: Revision) -> bool {
        self.verified.lock().get(namespace) == Some(&revision)
    }

    fn set_verified(&self, namespace: &str, revision: Revision) {
        let mut verified = self.verified.lock();
        if verified.len() >= MAX_VERIFIED {
            verified.clear();
        }
        verified.insert(namespace.to_owned(), revision);
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
        if is_quota(&request.target.d) {
            write_namespace(request, txn).await?;
        }
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
        if is_quota(d) && request.part == Part::Main && object["spec"] != old["spec"] {
            write_namespace(request, txn).await?;
        }
        let may_use_more = match request.part {
            Part::Main => resource(d).is_charged_on_update() && !d.is_core("Pod"),
            Part::Spec(_) => true,
            Part::Status | Part::Scale | Part::Approval | Part::Finalize | Part::Placement => false,
        };
        if may_use_more { charge(request, object, Some(old), txn).await } else { Ok(()) }
    }
}

fn resource(d: &Descriptor) -> QuotaResource<'_> {
    QuotaResource { group: &d.group, plural: &d.plural }
}

fn is_quota(d: &Descriptor) -> bool {
    d.is_core("ResourceQuota")
}

/// The namespace as it is, as a compare of the transaction.
async fn compare_namespace(request: &Request<'_>, txn: &mut TxnAdditions) -> ApiResult<Option<Arc<Entry>>> {
    let (api, namespace) = (request.api, request.target.namespace.as_deref().unwrap_or_default());
    let Some(d) = api.registry.find("", "v1", "namespaces") else { return Ok(None) };
    let (entry, _) = api.store.get(&keys::key(d, None, namespace)).await?;
    if let Some(entry) = &entry {
        txn.compares.push(Compare { key: entry.key.clone(), expect: Expect::ModifiedAt(entry.modified) });
    }
    Ok(entry)
}

/// Gives the namespace another revision, so that whoever was admitted without this quota is admitted anew.
async fn write_namespace(request: &Request<'_>, txn: &mut TxnAdditions) -> ApiResult<()> {
    if let Some(entry) = compare_namespace(request, txn).await? {
        txn.ops.push(Op::Put { key: entry.key.clone(), value: entry.value.clone() });
    }
    Ok(())
}

/// The names of the quotas that limit what such objects use. None is missing that was there at the revision of the namespace that the
/// transaction compares.
async fn limiting_quotas(
    request: &Request<'_>,
    d: &Descriptor,
    namespace: &str,
    txn: &mut TxnAdditions,
) -> ApiResult<Vec<String>> {
    let api = request.api;
    let name_if_limiting = |quota: &Value| {
        let name = metadata::string_field(quota, "name").unwrap_or_default();
        is_limited_by(resource(&request.target.d), quota).then(|| name.to_owned())
    };
    let cached = api.admission_cache.list("resourcequotas", Some(namespace));
    let from_cache = || cached.iter().filter_map(|quota| name_if_limiting(&quota.value)).collect();
    // No quota keeps a server from starting.
    if !api.admission_cache.is_loaded() {
        return Ok(from_cache());
    }
    let namespace_key = api.registry.find("", "v1", "namespaces").map(|d| keys::key(d, None, namespace));
    let compared = txn.compares.iter().find_map(|compare| match compare.expect {
        Expect::ModifiedAt(revision) if Some(&*compare.key) == namespace_key.as_deref() => Some(revision),
        _ => None,
    });
    let compared = match compared {
        Some(revision) => Some(revision),
        None => compare_namespace(request, txn).await?.map(|entry| entry.modified),
    };
    let Some(revision) = compared.filter(|revision| !api.quota_locks.is_verified(namespace, *revision)) else {
        return Ok(from_cache());
    };
    let prefix = keys::prefix(d, Some(namespace));
    let listing = api.store.list(List { prefix: &prefix, ..List::default() }).await?;
    let (mut names, mut is_verified) = (Vec::new(), true);
    for entry in &listing.entries {
        let quota = object::parse(d, entry)?;
        is_verified &= cached.iter().any(|known| {
            known.modified >= entry.modified && known.value["metadata"]["name"] == quota["metadata"]["name"]
        });
        names.extend(name_if_limiting(&quota));
    }
    if is_verified {
        api.quota_locks.set_verified(namespace, revision);
    }
    Ok(names)
}

async fn charge(request: &Request<'_>, object: &Value, old: Option<&Value>, txn: &mut TxnAdditions) -> ApiResult<()> {
    let Request { api, target, .. } = request;
    let Some(namespace) = target.namespace.as_deref() else { return Ok(()) };
    let Some(d) = api.registry.find("", "v1", "resourcequotas") else { return Ok(()) };
    let quotas = limiting_quotas(request, d, namespace, txn).await?;
    if quotas.is_empty() {
        return Ok(());
    }
    let (mut changes, deadline) = (api.admission_cache.subscribe(), Instant::now() + COUNT_TIMEOUT);
    loop {
        changes.mark_unchanged();
        let lock = if request.dry_run { None } else { Some(api.quota_locks.lock(namespace).await) };
        let uncounted = match charge_quotas(request, d, namespace, &quotas, object, old).await? {
            Ok(charges) => {
                txn.locks.extend(lock);
                txn.compares.extend(charges.compares);
                txn.ops.extend(charges.ops);
                return Ok(());
            }
            Err(uncounted) => uncounted,
        };
        drop(lock);
        if !matches!(tokio::time::timeout_at(deadline, changes.changed()).await, Ok(Ok(()))) {
            let name = metadata::string_field(object, "name").unwrap_or_default();
            return Err(ApiError::forbidden(&target.d, name, &uncounted));
        }
    }
}

/// What a write adds to its transaction.
#[derive(Default)]
struct Charges {
    compares: Vec<Compare>,
    ops: Vec<Op>,
}

/// Charges these quotas; `Err` within says of which the first count is under way.
async fn charge_quotas(
    request: &Request<'_>,
    d: &Descriptor,
    namespace: &str,
    quotas: &[String],
    object: &Value,
    old: Option<&Value>,
) -> ApiResult<Result<Charges, String>> {
    let Request { api, target, .. } = request;
    let resource = resource(&target.d);
    let mut charges = Charges::default();
    for quota_name in quotas {
        let (entry, _) = api.store.get(&keys::key(d, Some(namespace), quota_name)).await?;
        let Some(entry) = entry else { continue };
        let mut quota = object::parse(d, &entry)?;
        let used = match use_quota(resource, &quota, object, old, api::now()) {
            Ok(used) => used,
            Err(QuotaError::Uncounted(why)) => return Ok(Err(why)),
            Err(QuotaError::Refused(why)) => {
                let name = metadata::string_field(object, "name").unwrap_or_default();
                return Err(ApiError::forbidden(&target.d, name, &why));
            }
        };
        let key = entry.key.clone();
        if used.is_some() || !is_announced(resource, &quota) {
            charges.compares.push(Compare { key: key.clone(), expect: Expect::ModifiedAt(entry.modified) });
        }
        if let Some(used) = used {
            for (name, amount) in used {
                quota["status"]["used"][name] = json!(amount.to_string());
            }
            charges.ops.push(Op::Put { key, value: object::to_stored(d, &quota)?.json().clone() });
        }
    }
    Ok(Ok(charges))
}

/// Whether a quota limits what objects of this resource use, or will when it is counted.
fn is_limited_by(resource: QuotaResource<'_>, quota: &Value) -> bool {
    spec_names(resource, quota).next().is_some() || limited_names(resource, quota).next().is_some()
}

/// Whether the count of everything that a quota limits of this resource has at least begun.
fn is_announced(resource: QuotaResource<'_>, quota: &Value) -> bool {
    spec_names(resource, quota).all(|name| quota["status"]["hard"].get(name).is_some())
}

/// Of what a quota is to limit, what objects of this resource can use.
fn spec_names<'a>(resource: QuotaResource<'a>, quota: &'a Value) -> impl Iterator<Item = &'a String> {
    let hard = quota["spec"]["hard"].as_object();
    hard.into_iter().flatten().map(|(name, _)| name).filter(move |name| resource.uses(name))
}

/// Of what a quota limits, what objects of this resource can use.
fn limited_names<'a>(resource: QuotaResource<'a>, quota: &'a Value) -> impl Iterator<Item = &'a String> {
    let hard = quota["status"]["hard"].as_object();
    hard.into_iter().flatten().map(|(name, _)| name).filter(move |name| resource.uses(name))
}

/// Why a write does not fit a quota.
#[derive(Debug, PartialEq, Eq)]
enum QuotaError {
    /// What is used is being counted.
    Uncounted(String),
    Refused(String),
}

/// What a quota has used with this write: the amounts that change, if any do.
fn use_quota(
    resource: QuotaResource<'_>,
    quota: &Value,
    object: &Value,
    old: Option<&Value>,
    now: Timestamp,
) -> Result<Option<Amounts>, QuotaError> {
    let names: Vec<String> = limited_names(resource, quota).cloned().collect();
    if names.is_empty() || !resource.in_scopes(quota, object) {
        return Ok(None);
    }
    let quota_name = metadata::string_field(quota, "name").unwrap_or_default();
    let is_pod = resource == QuotaResource { group: "", plural: "pods" };
    if let Some(missing) = is_pod.then(|| quota::missing_requirements(object, &names)).flatten() {
        return Err(QuotaError::Refused(format!("failed quota: {quota_name}: {missing}")));
    }
    let (hard, used) = (quota::parse_amounts(&quota["status"]["hard"]), quota::parse_amounts(&quota["status"]["used"]));
    if names.iter().any(|name| !used.contains_key(name)) {
        let why = format!("status unknown for quota: {quota_name}, resources: {}", names.join(","));
        return Err(QuotaError::Uncounted(why));
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
        let why = format!("exceeded quota: {quota_name}, requested: {requested}, used: {used}, limited: {limited}");
        return Err(QuotaError::Refused(why));
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
        let used = use_quota(resource, quota, object, old, Timestamp::UNIX_EPOCH);
        let used = used.map_err(|error| match error {
            QuotaError::Uncounted(why) | QuotaError::Refused(why) => why,
        })?;
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
