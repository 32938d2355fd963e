//! Drain acknowledgements: a pod that is being deleted gets a condition once no node sends connections to it any more.
//!
//! A slice that no longer has the pod as ready was written at some version. Every node says, in its ServiceTable, up to
//! which version of slices it has come. Once the last of them is past that version (the [`watermark`]), the pod gets the
//! condition [`DRAINED`], and its agent stops it. Nodes without a table are not waited for, nor are those whose
//! heartbeats stopped. A Service that publishes its pods whatever their state never removes one, and is not asked.
//!
//! At which version a pod was removed is remembered only here. Whoever begins to look does not know when those were taken out that a
//! slice has as not ready: the version that the slice has then is taken, which is later than needed. The agent's timeout bounds that.

mod watermark;

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{api::discovery::v1::EndpointSlice, apimachinery::pkg::apis::meta::v1::Time};
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use parking_lot::Mutex;
use serde_json::json;

use super::ServiceContext;
use crate::{
    objects::pod::Pod,
    runtime::{ApiError, Change, Controller, Limits, ObjectKey, Plan, Runnable, WorkQueue, error},
    services::slices::CONCURRENT_RECONCILES,
};
use watermark::Watermark;

pub const DRAINED: &str = mainstay_api::wellknown::mainstay::DRAINED_CONDITION;
const REASON: &str = "RemovedFromAllNodes";
/// Tables live in the server's memory. After a start, nodes have this long to say theirs again.
const SETTLING: SignedDuration = SignedDuration::from_secs(5);

pub struct DrainAcknowledgements {
    client: Client,
    shared: Arc<ServiceContext>,
    watermark: Arc<Mutex<Watermark>>,
    removals: Arc<RemovalVersions>,
    settled_at: Timestamp,
}

/// At which version a pod was last removed from a slice, by uid.
type RemovalVersions = Mutex<HashMap<String, u64>>;

pub fn controller(client: Client, shared: &Arc<ServiceContext>) -> Runnable {
    let queue = shared.context.queue::<DrainAcknowledgements>();
    let (watermark, removals): (Arc<Mutex<Watermark>>, Arc<RemovalVersions>) = Default::default();
    keep_watermark(shared, &watermark, &queue);
    let caches = shared.caches();
    caches.pods.on_change({
        let (queue, removals) = (queue.clone(), removals.clone());
        move |change| match change.after {
            Some(pod) if pod.is_being_deleted() && !is_drained(pod) => queue.add(change.key.clone()),
            Some(_) => {}
            None => drop(change.before.and_then(|pod| removals.lock().remove(pod.uid()))),
        }
    });
    caches.slices.on_change({
        let (queue, removals, shared) = (queue.clone(), removals.clone(), Arc::downgrade(shared));
        move |change| {
            let Some(shared) = shared.upgrade() else { return };
            for (key, uid) in removed_pods(&change, shared.caches().slices.is_synced()) {
                let pods = &shared.caches().pods;
                let pod = pods.get(&key).filter(|pod| pod.uid() == uid);
                // Slices may be listed before pods: until these are, nobody knows which are there.
                if pod.is_none() && pods.is_synced() {
                    continue;
                }
                let version = change.version.max(1);
                removals.lock().entry(uid).and_modify(|own| *own = version.max(*own)).or_insert(version);
                if pod.is_some_and(|pod| pod.is_being_deleted()) {
                    queue.add(key);
                }
            }
        }
    });
    let settled_at = shared.context.clock.now() + SETTLING;
    let acknowledgements = DrainAcknowledgements { client, shared: shared.clone(), watermark, removals, settled_at };
    let limits = Limits { concurrent_reconciles: CONCURRENT_RECONCILES, ..Limits::default() };
    let tables = shared.context.service_tables.clone();
    shared.context.runnable(Arc::new(acknowledgements), queue, limits).after(async move { tables.synced().await })
}

fn keep_watermark(shared: &Arc<ServiceContext>, watermark: &Arc<Mutex<Watermark>>, queue: &Arc<WorkQueue<ObjectKey>>) {
    shared.context.service_tables.on_change({
        let (watermark, queue, shared) = (watermark.clone(), queue.clone(), Arc::downgrade(shared));
        move |change| {
            let Some(shared) = shared.upgrade() else { return };
            let mut watermark = watermark.lock();
            let table = shared.context.service_tables.get(change.key);
            let version = table.map(|table| table.spec.endpoints.parse().unwrap_or(0));
            watermark.put_table(&change.key.name, version).into_iter().for_each(|key| queue.add(key));
        }
    });
    shared.caches().nodes.on_change({
        let (watermark, queue, shared) = (watermark.clone(), queue.clone(), Arc::downgrade(shared));
        move |change| {
            let Some(shared) = shared.upgrade() else { return };
            let mut watermark = watermark.lock();
            let ready = shared.caches().nodes.get(change.key).is_some_and(|node| mainstay_api::node::is_ready(&node));
            watermark.put_node(&change.key.name, ready).into_iter().for_each(|key| queue.add(key));
        }
    });
}

fn is_drained(pod: &Pod) -> bool {
    pod.condition(DRAINED).is_some_and(|condition| condition.status == "True")
}

/// The pods that a change of a slice took out of those that are ready. Of a slice that is seen for the first time, all that are not:
/// each may have been until just before.
fn removed_pods(change: &Change<'_, EndpointSlice>, complete: bool) -> Vec<(ObjectKey, String)> {
    let after = change.after.map(ready).unwrap_or_default();
    match change.before {
        Some(before) => {
            let mut before = ready(before);
            before.retain(|uid, _| !after.contains_key(uid));
            before.into_iter().map(|(uid, key)| (key, uid.to_owned())).collect()
        }
        None if complete => Vec::new(),
        None => pods(change.after, |is_ready| !is_ready).map(|(uid, key)| (key, uid.to_owned())).collect(),
    }
}

