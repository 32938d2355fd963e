//! Places pods on machines, until there is a scheduler.
//!
//! A pod goes to the ready machine with room that has the fewest pods. Pods and nodes are watched and kept as narrow
//! views, with what each node has left; a decision costs no request but the binding itself. A machine's room
//! is taken in memory before the binding is asked for and given back if that is refused, so that many
//! pods at once do not all see the same room. Pods that fit nowhere wait until a node changes or a pod
//! goes.

mod fit;
mod view;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Node, ObjectReference, Pod},
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::{
    Api, Client, Resource,
    api::{Patch, PatchParams, PostParams},
    runtime::{
        WatchStreamExt,
        events::{Event, EventType, Recorder, Reporter},
        watcher,
    },
};
use parking_lot::Mutex;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use self::{
    fit::{Candidate, Taken},
    view::{Key, NodeView, PodView},
};
use crate::{
    failure::{self, Failure},
    runner::Queue,
    shell::{Controller, Plan},
};

pub struct Place {
    client: Client,
    recorder: Recorder,
    map: Mutex<Map>,
    pub queue: Arc<Queue<Key>>,
}

/// Everything that decisions depend on.
#[derive(Default)]
struct Map {
    pods: HashMap<Key, PodView>,
    nodes: BTreeMap<String, NodeView>,
    taken: HashMap<String, Taken>,
    /// Pods that fit nowhere.
    waiting: BTreeSet<Key>,
    /// Both watches have told everything once.
    pods_known: bool,
    nodes_known: bool,
}

impl Map {
    fn put_pod(&mut self, key: Key, pod: PodView) -> Option<PodView> {
        let before = self.pods.get(&key).cloned();
        if let Some(before) = &before {
            // The watch may tell of a time before our own binding.
            if before.uid == pod.uid && !before.node.is_empty() && pod.node.is_empty() {
                return Some(before.clone());
            }
            self.release(before.clone());
        }
        self.hold(&pod);
        self.pods.insert(key, pod);
        before
    }

    fn remove_pod(&mut self, key: &Key) {
        self.waiting.remove(key);
        if let Some(pod) = self.pods.remove(key) {
            self.release(pod);
        }
    }

    fn hold(&mut self, pod: &PodView) {
        if pod.node.is_empty() || pod.ended {
            return;
        }
        let taken = self.taken.entry(pod.node.clone()).or_default();
        view::add(&mut taken.amounts, &pod.requests);
        taken.ports.extend(pod.host_ports.iter().cloned());
        taken.pods += 1;
    }

    fn release(&mut self, pod: PodView) {
        let Some(taken) = self.taken.get_mut(&pod.node).filter(|_| !pod.ended) else { return };
        let negative = pod.requests.iter().map(|(name, amount)| (name.clone(), -amount)).collect();
        view::add(&mut taken.amounts, &negative);
        for port in &pod.host_ports {
            if let Some(at) = taken.ports.iter().position(|held| held == port) {
                taken.ports.swap_remove(at);
            }
        }
        taken.pods = taken.pods.saturating_sub(1);
    }

    fn choose(&self, pod: &PodView) -> Result<String, String> {
        let nothing = Taken::default();
        let candidates = self.nodes.iter().map(|(name, node)| {
            let taken = self.taken.get(name).unwrap_or(&nothing);
            Candidate { name, node, taken }
        });
        let chosen = fit::choose(pod, candidates).map(str::to_owned);
        chosen.map_err(|reasons| fit::explain(self.nodes.len(), &reasons))
    }
}

pub struct World {
    pod: PodView,
    chosen: Result<String, String>,
}

#[derive(Debug)]
pub enum Action {
    Bind { uid: String, node: String },
}

/// Why a pod is not placed.
#[derive(Debug)]
pub struct Unplaced {
    uid: String,
    message: String,
}

impl Place {
    pub fn new(client: Client) -> Self {
        let reporter = Reporter { controller: "default-scheduler".into(), instance: None };
        let recorder = Recorder::new(client.clone(), reporter);
        Self { client, recorder, map: Mutex::default(), queue: Queue::new() }
    }

    /// Follows pods and nodes until asked to stop.
    pub async fn follow(self: Arc<Self>, stop: CancellationToken) {
        stop.run_until_cancelled(async { tokio::join!(self.follow_pods(), self.follow_nodes()) }).await;
    }

