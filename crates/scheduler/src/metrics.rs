//! Metrics of the scheduler: upstream's where it has them (`scheduler_*`), and those of offers (`mainstay_scheduler_*`).
//!
//! Labels are enums, so that the number of series is known.

use std::fmt;

pub use prometheus_client::registry::Registry;
use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder},
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
};

/// Why an offer was of no use to a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum DeclineReason {
    /// Too little of some resource.
    Resources,
    /// A host port is taken or not offered.
    Ports,
    /// Labels, taints, being cordoned or not ready.
    Node,
    /// Pod affinity, anti-affinity or topology spread.
    PodTopology,
    /// The volumes of the pod cannot be reached from the node.
    Volumes,
    /// The devices that the pod claims are not free there, or allocated elsewhere.
    Devices,
    /// The node refused the pod a moment ago.
    Refused,
}

/// Why all objects are listed again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum ReconcileKind {
    Implicit,
    Explicit,
}

/// The result of an attempt to schedule a pod, as upstream's label has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScheduleResult {
    Scheduled,
    Unschedulable,
}

impl EncodeLabelValue for ScheduleResult {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> fmt::Result {
        match self {
            Self::Scheduled => "scheduled",
            Self::Unschedulable => "unschedulable",
        }
        .encode(encoder)
    }
}

/// Where a pod waits, as upstream's label has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PendingQueue {
    /// To be tried now, or when its backoff is over.
    Active,
    /// Until something changes.
    Unschedulable,
}

impl EncodeLabelValue for PendingQueue {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> fmt::Result {
        match self {
            Self::Active => "active",
            Self::Unschedulable => "unschedulable",
        }
        .encode(encoder)
    }
}

