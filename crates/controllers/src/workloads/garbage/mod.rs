//! Removes pods that nobody else will: see [`plan`].

mod plan;

use std::{collections::HashMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{api::core::v1::Node, apimachinery::pkg::apis::meta::v1::Time};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
};
use parking_lot::Mutex;
use serde_json::json;

use self::plan::{ENDED_KEPT, Machine, Remove, Why, World};
use super::{Turns, Workloads, pod::Pod, turns};
use crate::{
    cache::{Change, Key as Name},
    failure::{self, Failure},
    runner::{Limits, Queue},
    shell::{Controller, Plan},
};

/// How often pods that ended are counted, as long as more do.
const COUNTING: Duration = Duration::from_secs(20);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    Pod(Name),
    /// All that ended.
    Ended,
}

pub struct Garbage {
    shared: Arc<Workloads>,
    /// Machines that pods speak of and that are not there, and since when we know.
    gone: Arc<Mutex<HashMap<String, Timestamp>>>,
}

/// Begins to listen.
pub fn listen(shared: &Arc<Workloads>) -> Turns {
    let (queue, caches) = (Queue::new(), &shared.caches);
    let garbage = Garbage { shared: shared.clone(), gone: Arc::default() };
    caches.pods.on_change({
        let (queue, nodes) = (queue.clone(), caches.nodes.clone());
        move |change: Change<'_, Pod>| {
            let Some(pod) = change.after else { return };
            let node = &pod.spec.node_name;
            let lost = !node.is_empty() && nodes.get(&Name::new("", node)).is_none();
            if pod.is_leaving() || lost {
                queue.wake(Key::Pod(change.key.clone()));
            }
            if pod.is_over() && change.before.is_none_or(|before| !before.is_over()) {
                queue.wake_within(Key::Ended, COUNTING);
            }
        }
    });
    caches.nodes.on_change({
        let (queue, pods, gone) = (queue.clone(), caches.pods.clone(), garbage.gone.clone());
        move |change| {
            if change.after.is_some() {
                gone.lock().remove(&change.key.name);
            }
            if change.before.map(Machine::of) == change.after.map(Machine::of) {
                return;
            }
            let pods = pods.all();
            let there = pods.iter().filter(|pod| pod.spec.node_name == change.key.name);
            let concerned = there.filter(|pod| change.after.is_none() || pod.is_leaving());
            concerned.for_each(|pod| queue.wake(Key::Pod(Name::of(&pod.metadata))));
        }
    });
    turns(Arc::new(garbage), queue, Limits::default())
}

impl Garbage {
    fn machine(&self, node: &str) -> Machine {
        if node.is_empty() {
            return Machine::None;
        }
        match self.shared.caches.nodes.get(&Name::new("", node)) {
            Some(node) => Machine::of(&node),
            None => {
                let since = *self.gone.lock().entry(node.to_owned()).or_insert_with(Timestamp::now);
                Machine::Gone { since }
            }
        }
    }

    /// Whether a machine is there after all, by the API itself.
    async fn is_there(&self, node: &str) -> Result<bool, Failure> {
        let nodes: Api<Node> = Api::all(self.shared.client.clone());
        let found = nodes.get_metadata_opt(node).await.map_err(Failure::when(format!("look for node {node}")))?;
        Ok(found.is_some())
    }

    /// Says that a pod ended, and why nobody saw it.
    async fn fail(&self, remove: &Remove) -> Result<(), Failure> {
        let Name { namespace, name } = &remove.pod;
        let mut status = json!({ "phase": "Failed" });
        if let Why::MachineGone { .. } = remove.why {
            status["conditions"] = json!([{
                "type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC",
                "message": "PodGC: node no longer exists", "lastTransitionTime": Time(Timestamp::now()),
            }]);
        }
        let change = json!({ "metadata": { "uid": remove.uid }, "status": status });
        let pods = self.shared.pods_in(namespace);
        match pods.patch_status(name, &PatchParams::default(), &Patch::Strategic(change)).await {
            Ok(pod) => self.shared.caches.pods.wrote(pod),
            Err(error) if failure::no_such_object(&error, name) => {}
            Err(error) => return Err(Failure::new(format!("fail pod {namespace}/{name}"), error)),
        }
        Ok(())
    }
}

impl Controller for Garbage {
    const NAME: &'static str = "pod-garbage";
    const ABREAST: usize = 16;
    type Key = Key;
    type World = World;
    type Action = Remove;
    type Status = ();

    async fn observe(&self, key: &Key) -> Result<Option<World>, Failure> {
        let pods = &self.shared.caches.pods;
        Ok(match key {
            Key::Pod(name) => pods.get(name).map(|pod| {
                let machine = self.machine(&pod.spec.node_name);
                World::One { pod, machine }
            }),
            Key::Ended => {
                let mut pods = pods.all();
                pods.retain(|pod| pod.is_over());
                Some(World::Ended { pods, kept: ENDED_KEPT })
            }
        })
    }

    fn plan(world: &World, now: Timestamp) -> Plan<Remove, ()> {
        plan::plan(world, now)
    }

    async fn apply(&self, _: &Key, remove: Remove) -> Result<(), Failure> {
        if let Why::MachineGone { node } = &remove.why
            && self.is_there(node).await?
        {
            return Ok(()); // its news will tell
        }
        let Name { namespace, name } = &remove.pod;
        tracing::info!(?remove.pod, ?remove.why, "remove a pod that nobody else will");
        if remove.fail {
            self.fail(&remove).await?;
        }
        let fence = Preconditions { uid: Some(remove.uid.clone()), resource_version: None };
        let params =
            DeleteParams { grace_period_seconds: Some(0), preconditions: Some(fence), ..DeleteParams::background() };
        match self.shared.pods_in(namespace).delete(name, &params).await {
            Ok(answer) => {
                let held = |pod: &Pod| pod.metadata.finalizers.as_ref().is_some_and(|held| !held.is_empty());
                match answer.left().filter(held) {
                    Some(pod) => self.shared.caches.pods.wrote(pod),
                    None => self.shared.caches.pods.removed(&remove.pod, &remove.uid),
                }
                Ok(())
            }
            Err(error) if failure::is(&error, 404) || failure::is(&error, 409) => Ok(()),
            Err(error) => Err(Failure::new(format!("remove pod {namespace}/{name}"), error)),
        }
    }
}
