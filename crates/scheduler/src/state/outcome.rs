//! From verdicts to work, and from answers to what is known.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use super::{BATCH, Binding, State, Work};
use crate::{
    bind::{Answer, Order},
    core::{
        decide,
        reason::{Ever, Hope, Reason, Unplaced},
        verdict::{Verdict, Victim, Wanted},
        view::{GivenPort, PodKey, PodView},
    },
    events::{Note, Tone},
    metrics::{Bound, Decision, Declined},
    preempt::Eviction,
    say::Complaint,
};

impl State {
    /// Decides about those who are ready; whether there were any.
    pub(super) fn decide(&mut self, now: Instant) -> bool {
        let taken = self.queue.take(BATCH, now);
        let mut batch = Vec::with_capacity(taken.len());
        for taken in &taken {
            self.metrics.queue_wait.observe(taken.waited.as_secs_f64());
            let Some(known) = self.pods.get(&taken.pod) else { continue };
            let refused = self.board.refusing(&known.view.uid).map(str::to_owned).collect();
            batch.push(Wanted { pod: known.view.clone(), refused });
        }
        if batch.is_empty() {
            return false;
        }
        let begun = Instant::now();
        let verdicts = decide(&mut self.cluster, &batch, &self.strategy);
        self.metrics.decide_latency.observe(begun.elapsed().as_secs_f64());
        let mut orders = Vec::new();
        for (Wanted { pod, .. }, verdict) in batch.into_iter().zip(verdicts) {
            match verdict {
                Verdict::Place { machine, ports } => orders.push(self.place(&pod, &machine, &ports)),
                Verdict::Preempt { machine, victims, why } => self.make_room(&pod, &machine, victims, &why, now),
                Verdict::Unplaced(why) => self.unplaced(&pod, &why, now),
            }
        }
        if !orders.is_empty() {
            self.batches += 1;
            self.work.push(Work::Bind(orders));
            self.wake(now); // whoever wants to be near
        }
        true
    }

    fn place(&mut self, pod: &Arc<PodView>, machine: &str, ports: &[GivenPort]) -> Order {
        self.metrics.decided(Decision::Placed);
        self.metrics.offers_used.inc();
        self.board.used(machine);
        self.desk.forget(&pod.key);
        if let Some(odd) = &pod.odd_port_mapping {
            let taken = if ports.is_empty() { "fixed" } else { "wildcard" };
            let message = format!(
                "k8s.mesosphere.io/portMapping: {odd:?} is neither \"fixed\" nor \"wildcard\"; taken as {taken:?}"
            );
            let (pod, uid) = (pod.key.clone(), pod.uid.clone());
            self.work.push(Work::Tell(Note { pod, uid, tone: Tone::Warning, reason: "UnknownPortMapping", message }));
        }
        self.changes.pods.push(pod.clone());
        if let Some(known) = self.pods.get_mut(&pod.key) {
            known.binding = Some(Binding { node: machine.to_owned(), version: None });
        }
        Order { pod: pod.key.clone(), uid: pod.uid.clone(), node: machine.to_owned(), annotations: annotations(ports) }
    }

    fn make_room(&mut self, pod: &PodView, machine: &str, victims: Vec<Victim>, why: &Unplaced, now: Instant) {
        self.metrics.decided(Decision::Preempted);
        self.queue.unfit(&pod.key, now);
        self.say(pod, why, now);
        let victims = victims.into_iter().map(|victim| (victim.key, victim.uid)).collect();
        let eviction = Eviction { pod: pod.key.clone(), uid: pod.uid.clone(), node: machine.to_owned(), victims };
        tracing::info!(pod = %eviction.pod, uid = eviction.uid, machine, victims = ?eviction.victims, "others make way");
        self.awaited.insert(pod.key.clone(), machine.to_owned());
        self.work.push(Work::Evict(eviction));
    }

    fn unplaced(&mut self, pod: &PodView, why: &Unplaced, now: Instant) {
        self.metrics.decided(Decision::Unplaced);
        for (reason, machines) in &why.reasons {
            if let Some(declined) = declined(reason) {
                self.metrics.declined(declined, *machines as u64);
            }
        }
        self.queue.unfit(&pod.key, now);
        if pod.nominated.is_some() && why.ever != Ever::NotYet(Hope::VictimsLeave) {
            self.work.push(Work::Renounce { pod: pod.key.clone(), uid: pod.uid.clone() });
        }
        self.say(pod, why, now);
    }

