//! The DaemonSet controller: one pod on every node that fits.
//!
//! * [`node_fit`]: which nodes fit; [`plan`]: what to do next; [`failed_pods_backoff`]: back-off for nodes where pods fail
//!
//! Pods are pinned to their node by an affinity and scheduled like all others, so that room, ports and volumes are
//! checked in one place.

mod failed_pods_backoff;
#[cfg(test)]
mod model;
mod node_fit;
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
    failed_pods_backoff::FailedPodsBackoff,
    node_fit::{Demands, Verdict},
    plan::{Action, Desired, Why, World},
};
use super::{
    controller_history::{self, HASH, RevisionRequest},
    controller_ref::{self, Owner, OwnerKind},
    event_handlers,
    pod_names::PodNameHistory,
    pod_template,
};
use crate::{
    config_rollout::workload::{awaits_versions, template_versions},
    names::{self, Predecessor},
    objects::pod::Pod,
    runtime::{ApiError, Change, Context, Controller, Limits, ObjectKey, Outcomes, Plan, Runnable, object_writes},
};

const KIND: &str = "DaemonSet";
/// Changes of many pods share one reconcile.
const PODS_CHANGED: Duration = Duration::from_millis(20);
/// Counts changes of the template; on sets as an annotation, on pods as a label.
const GENERATION: &str = "deprecated.daemonset.template.generation";
const GENERATION_LABEL: &str = "pod-template-generation";

pub struct DaemonSets {
    context: Arc<Context>,
    kind: Arc<OwnerKind>,
    names: Arc<PodNameHistory>,
    backoff: FailedPodsBackoff,
}

pub fn controller(context: &Arc<Context>) -> Runnable {
    let (queue, caches) = (context.queue::<DaemonSets>(), &context.caches);
    let names = PodNameHistory::follow(caches, &caches.daemon_sets, |pod| node_of(pod).map(str::to_owned));
    caches.daemon_sets.on_change(event_handlers::add_object(&queue));
    caches.pods.on_change(event_handlers::add_owner(&queue, KIND, &caches.daemon_sets, selects, PODS_CHANGED));
    caches.revisions.on_change(event_handlers::add_owner(&queue, KIND, &caches.daemon_sets, selects, PODS_CHANGED));
    caches.nodes.on_change({
        let (queue, sets, names) = (queue.clone(), caches.daemon_sets.clone(), names.clone());
        move |change| {
            if change.after.is_none() {
                names.forget_place(&change.key.name);
            }
            if fits_differently(&change) {
                sets.all().iter().for_each(|set| queue.add_after(ObjectKey::from_meta(&set.metadata), PODS_CHANGED));
            }
        }
    });
    let kind = OwnerKind::new::<DaemonSet>("daemonset-controller");
    let sets = DaemonSets { context: context.clone(), kind, names, backoff: FailedPodsBackoff::default() };
    context.runnable(Arc::new(sets), queue, Limits::default())
}

fn selects(set: &DaemonSet, meta: &kube::api::ObjectMeta) -> bool {
    controller_ref::selects(&controller_ref::selector(&set.spec.selector), meta)
}

/// Whether pods may belong on a node that did not before, or the other way round.
fn fits_differently(change: &Change<'_, Node>) -> bool {
    change.before.map(judged) != change.after.map(judged)
}

/// What of a node decides about that.
fn judged(node: &Node) -> (Option<&BTreeMap<String, String>>, &[Taint]) {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref());
    (node.metadata.labels.as_ref(), taints.unwrap_or_default())
}

/// The node a pod is on, or is meant for.
fn node_of(pod: &Pod) -> Option<&str> {
    let placed = Some(pod.spec.node_name.as_str()).filter(|node| !node.is_empty());
    placed.or(pod.spec.affinity.pinned_to.as_deref())
}

