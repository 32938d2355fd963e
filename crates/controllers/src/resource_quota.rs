//! ResourceQuota: counts what a namespace uses, and so gives back what deleted objects and ended pods had.
//!
//! Admission adds to `status.used` in the transaction of every write; this controller counts everything anew when
//! something is deleted or ends, when limits change, and slowly in any case. The quota is read before the objects are
//! listed and written only if it has not changed since: a write that was charged meanwhile makes this count void, so
//! `status.used` is never less than what was admitted.
//!
//! Limits that were not counted before are announced first, by writing them to `status.hard`, and counted in the next turn: from
//! the announcement on admission lets nothing through that it does not charge, so that the first count misses no write.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{ResourceQuota, ResourceQuotaStatus},
    apimachinery::pkg::api::resource::Quantity,
};
use kube::{
    Api,
    api::{DynamicObject, ListParams, PostParams},
};
use mainstay_api::{
    pod::is_terminal_phase,
    quantity,
    quota::{Amounts, QuotaResource},
};

use crate::runtime::{
    ApiError, Context, Controller, Limits, ObjectKey, Outcomes, Plan, Runnable, WorkQueue, context::resync_every,
    discovery::ServerResource, error, metadata_watch::MetadataEvent,
};

/// Upstream's period of a full count.
const RESYNC: Duration = Duration::from_secs(300);
/// How long the first count waits for a list of every resource; one that cannot be listed delays it no longer.
const SYNC_TIMEOUT: Duration = Duration::from_secs(30);
const PAGE: u32 = 500;

pub struct QuotaController {
    context: Arc<Context>,
}

pub fn controller(context: &Arc<Context>) -> Runnable {
    let queue = context.queue::<QuotaController>();
    context.caches.resource_quotas.on_change({
        let queue = queue.clone();
        move |change| {
            if change.after.is_some_and(needs_count) {
                queue.add(change.key.clone());
            }
        }
    });
    context.caches.pods.on_change({
        let (queue, context) = (queue.clone(), context.clone());
        move |change| {
            let is_ended =
                |pod: Option<&crate::objects::pod::Pod>| pod.is_some_and(|pod| is_terminal_phase(&pod.status.phase));
            if is_ended(change.after) && !is_ended(change.before) {
                add_users(&queue, &context, &change.key.namespace, QuotaResource { group: "", plural: "pods" });
            }
        }
    });
    context.metadata.on_event({
        let (queue, context) = (queue.clone(), Arc::downgrade(context));
        move |resource, event| {
            let (MetadataEvent::Deleted(meta), Some(context)) = (event, context.upgrade()) else { return };
            if let Some(namespace) = &meta.namespace {
                add_users(&queue, &context, namespace, quota_resource(resource));
            }
        }
    });
    let (mut synced, mut added) = (context.metadata.synced(), context.metadata.resources_added());
    let add_all = {
        let (queue, context) = (queue.clone(), context.clone());
        move || {
            for quota in context.caches.resource_quotas.all() {
                queue.add(ObjectKey::from_meta(&quota.metadata));
            }
        }
    };
    let on_added = {
        let add_all = add_all.clone();
        async move {
            while added.changed().await.is_ok() {
                add_all();
            }
        }
    };
    let resync = async move {
        tokio::join!(on_added, resync_every(RESYNC, add_all));
    };
    let controller = QuotaController { context: context.clone() };
    context.runnable(Arc::new(controller), queue, Limits::default()).alongside(resync).after(async move {
        let _ = tokio::time::timeout(SYNC_TIMEOUT, synced.wait_for(|synced| *synced)).await;
    })
}

/// Adds the quotas that limit what objects of this resource use.
fn add_users(queue: &WorkQueue<ObjectKey>, context: &Context, namespace: &str, resource: QuotaResource<'_>) {
    for quota in context.caches.resource_quotas.in_namespace(namespace) {
        if limited_names(&quota).iter().any(|name| resource.uses(name)) {
            queue.add(ObjectKey::from_meta(&quota.metadata));
        }
    }
}

fn quota_resource(resource: &ServerResource) -> QuotaResource<'_> {
    QuotaResource { group: &resource.api.group, plural: &resource.api.plural }
}

fn limited_names(quota: &ResourceQuota) -> Vec<String> {
    let hard = quota.spec.iter().flat_map(|spec| spec.hard.iter().flatten());
    hard.map(|(name, _)| name.clone()).collect()
}

