//! One DeviceTaintRule: says in its condition `EvictionInProgress` how many pods still have to go for it.
//!
//! As upstream's: for a rule of effect `None` the condition tells once what the effect `NoExecute` would do. The condition is
//! written at most every ten seconds, since a rule may concern very many pods.

mod plan;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::Timestamp;
use k8s_openapi::{
    api::resource::v1::{DeviceTaintRule, ResourceClaim},
    apimachinery::pkg::apis::meta::v1::Condition,
};
use kube::{Api, api::PostParams};
use parking_lot::Mutex;

pub use self::plan::World;
use super::{
    device_taints::{NO_EXECUTE, allocated_at, allocated_devices, created, plan as eviction},
    synced,
};
use crate::runtime::{ApiError, Context, Controller, Limits, ObjectKey, Outcomes, Plan, Runnable, error};

/// How many pods were evicted for each rule, by its uid, since this process runs.
#[derive(Default)]
pub struct EvictionCounts(Mutex<BTreeMap<String, usize>>);

impl EvictionCounts {
    pub fn count(&self, rule_uid: &str) {
        *self.0.lock().entry(rule_uid.to_owned()).or_default() += 1;
    }

    fn get(&self, rule_uid: &str) -> usize {
        self.0.lock().get(rule_uid).copied().unwrap_or(0)
    }
}

pub struct TaintRuleStatus {
    context: Arc<Context>,
    evictions: Arc<EvictionCounts>,
}

pub fn controller(context: &Arc<Context>, evictions: &Arc<EvictionCounts>) -> Runnable {
    let queue = context.queue::<TaintRuleStatus>();
    let caches = &context.device_caches;
    caches.taint_rules.on_change({
        let queue = queue.clone();
        move |change| queue.add(change.key.clone())
    });
    let add_evicting = {
        let (queue, rules) = (queue.clone(), caches.taint_rules.clone());
        move || {
            let evicting = rules.all().into_iter().filter(|rule| rule.spec.taint.effect == NO_EXECUTE);
            evicting.for_each(|rule| queue.add(ObjectKey::from_meta(&rule.metadata)));
        }
    };
    caches.claims.on_change({
        let add_evicting = add_evicting.clone();
        move |_| add_evicting()
    });
    context.caches.pods.on_change(move |change| {
        // Only its end matters: where it came from, its claims changed.
        let uses_devices = change.latest().is_some_and(|pod| pod.uses_resource_claims());
        if uses_devices && change.after.is_none_or(|pod| !pod.is_active()) {
            add_evicting();
        }
    });
    let controller = Arc::new(TaintRuleStatus { context: context.clone(), evictions: evictions.clone() });
    context.runnable(controller, queue, Limits::default()).after(synced(context.clone()))
}

impl TaintRuleStatus {
    /// The pods of a claim that the rule evicts, now or later, if it has the effect NoExecute.
    fn concerned_pods(&self, claim: &ResourceClaim, rule: &DeviceTaintRule) -> Vec<ObjectKey> {
        let taint = eviction::DeviceTaint {
            key: rule.spec.taint.key.clone(),
            value: rule.spec.taint.value.clone().unwrap_or_default(),
            since: rule.spec.taint.time_added.as_ref().map_or_else(|| created(&rule.metadata), |time| time.0),
            rule_uid: rule.metadata.uid.clone(),
        };
        let devices = allocated_devices(claim);
        let selected = devices.iter().filter(|device| eviction::rule_selects(&rule.spec, &device.id));
        let is_due = |device: &eviction::AllocatedDevice| {
            eviction::tolerated_until(&device.tolerations, &taint, allocated_at(claim)).is_some()
        };
        if !selected.into_iter().any(is_due) {
            return vec![];
        }
        let namespace = claim.metadata.namespace.clone().unwrap_or_default();
        let consumers = claim.status.iter().flat_map(|status| status.reserved_for.iter().flatten());
        let pods = consumers.filter(|own| own.resource == "pods").filter_map(|own| {
            let key = ObjectKey::new(&namespace, &own.name);
            self.context.caches.pods.get(&key).filter(|pod| pod.uid() == own.uid && pod.is_active()).map(|_| key)
        });
        pods.collect()
    }
}

impl Controller for TaintRuleStatus {
    const NAME: &'static str = "device_taint_rule_status";
    type Key = ObjectKey;
    type World = World;
    type Action = ();
    type Outcome = ();
    type Status = Condition;

    async fn observe(&self, key: &ObjectKey) -> Result<Option<World>, ApiError> {
        let caches = &self.context.device_caches;
        let Some(rule) = caches.taint_rules.get(key) else { return Ok(None) };
        let (mut pods, mut allocated) = (BTreeSet::new(), 0);
        for claim in caches.claims.all() {
            let devices = allocated_devices(&claim);
            allocated += devices.iter().filter(|device| eviction::rule_selects(&rule.spec, &device.id)).count();
            pods.extend(self.concerned_pods(&claim, &rule));
        }
        let mut published = 0;
        for slice in caches.slices.all() {
            let devices = slice.spec.devices.iter().flatten().map(|device| eviction::DeviceId {
                driver: slice.spec.driver.clone(),
                pool: slice.spec.pool.name.clone(),
                device: device.name.clone(),
            });
            published += devices.filter(|device| eviction::rule_selects(&rule.spec, device)).count();
        }
        let evicted = self.evictions.get(rule.metadata.uid.as_deref().unwrap_or_default());
        Ok(Some(World { rule, pods, published, allocated, evicted }))
    }

    fn plan(world: &World, now: Timestamp) -> Plan<(), Condition> {
        plan::plan(world, now)
    }

    async fn apply(&self, _key: &ObjectKey, (): ()) -> Result<(), ApiError> {
        Ok(())
    }

    async fn report(&self, key: &ObjectKey, condition: Condition, _: &Outcomes<()>) -> Result<(), ApiError> {
        let Some(rule) = self.context.device_caches.taint_rules.get(key) else { return Ok(()) };
        let mut rule = DeviceTaintRule::clone(&rule);
        let conditions = rule.status.get_or_insert_default().conditions.get_or_insert_default();
        conditions.retain(|own| own.type_ != condition.type_);
        conditions.push(condition);
        let rules: Api<DeviceTaintRule> = Api::all(self.context.client.clone());
        match rules.replace_status(&key.name, &PostParams::default(), &rule).await {
            Ok(written) => self.context.device_caches.taint_rules.wrote(written),
            Err(error) if error::is_not_found(&error, &key.name) => {}
            Err(error) => {
                return Err(ApiError::new(format!("write the status of device taint rule {}", key.name), error));
            }
        }
        Ok(())
    }
}
