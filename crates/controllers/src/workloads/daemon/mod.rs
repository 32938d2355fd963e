//! DaemonSets: one pod on every machine that fits.
//!
//! * [`fit`]: which machines do; [`plan`]: what to do next; [`pauses`]: patience with machines where pods fail
//!
//! Pods are pinned to their machine by an affinity and placed like all others, so that room, ports and
//! volumes are minded in one place.

mod fit;
#[cfg(test)]
mod model;
mod pauses;
mod plan;

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::api::{
    apps::v1::{ControllerRevision, DaemonSet, DaemonSetStatus},
    core::v1::{Node, PodSpec, PodTemplateSpec, Taint},
};
use serde_json::{Value, json};

use self::{
    fit::{Demands, Verdict},
    pauses::Pauses,
    plan::{Action, Desired, Why, World},
};
use super::{
    Turns, Workloads, act,
    history::{self, HASH, Wanted},
    owner::{self, Kind, Owner},
    pod::Pod,
    template, turns, wake,
};
use crate::{
    cache::{Change, Key},
    failure::Failure,
    runner::{Limits, Queue},
    shell::{Controller, Plan},
};

const KIND: &str = "DaemonSet";
/// News of many pods share one look.
const SOON: Duration = Duration::from_millis(20);
/// Counts changes of the template; on sets as an annotation, on pods as a label.
const GENERATION: &str = "deprecated.daemonset.template.generation";
const GENERATION_LABEL: &str = "pod-template-generation";

pub struct DaemonSets {
    shared: Arc<Workloads>,
    kind: Arc<Kind>,
    pauses: Pauses,
}

/// Begins to listen.
pub fn listen(shared: &Arc<Workloads>) -> Turns {
    let (queue, caches) = (Queue::new(), &shared.caches);
    caches.daemon_sets.on_change(wake::itself(&queue));
    caches.pods.on_change(wake::owner(&queue, KIND, &caches.daemon_sets, selects, SOON));
    caches.revisions.on_change(wake::owner(&queue, KIND, &caches.daemon_sets, selects, SOON));
    caches.nodes.on_change({
        let (queue, sets) = (queue.clone(), caches.daemon_sets.clone());
        move |change| {
            if is_another_machine(&change) {
                sets.all().iter().for_each(|set| queue.wake_within(Key::of(&set.metadata), SOON));
            }
        }
    });
    let kind = Kind::new::<DaemonSet>("daemonset-controller");
    let sets = DaemonSets { shared: shared.clone(), kind, pauses: Pauses::default() };
    turns(Arc::new(sets), queue, Limits::default())
}

fn selects(set: &DaemonSet, meta: &kube::api::ObjectMeta) -> bool {
    let selector = set.spec.as_ref().map(|spec| owner::selector(&spec.selector));
    selector.is_some_and(|selector| owner::selects(&selector, meta))
}

/// Whether pods may belong on a machine that did not before, or the other way round.
fn is_another_machine(change: &Change<'_, Node>) -> bool {
    change.before.map(judged) != change.after.map(judged)
}

/// What of a machine is looked at.
fn judged(node: &Node) -> (Option<&BTreeMap<String, String>>, &[Taint]) {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref());
    (node.metadata.labels.as_ref(), taints.unwrap_or_default())
}

/// The machine a pod is on, or is meant for.
fn machine_of(pod: &Pod) -> Option<&str> {
    let placed = Some(pod.spec.node_name.as_str()).filter(|node| !node.is_empty());
    placed.or(pod.spec.pinned_to.as_deref())
}

/// The name that a further pod on each of these machines would get.
fn names<'n>(
    owner: &Owner,
    nodes: impl Iterator<Item = &'n String>,
    taken: impl Fn(&str) -> bool,
) -> BTreeMap<String, String> {
    let mut given = HashSet::new();
    let name = |node: &'n String| {
        let names = (0..).map(|attempt| template::name_for(&owner.key.name, &owner.uid, node, attempt));
        let name = names.into_iter().find(|name| !taken(name) && !given.contains(name))?;
        given.insert(name.clone());
        Some((node.clone(), name))
    };
    nodes.filter_map(name).collect()
}

