//! Queueing hints: which unschedulable pods a change may make schedulable.
//!
//! An unschedulable pod is tried again when a node changed that could take it now, or when a pod came or went that its
//! affinity or spread rules select, or whose rules select it, or, if it has ResourceClaims, when claims or devices changed. That is asked once for each class of equal pods.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
    time::Instant,
};

use super::SchedulerState;
use crate::core::view::{AffinityTerm, Labels, PodSelector, PodView};

/// Equal pods: the same rules, the same namespace and labels. Should two classes ever share a hash, they are only
/// tried together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EquivalenceClass(u64);

impl From<&PodView> for EquivalenceClass {
    fn from(pod: &PodView) -> Self {
        let mut hasher = DefaultHasher::new();
        (*pod.spec).hash(&mut hasher);
        pod.label_set.namespace().hash(&mut hasher);
        pod.label_set.labels().hash(&mut hasher);
        Self(hasher.finish())
    }
}

/// What changed since hints were last applied.
#[derive(Default)]
pub(super) struct ClusterChanges {
    /// Nodes that may take more or other pods than before; true if pods that run there may be preempted now.
    pub nodes: BTreeMap<String, bool>,
    /// Pods that came, went or are about to go.
    pub pods: Vec<Arc<PodView>>,
    /// Labels of nodes or namespaces: rules about other pods have to be evaluated again.
    pub topology: bool,
    /// ResourceClaims, devices or their classes: pods with claims are tried again.
    pub devices: bool,
    pub other: bool,
}

impl ClusterChanges {
    pub fn add_node(&mut self, name: &str, may_preempt: bool) {
        *self.nodes.entry(name.to_owned()).or_default() |= may_preempt;
    }

    fn is_empty(&self) -> bool {
        self.nodes.is_empty() && self.pods.is_empty() && !self.topology && !self.devices && !self.other
    }
}

impl SchedulerState {
    /// Moves pods to the active queue that the changes since the last time may make schedulable.
    pub(super) fn apply_queueing_hints(&mut self, now: Instant) {
        let changes = std::mem::take(&mut self.changes);
        if changes.is_empty() || !self.queue.has_unschedulable() {
            return;
        }
        let (cluster, class_samples) = (&mut self.cluster, &self.class_samples);
        // One pod of each class: a thousand replicas are one question.
        let mut classes = BTreeSet::new();
        let changed_pods: Vec<&Arc<PodView>> =
            changes.pods.iter().filter(|pod| classes.insert(EquivalenceClass::from(&***pod).0)).collect();
        // What is kept for a nominated pod is kept from its equals as well, as far as a class can tell.
        let nominations: HashSet<(EquivalenceClass, &str)> = self
            .nominations
            .iter()
            .filter_map(|(pod, node)| Some(((&*self.pods.get(pod)?.view).into(), node.as_str())))
            .collect();
        self.queue.move_to_active(now, |class| {
            let Some(pod) = class_samples.get(class) else { return true };
            (changes.topology && has_pod_topology_rules(pod))
                || (changes.devices && pod.spec.claims_devices)
                || changed_pods.iter().any(|other| is_selected_by_rules(other, pod))
                || changes.nodes.iter().any(|(node, may_preempt)| {
                    let has_lower_priority = |other: &PodView| other.spec.priority < pod.spec.priority;
                    nominations.contains(&(*class, node.as_str()))
                        || cluster.could_schedule_on(node, pod)
                        || (*may_preempt && !pod.spec.never_preempts && cluster.pods_on(node).any(has_lower_priority))
                })
        });
    }
}

/// Whether its required rules depend on other pods.
fn has_pod_topology_rules(pod: &PodView) -> bool {
    let affinity = &pod.spec.pod_affinity;
    !affinity.required.is_empty() || !affinity.anti_required.is_empty() || pod.spec.spread.iter().any(|rule| rule.hard)
}

/// Whether the required rules of one pod select the other.
fn is_selected_by_rules(other: &PodView, pod: &PodView) -> bool {
    let affinity = &pod.spec.pod_affinity;
    let spread = pod.spec.spread.iter().filter(|rule| rule.hard).map(|rule| &rule.pods);
    let terms = affinity.required.iter().chain(&affinity.anti_required).map(|term| &term.pods);
    // Labels of namespaces are not looked up: trying a pod too often does no harm.
    let no_labels = |_: &str| None::<&Labels>;
    let selects = |selector: &PodSelector, pod: &PodView| {
        let (namespace, labels) = (pod.label_set.namespace(), pod.label_set.labels());
        selector.namespaces_like.is_some() || selector.matches(namespace, labels, no_labels)
    };
    let repels = |term: &AffinityTerm| selects(&term.pods, pod);
    spread.chain(terms).any(|selector| selects(selector, other))
        || other.spec.pod_affinity.anti_required.iter().any(repels)
}