/// Whether limits changed since they were counted; that somebody used more is no reason to count.
fn needs_count(quota: &ResourceQuota) -> bool {
    let hard = quota.spec.as_ref().and_then(|spec| spec.hard.clone()).unwrap_or_default();
    let status = quota.status.clone().unwrap_or_default();
    let used = status.used.unwrap_or_default();
    status.hard.unwrap_or_default() != hard || hard.keys().any(|name| !used.contains_key(name))
}

impl QuotaController {
    /// What all objects of a resource in the quota's namespace use of it.
    async fn count(
        &self,
        resource: &ServerResource,
        quota: &serde_json::Value,
        names: &[String],
    ) -> Result<Amounts, kube::Error> {
        let counted = quota_resource(resource);
        let namespace = quota["metadata"]["namespace"].as_str().unwrap_or_default();
        let api: Api<DynamicObject> = Api::namespaced_with(self.context.client.clone(), namespace, &resource.api);
        let is_scoped = !quota["spec"]["scopes"].is_null() || !quota["spec"]["scopeSelector"].is_null();
        if !is_scoped && counted.is_counted_only(names) {
            // The server knows how many there are without sending them.
            let page = api.list_metadata(&ListParams::default().limit(1)).await?;
            let rest = page.metadata.remaining_item_count.unwrap_or(0);
            let count = quantity::Quantity::from_units(rest + page.items.len() as i64);
            return Ok(names.iter().filter(|name| counted.uses(name)).map(|name| (name.clone(), count)).collect());
        }
        let (mut used, mut params) = (Amounts::new(), ListParams::default().limit(PAGE));
        loop {
            let page = api.list(&params).await?;
            for object in &page.items {
                let object = serde_json::to_value(object).map_err(kube::Error::SerdeError)?;
                if !counted.in_scopes(quota, &object) {
                    continue;
                }
                for (name, amount) in counted.usage(&object, self.context.clock.now()) {
                    let sum = used.entry(name).or_default();
                    *sum = *sum + amount;
                }
            }
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params = params.continue_token(&token),
                None => return Ok(used),
            }
        }
    }
}

pub struct World {
    quota: ResourceQuota,
    /// Nothing if the limits are to be announced first.
    used: Option<Amounts>,
}

/// Whether `status.hard` is what the spec says.
fn is_announced(quota: &ResourceQuota) -> bool {
    let announced = quota.status.as_ref().and_then(|status| status.hard.as_ref());
    announced.is_some() && announced == quota.spec.as_ref().and_then(|spec| spec.hard.as_ref())
}

fn plan(world: &World, now: Timestamp) -> Plan<(), Box<ResourceQuota>> {
    let hard = world.quota.spec.as_ref().and_then(|spec| spec.hard.clone()).unwrap_or_default();
    let known = world.quota.status.as_ref().and_then(|status| status.used.clone()).unwrap_or_default();
    let used: BTreeMap<String, Quantity> = match &world.used {
        Some(used) => {
            let count = |name: &String| Quantity(used.get(name).copied().unwrap_or_default().to_string());
            hard.keys().map(|name| (name.clone(), count(name))).collect()
        }
        // What was charged so far stays charged.
        None => known.into_iter().filter(|(name, _)| hard.contains_key(name)).collect(),
    };
    let status = ResourceQuotaStatus { hard: Some(hard), used: Some(used) };
    if world.quota.status.as_ref() == Some(&status) {
        return Plan::default();
    }
    let counted = ResourceQuota { status: Some(status), ..world.quota.clone() };
    let requeue_at = world.used.is_none().then_some(now);
    Plan { status: Some(Box::new(counted)), requeue_at, ..Plan::default() }
}

impl Controller for QuotaController {
    const NAME: &'static str = "resource_quota";
    type Key = ObjectKey;
    type World = World;
    type Action = ();
    type Outcome = ();
    type Status = Box<ResourceQuota>;

