//! Applies events about pods: which wait to be scheduled, which are on nodes, which are not ours.

use std::{collections::HashSet, sync::Arc, time::Instant};

use jiff::Timestamp;

use super::{AssumedBinding, CachedPod, SchedulerState, WatchedKind, queueing_hints::EquivalenceClass};
use crate::{
    core::view::{PodKey, PodView},
    event_recorder::SCHEDULER,
    reflector::{Delta, Item},
    status_writer::SchedulingFailure,
};

/// The reason of the condition `PodScheduled` after a node refused the pod.
const REFUSED: &str = "Refused";
/// So many classes without waiting pods are kept.
const SPARE_CLASSES: usize = 1024;

impl SchedulerState {
    pub(super) fn apply_pods(&mut self, delta: Delta<PodView>, now: Instant) {
        match delta {
            Delta::Replaced { items, version, round } => {
                let listed: HashSet<&PodKey> = items.iter().map(|item| &item.view.key).collect();
                // Pods that were created after the list was taken are not in it.
                let is_deleted =
                    |(key, pod): &(&PodKey, &CachedPod)| pod.view.version <= version && !listed.contains(key);
                let deleted: Vec<PodKey> = self.pods.iter().filter(is_deleted).map(|(key, _)| key.clone()).collect();
                deleted.iter().for_each(|key| self.remove_pod(key));
                items.into_iter().for_each(|item| self.update_pod(item.view, now));
                self.mark_synced(WatchedKind::Pods, round);
            }
            Delta::Updated(Item { view, .. }) => self.update_pod(view, now),
            Delta::Deleted(object) => {
                let key = PodKey::new(object.namespace, object.name);
                // Another pod may have its name already.
                if self.pods.get(&key).is_some_and(|pod| pod.view.uid == object.uid) {
                    self.remove_pod(&key);
                }
            }
        }
    }

    fn update_pod(&mut self, pod: PodView, now: Instant) {
        let key = pod.key.clone();
        if let Some(cached) = self.pods.get(&key) {
            if cached.view.uid != pod.uid {
                self.remove_pod(&key);
            } else if is_outdated(cached, &pod) {
                return;
            }
        }
        let before = self.pods.get(&key).map(|cached| cached.view.clone());
        if let Some(before) = &before
            && before.node.is_some()
            && is_unchanged(before, &pod)
        {
            return;
        }
        let pod = self.with_volumes(self.with_device_classes(pod));
        self.pods_by_uid.insert(pod.uid.clone(), key.clone());
        match self.pods.get_mut(&key) {
            Some(cached) => {
                cached.view = pod.clone();
                // On our node or on another: either way the result of the binding is known.
                cached.assumed.take_if(|_| pod.node.is_some() || pod.finished);
            }
            None => {
                self.pods.insert(key.clone(), CachedPod { view: pod.clone(), assumed: None });
            }
        }
        self.record_refusal(before.as_deref(), &pod, now);
        self.cluster.update_pod(pod.clone());
        self.record_pod_change(before.as_ref(), &pod);
        self.changes.devices |= before.is_some_and(|before| before.resource_claims != pod.resource_claims);
        if pod.node.is_some() || pod.finished || pod.terminating || pod.scheduler != SCHEDULER {
            self.dequeue(&key);
        } else if !pod.gates.is_empty() {
            self.dequeue(&key);
            let failure = SchedulingFailure::gated();
            self.status_queue.report(&key, &pod.uid, pod.unscheduled_condition.as_ref(), failure, now);
        } else {
            self.enqueue(&pod, now);
        }
    }

    fn remove_pod(&mut self, key: &PodKey) {
        let Some(cached) = self.pods.remove(key) else { return };
        self.pods_by_uid.remove(&cached.view.uid);
        let node = self.cluster.node_of_pod(key).map(str::to_owned);
        self.cluster.remove_pod(key);
        self.changes.devices |= self.cluster.devices.forget_pod(&cached.view.uid);
        self.waiting_bindings.remove(key);
        self.dequeue(key);
        if let Some(node) = node.or_else(|| cached.view.nominated_node.clone()) {
            self.changes.add_node(&node, false);
            self.changes.pods.push(cached.view);
        }
    }