    async fn follow_pods(&self) {
        let events = watcher(Api::<Pod>::all(self.client.clone()), watcher::Config::default()).default_backoff();
        let mut events = std::pin::pin!(events);
        let mut listed = BTreeSet::new();
        while let Some(event) = events.next().await {
            match event {
                Ok(watcher::Event::Init) => listed = BTreeSet::new(),
                Ok(watcher::Event::InitApply(pod)) => {
                    listed.insert(key(&pod));
                    self.pod_seen(&pod);
                }
                Ok(watcher::Event::Apply(pod)) => self.pod_seen(&pod),
                Ok(watcher::Event::Delete(pod)) => {
                    self.map.lock().remove_pod(&key(&pod));
                    self.room();
                }
                Ok(watcher::Event::InitDone) => {
                    let mut map = self.map.lock();
                    let gone: Vec<Key> = map.pods.keys().filter(|key| !listed.contains(*key)).cloned().collect();
                    gone.iter().for_each(|key| map.remove_pod(key));
                    map.pods_known = true;
                    drop(map);
                    self.all_unplaced();
                }
                Err(error) => tracing::debug!(%error, "cannot watch pods; will watch again"),
            }
        }
    }

    async fn follow_nodes(&self) {
        let events = watcher(Api::<Node>::all(self.client.clone()), watcher::Config::default()).default_backoff();
        let mut events = std::pin::pin!(events);
        let mut fresh = BTreeMap::new();
        while let Some(event) = events.next().await {
            match event {
                Ok(watcher::Event::Init) => fresh = BTreeMap::new(),
                Ok(watcher::Event::InitApply(node)) => {
                    fresh.insert(node.metadata.name.clone().unwrap_or_default(), NodeView::from(&node));
                }
                Ok(watcher::Event::Apply(node)) => {
                    let (name, new) = (node.metadata.name.clone().unwrap_or_default(), NodeView::from(&node));
                    if self.map.lock().nodes.insert(name, new.clone()) != Some(new) {
                        self.room();
                    }
                }
                Ok(watcher::Event::Delete(node)) => {
                    self.map.lock().nodes.remove(node.metadata.name.as_deref().unwrap_or_default());
                    self.room();
                }
                Ok(watcher::Event::InitDone) => {
                    let mut map = self.map.lock();
                    (map.nodes, map.nodes_known) = (std::mem::take(&mut fresh), true);
                    drop(map);
                    self.all_unplaced();
                }
                Err(error) => tracing::debug!(%error, "cannot watch nodes; will watch again"),
            }
        }
    }

    fn pod_seen(&self, pod: &Pod) {
        let (key, view) = (key(pod), PodView::from(pod));
        let (unplaced, ended) = (view.node.is_empty() && !view.ended, view.ended);
        let mut map = self.map.lock();
        let known = map.pods_known && map.nodes_known;
        let before = map.put_pod(key.clone(), view);
        if !unplaced {
            map.waiting.remove(&key);
        }
        drop(map);
        // What we wrote about it ourselves is no reason to look again.
        let news = before.as_ref().is_none_or(|before| self.changed(&key, before));
        if unplaced && known && news {
            self.queue.wake(key);
        } else if ended && before.is_some_and(|before| !before.ended) {
            self.room();
        }
    }

    fn changed(&self, key: &Key, before: &PodView) -> bool {
        let map = self.map.lock();
        let told = |view: &PodView| PodView { complaint: None, ..view.clone() };
        map.pods.get(key).is_some_and(|now| told(now) != told(before))
    }

    /// There may be room where there was none.
    fn room(&self) {
        let waiting = std::mem::take(&mut self.map.lock().waiting);
        waiting.into_iter().for_each(|key| self.queue.wake(key));
    }

    fn all_unplaced(&self) {
        let map = self.map.lock();
        if !map.pods_known || !map.nodes_known {
            return;
        }
        let unplaced = map.pods.iter().filter(|(_, pod)| pod.node.is_empty() && !pod.ended);
        unplaced.for_each(|(key, _)| self.queue.wake(key.clone()));
    }