fn make(owner: &Owner, set: &DaemonSet, template: &PodTemplateSpec, hash: &str, node: &str, name: &str) -> Value {
    let mut pod = template::pod(owner, &serde_json::to_value(template).unwrap_or_default(), name);
    pod["metadata"]["labels"][HASH] = json!(hash);
    if let Some(generation) = set.metadata.annotations.as_ref().and_then(|all| all.get(GENERATION)) {
        pod["metadata"]["labels"][GENERATION_LABEL] = json!(generation);
    }
    let spec = template.spec.clone().unwrap_or_default();
    pod["spec"]["tolerations"] = json!(fit::tolerations(&spec));
    pod["spec"]["affinity"] = fit::pinned(spec.affinity.as_ref(), node);
    pod
}

impl DaemonSets {
    /// The set that an action is for, unless it has gone.
    fn set(&self, key: &Key) -> Option<(Arc<DaemonSet>, Owner)> {
        let set = self.shared.caches.daemon_sets.get(key)?;
        let owner = Owner::new(&self.kind, &set.metadata);
        Some((set, owner))
    }

    async fn create(
        &self,
        set: &DaemonSet,
        owner: &Owner,
        node: &str,
        name: &str,
        revision: &ControllerRevision,
    ) -> Result<(), Failure> {
        let Some(template) = history::template_of(revision) else { return Ok(()) };
        let pod = make(owner, set, &template, history::hash(revision), node, name);
        self.shared.create_pod(owner, &pod).await
    }
}

impl Controller for DaemonSets {
    const NAME: &'static str = "daemon-sets";
    const ABREAST: usize = 64;
    type Key = Key;
    type World = World;
    type Action = Action;
    type Status = DaemonSetStatus;

    async fn observe(&self, key: &Key) -> Result<Option<World>, Failure> {
        let Some((set, owner)) = self.set(key) else {
            self.pauses.forget(key);
            return Ok(None);
        };
        let Some(spec) = &set.spec else { return Ok(None) };
        let caches = &self.shared.caches;
        let selector = owner::selector(&spec.selector);
        let claimed = owner::claim(&owner, &caches.pods, |pod| owner::selects(&selector, &pod.metadata));
        let revisions =
            owner::claim(&owner, &caches.revisions, |revision| owner::selects(&selector, &revision.metadata));
        let status = set.status.clone().unwrap_or_default();
        let wanted = Wanted {
            owner: &owner,
            annotations: set.metadata.annotations.as_ref(),
            template: &spec.template,
            collisions: status.collision_count.unwrap_or(0),
        };
        let taken = |name: &str| caches.revisions.get(&Key::new(&key.namespace, name)).is_some();
        let place = history::place(&wanted, &revisions.held, taken);
        let anything = PodSpec::default();
        let demands = Demands::of(spec.template.spec.as_ref().unwrap_or(&anything));
        let judged = |node: &Arc<Node>| (node.metadata.name.clone().unwrap_or_default(), demands.judge(node));
        let machines: BTreeMap<String, Verdict> = caches.nodes.all().iter().map(judged).collect();
        let mut pods: BTreeMap<String, Vec<Arc<Pod>>> = BTreeMap::new();
        for pod in claimed.held {
            if let Some(node) = machine_of(&pod) {
                pods.entry(node.to_owned()).or_default().push(pod);
            }
        }
        let is_new = |pod: &Arc<Pod>| pod.is_active() && pod.label(HASH) == Some(history::hash(&place.revision));
        let open = machines.iter().filter(|(node, verdict)| {
            **verdict == Verdict::Runs && !pods.get(*node).is_some_and(|pods| pods.iter().any(is_new))
        });
        let pod_taken = |name: &str| caches.pods.get(&Key::new(&key.namespace, name)).is_some();
        let names = names(&owner, open.map(|(node, _)| node), pod_taken);
        Ok(Some(World {
            want: Desired::of(&set),
            machines,
            pods,
            names,
            pauses: self.pauses.of(key),
            revisions: revisions.held,
            place,
            pod_claims: claimed.claims,
            revision_claims: revisions.claims,
            status,
        }))
    }

