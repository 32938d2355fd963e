//! Work queue and reconcile metrics, under the names that client-go and controller-runtime give them.

use std::{
    fmt,
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;
pub use prometheus_client::registry::Registry;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeLabelValue, EncodeMetric},
    metrics::{
        counter::Counter,
        family::Family,
        gauge::{ConstGauge, Gauge},
        histogram::{Histogram, exponential_buckets},
    },
};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct QueueLabel {
    name: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReconcileLabels {
    controller: &'static str,
    result: ReconcileResult,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct UnaccountedLabel {
    reason: String,
}

/// How a reconcile ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReconcileResult {
    Success,
    /// To be repeated at a time that the plan names.
    RequeueAfter,
    /// Lost a race: repeated at once.
    Requeue,
    Error,
}

impl EncodeLabelValue for ReconcileResult {
    fn encode(&self, encoder: &mut prometheus_client::encoding::LabelValueEncoder) -> fmt::Result {
        let text = match self {
            Self::Success => "success",
            Self::RequeueAfter => "requeue_after",
            Self::Requeue => "requeue",
            Self::Error => "error",
        };
        EncodeLabelValue::encode(&text, encoder)
    }
}

/// How many keys of a queue are due and not yet taken.
pub trait QueueDepth: Send + Sync {
    fn depth(&self) -> usize;
}

/// Cheap to clone: all clones count together.
#[derive(Clone)]
pub struct ControllerMetrics {
    adds: Family<QueueLabel, Counter>,
    retries: Family<QueueLabel, Counter>,
    queue_duration: Family<QueueLabel, Histogram>,
    work_duration: Family<QueueLabel, Histogram>,
    reconciles: Family<ReconcileLabels, Counter>,
    taint_evictions: Counter,
    unaccounted: Family<UnaccountedLabel, Gauge>,
    depths: Depths,
}

fn seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.000_01, 10.0, 8))
}

impl ControllerMetrics {
    /// Metrics that `registry` shows.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            adds: Family::default(),
            retries: Family::default(),
            queue_duration: Family::new_with_constructor(seconds),
            work_duration: Family::new_with_constructor(seconds),
            reconciles: Family::default(),
            taint_evictions: Counter::default(),
            unaccounted: Family::default(),
            depths: Depths::default(),
        };
        registry.register("workqueue_adds", "Keys added to a work queue", metrics.adds.clone());
        registry.register("workqueue_retries", "Keys put back after a failure", metrics.retries.clone());
        let waited = metrics.queue_duration.clone();
        registry.register("workqueue_queue_duration_seconds", "How long a key that was due waited to be taken", waited);
        let worked = metrics.work_duration.clone();
        registry.register("workqueue_work_duration_seconds", "How long a reconcile took", worked);
        let reconciles = metrics.reconciles.clone();
        registry.register("controller_runtime_reconcile", "Reconciles by controller and result", reconciles);
        let evictions = metrics.taint_evictions.clone();
        let help = "Pods deleted because of NoExecute taints since the start";
        registry.register("taint_eviction_controller_pod_deletions", help, evictions);
        let help =
            "Machines that are expected and were never seen, that are silent, or that joined and are not expected";
        registry.register("mainstay_machines_unaccounted", help, metrics.unaccounted.clone());
        registry.register_collector(Box::new(metrics.depths.clone()));
        metrics
    }

    pub(super) fn for_queue(&self, name: &'static str) -> QueueMetrics {
        let label = QueueLabel { name };
        QueueMetrics {
            adds: self.adds.get_or_create(&label).clone(),
            retries: self.retries.get_or_create(&label).clone(),
            queue_duration: self.queue_duration.get_or_create(&label).clone(),
            work_duration: self.work_duration.get_or_create(&label).clone(),
        }
    }

    /// Shows the depth of a queue for as long as the queue is there.
    pub(super) fn show_depth(&self, name: &'static str, queue: Weak<dyn QueueDepth>) {
        let mut queues = self.depths.0.lock();
        queues.retain(|(_, queue)| queue.strong_count() > 0);
        queues.push((name, queue));
    }

    pub fn count_taint_eviction(&self) {
        self.taint_evictions.inc();
    }

    /// Follows a machine from one reason why it is unaccounted for to another.
    pub fn count_unaccounted(&self, before: Option<&str>, after: Option<&str>) {
        let gauge =
            |reason: &str| self.unaccounted.get_or_create(&UnaccountedLabel { reason: reason.to_owned() }).clone();
        if let Some(reason) = before {
            gauge(reason).dec();
        }
        if let Some(reason) = after {
            gauge(reason).inc();
        }
    }

    /// Before machines are counted anew.
    pub fn reset_unaccounted(&self) {
        self.unaccounted.clear();
    }

    pub(super) fn count_reconcile(&self, controller: &'static str, result: ReconcileResult) {
        self.reconciles.get_or_create(&ReconcileLabels { controller, result }).inc();
    }
}