    /// Just after the start machines may not have had the time to offer; that is not worth a word.
    fn say(&mut self, pod: &PodView, why: &Unplaced, now: Instant) {
        let early = now < self.started + self.settings.offer_ttl;
        if early && why.reasons.contains_key(&Reason::NotOffering) {
            self.early.push(pod.key.clone());
            return;
        }
        let complaint = Complaint::unschedulable(why.to_string());
        self.desk.say(&pod.key, &pod.uid, pod.complaint.as_ref(), complaint, now);
    }

    /// What became of placements.
    pub(super) fn bound(&mut self, orders: &[Order], answers: Vec<Answer>, took: Duration, now: Instant) {
        self.batches = self.batches.saturating_sub(1);
        self.metrics.bind_latency.observe(took.as_secs_f64());
        for (order, answer) in orders.iter().zip(answers) {
            let late = self.board.has_expired(&order.node, now);
            let known = self.pods.get_mut(&order.pod).filter(|known| known.view.uid == order.uid);
            match answer {
                Answer::Bound { version } => {
                    self.metrics.bound(if late { Bound::Late } else { Bound::Done });
                    // The watch may have been faster, and the pod may have gone since.
                    let Some(known) = known.filter(|known| known.binding.is_some()) else { continue };
                    if version > 0 {
                        known.binding = Some(Binding { node: order.node.clone(), version: Some(version) });
                        self.cluster.confirm(&order.pod, version);
                    }
                    self.claiming.remove(&order.pod);
                    self.queue.remove(&order.pod);
                }
                Answer::Refused { message } | Answer::Failed { message } if known.is_none() => {
                    tracing::debug!(pod = %order.pod, message, "was gone before it was placed");
                }
                Answer::Refused { message } => {
                    self.metrics.bound(Bound::Refused);
                    tracing::debug!(pod = %order.pod, uid = order.uid, node = order.node, message, "not placed: decided anew");
                    self.not_bound(&order.pod, now);
                }
                Answer::Failed { message } => {
                    self.metrics.bound(Bound::Failed);
                    tracing::warn!(pod = %order.pod, uid = order.uid, node = order.node, message, "cannot place a pod");
                    self.not_bound(&order.pod, now);
                }
            }
        }
    }

    /// Unless the watch has told otherwise meanwhile, it is where it was: nowhere.
    fn not_bound(&mut self, pod: &PodKey, now: Instant) {
        let Some(known) = self.pods.get_mut(pod) else { return };
        if let Some(binding) = known.binding.take() {
            self.cluster.forget(pod);
            self.changes.machine(&binding.node, false);
            self.queue.failed(pod, now);
        }
    }

    pub(super) fn evicted(&mut self, eviction: &Eviction, done: bool) {
        if !done {
            eviction.victims.iter().for_each(|(victim, _)| self.cluster.stays(victim));
            self.queue.in_any_case(&eviction.pod);
        }
    }
}

/// How a pod is told which ports of its machine lead to it.
fn annotations(ports: &[GivenPort]) -> BTreeMap<String, String> {
    let mut notes = BTreeMap::new();
    for GivenPort { wish, host_port } in ports {
        let (protocol, number) = (&wish.protocol, wish.container_port);
        notes.insert(format!("k8s.mesosphere.io/port_{protocol}_{number}"), host_port.to_string());
        if !wish.name.is_empty() {
            notes.insert(format!("k8s.mesosphere.io/portName_{protocol}_{}", wish.name), host_port.to_string());
        }
    }
    notes
}

/// Why an offer was of no use, in the few words of a metric; nothing if there was no offer.
fn declined(reason: &Reason) -> Option<Declined> {
    Some(match reason {
        Reason::NotOffering => return None,
        Reason::NotReady | Reason::Unschedulable | Reason::Taint { .. } | Reason::NodeAffinity => Declined::Machine,
        Reason::Refused => Declined::Refused,
        Reason::Ports | Reason::AutomaticPorts => Declined::Ports,
        Reason::TooManyPods | Reason::Insufficient { .. } => Declined::Room,
        Reason::VolumeAffinity => Declined::Volumes,
        Reason::SpreadLabel | Reason::Spread | Reason::Affinity | Reason::AntiAffinity | Reason::OthersAntiAffinity => {
            Declined::Neighbours
        }
    })
}