fn ready(slice: &EndpointSlice) -> BTreeMap<&str, ObjectKey> {
    pods(Some(slice), |is_ready| is_ready).collect()
}

/// Uid and key of the pods in a slice, chosen by whether they are ready.
fn pods(slice: Option<&EndpointSlice>, chosen: fn(bool) -> bool) -> impl Iterator<Item = (&str, ObjectKey)> {
    slice.into_iter().flat_map(|slice| slice.endpoints.iter().flatten()).filter_map(move |endpoint| {
        let is_ready = endpoint.conditions.as_ref().is_none_or(|own| own.ready.unwrap_or(true));
        let pod = endpoint.target_ref.as_ref().filter(|_| chosen(is_ready))?;
        let key = ObjectKey::new(pod.namespace.clone().unwrap_or_default(), pod.name.clone().unwrap_or_default());
        Some((pod.uid.as_deref()?, key))
    })
}

/// What is known of a pod and of the nodes that might send to it.
#[derive(Debug)]
pub struct World {
    pod: Arc<Pod>,
    /// A Service selects it, or did until lately.
    in_service: bool,
    /// A slice has it as ready, by a Service that takes back what is not.
    named: bool,
    /// At which version it was taken out.
    removed_at: Option<u64>,
    /// Up to where all nodes have come; nothing if there is none to ask.
    least: Option<u64>,
    /// Until when a node may still say that it has a table.
    unsettled_until: Option<Timestamp>,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is behind no Service, or is acknowledged already.
    NotOurs,
    /// It has not been taken out yet.
    Named,
    /// Not everybody knows yet.
    Until {
        version: u64,
    },
    /// It is too early to tell.
    Settling {
        until: Timestamp,
    },
    Drained,
}

pub fn verdict(world: &World, now: Timestamp) -> Verdict {
    let World { pod, in_service, named, removed_at, least, unsettled_until } = world;
    if !pod.is_being_deleted() || pod.is_finished() || is_drained(pod) || !(*in_service || removed_at.is_some()) {
        return Verdict::NotOurs;
    }
    if *named {
        return Verdict::Named;
    }
    match (removed_at, least, unsettled_until) {
        (Some(version), Some(least), _) if least < version => Verdict::Until { version: *version },
        (Some(_), _, Some(until)) if *until > now => Verdict::Settling { until: *until },
        _ => Verdict::Drained,
    }
}

#[derive(Debug, PartialEq, Eq)]
pub struct SetCondition {
    uid: String,
}

impl DrainAcknowledgements {
    /// Whether a slice still has a pod as ready.
    fn is_named(&self, pod: &ObjectKey, uid: &str) -> bool {
        let caches = self.shared.caches();
        self.shared.selected_pods.services_of(pod).into_iter().any(|name| {
            let service = ObjectKey::new(&pod.namespace, name);
            let takes_back =
                |key: &ObjectKey| caches.services.get(key).is_some_and(|own| !own.spec.publish_not_ready_addresses);
            takes_back(&service)
                && self.shared.slices.members(&service).iter().any(|key| {
                    let slice = caches.slices.get(key);
                    pods(slice.as_deref(), |is_ready| is_ready).any(|(own, _)| own == uid)
                })
        })
    }
}

impl Controller for DrainAcknowledgements {
    const NAME: &'static str = "drain_acknowledgement";
    type Key = ObjectKey;
    type World = World;
    type Action = SetCondition;
    type Outcome = ();
    type Status = ();

    async fn observe(&self, key: &ObjectKey) -> Result<Option<World>, ApiError> {
        let Some(pod) = self.shared.caches().pods.get(key).filter(|pod| pod.is_being_deleted()) else {
            return Ok(None);
        };
        let in_service = !self.shared.selected_pods.services_of(key).is_empty();
        let named = self.is_named(key, pod.uid());
        let removed_at = self.removals.lock().get(pod.uid()).copied();
        let mut watermark = self.watermark.lock();
        if let Some(version) = removed_at.filter(|version| !watermark.has(*version)) {
            watermark.wait(version, key.clone());
        }
        let unsettled_until = watermark.is_partial().then_some(self.settled_at);
        Ok(Some(World { pod, in_service, named, removed_at, least: watermark.least(), unsettled_until }))
    }

    fn plan(world: &World, now: Timestamp) -> Plan<SetCondition, ()> {
        match verdict(world, now) {
            Verdict::Drained => Plan::act([SetCondition { uid: world.pod.uid().to_owned() }]),
            Verdict::Settling { until } => Plan { requeue_at: Some(until), ..Plan::default() },
            Verdict::NotOurs | Verdict::Named | Verdict::Until { .. } => Plan::default(),
        }
    }

    async fn apply(&self, key: &ObjectKey, SetCondition { uid }: SetCondition) -> Result<(), ApiError> {
        let condition = json!({
            "type": DRAINED, "status": "True", "reason": REASON, "lastTransitionTime": Time(self.shared.context.clock.now()),
        });
        let change = json!({ "metadata": { "uid": uid }, "status": { "conditions": [condition] } });
        let pods = Api::<Pod>::namespaced(self.client.clone(), &key.namespace);
        match pods.patch_status(&key.name, &PatchParams::default(), &Patch::Strategic(change)).await {
            Ok(pod) => self.shared.caches().pods.wrote(pod),
            Err(error) if error::is_not_found(&error, &key.name) || error::has_code(&error, 409) => {} // another pod by now
            Err(error) => return Err(ApiError::new(format!("set the drain acknowledgement of pod {key:?}"), error)),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
