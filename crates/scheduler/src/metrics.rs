//! What the scheduler counts. Labels are enums, so that the number of series is known.

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

/// Why an offer was of no use to a pod, or to anybody.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum Declined {
    /// Too little of some resource.
    Room,
    /// A host port is taken or not offered.
    Ports,
    /// Labels, taints, being cordoned or not ready.
    Machine,
    /// What else runs where.
    Neighbours,
    /// The volumes of the pod are elsewhere.
    Volumes,
    /// The machine had turned the pod away.
    Refused,
}

/// What asked for everything to be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum Kind {
    Implicit,
    Explicit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum Decision {
    Placed,
    Unplaced,
    Preempted,
}

/// How asking for a placement ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum Bound {
    Done,
    /// The pod or the machine is not what it was: planned again.
    Refused,
    /// The API could not be asked.
    Failed,
    /// Done, on a machine whose offer had expired meanwhile.
    Late,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reason {
    reason: Declined,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Of {
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Result {
    result: Decision,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    result: Bound,
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
    declined: Family<Reason, Counter>,
    decisions: Family<Result, Counter>,
    binds: Family<Outcome, Counter>,
    reconcile_requested: Family<Of, Counter>,
    reconcile_executed: Family<Of, Counter>,
    reconcile_cancelled: Family<Of, Counter>,
}

impl Metrics {
    /// Counters that `registry` shows.
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
        own.register("offers_used", "Offers that pods were placed on, once per pod", metrics.offers_used.clone());
        own.register("offers_declined", "Offers a pod could not use, once per pod tried", metrics.declined.clone());
        own.register("offers_expired", "Offers that were not renewed in time", metrics.offers_expired.clone());
        own.register("offers_viable", "Machines that offer something at the moment", metrics.offers_viable.clone());
        own.register("pods_pending", "Pods that wait for a machine", metrics.pods_pending.clone());
        own.register("refusals", "Pods that machines turned away", metrics.refusals.clone());
        own.register("decisions", "Pods tried, by how it ended", metrics.decisions.clone());
        own.register("binds", "Placements asked for, by how it ended", metrics.binds.clone());
        own.register("queue_wait_seconds", "Time from ready to being tried", metrics.queue_wait.clone());
        own.register("bind_latency_seconds", "Time from decision to answer", metrics.bind_latency.clone());
        own.register("decide_latency_seconds", "Time to decide about a batch", metrics.decide_latency.clone());
        own.register("reconciliation_requested", "Comparisons asked for", metrics.reconcile_requested.clone());
        own.register("reconciliation_executed", "Comparisons done", metrics.reconcile_executed.clone());
        own.register("reconciliation_cancelled", "Comparisons given up or merged", metrics.reconcile_cancelled.clone());
        own.register("reconciliation_latency_seconds", "Time a comparison took", metrics.reconcile_latency.clone());
        metrics
    }

    pub fn declined(&self, reason: Declined, times: u64) {
        self.declined.get_or_create(&Reason { reason }).inc_by(times);
    }

    pub fn decided(&self, result: Decision) {
        self.decisions.get_or_create(&Result { result }).inc();
    }

    pub fn bound(&self, result: Bound) {
        self.binds.get_or_create(&Outcome { result }).inc();
    }

    pub fn reconcile_requested(&self, kind: Kind) {
        self.reconcile_requested.get_or_create(&Of { kind }).inc();
    }

    pub fn reconcile_executed(&self, kind: Kind, seconds: f64) {
        self.reconcile_executed.get_or_create(&Of { kind }).inc();
        self.reconcile_latency.observe(seconds);
    }

    pub fn reconcile_cancelled(&self, kind: Kind) {
        self.reconcile_cancelled.get_or_create(&Of { kind }).inc();
    }
}

impl Default for Metrics {
    /// Counters that nobody shows.
    fn default() -> Self {
        Self::register(&mut Registry::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_counted_is_shown() {
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry);
        metrics.offers_received.inc();
        metrics.declined(Declined::Room, 3);
        metrics.decided(Decision::Placed);
        metrics.bound(Bound::Late);
        metrics.reconcile_requested(Kind::Explicit);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for line in [
            "mainstay_scheduler_offers_received_total 1",
            "mainstay_scheduler_offers_declined_total{reason=\"Room\"} 3",
            "mainstay_scheduler_decisions_total{result=\"Placed\"} 1",
            "mainstay_scheduler_binds_total{result=\"Late\"} 1",
            "mainstay_scheduler_reconciliation_requested_total{kind=\"Explicit\"} 1",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
    }
}
