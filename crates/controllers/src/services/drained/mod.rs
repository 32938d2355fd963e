//! Says of a pod that is being deleted that no machine sends to it any more.
//!
//! A slice that no longer has the pod as ready was written at some version. Every machine says, in its ServiceTable,
//! up to which version of slices it has come. Once the last of them is past that version, the pod gets the
//! condition [`DRAINED`], and its agent stops it. Machines without a table are not waited for, nor are those that
//! are silent. A Service that publishes its pods whatever their state never takes one back, and has no say.
//!
//! When a pod left is remembered only here. Who begins to look while a pod is leaving takes the version that its
//! slice has then, which is later than needed; the agent's patience bounds that.

mod floor;

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::{core::v1::Node, discovery::v1::EndpointSlice},
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::api::{Patch, PatchParams};
use mainstay_api::service_table::ServiceTable;
use parking_lot::Mutex;
use serde_json::json;

use super::Shared;
use crate::{
    cache::{Cache, Change, Key},
    failure::{self, Failure},
    runner::{self, Limits, Queue},
    services::slices::WIDTH,
    shell::{Controller, Plan},
    workloads::{Turns, pod::Pod},
};
use floor::Floor;

pub const DRAINED: &str = "mainstay.dev/Drained";
const REASON: &str = "NoTableNamesIt";
/// Tables live in the server's memory. After a start, machines have this long to say theirs again.
const SETTLING: SignedDuration = SignedDuration::from_secs(5);

pub struct Drains {
    shared: Arc<Shared>,
    floor: Arc<Mutex<Floor>>,
    left: Arc<Left>,
    settled_at: Timestamp,
}

/// At which version a pod was last taken out of a slice, by uid.
type Left = Mutex<HashMap<String, u64>>;

/// Begins to listen.
pub fn listen(shared: &Arc<Shared>) -> Turns {
    let queue = Queue::new();
    let (floor, left): (Arc<Mutex<Floor>>, Arc<Left>) = Default::default();
    let tables = Cache::<ServiceTable>::new();
    listen_to_machines(shared, &tables, &floor, &queue);
    let caches = shared.caches();
    caches.pods.on_change({
        let (queue, left) = (queue.clone(), left.clone());
        move |change| match change.after {
            Some(pod) if pod.is_leaving() && !is_said(pod) => queue.wake(change.key.clone()),
            Some(_) => {}
            None => drop(change.before.and_then(|pod| left.lock().remove(pod.uid()))),
        }
    });
    caches.slices.on_change({
        let (queue, left, shared) = (queue.clone(), left.clone(), Arc::downgrade(shared));
        move |change| {
            let Some(shared) = shared.upgrade() else { return };
            for (key, uid) in taken_out(&change, shared.caches().slices.is_ready()) {
                let Some(pod) = shared.caches().pods.get(&key).filter(|pod| pod.uid() == uid) else { continue };
                let version = change.version.max(1);
                left.lock().entry(uid).and_modify(|own| *own = version.max(*own)).or_insert(version);
                if pod.is_leaving() {
                    queue.wake(key);
                }
            }
        }
    });
    let settled_at = Timestamp::now() + SETTLING;
    let drains = Arc::new(Drains { shared: shared.clone(), floor, left, settled_at });
    let client = shared.workloads.client.clone();
    Box::new(move |stop| {
        Box::pin(async move {
            let limits = Limits { width: WIDTH, ..Limits::default() };
            let turns = async {
                if stop.run_until_cancelled(tables.ready()).await.is_some() {
                    runner::run(drains, queue, limits, stop.clone()).await;
                }
            };
            tokio::join!(tables.clone().run(client, stop.clone()), turns);
        })
    })
}

fn listen_to_machines(
    shared: &Arc<Shared>,
    tables: &Arc<Cache<ServiceTable>>,
    floor: &Arc<Mutex<Floor>>,
    queue: &Arc<Queue<Key>>,
) {
    tables.on_change({
        let (floor, queue, tables) = (floor.clone(), queue.clone(), Arc::downgrade(tables));
        move |change| {
            let mut floor = floor.lock();
            let now = tables.upgrade().and_then(|tables| tables.get(change.key));
            let version = now.map(|table| table.spec.endpoints.parse().unwrap_or(0));
            floor.put_table(&change.key.name, version).into_iter().for_each(|key| queue.wake(key));
        }
    });
    shared.caches().nodes.on_change({
        let (floor, queue, shared) = (floor.clone(), queue.clone(), Arc::downgrade(shared));
        move |change| {
            let Some(shared) = shared.upgrade() else { return };
            let mut floor = floor.lock();
            let alive = shared.caches().nodes.get(change.key).is_some_and(|node| is_alive(&node));
            floor.put_machine(&change.key.name, alive).into_iter().for_each(|key| queue.wake(key));
        }
    });
}