    fn plan(world: &World, now: Timestamp) -> Plan<Action, DaemonSetStatus> {
        plan::plan(world, now)
    }

    async fn apply(&self, key: &Key, action: Action) -> Result<(), Failure> {
        let Some((set, owner)) = self.set(key) else { return Ok(()) };
        let (client, caches) = (&self.shared.client, &self.shared.caches);
        match action {
            Action::Revise(write) => history::write(client, &caches.revisions, &owner, write).await,
            Action::ClaimRevision(claim) => owner::settle(client, &caches.revisions, &owner, claim).await,
            Action::ClaimPod(claim) => owner::settle(client, &caches.pods, &owner, claim).await,
            Action::Create { node, name, revision } => self.create(&set, &owner, &node, &name, &revision.0).await,
            Action::Delete { node, name, uid, version, why } => {
                let pod = format!("daemon pod {}/{name} on node {node}", key.namespace);
                let events = &self.shared.events;
                match why {
                    Why::Failed => {
                        self.pauses.failed(key, &node, Timestamp::now());
                        let message = format!("Found failed {pod}, will try to kill it");
                        events.warning(&owner, "FailedDaemonPod", message);
                    }
                    Why::Succeeded => {
                        let message = format!("Found succeeded {pod}, will try to delete it");
                        events.normal(&owner, "SucceededDaemonPod", message);
                    }
                    Why::Misplaced | Why::Surplus | Why::Outdated | Why::Broken | Why::Succession => {}
                }
                self.shared.delete_pod_seen(&owner, &name, &uid, version).await
            }
        }
    }

    async fn report(&self, key: &Key, status: DaemonSetStatus) -> Result<(), Failure> {
        act::report(&self.shared.client, &self.shared.caches.daemon_sets, key, &status).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_meant_for_its_machine_before_it_is_there() {
        let set = json!({ "metadata": { "name": "log", "namespace": "ns", "uid": "me",
            "annotations": { GENERATION: "4" } } });
        let set: DaemonSet = serde_json::from_value(set).unwrap();
        let owner = Owner::new(&Kind::new::<DaemonSet>("daemonset-controller"), &set.metadata);
        let template = json!({ "metadata": { "labels": { "app": "log" } }, "spec": { "containers": [] } });
        let template = serde_json::from_value(template).unwrap();
        let made = make(&owner, &set, &template, "abc", "m1", "log-x");
        assert_eq!(made["metadata"]["labels"], json!({ "app": "log", HASH: "abc", GENERATION_LABEL: "4" }));
        assert_eq!(made["spec"]["tolerations"].as_array().unwrap().len(), 6);
        let mut pod: Pod = serde_json::from_value(made).unwrap();
        assert_eq!(machine_of(&pod), Some("m1"));
        pod.spec.node_name = "m2".to_owned();
        assert_eq!(machine_of(&pod), Some("m2"));
    }

    #[test]
    fn every_machine_has_a_name_of_its_own() {
        let meta = json!({ "name": "log", "namespace": "ns", "uid": "me" });
        let owner = Owner::new(&Kind::new::<DaemonSet>("d"), &serde_json::from_value(meta).unwrap());
        let nodes: Vec<String> = (0..10_000).map(|n| format!("m{n}")).collect();
        let all = names(&owner, nodes.iter(), |_| false);
        assert_eq!(all.values().collect::<HashSet<_>>().len(), 10_000);
        let other = names(&owner, nodes[..1].iter(), |name| name == all["m0"]);
        assert_ne!(other["m0"], all["m0"], "a name that is taken is passed over");
    }
}
