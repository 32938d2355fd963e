//! Metrics of the scheduler. Labels are enums, so that the number of series is known.

pub use prometheus_client::registry::Registry;
use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeLabelValue},
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
    /// The node refused the pod a moment ago.
    Refused,
}

/// Why all objects are listed again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum ReconcileKind {
    Implicit,
    Explicit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum Decision {
    Scheduled,
    Unschedulable,
    Preempting,
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
struct DecisionLabels {
    result: Decision,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct BindLabels {
    result: BindOutcome,
}

/// Cheap to clone: all clones count together.
#[derive(Clone)]
pub struct Metrics {
    pub offers_received: Counter,
    pub offers_used: Counter,
    pub offers_expired: Counter,
    pub offers_viable: Gauge,
    pub pods_pending: Gauge,
    pub refusals: Counter,
    pub queue_wait: Histogram,
    pub bind_latency: Histogram,
    pub decide_latency: Histogram,
    pub reconcile_latency: Histogram,
    declined: Family<DeclineLabels, Counter>,
    decisions: Family<DecisionLabels, Counter>,
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
            offers_used: Counter::default(),
            offers_expired: Counter::default(),
            offers_viable: Gauge::default(),
            pods_pending: Gauge::default(),
            refusals: Counter::default(),
            queue_wait: seconds(),
            bind_latency: seconds(),
            decide_latency: seconds(),
            reconcile_latency: seconds(),
            declined: Family::default(),
            decisions: Family::default(),
            binds: Family::default(),
            reconcile_requested: Family::default(),
            reconcile_executed: Family::default(),
            reconcile_cancelled: Family::default(),
        };
        let own = registry.sub_registry_with_prefix("mainstay_scheduler");
        own.register("offers_received", "Offers received, renewals included", metrics.offers_received.clone());
        own.register("offers_used", "Offers used, once per pod", metrics.offers_used.clone());
        own.register(
            "offers_declined",
            "Offers that a pod could not use, once per pod and attempt",
            metrics.declined.clone(),
        );
        own.register("offers_expired", "Offers that were not renewed in time", metrics.offers_expired.clone());
        own.register("offers_viable", "Nodes with a valid offer", metrics.offers_viable.clone());
        own.register("pods_pending", "Pods in the scheduling queue", metrics.pods_pending.clone());
        own.register("refusals", "Pods that nodes refused", metrics.refusals.clone());
        own.register("decisions", "Attempts to schedule a pod, by result", metrics.decisions.clone());
        own.register("binds", "Bindings, by result", metrics.binds.clone());
        own.register("queue_wait_seconds", "Time a pod was active in the scheduling queue", metrics.queue_wait.clone());
        own.register("bind_latency_seconds", "Time of a batch of bindings", metrics.bind_latency.clone());
        own.register("decide_latency_seconds", "Time to schedule a batch of pods", metrics.decide_latency.clone());
        own.register("reconciliation_requested", "Reconciliations requested", metrics.reconcile_requested.clone());
        own.register("reconciliation_executed", "Reconciliations done", metrics.reconcile_executed.clone());
        own.register(
            "reconciliation_cancelled",
            "Reconciliations aborted or merged",
            metrics.reconcile_cancelled.clone(),
        );
        own.register("reconciliation_latency_seconds", "Time of a reconciliation", metrics.reconcile_latency.clone());
        metrics
    }

    pub fn record_declined(&self, reason: DeclineReason, times: u64) {
        self.declined.get_or_create(&DeclineLabels { reason }).inc_by(times);
    }

    pub fn record_decision(&self, result: Decision) {
        self.decisions.get_or_create(&DecisionLabels { result }).inc();
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
        metrics.record_decision(Decision::Scheduled);
        metrics.record_bind(BindOutcome::Late);
        metrics.record_reconcile_requested(ReconcileKind::Explicit);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for line in [
            "mainstay_scheduler_offers_received_total 1",
            "mainstay_scheduler_offers_declined_total{reason=\"Resources\"} 3",
            "mainstay_scheduler_decisions_total{result=\"Scheduled\"} 1",
            "mainstay_scheduler_binds_total{result=\"Late\"} 1",
            "mainstay_scheduler_reconciliation_requested_total{kind=\"Explicit\"} 1",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
    }
}