fn is_alive(node: &Node) -> bool {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

fn is_said(pod: &Pod) -> bool {
    pod.condition(DRAINED).is_some_and(|condition| condition.status == "True")
}

/// The pods that a change of a slice took out of those that are ready. Of a slice that is seen for the first time,
/// those that are going and had been ready.
fn taken_out(change: &Change<'_, EndpointSlice>, complete: bool) -> Vec<(Key, String)> {
    let after = change.after.map(ready).unwrap_or_default();
    match change.before {
        Some(before) => {
            let mut before = ready(before);
            before.retain(|uid, _| !after.contains_key(uid));
            before.into_iter().map(|(uid, key)| (key, uid.to_owned())).collect()
        }
        None if complete => Vec::new(),
        None => {
            let leaving = pods(change.after, |[ready, serving, leaving]| leaving && serving && !ready);
            leaving.map(|(uid, key)| (key, uid.to_owned())).collect()
        }
    }
}

fn ready(slice: &EndpointSlice) -> BTreeMap<&str, Key> {
    pods(Some(slice), |[ready, ..]| ready).collect()
}

/// Uid and key of the pods in a slice, chosen by ready, serving and terminating.
fn pods(slice: Option<&EndpointSlice>, chosen: fn([bool; 3]) -> bool) -> impl Iterator<Item = (&str, Key)> {
    slice.into_iter().flat_map(|slice| &slice.endpoints).filter_map(move |endpoint| {
        let conditions = endpoint.conditions.as_ref();
        let ready = conditions.is_none_or(|own| own.ready.unwrap_or(true));
        let serving = conditions.and_then(|own| own.serving).unwrap_or(ready);
        let leaving = conditions.and_then(|own| own.terminating).unwrap_or(false);
        let pod = endpoint.target_ref.as_ref().filter(|_| chosen([ready, serving, leaving]))?;
        let key = Key::new(pod.namespace.clone().unwrap_or_default(), pod.name.clone().unwrap_or_default());
        Some((pod.uid.as_deref()?, key))
    })
}

/// What is known of a pod and of those who might send to it.
#[derive(Debug)]
pub struct World {
    pod: Arc<Pod>,
    /// A Service selects it, or did until lately.
    in_service: bool,
    /// A slice has it as ready, by a Service that takes back what is not.
    named: bool,
    /// At which version it was taken out.
    left: Option<u64>,
    /// Up to where all machines have come; nothing if there is none to ask.
    least: Option<u64>,
    /// Until when a machine may still say that it has a table.
    unsettled_until: Option<Timestamp>,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// There is nothing to say of it.
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

pub fn judge(world: &World, now: Timestamp) -> Verdict {
    let World { pod, in_service, named, left, least, unsettled_until } = world;
    if !pod.is_leaving() || pod.is_over() || is_said(pod) || !(*in_service || left.is_some()) {
        return Verdict::NotOurs;
    }
    if *named {
        return Verdict::Named;
    }
    match (left, least, unsettled_until) {
        (Some(version), Some(least), _) if least < version => Verdict::Until { version: *version },
        (Some(_), _, Some(until)) if *until > now => Verdict::Settling { until: *until },
        _ => Verdict::Drained,
    }
}

#[derive(Debug, PartialEq, Eq)]
pub struct Say {
    uid: String,
}

impl Drains {
    /// Whether a slice still has a pod as ready.
    fn is_named(&self, pod: &Key, uid: &str) -> bool {
        let caches = self.shared.caches();
        self.shared.members.services_of(pod).into_iter().any(|name| {
            let service = Key::new(&pod.namespace, name);
            let takes_back =
                |key: &Key| caches.services.get(key).is_some_and(|own| !own.spec.publish_not_ready_addresses);
            takes_back(&service)
                && self.shared.slices.of(&service).iter().any(|key| {
                    let slice = caches.slices.get(key);
                    pods(slice.as_deref(), |[ready, ..]| ready).any(|(own, _)| own == uid)
                })
        })
    }
}

impl Controller for Drains {
    const NAME: &'static str = "drained-pods";
    type Key = Key;
    type World = World;
    type Action = Say;
    type Status = ();

    async fn observe(&self, key: &Key) -> Result<Option<World>, Failure> {
        let Some(pod) = self.shared.caches().pods.get(key).filter(|pod| pod.is_leaving()) else { return Ok(None) };
        let in_service = !self.shared.members.services_of(key).is_empty();
        let named = self.is_named(key, pod.uid());
        let left = self.left.lock().get(pod.uid()).copied();
        let mut floor = self.floor.lock();
        if let Some(version) = left.filter(|version| !floor.has(*version)) {
            floor.wait(version, key.clone());
        }
        let unsettled_until = floor.is_partial().then_some(self.settled_at);
        Ok(Some(World { pod, in_service, named, left, least: floor.least(), unsettled_until }))
    }

    fn plan(world: &World, now: Timestamp) -> Plan<Say, ()> {
        match judge(world, now) {
            Verdict::Drained => Plan::act([Say { uid: world.pod.uid().to_owned() }]),
            Verdict::Settling { until } => Plan { wake_at: Some(until), ..Plan::default() },
            Verdict::NotOurs | Verdict::Named | Verdict::Until { .. } => Plan::default(),
        }
    }

    async fn apply(&self, key: &Key, Say { uid }: Say) -> Result<(), Failure> {
        let condition = json!({
            "type": DRAINED, "status": "True", "reason": REASON, "lastTransitionTime": Time(Timestamp::now()),
        });
        let change = json!({ "metadata": { "uid": uid }, "status": { "conditions": [condition] } });
        let pods = self.shared.workloads.pods_in(&key.namespace);
        match pods.patch_status(&key.name, &PatchParams::default(), &Patch::Strategic(change)).await {
            Ok(pod) => self.shared.caches().pods.wrote(pod),
            Err(error) if failure::no_such_object(&error, &key.name) || failure::is(&error, 409) => {} // another by now
            Err(error) => return Err(Failure::new(format!("say that pod {key:?} is drained"), error)),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
