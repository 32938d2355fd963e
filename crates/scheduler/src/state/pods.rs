//! Pods: who waits, who has a machine, who is none of our business.

use std::{collections::HashSet, sync::Arc, time::Instant};

use jiff::Timestamp;

use super::{Binding, Known, Source, State, hints::Class};
use crate::{
    core::view::{PodKey, PodView},
    events::SCHEDULER,
    follow::{Item, Seen},
    say::Complaint,
};

/// The reason of the condition that a machine's refusal leaves behind.
const REFUSED: &str = "Refused";
/// How many classes nobody is of any more are remembered.
const SPARE: usize = 1024;

impl State {
    pub(super) fn hear_pods(&mut self, seen: Seen<PodView>, now: Instant) {
        match seen {
            Seen::All { items, version, round } => {
                let told: HashSet<&PodKey> = items.iter().map(|item| &item.view.key).collect();
                // What was made after the account was taken is not in it.
                let lost = self.pods.iter().filter(|(key, known)| known.view.version <= version && !told.contains(key));
                let lost: Vec<PodKey> = lost.map(|(key, _)| key.clone()).collect();
                lost.iter().for_each(|key| self.pod_gone(key));
                items.into_iter().for_each(|item| self.pod_there(item.view, now));
                self.heard_all(Source::Pods, round);
            }
            Seen::There(Item { view, .. }) => self.pod_there(view, now),
            Seen::Gone(id) => {
                let key = PodKey::new(id.namespace, id.name);
                // Its name may belong to another already.
                if self.pods.get(&key).is_some_and(|known| known.view.uid == id.uid) {
                    self.pod_gone(&key);
                }
            }
        }
    }

    fn pod_there(&mut self, pod: PodView, now: Instant) {
        let key = pod.key.clone();
        let before = self.pods.get(&key);
        if let Some(known) = before {
            if known.view.uid != pod.uid {
                self.pod_gone(&key);
            } else if is_old(known, &pod) {
                return;
            }
        }
        let before = self.pods.get(&key).map(|known| known.view.clone());
        if let Some(before) = &before
            && before.node.is_some()
            && is_same(before, &pod)
        {
            // Something only its machine and its owner care about.
            return;
        }
        let pod = self.with_volumes(pod);
        self.by_uid.insert(pod.uid.clone(), key.clone());
        match self.pods.get_mut(&key) {
            Some(known) => {
                known.view = pod.clone();
                // Seen where we put it, or somewhere else: either way the answer is in.
                known.binding.take_if(|_| pod.node.is_some() || pod.ended);
            }
            None => {
                self.pods.insert(key.clone(), Known { view: pod.clone(), binding: None });
            }
        }
        self.refusal(before.as_deref(), &pod, now);
        self.cluster.put_pod(pod.clone());
        self.pod_moved(before.as_ref(), &pod);
        if pod.node.is_some() || pod.ended || pod.terminating || pod.scheduler != SCHEDULER {
            self.not_waiting(&key);
        } else if !pod.gates.is_empty() {
            self.not_waiting(&key);
            self.desk.say(&key, &pod.uid, pod.complaint.as_ref(), Complaint::gated(), now);
        } else {
            self.waiting(&pod, now);
        }
    }

    fn pod_gone(&mut self, key: &PodKey) {
        let Some(known) = self.pods.remove(key) else { return };
        self.by_uid.remove(&known.view.uid);
        let machine = self.cluster.placed(key).map(str::to_owned);
        self.cluster.remove_pod(key);
        self.not_waiting(key);
        if let Some(machine) = machine.or_else(|| known.view.nominated.clone()) {
            self.changes.machine(&machine, false);
            self.changes.pods.push(known.view);
        }
    }

    /// It wants a machine.
    fn waiting(&mut self, pod: &Arc<PodView>, now: Instant) {
        let class = Class::of(pod);
        if self.models.len() > 2 * self.queue.len() + SPARE {
            let waiting = self.pods.values().filter(|known| self.queue.contains(&known.view.key));
            self.models = waiting.map(|known| (Class::of(&known.view), known.view.clone())).collect();
        }
        self.models.entry(class).or_insert_with(|| pod.clone());
        if pod.claims.is_empty() {
            self.claiming.remove(&pod.key);
        } else {
            self.claiming.insert(pod.key.clone());
        }
        if let Some(machine) = &pod.nominated {
            self.awaited.insert(pod.key.clone(), machine.clone());
        }
        let created = Timestamp::from_microsecond(pod.created).unwrap_or(Timestamp::MIN);
        self.queue.add(pod.key.clone(), pod.shape.priority, created, class, now);
    }

    fn not_waiting(&mut self, key: &PodKey) {
        self.claiming.remove(key);
        self.awaited.remove(key);
        self.desk.forget(key);
        if self.queue.remove(key) && self.queue.is_empty() {
            self.models.clear();
        }
    }

    /// A machine gave it back.
    fn refusal(&mut self, before: Option<&PodView>, pod: &PodView, now: Instant) {
        if pod.node.is_some() {
            return;
        }
        let told = pod.complaint.as_ref().is_some_and(|(reason, _)| reason == REFUSED);
        let news = before.is_none_or(|before| before.node.is_some() || before.complaint != pod.complaint);
        if let Some(machine) = pod.refused_by.as_deref().filter(|_| told && news) {
            self.metrics.refusals.inc();
            self.board.refused(&pod.uid, machine, now);
            tracing::info!(pod = %pod.key, uid = pod.uid, machine, "was turned away");
        }
    }

    /// Notes what its coming, going or changing may mean for others.
    fn pod_moved(&mut self, before: Option<&Arc<PodView>>, pod: &Arc<PodView>) {
        let was = before.and_then(|before| before.node.as_deref());
        for machine in [was, pod.node.as_deref()].into_iter().flatten() {
            self.changes.machine(machine, was != pod.node.as_deref());
        }
        if was.is_some() || pod.node.is_some() {
            self.changes.pods.extend(before.filter(|before| before.tags != pod.tags).cloned());
            self.changes.pods.push(pod.clone());
        }
    }

    /// Claims, volumes or classes are not what they were.
    pub(super) fn volumes_changed(&mut self, now: Instant) {
        for key in self.claiming.clone() {
            let Some(known) = self.pods.get(&key) else { continue };
            let (before, binding) = (known.view.clone(), known.binding.is_some());
            let pod = self.with_volumes(PodView::clone(&before));
            if pod.shape != before.shape && !binding {
                if let Some(known) = self.pods.get_mut(&key) {
                    known.view = pod.clone();
                }
                self.waiting(&pod, now);
            }
        }
    }

    fn with_volumes(&self, pod: PodView) -> Arc<PodView> {
        if pod.claims.is_empty() || pod.node.is_some() {
            return Arc::new(pod);
        }
        let needs = self.volumes.needs(&pod.key.namespace, &pod.claims);
        Arc::new(pod.with_volumes(needs.terms).waiting_for(needs.missing))
    }
}

/// News of a time before what is known: an earlier version, or one before our own placement.
fn is_old(known: &Known, pod: &PodView) -> bool {
    let before_binding = match &known.binding {
        Some(Binding { version: Some(version), .. }) => pod.version < *version,
        Some(Binding { version: None, .. }) | None => false,
    };
    pod.version < known.view.version || before_binding
}

/// For everybody but its machine and its owner it is as it was.
fn is_same(before: &PodView, pod: &PodView) -> bool {
    before.node == pod.node
        && before.ended == pod.ended
        && before.terminating == pod.terminating
        && before.tags == pod.tags
        && before.shape == pod.shape
        && before.given == pod.given
        && before.started == pod.started
}