    async fn say(&self, key: &Key, uid: &str, type_: EventType, reason: &str, note: String) {
        let about = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            namespace: Some(key.0.clone()),
            name: Some(key.1.clone()),
            uid: Some(uid.to_owned()),
            ..ObjectReference::default()
        };
        let action = "Binding".to_owned();
        let event = Event { type_, reason: reason.to_owned(), note: Some(note), action, secondary: None };
        if let Err(error) = self.recorder.publish(&event, &about).await {
            tracing::debug!(pod = ?key, %error, "cannot write an event");
        }
    }
}

fn key(pod: &Pod) -> Key {
    (pod.meta().namespace.clone().unwrap_or_default(), pod.meta().name.clone().unwrap_or_default())
}

impl Controller for Place {
    const NAME: &'static str = "place";
    type Key = Key;
    type World = World;
    type Action = Action;
    type Status = Unplaced;

    async fn observe(&self, key: &Key) -> Result<Option<World>, Failure> {
        let map = self.map.lock();
        let Some(pod) = map.pods.get(key).filter(|pod| pod.node.is_empty() && !pod.ended && !pod.barred) else {
            return Ok(None);
        };
        Ok(Some(World { pod: pod.clone(), chosen: map.choose(pod) }))
    }

    fn plan(world: &World, _now: Timestamp) -> Plan<Action, Unplaced> {
        let uid = world.pod.uid.clone();
        match &world.chosen {
            Ok(node) => Plan::act([Action::Bind { uid, node: node.clone() }]),
            Err(message) => Plan { status: Some(Unplaced { uid, message: message.clone() }), ..Plan::default() },
        }
    }

    async fn apply(&self, key: &Key, action: Action) -> Result<(), Failure> {
        let Action::Bind { uid, node } = action;
        let assumed = {
            let mut map = self.map.lock();
            let Some(pod) = map.pods.get(key).filter(|pod| pod.uid == uid && pod.node.is_empty()) else {
                return Ok(()); // gone, or placed by another
            };
            let assumed = PodView { node: node.clone(), ..pod.clone() };
            map.put_pod(key.clone(), assumed);
            map.waiting.remove(key);
            map.pods.get(key).cloned()
        };
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding",
            "metadata": { "name": key.1, "namespace": key.0, "uid": uid },
            "target": { "apiVersion": "v1", "kind": "Node", "name": node },
        });
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &key.0);
        let bound: Result<serde_json::Value, kube::Error> =
            pods.create_subresource("binding", &key.1, &PostParams::default(), &binding).await;
        match bound {
            Ok(_) => {
                let note = format!("Successfully assigned {}/{} to {node}", key.0, key.1);
                self.say(key, &uid, EventType::Normal, "Scheduled", note).await;
                Ok(())
            }
            Err(error) => {
                // Whatever became of it, the watch tells; until then it is not placed.
                let mut map = self.map.lock();
                if let Some(pod) = map.pods.get(key).filter(|pod| Some(*pod) == assumed.as_ref()).cloned() {
                    map.release(pod.clone());
                    map.pods.insert(key.clone(), PodView { node: String::new(), ..pod });
                }
                drop(map);
                if failure::no_such_object(&error, &key.1) { Ok(()) } else { Err(Failure::new("bind a pod", error)) }
            }
        }
    }

    async fn report(&self, key: &Key, status: Unplaced) -> Result<(), Failure> {
        let before = {
            let mut map = self.map.lock();
            map.waiting.insert(key.clone());
            map.pods.get(key).and_then(|pod| pod.complaint.clone())
        };
        if before.as_ref() == Some(&status.message) {
            return Ok(());
        }
        let mut condition = json!({
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": status.message,
        });
        if before.is_none() {
            condition["lastTransitionTime"] = json!(Time(Timestamp::now()));
        }
        let patch = json!({ "metadata": { "uid": status.uid }, "status": { "conditions": [condition] } });
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &key.0);
        match pods.patch_status(&key.1, &PatchParams::default(), &Patch::Strategic(patch)).await {
            Ok(_) => {}
            Err(error) if failure::is(&error, 404) => return Ok(()),
            Err(error) => return Err(Failure::new("say why a pod is not placed", error)),
        }
        self.say(key, &status.uid, EventType::Warning, "FailedScheduling", status.message).await;
        Ok(())
    }
}