/// The name that a new pod on each of these nodes would get.
fn new_names<'n>(
    owner: &Owner,
    nodes: impl Iterator<Item = &'n String>,
    predecessor: impl Fn(&str) -> Option<Predecessor>,
    taken: impl Fn(&str) -> bool,
) -> BTreeMap<String, String> {
    let mut given = HashSet::new();
    let name = |node: &'n String| {
        let (key, last) = (&owner.key, predecessor(node));
        let taken = |name: &str| taken(name) || given.contains(name);
        let name = names::successor(&key.name, &owner.uid, node, last.as_ref(), taken);
        given.insert(name.clone());
        (node.clone(), name)
    };
    nodes.map(name).collect()
}

fn make(owner: &Owner, set: &DaemonSet, template: &PodTemplateSpec, hash: &str, node: &str, name: &str) -> Value {
    let mut pod = pod_template::pod(owner, &serde_json::to_value(template).unwrap_or_default(), name);
    pod["metadata"]["labels"][HASH] = json!(hash);
    if let Some(generation) = set.metadata.annotations.as_ref().and_then(|all| all.get(GENERATION)) {
        pod["metadata"]["labels"][GENERATION_LABEL] = json!(generation);
    }
    let spec = template.spec.clone().unwrap_or_default();
    pod["spec"]["tolerations"] = json!(node_fit::tolerations(&spec));
    pod["spec"]["affinity"] = node_fit::pinned(spec.affinity.as_ref(), node);
    pod
}

impl DaemonSets {
    /// The set that an action is for, unless it has gone.
    fn set(&self, key: &ObjectKey) -> Option<(Arc<DaemonSet>, Owner)> {
        let set = self.context.caches.daemon_sets.get(key)?;
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
    ) -> Result<(), ApiError> {
        let Some(template) = controller_history::template_of(revision) else { return Ok(()) };
        let pod = make(owner, set, &template, controller_history::hash(revision), node, name);
        self.context.create_pod(owner, &pod).await
    }
}

impl Controller for DaemonSets {
    const NAME: &'static str = "daemonset";
    const CONCURRENT_ACTIONS: usize = 64;
    type Key = ObjectKey;
    type World = World;
    type Action = Action;
    type Outcome = ();
    type Status = DaemonSetStatus;

    async fn observe(&self, key: &ObjectKey) -> Result<Option<World>, ApiError> {
        let Some((set, owner)) = self.set(key) else {
            self.backoff.forget(key);
            return Ok(None);
        };
        let spec = &set.spec;
        if awaits_versions(&set.metadata, template_versions(&spec.template)) {
            return Ok(None); // whoever writes them wakes us
        }
        let caches = &self.context.caches;
        let selector = controller_ref::selector(&spec.selector);
        let claimed = controller_ref::claim_objects(&owner, &caches.pods, |pod| {
            controller_ref::selects(&selector, &pod.metadata)
        });
        let status = set.status.clone().unwrap_or_default();
        let wanted = RevisionRequest {
            owner: &owner,
            annotations: set.metadata.annotations.as_ref(),
            template: &spec.template,
            collisions: status.collision_count.unwrap_or(0),
        };
        let (revisions, template_revision) =
            controller_history::observe_revisions(&wanted, &selector, &caches.revisions);
        let anything = PodSpec::default();
        let demands = Demands::from_spec(spec.template.spec.as_ref().unwrap_or(&anything));
        let judged = |node: &Arc<Node>| (node.metadata.name.clone().unwrap_or_default(), demands.judge(node));
        let nodes: BTreeMap<String, Verdict> = caches.nodes.all().iter().map(judged).collect();
        let mut pods: BTreeMap<String, Vec<Arc<Pod>>> = BTreeMap::new();
        for pod in claimed.held {
            if let Some(node) = node_of(&pod) {
                pods.entry(node.to_owned()).or_default().push(pod);
            }
        }
        let is_new = |pod: &Arc<Pod>| {
            pod.is_active() && pod.label(HASH) == Some(controller_history::hash(&template_revision.revision))
        };
        let open = nodes.iter().filter(|(node, verdict)| {
            **verdict == Verdict::Runs && !pods.get(*node).is_some_and(|pods| pods.iter().any(is_new))
        });
        let pod_taken = |name: &str| caches.pods.get(&ObjectKey::new(&key.namespace, name)).is_some();
        let predecessor = |node: &str| self.names.predecessor(&owner.uid, node);
        let names = new_names(&owner, open.map(|(node, _)| node), predecessor, pod_taken);
        Ok(Some(World {
            want: Desired::from_set(&set),
            nodes,
            pods,
            names,
            pauses: self.backoff.until(key),
            revisions: revisions.held,
            template_revision,
            pod_claims: claimed.claims,
            revision_claims: revisions.claims,
            status,
        }))
    }

