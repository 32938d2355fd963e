//! Turns verdicts into actions, and applies the results of actions.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use mainstay_api::{
    ports::{AssignedHostPort, host_port_annotations},
    wellknown::mainstay::ROLE_RESOURCES,
};
use mainstay_events::EventNote;

use super::{Action, AssumedBinding, BATCH, SchedulerState};
use crate::{
    bind::{BindRequest, BindResult},
    core::{
        devices::AllocationFailure,
        reason::{Diagnosis, FilterFailure, Prospect, Reason, Remedy},
        schedule,
        verdict::{PendingPod, Verdict, Victim},
        view::{PodKey, PodView},
    },
    event_recorder::PodEvent,
    metrics::{BindOutcome, DeclineReason, ScheduleResult},
    preemptor::Preemption,
    status_writer::SchedulingFailure,
};

impl SchedulerState {
    /// Schedules a batch of active pods; returns whether there were any.
    pub(super) fn schedule_batch(&mut self, now: Instant) -> bool {
        let popped = self.queue.pop_batch(BATCH, now);
        let mut batch = Vec::with_capacity(popped.len());
        for popped in &popped {
            self.metrics.queue_wait.observe(popped.waited.as_secs_f64());
            let Some(cached) = self.pods.get(&popped.pod) else { continue };
            let refused = self.offers.refusing_nodes(&cached.view.uid).map(str::to_owned).collect();
            batch.push(PendingPod { pod: cached.view.clone(), refused });
        }
        if batch.is_empty() {
            return false;
        }
        let begun = Instant::now();
        let verdicts = schedule(&mut self.cluster, &batch, self.settings.scoring);
        self.metrics.algorithm_duration.observe(begun.elapsed().as_secs_f64());
        let (mut requests, mut with_claims) = (Vec::new(), Vec::new());
        for (PendingPod { pod, .. }, verdict) in batch.into_iter().zip(verdicts) {
            match verdict {
                Verdict::Place { node, ports, shares, claims } => {
                    let mut request = BindRequest { claims, ..self.place(&pod, &node, &ports) };
                    if !shares.is_empty() {
                        request.annotations.insert(ROLE_RESOURCES.to_owned(), shares.text());
                    }
                    if request.claims.is_empty() { requests.push(request) } else { with_claims.push(request) }
                }
                Verdict::Preempt { node, victims, diagnosis } => {
                    self.start_preemption(&pod, &node, victims, &diagnosis, now);
                }
                Verdict::Unschedulable(diagnosis) => self.mark_unschedulable(&pod, &diagnosis, now),
            }
        }
        // Apart: claims take more requests, for which the other pods need not wait.
        let batches: Vec<_> = [requests, with_claims].into_iter().filter(|requests| !requests.is_empty()).collect();
        if !batches.is_empty() {
            self.batches += batches.len();
            self.actions.extend(batches.into_iter().map(Action::Bind));
            self.apply_queueing_hints(now); // for pods with affinity to those just placed
        }
        true
    }

    fn place(&mut self, pod: &Arc<PodView>, node: &str, ports: &[AssignedHostPort]) -> BindRequest {
        self.metrics.record_attempt(ScheduleResult::Scheduled);
        self.metrics.offers_used.inc();
        self.offers.record_use(node);
        self.status_queue.remove(&pod.key);
        if let Some(unknown) = &pod.unknown_port_mapping {
            let used = if ports.is_empty() { "fixed" } else { "wildcard" };
            let message = format!(
                "k8s.mesosphere.io/portMapping: {unknown:?} is neither \"fixed\" nor \"wildcard\"; taken as {used:?}"
            );
            let (pod, uid) = (pod.key.clone(), pod.uid.clone());
            let event = PodEvent { pod, uid, note: EventNote::warning("UnknownPortMapping", message) };
            self.actions.push(Action::RecordEvent(event));
        }
        self.changes.pods.push(pod.clone());
        if let Some(cached) = self.pods.get_mut(&pod.key) {
            cached.assumed = Some(AssumedBinding { node: node.to_owned(), version: None });
        }
        let annotations = host_port_annotations(ports);
        let offer_uid = self.offers.get(node).map(|offer| offer.uid.clone()).unwrap_or_default();
        let (key, uid) = (pod.key.clone(), pod.uid.clone());
        BindRequest { pod: key, uid, node: node.to_owned(), offer_uid, annotations, claims: vec![] }
    }

    fn start_preemption(
        &mut self,
        pod: &PodView,
        node: &str,
        victims: Vec<Victim>,
        diagnosis: &Diagnosis,
        now: Instant,
    ) {
        self.metrics.record_preemption(victims.len());
        self.queue.mark_unschedulable(&pod.key, now);
        self.report_failure(pod, diagnosis, now);
        let victims = victims.into_iter().map(|victim| (victim.key, victim.uid)).collect();
        let preemption = Preemption { pod: pod.key.clone(), uid: pod.uid.clone(), node: node.to_owned(), victims };
        tracing::info!(pod = %preemption.pod, uid = preemption.uid, node, victims = ?preemption.victims, "preempting pods");
        self.nominations.insert(pod.key.clone(), node.to_owned());
        self.actions.push(Action::Preempt(preemption));
    }