impl Default for ControllerMetrics {
    /// Metrics that nobody shows.
    fn default() -> Self {
        Self::register(&mut Registry::default())
    }
}

/// The metrics of one queue.
#[derive(Clone)]
pub(super) struct QueueMetrics {
    adds: Counter,
    retries: Counter,
    queue_duration: Histogram,
    work_duration: Histogram,
}

impl QueueMetrics {
    pub fn count_add(&self) {
        self.adds.inc();
    }

    pub fn count_retry(&self) {
        self.retries.inc();
    }

    pub fn observe_wait(&self, waited: Duration) {
        self.queue_duration.observe(waited.as_secs_f64());
    }

    pub fn observe_work(&self, took: Duration) {
        self.work_duration.observe(took.as_secs_f64());
    }
}

/// Depths are asked for when metrics are read: a key falls due by the passing of time, which nothing counts.
#[derive(Clone, Default)]
struct Depths(Arc<Mutex<Vec<NamedQueue>>>);

type NamedQueue = (&'static str, Weak<dyn QueueDepth>);

impl fmt::Debug for Depths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Depths")
    }
}

impl Collector for Depths {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let gauge = ConstGauge::<i64>::new(0);
        let mut family = encoder.encode_descriptor(
            "workqueue_depth",
            "Keys that are due and not yet taken",
            None,
            gauge.metric_type(),
        )?;
        let queues: Vec<_> = self.0.lock().clone();
        for (name, queue) in queues {
            let Some(queue) = queue.upgrade() else { continue };
            let depth = ConstGauge::new(i64::try_from(queue.depth()).unwrap_or(i64::MAX));
            depth.encode(family.encode_family(&QueueLabel { name })?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Three;

    impl QueueDepth for Three {
        fn depth(&self) -> usize {
            3
        }
    }

    #[test]
    fn metrics_are_shown_under_upstreams_names() {
        let mut registry = Registry::default();
        let metrics = ControllerMetrics::register(&mut registry);
        let queue = metrics.for_queue("deployment");
        queue.count_add();
        queue.count_retry();
        queue.observe_wait(Duration::from_millis(1));
        queue.observe_work(Duration::from_millis(1));
        metrics.count_reconcile("deployment", ReconcileResult::RequeueAfter);
        metrics.count_taint_eviction();
        let three: Arc<dyn QueueDepth> = Arc::new(Three);
        metrics.show_depth("deployment", Arc::downgrade(&three));
        let text = || {
            let mut text = String::new();
            prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
            text
        };
        let shown = text();
        for line in [
            "workqueue_depth{name=\"deployment\"} 3",
            "workqueue_adds_total{name=\"deployment\"} 1",
            "taint_eviction_controller_pod_deletions_total 1",
            "workqueue_retries_total{name=\"deployment\"} 1",
            "workqueue_queue_duration_seconds_count{name=\"deployment\"} 1",
            "workqueue_work_duration_seconds_count{name=\"deployment\"} 1",
            "controller_runtime_reconcile_total{controller=\"deployment\",result=\"requeue_after\"} 1",
        ] {
            assert!(shown.contains(line), "{line} in {shown}");
        }
        drop(three);
        assert!(!text().contains("workqueue_depth{name"), "a queue that is gone has no depth");
    }
}
