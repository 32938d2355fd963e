//! Eviction by taints of devices: pods that use a device with a NoExecute taint that their claim does not tolerate are deleted.
//!
//! As upstream's device-taint-eviction controller. Taints are a driver's, in its ResourceSlice, or an administrator's, in a
//! DeviceTaintRule. What a claim tolerates was written into its allocation when it was allocated. Taints whose time is not
//! said count from when the object that has them was made.

pub(super) mod plan;

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::{
    api::{
        core::v1::ObjectReference,
        resource::v1::{DeviceTaint as ApiTaint, ResourceClaim},
    },
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use kube::api::{Patch, PatchParams};
use mainstay_events::EventNote;
use serde_json::json;

use self::plan::{AllocatedDevice, Consumer, DeviceId, DeviceTaint, World};
use super::{synced, taint_rule_status::EvictionCounts};
use crate::runtime::{ApiError, Context, Controller, Limits, ObjectKey, Plan, Runnable, error, object_writes};

const EVENT_COMPONENT: &str = "device-taint-eviction";
pub(super) const NO_EXECUTE: &str = "NoExecute";

pub struct DeviceTaintEviction {
    context: Arc<Context>,
    evictions: Arc<EvictionCounts>,
}

/// A pod that has to go, and the uids of the rules for which it goes.
#[derive(Clone, Debug)]
pub struct Eviction {
    consumer: Consumer,
    rules: Vec<String>,
}

pub fn controller(context: &Arc<Context>, evictions: &Arc<EvictionCounts>) -> Runnable {
    let queue = context.queue::<DeviceTaintEviction>();
    let caches = &context.device_caches;
    caches.claims.on_change({
        let queue = queue.clone();
        move |change| queue.add(change.key.clone())
    });
    caches.slices.on_change({
        let (queue, claims) = (queue.clone(), caches.claims.clone());
        move |change| {
            let Some(slice) = change.latest() else { return };
            let (driver, pool) = (&slice.spec.driver, &slice.spec.pool.name);
            let uses = |claim: &ResourceClaim| {
                allocated_devices(claim).iter().any(|own| own.id.driver == *driver && own.id.pool == *pool)
            };
            let using = claims.all().into_iter().filter(|claim| uses(claim));
            using.for_each(|claim| queue.add(ObjectKey::from_meta(&claim.metadata)));
        }
    });
    caches.taint_rules.on_change({
        let (queue, claims) = (queue.clone(), caches.claims.clone());
        move |_| {
            let allocated = claims.all().into_iter().filter(|claim| !allocated_devices(claim).is_empty());
            allocated.for_each(|claim| queue.add(ObjectKey::from_meta(&claim.metadata)));
        }
    });
    let controller = Arc::new(DeviceTaintEviction { context: context.clone(), evictions: evictions.clone() });
    context.runnable(controller, queue, Limits::default()).after(synced(context.clone()))
}

/// What a claim has been allocated.
pub(super) fn allocated_devices(claim: &ResourceClaim) -> Vec<AllocatedDevice> {
    let allocation = claim.status.as_ref().and_then(|status| status.allocation.as_ref());
    let results = allocation.and_then(|allocation| allocation.devices.as_ref()?.results.as_ref());
    results
        .into_iter()
        .flatten()
        .map(|result| AllocatedDevice {
            id: DeviceId { driver: result.driver.clone(), pool: result.pool.clone(), device: result.device.clone() },
            tolerations: result.tolerations.clone().unwrap_or_default(),
        })
        .collect()
}

pub(super) fn created(metadata: &ObjectMeta) -> Timestamp {
    metadata.creation_timestamp.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0)
}

pub(super) fn allocated_at(claim: &ResourceClaim) -> Timestamp {
    let allocation = claim.status.as_ref().and_then(|status| status.allocation.as_ref());
    let time = allocation.and_then(|allocation| allocation.allocation_timestamp.as_ref());
    time.map_or(Timestamp::UNIX_EPOCH, |time| time.0)
}