    fn mark_unschedulable(&mut self, pod: &PodView, diagnosis: &Diagnosis, now: Instant) {
        self.metrics.record_attempt(ScheduleResult::Unschedulable);
        for (reason, nodes) in &diagnosis.reasons {
            if let Some(reason) = decline_reason(reason) {
                self.metrics.record_declined(reason, *nodes as u64);
            }
        }
        self.queue.mark_unschedulable(&pod.key, now);
        if pod.nominated_node.is_some() && diagnosis.prospect != Prospect::Later(Remedy::VictimsDeleted) {
            self.actions.push(Action::ClearNomination { pod: pod.key.clone(), uid: pod.uid.clone() });
        }
        let is_elsewhere = |failure: &FilterFailure| {
            matches!(failure, FilterFailure::Devices(AllocationFailure::ClaimElsewhere { .. }))
        };
        let closest = diagnosis.closest.iter().flat_map(|closest| &closest.failures);
        let counted = diagnosis.reasons.keys().any(|reason| *reason == claim_elsewhere());
        if (counted || closest.into_iter().any(is_elsewhere))
            && let Some((claim, version)) = self.cluster.devices.deallocatable(pod)
        {
            self.actions.push(Action::Deallocate { claim, version, pod_uid: pod.uid.clone() });
        }
        self.report_failure(pod, diagnosis, now);
    }

    /// Just after the start nodes may not have had the time to offer; that is not worth a condition.
    fn report_failure(&mut self, pod: &PodView, diagnosis: &Diagnosis, now: Instant) {
        let just_started = now < self.started + self.settings.offer_ttl;
        if just_started && diagnosis.reasons.contains_key(&Reason::NotOffering) {
            self.unreported.push(pod.key.clone());
            return;
        }
        let failure = SchedulingFailure::unschedulable(diagnosis.to_string());
        self.status_queue.report(&pod.key, &pod.uid, pod.unscheduled_condition.as_ref(), failure, now);
    }

    pub(super) fn apply_bind_results(
        &mut self,
        requests: &[BindRequest],
        results: Vec<BindResult>,
        took: Duration,
        now: Instant,
    ) {
        self.batches = self.batches.saturating_sub(1);
        self.metrics.bind_latency.observe(took.as_secs_f64());
        for (request, result) in requests.iter().zip(results) {
            let is_late = self.offers.has_expired(&request.node, now);
            let cached = self.pods.get_mut(&request.pod).filter(|cached| cached.view.uid == request.uid);
            if !request.claims.is_empty() && !matches!(result, BindResult::Failed { .. }) {
                self.changes.devices |= self.cluster.devices.forget_pod(&request.uid);
            }
            match result {
                BindResult::Bound { version } => {
                    self.metrics.record_bind(if is_late { BindOutcome::Late } else { BindOutcome::Done });
                    // The watch may have been faster, and the pod may have been deleted since.
                    let Some(cached) = cached.filter(|cached| cached.assumed.is_some()) else { continue };
                    if version > 0 {
                        cached.assumed = Some(AssumedBinding { node: request.node.clone(), version: Some(version) });
                        self.cluster.confirm(&request.pod, version);
                    }
                    self.pods_with_claims.remove(&request.pod);
                    self.pods_with_extended.remove(&request.pod);
                    self.queue.remove(&request.pod);
                }
                BindResult::Waiting { .. } if cached.as_ref().is_none_or(|cached| cached.assumed.is_none()) => {}
                BindResult::Waiting { allocated_for } => self.await_devices(request, allocated_for, now),
                BindResult::Refused { message } | BindResult::Failed { message } if cached.is_none() => {
                    tracing::debug!(pod = %request.pod, uid = request.uid, message, "pod was deleted before it was bound");
                }
                BindResult::Refused { message } => {
                    self.metrics.record_bind(BindOutcome::Refused);
                    tracing::debug!(
                        pod = %request.pod, uid = request.uid, node = request.node, message,
                        "binding was refused; the pod is scheduled again"
                    );
                    self.undo_binding(&request.pod, now);
                }
                BindResult::Failed { message } => {
                    self.metrics.record_bind(BindOutcome::Failed);
                    tracing::warn!(
                        pod = %request.pod, uid = request.uid, node = request.node, message,
                        "cannot bind a pod; it is scheduled again"
                    );
                    self.undo_binding(&request.pod, now);
                }
            }
        }
    }

    /// Forgets an assumed binding, unless the watch has shown meanwhile where the pod is.
    pub(super) fn undo_binding(&mut self, pod: &PodKey, now: Instant) {
        let Some(cached) = self.pods.get_mut(pod) else { return };
        if let Some(assumed) = cached.assumed.take() {
            self.cluster.forget(pod);
            self.changes.add_node(&assumed.node, false);
            self.queue.mark_failed(pod, now);
        }
    }

    pub(super) fn apply_preemption_result(&mut self, preemption: &Preemption, done: bool) {
        if !done {
            preemption.victims.iter().for_each(|(victim, _)| self.cluster.unmark_victim(victim));
            self.queue.retry_after_backoff(&preemption.pod);
        }
    }
}

/// How nodes are counted that a claim's devices cannot be used on.
fn claim_elsewhere() -> Reason {
    Reason::Devices { why: AllocationFailure::ClaimElsewhere { claim: String::new() }.reason() }
}

/// Why an offer was of no use, as the label of a metric; `None` if there was no offer.
fn decline_reason(reason: &Reason) -> Option<DeclineReason> {
    Some(match reason {
        Reason::NotOffering => return None,
        Reason::NotReady | Reason::Unschedulable | Reason::Taint { .. } | Reason::NodeAffinity | Reason::NoPool => {
            DeclineReason::Node
        }
        Reason::Refused => DeclineReason::Refused,
        Reason::Ports | Reason::AutomaticPorts => DeclineReason::Ports,
        Reason::TooManyPods | Reason::Insufficient { .. } => DeclineReason::Resources,
        Reason::VolumeAffinity => DeclineReason::Volumes,
        Reason::Devices { .. } => DeclineReason::Devices,
        Reason::SpreadLabel
        | Reason::Spread
        | Reason::Affinity
        | Reason::AntiAffinity
        | Reason::ExistingAntiAffinity => DeclineReason::PodTopology,
    })
}