    fn plan(world: &World, now: Timestamp) -> Plan<Action, DaemonSetStatus> {
        plan::plan(world, now)
    }

    async fn apply(&self, key: &ObjectKey, action: Action) -> Result<(), ApiError> {
        let Some((set, owner)) = self.set(key) else { return Ok(()) };
        let (client, caches) = (&self.context.client, &self.context.caches);
        match action {
            Action::Revise(write) => controller_history::write(client, &caches.revisions, &owner, write).await,
            Action::ClaimRevision(claim) => {
                controller_ref::apply_change(client, &caches.revisions, &owner, claim).await
            }
            Action::ClaimPod(claim) => controller_ref::apply_change(client, &caches.pods, &owner, claim).await,
            Action::Create { node, name, revision } => self.create(&set, &owner, &node, &name, &revision.0).await,
            Action::Delete { node, name, uid, version, why } => {
                let pod = format!("daemon pod {}/{name} on node {node}", key.namespace);
                let events = &self.context.events;
                match why {
                    Why::Failed => {
                        self.backoff.failed(key, &node, self.context.clock.now());
                        let message = format!("Found failed {pod}, will try to kill it");
                        events.warning(&owner, "FailedDaemonPod", message);
                    }
                    Why::Succeeded => {
                        let message = format!("Found succeeded {pod}, will try to delete it");
                        events.normal(&owner, "SucceededDaemonPod", message);
                    }
                    Why::Misplaced | Why::Surplus | Why::Outdated | Why::Broken | Why::Succession => {}
                }
                self.context.delete_pod_if_unchanged(&owner, &name, &uid, version).await
            }
        }
    }

    async fn report(&self, key: &ObjectKey, status: DaemonSetStatus, _: &Outcomes<()>) -> Result<(), ApiError> {
        object_writes::write_status(&self.context.client, &self.context.caches.daemon_sets, key, &status).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_pinned_to_its_node_before_it_is_scheduled() {
        let set = json!({ "metadata": { "name": "log", "namespace": "ns", "uid": "me",
            "annotations": { GENERATION: "4" } } });
        let set: DaemonSet = serde_json::from_value(set).unwrap();
        let owner = Owner::new(&OwnerKind::new::<DaemonSet>("daemonset-controller"), &set.metadata);
        let template = json!({ "metadata": { "labels": { "app": "log" } }, "spec": { "containers": [] } });
        let template = serde_json::from_value(template).unwrap();
        let made = make(&owner, &set, &template, "abc", "m1", "log-x");
        assert_eq!(made["metadata"]["labels"], json!({ "app": "log", HASH: "abc", GENERATION_LABEL: "4" }));
        assert_eq!(made["spec"]["tolerations"].as_array().unwrap().len(), 6);
        let mut pod: Pod = serde_json::from_value(made).unwrap();
        assert_eq!(node_of(&pod), Some("m1"));
        pod.spec.node_name = "m2".to_owned();
        assert_eq!(node_of(&pod), Some("m2"));
    }

    #[test]
    fn every_node_has_a_name_of_its_own() {
        let meta = json!({ "name": "log", "namespace": "ns", "uid": "me" });
        let owner = Owner::new(&OwnerKind::new::<DaemonSet>("d"), &serde_json::from_value(meta).unwrap());
        let nodes: Vec<String> = (0..10_000).map(|n| format!("m{n}")).collect();
        let all = new_names(&owner, nodes.iter(), |_| None, |_| false);
        assert_eq!(all.values().collect::<HashSet<_>>().len(), 10_000);
        let other = new_names(&owner, nodes[..1].iter(), |_| None, |name| name == all["m0"]);
        assert_ne!(other["m0"], all["m0"], "a name that is taken is passed over");
    }
}