impl DeviceTaintEviction {
    /// The NoExecute taints of one device.
    fn taints(&self, device: &DeviceId) -> Vec<DeviceTaint> {
        let caches = &self.context.device_caches;
        let view = |taint: &ApiTaint, metadata: &ObjectMeta, rule_uid: Option<String>| {
            (taint.effect == NO_EXECUTE).then(|| DeviceTaint {
                key: taint.key.clone(),
                value: taint.value.clone().unwrap_or_default(),
                since: taint.time_added.as_ref().map_or_else(|| created(metadata), |time| time.0),
                rule_uid,
            })
        };
        let mut taints = Vec::new();
        for slice in caches.slices.all() {
            if slice.spec.driver != device.driver || slice.spec.pool.name != device.pool {
                continue;
            }
            let own = slice.spec.devices.iter().flatten().filter(|own| own.name == device.device);
            taints
                .extend(own.flat_map(|own| own.taints.iter().flatten()).filter_map(|t| view(t, &slice.metadata, None)));
        }
        for rule in caches.taint_rules.all() {
            if plan::rule_selects(&rule.spec, device) {
                taints.extend(view(&rule.spec.taint, &rule.metadata, rule.metadata.uid.clone()));
            }
        }
        taints
    }

    /// Marks a pod and deletes it; its node ends it.
    async fn evict(&self, pod: &ObjectKey, uid: &str) -> Result<(), ApiError> {
        let involved = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            namespace: Some(pod.namespace.clone()),
            name: Some(pod.name.clone()),
            uid: Some(uid.to_owned()),
            ..ObjectReference::default()
        };
        let note = EventNote::normal("DeviceTaintManagerEviction", "Marking for deletion");
        self.context.events.record_as(EVENT_COMPONENT, involved, note);
        let target = json!({
            "type": "DisruptionTarget", "status": "True", "reason": "DeletionByDeviceTaintManager",
            "message": "Device Taint manager: deleting due to NoExecute taint",
            "lastTransitionTime": Time(self.context.clock.now()),
        });
        let change = json!({ "metadata": { "uid": uid }, "status": { "conditions": [target] } });
        let pods = self.context.pods_in(&pod.namespace);
        match pods.patch_status(&pod.name, &PatchParams::default(), &Patch::Strategic(change)).await {
            Ok(written) => self.context.caches.pods.wrote(written),
            // Gone, or another pod has the name by now.
            Err(error) if error::is_not_found(&error, &pod.name) || error::has_code(&error, 409) => return Ok(()),
            Err(error) => return Err(ApiError::new(format!("write the status of pod {pod:?}"), error)),
        }
        object_writes::delete(&pods, &self.context.caches.pods, pod, uid).await.map(drop)
    }
}

impl Controller for DeviceTaintEviction {
    const NAME: &'static str = "device_taint_eviction";
    type Key = ObjectKey;
    type World = World;
    type Action = Eviction;
    type Outcome = ();
    type Status = ();

    async fn observe(&self, key: &ObjectKey) -> Result<Option<World>, ApiError> {
        let Some(claim) = self.context.device_caches.claims.get(key) else { return Ok(None) };
        if claim.status.as_ref().is_none_or(|status| status.allocation.is_none()) {
            return Ok(None);
        }
        let (allocated_at, devices) = (allocated_at(&claim), allocated_devices(&claim));
        let taints = devices.iter().map(|device| self.taints(&device.id)).collect();
        let reserved_for = claim.status.iter().flat_map(|status| status.reserved_for.iter().flatten());
        let pods =
            reserved_for.filter(|own| own.resource == "pods" && own.api_group.as_deref().is_none_or(str::is_empty));
        let consumers = pods.filter_map(|own| {
            let pod = self.context.caches.pods.get(&ObjectKey::new(&key.namespace, &own.name))?;
            let is_affected = pod.uid() == own.uid && !pod.is_finished() && !pod.is_being_deleted();
            is_affected.then(|| Consumer { pod: ObjectKey::new(&key.namespace, &own.name), uid: own.uid.clone() })
        });
        Ok(Some(World { allocated_at, consumers: consumers.collect(), devices, taints }))
    }

    fn plan(world: &World, now: Timestamp) -> Plan<Eviction, ()> {
        match plan::evicted_at(world) {
            Some(at) if at <= now => {
                let rules: Vec<String> = plan::evicting_rules(world, now).into_iter().collect();
                let evict = |consumer: &Consumer| Eviction { consumer: consumer.clone(), rules: rules.clone() };
                Plan::act(world.consumers.iter().map(evict))
            }
            requeue_at => Plan { requeue_at, ..Plan::default() },
        }
    }

    async fn apply(&self, key: &ObjectKey, Eviction { consumer, rules }: Eviction) -> Result<(), ApiError> {
        let Consumer { pod, uid } = consumer;
        tracing::info!(claim = ?key, ?pod, uid, "evict a pod that uses a tainted device");
        self.evict(&pod, &uid).await?;
        rules.iter().for_each(|rule| self.evictions.count(rule));
        Ok(())
    }
}