    async fn observe(&self, key: &ObjectKey) -> Result<Option<World>, ApiError> {
        let failed = |error| ApiError::new(format!("count what quota {key:?} limits"), error);
        let quotas: Api<ResourceQuota> = Api::namespaced(self.context.client.clone(), &key.namespace);
        // Not from the cache: what was charged before this moment must be in the lists below.
        let Some(quota) = quotas.get_opt(&key.name).await.map_err(failed)? else { return Ok(None) };
        if !is_announced(&quota) {
            return Ok(Some(World { quota, used: None }));
        }
        let value = serde_json::to_value(&quota).map_err(|error| failed(kube::Error::SerdeError(error)))?;
        let names = limited_names(&quota);
        let mut used = Amounts::new();
        for resource in &self.context.discovery.current().resources {
            let limits = names.iter().any(|name| quota_resource(resource).uses(name));
            if limits && resource.namespaced && resource.can("list") {
                used.extend(self.count(resource, &value, &names).await.map_err(failed)?);
            }
        }
        Ok(Some(World { quota, used: Some(used) }))
    }

    fn plan(world: &World, now: Timestamp) -> Plan<(), Box<ResourceQuota>> {
        plan(world, now)
    }

    async fn apply(&self, _key: &ObjectKey, (): ()) -> Result<(), ApiError> {
        Ok(())
    }

    async fn report(
        &self,
        key: &ObjectKey,
        counted: Box<ResourceQuota>,
        _outcomes: &Outcomes<()>,
    ) -> Result<(), ApiError> {
        let quotas: Api<ResourceQuota> = Api::namespaced(self.context.client.clone(), &key.namespace);
        match quotas.replace_status(&key.name, &PostParams::default(), &counted).await {
            Ok(written) => self.context.caches.resource_quotas.wrote(written),
            Err(error) if error::is_not_found(&error, &key.name) => {}
            Err(error) => return Err(ApiError::new(format!("write what is used of quota {key:?}"), error)),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn quota(hard: Value, status: Value) -> ResourceQuota {
        serde_json::from_value(json!({
            "metadata": { "name": "q", "namespace": "n", "resourceVersion": "7" },
            "spec": { "hard": hard }, "status": status,
        }))
        .unwrap()
    }

    fn planned(quota: ResourceQuota, used: &[(&str, &str)]) -> Option<Value> {
        let used = used.iter().map(|(name, text)| ((*name).to_owned(), quantity::Quantity::parse(text).unwrap()));
        let counted = plan(&World { quota, used: Some(used.collect()) }, Timestamp::UNIX_EPOCH).status?;
        assert_eq!(counted.metadata.resource_version.as_deref(), Some("7"), "fenced");
        Some(json!(counted.status))
    }

    #[test]
    fn what_is_limited_is_counted_and_nothing_else() {
        let used = [("pods", "3"), ("requests.cpu", "1500m"), ("cpu", "1500m")];
        let hard = json!({ "pods": "5", "requests.cpu": "2", "count/widgets.example.com": "1" });
        let expected = json!({
            "hard": hard, "used": { "pods": "3", "requests.cpu": "1500m", "count/widgets.example.com": "0" },
        });
        assert_eq!(planned(quota(hard.clone(), json!({})), &used), Some(expected.clone()));
        assert_eq!(planned(quota(hard, expected), &used), None, "nothing is written twice");
    }

    #[test]
    fn new_limits_are_announced_before_they_are_counted() {
        let status = json!({ "hard": { "pods": "5", "services": "1" }, "used": { "pods": "2", "services": "1" } });
        let changed = quota(json!({ "pods": "4", "secrets": "3" }), status);
        assert!(!is_announced(&changed));
        let planned = plan(&World { quota: changed, used: None }, Timestamp::UNIX_EPOCH);
        assert_eq!(planned.requeue_at, Some(Timestamp::UNIX_EPOCH));
        let announced = planned.status.unwrap();
        let expected = json!({ "hard": { "pods": "4", "secrets": "3" }, "used": { "pods": "2" } });
        assert_eq!(json!(announced.status), expected, "what is known stays, what is new is counted next");
        assert!(is_announced(&announced) && needs_count(&announced));
    }

    #[test]
    fn a_quota_is_counted_when_its_limits_change_and_not_when_it_is_used() {
        let hard = json!({ "pods": "5" });
        assert!(needs_count(&quota(hard.clone(), json!({}))));
        assert!(needs_count(&quota(hard.clone(), json!({ "hard": hard, "used": {} }))));
        assert!(needs_count(&quota(hard.clone(), json!({ "hard": { "pods": "4" }, "used": { "pods": "1" } }))));
        assert!(!needs_count(&quota(hard.clone(), json!({ "hard": hard, "used": { "pods": "2" } }))));
    }
}