/// The result of a binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum BindOutcome {
    Done,
    /// The pod, the node or the offer is not what it was: scheduled again.
    Refused,
    /// The API did not answer properly.
    Failed,
    /// Done, on a node whose offer expired meanwhile.
    Late,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DeclineLabels {
    reason: DeclineReason,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReconcileLabels {
    kind: ReconcileKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AttemptLabels {
    result: ScheduleResult,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PendingLabels {
    queue: PendingQueue,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct BindLabels {
    result: BindOutcome,
}

/// Cheap to clone: all clones count together.
#[derive(Clone)]
pub struct Metrics {
    pub offers_received: Counter,
    pub offers_renewed: Counter,
    pub offers_used: Counter,
    pub offers_expired: Counter,
    pub offers_viable: Gauge,
    pub preemption_attempts: Counter,
    pub preemption_victims: Histogram,
    pub refusals: Counter,
    pub queue_wait: Histogram,
    pub bind_latency: Histogram,
    pub algorithm_duration: Histogram,
    pub reconcile_latency: Histogram,
    declined: Family<DeclineLabels, Counter>,
    pending_pods: Family<PendingLabels, Gauge>,
    schedule_attempts: Family<AttemptLabels, Counter>,
    binds: Family<BindLabels, Counter>,
    reconcile_requested: Family<ReconcileLabels, Counter>,
    reconcile_executed: Family<ReconcileLabels, Counter>,
    reconcile_cancelled: Family<ReconcileLabels, Counter>,
}

impl Metrics {
    /// Metrics in `registry`.
    pub fn register(registry: &mut Registry) -> Self {
        let seconds = || Histogram::new(exponential_buckets(0.000_1, 4.0, 12));
        let metrics = Self {
            offers_received: Counter::default(),
            offers_renewed: Counter::default(),
            offers_used: Counter::default(),
            offers_expired: Counter::default(),
            offers_viable: Gauge::default(),
            preemption_attempts: Counter::default(),
            preemption_victims: Histogram::new(exponential_buckets(1.0, 2.0, 7)),
            refusals: Counter::default(),
            queue_wait: seconds(),
            bind_latency: seconds(),
            algorithm_duration: seconds(),
            reconcile_latency: seconds(),
            declined: Family::default(),
            pending_pods: Family::default(),
            schedule_attempts: Family::default(),
            binds: Family::default(),
            reconcile_requested: Family::default(),
            reconcile_executed: Family::default(),
            reconcile_cancelled: Family::default(),
        };
        let own = registry.sub_registry_with_prefix("mainstay_scheduler");
        own.register("offers_received", "Offers received that were written anew", metrics.offers_received.clone());
        own.register("offers_renewed", "Offers renewed by a heartbeat of their node", metrics.offers_renewed.clone());
        own.register("offers_used", "Offers used, once per pod", metrics.offers_used.clone());
        own.register(
            "offers_declined",
            "Offers that a pod could not use, once per pod and attempt",
            metrics.declined.clone(),
        );
        own.register("offers_expired", "Offers that were not renewed in time", metrics.offers_expired.clone());
        own.register("offers_viable", "Nodes with a valid offer", metrics.offers_viable.clone());
        own.register("refusals", "Pods that nodes refused", metrics.refusals.clone());
        own.register("binds", "Bindings, by result", metrics.binds.clone());
        own.register("queue_wait_seconds", "Time a pod was active in the scheduling queue", metrics.queue_wait.clone());
        own.register("bind_latency_seconds", "Time of a batch of bindings", metrics.bind_latency.clone());
        own.register("reconciliation_requested", "Reconciliations requested", metrics.reconcile_requested.clone());
        own.register("reconciliation_executed", "Reconciliations done", metrics.reconcile_executed.clone());
        own.register(
            "reconciliation_cancelled",
            "Reconciliations aborted or merged",
            metrics.reconcile_cancelled.clone(),
        );
        own.register("reconciliation_latency_seconds", "Time of a reconciliation", metrics.reconcile_latency.clone());
        let upstream = registry.sub_registry_with_prefix("scheduler");
        upstream.register("pending_pods", "Pods in the scheduling queue", metrics.pending_pods.clone());
        upstream.register("schedule_attempts", "Attempts to schedule a pod", metrics.schedule_attempts.clone());
        upstream.register("preemption_attempts", "Preemptions", metrics.preemption_attempts.clone());
        upstream.register("preemption_victims", "Pods that a preemption deletes", metrics.preemption_victims.clone());
        upstream.register(
            "scheduling_algorithm_duration_seconds",
            "Time to schedule a batch of pods",
            metrics.algorithm_duration.clone(),
        );
        metrics
    }

    pub fn record_declined(&self, reason: DeclineReason, times: u64) {
        self.declined.get_or_create(&DeclineLabels { reason }).inc_by(times);
    }

    pub fn record_attempt(&self, result: ScheduleResult) {
        self.schedule_attempts.get_or_create(&AttemptLabels { result }).inc();
    }

    /// A pod could not be scheduled, and others are deleted for it.
    pub fn record_preemption(&self, victims: usize) {
        self.record_attempt(ScheduleResult::Unschedulable);
        self.preemption_attempts.inc();
        self.preemption_victims.observe(victims as f64);
    }

    pub fn set_pending(&self, queue: PendingQueue, pods: usize) {
        let pending = self.pending_pods.get_or_create(&PendingLabels { queue });
        pending.set(i64::try_from(pods).unwrap_or(i64::MAX));
    }

    pub fn record_bind(&self, result: BindOutcome) {
        self.binds.get_or_create(&BindLabels { result }).inc();
    }

    pub fn record_reconcile_requested(&self, kind: ReconcileKind) {
        self.reconcile_requested.get_or_create(&ReconcileLabels { kind }).inc();
    }

    pub fn record_reconcile_executed(&self, kind: ReconcileKind, seconds: f64) {
        self.reconcile_executed.get_or_create(&ReconcileLabels { kind }).inc();
        self.reconcile_latency.observe(seconds);
    }

    pub fn record_reconcile_cancelled(&self, kind: ReconcileKind) {
        self.reconcile_cancelled.get_or_create(&ReconcileLabels { kind }).inc();
    }
}

impl Default for Metrics {
    /// Metrics without a registry, for tests.
    fn default() -> Self {
        Self::register(&mut Registry::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_exposed() {
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry);
        metrics.offers_received.inc();
        metrics.record_declined(DeclineReason::Resources, 3);
        metrics.record_attempt(ScheduleResult::Scheduled);
        metrics.record_preemption(2);
        metrics.set_pending(PendingQueue::Unschedulable, 7);
        metrics.record_bind(BindOutcome::Late);
        metrics.record_reconcile_requested(ReconcileKind::Explicit);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for line in [
            "mainstay_scheduler_offers_received_total 1",
            "mainstay_scheduler_offers_declined_total{reason=\"Resources\"} 3",
            "scheduler_schedule_attempts_total{result=\"scheduled\"} 1",
            "scheduler_schedule_attempts_total{result=\"unschedulable\"} 1",
            "scheduler_preemption_attempts_total 1",
            "scheduler_preemption_victims_sum 2",
            "scheduler_pending_pods{queue=\"unschedulable\"} 7",
            "mainstay_scheduler_binds_total{result=\"Late\"} 1",
            "mainstay_scheduler_reconciliation_requested_total{kind=\"Explicit\"} 1",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
    }
}