    pub(super) fn enqueue(&mut self, pod: &Arc<PodView>, now: Instant) {
        let class = EquivalenceClass::from(&**pod);
        if self.class_samples.len() > 2 * self.queue.len() + SPARE_CLASSES {
            let waiting = self.pods.values().filter(|cached| self.queue.contains(&cached.view.key));
            self.class_samples = waiting.map(|cached| ((&*cached.view).into(), cached.view.clone())).collect();
        }
        self.class_samples.entry(class).or_insert_with(|| pod.clone());
        if pod.claims.is_empty() {
            self.pods_with_claims.remove(&pod.key);
        } else {
            self.pods_with_claims.insert(pod.key.clone());
        }
        if pod.extended_requests.is_empty() {
            self.pods_with_extended.remove(&pod.key);
        } else {
            self.pods_with_extended.insert(pod.key.clone());
        }
        if let Some(node) = &pod.nominated_node {
            self.nominations.insert(pod.key.clone(), node.clone());
        }
        let created = Timestamp::from_microsecond(pod.created).unwrap_or(Timestamp::MIN);
        self.queue.add(pod.key.clone(), pod.spec.priority, created, class, now);
    }

    fn dequeue(&mut self, key: &PodKey) {
        self.pods_with_claims.remove(key);
        self.pods_with_extended.remove(key);
        self.nominations.remove(key);
        self.status_queue.remove(key);
        if self.queue.remove(key) && self.queue.is_empty() {
            self.class_samples.clear();
        }
    }

    /// Remembers that a node refused the pod, if its condition says so for the first time.
    fn record_refusal(&mut self, before: Option<&PodView>, pod: &PodView, now: Instant) {
        if pod.node.is_some() {
            return;
        }
        let is_refused = pod.unscheduled_condition.as_ref().is_some_and(|(reason, _)| reason == REFUSED);
        let is_new = before
            .is_none_or(|before| before.node.is_some() || before.unscheduled_condition != pod.unscheduled_condition);
        if let Some(node) = pod.refused_by.as_deref().filter(|_| is_refused && is_new) {
            self.metrics.refusals.inc();
            self.offers.record_refusal(&pod.uid, node, now);
            tracing::info!(pod = %pod.key, uid = pod.uid, node, "node refused the pod; it is scheduled again");
        }
    }

    /// Notes what the change of a pod may mean for unschedulable pods.
    fn record_pod_change(&mut self, before: Option<&Arc<PodView>>, pod: &Arc<PodView>) {
        let node_before = before.and_then(|before| before.node.as_deref());
        for node in [node_before, pod.node.as_deref()].into_iter().flatten() {
            self.changes.add_node(node, node_before != pod.node.as_deref());
        }
        if node_before.is_some() || pod.node.is_some() {
            self.changes.pods.extend(before.filter(|before| before.label_set != pod.label_set).cloned());
            self.changes.pods.push(pod.clone());
        }
    }

    /// Claims, volumes or storage classes changed: unschedulable pods that use claims may have other rules now.
    pub(super) fn volumes_changed(&mut self, now: Instant) {
        for key in self.pods_with_claims.clone() {
            let Some(cached) = self.pods.get(&key) else { continue };
            let (before, is_assumed) = (cached.view.clone(), cached.assumed.is_some());
            let pod = self.with_volumes(PodView::clone(&before));
            if pod.spec != before.spec && !is_assumed {
                if let Some(cached) = self.pods.get_mut(&key) {
                    cached.view = pod.clone();
                }
                self.enqueue(&pod, now);
            }
        }
    }

    fn with_volumes(&self, pod: PodView) -> Arc<PodView> {
        if pod.claims.is_empty() || pod.node.is_some() {
            return Arc::new(pod);
        }
        let requirements = self.volumes.requirements(&pod.key.namespace, &pod.claims);
        Arc::new(pod.with_volumes(requirements.terms).with_missing(requirements.missing))
    }
}

/// Whether the event is older than what is known: an earlier version, or one before our own binding.
fn is_outdated(cached: &CachedPod, pod: &PodView) -> bool {
    let before_binding = match &cached.assumed {
        Some(AssumedBinding { version: Some(version), .. }) => pod.version < *version,
        Some(AssumedBinding { version: None, .. }) | None => false,
    };
    pod.version < cached.view.version || before_binding
}

/// Whether nothing changed that scheduling of this or of other pods depends on.
fn is_unchanged(before: &PodView, pod: &PodView) -> bool {
    before.node == pod.node
        && before.finished == pod.finished
        && before.terminating == pod.terminating
        && before.label_set == pod.label_set
        && before.spec == pod.spec
        && before.assigned_ports == pod.assigned_ports
        && before.started == pod.started
}
