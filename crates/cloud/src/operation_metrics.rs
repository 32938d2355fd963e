//! Metrics of a part's operations: how long each took, and how often it was tried, succeeded and failed.
//!
//! The names are those of Kubernikus: `PREFIX_operation_latency_seconds`, `PREFIX_operation_total`, `PREFIX_successful_operation_total` and
//! `PREFIX_failed_operation_total`, each by `method`.

use std::time::Duration;

use mainstay_controllers::runtime::metrics::Registry;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{
        counter::Counter,
        family::Family,
        histogram::{Histogram, exponential_buckets},
    },
};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct MethodLabel {
    method: &'static str,
}

/// Cheap to clone: all clones count together.
#[derive(Clone)]
pub struct OperationMetrics {
    latency: Family<MethodLabel, Histogram>,
    total: Family<MethodLabel, Counter>,
    successful: Family<MethodLabel, Counter>,
    failed: Family<MethodLabel, Counter>,
}

fn seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.01, 4.0, 9))
}

impl Default for OperationMetrics {
    fn default() -> Self {
        let latency = Family::new_with_constructor(seconds as fn() -> Histogram);
        Self { latency, total: Family::default(), successful: Family::default(), failed: Family::default() }
    }
}

impl OperationMetrics {
    /// Metrics that `registry` shows.
    pub fn register(registry: &mut Registry, prefix: &str) -> Self {
        let metrics = Self::default();
        let name = |rest: &str| format!("{prefix}_{rest}");
        registry.register(name("operation_latency_seconds"), "How long an operation took", metrics.latency.clone());
        registry.register(name("operation"), "Operations", metrics.total.clone());
        registry.register(name("successful_operation"), "Operations that succeeded", metrics.successful.clone());
        registry.register(name("failed_operation"), "Operations that failed", metrics.failed.clone());
        metrics
    }

    pub fn count(&self, method: &'static str, took: Duration, succeeded: bool) {
        let label = MethodLabel { method };
        self.latency.get_or_create(&label).observe(took.as_secs_f64());
        self.total.get_or_create(&label).inc();
        let result = if succeeded { &self.successful } else { &self.failed };
        result.get_or_create(&label).inc();
    }

    /// How often an operation was tried, succeeded and failed.
    pub fn counts(&self, method: &'static str) -> (u64, u64, u64) {
        let label = MethodLabel { method };
        let value = |family: &Family<MethodLabel, Counter>| family.get_or_create(&label).get();
        (value(&self.total), value(&self.successful), value(&self.failed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn successes_and_failures_are_counted_under_the_names_of_kubernikus() {
        let mut registry = Registry::default();
        let metrics = OperationMetrics::register(&mut registry, "kubernikus_deorbit");
        metrics.count("DeleteServices", Duration::from_secs(1), true);
        metrics.count("DeleteServices", Duration::from_secs(1), false);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for line in [
            "kubernikus_deorbit_operation_total{method=\"DeleteServices\"} 2",
            "kubernikus_deorbit_successful_operation_total{method=\"DeleteServices\"} 1",
            "kubernikus_deorbit_failed_operation_total{method=\"DeleteServices\"} 1",
            "kubernikus_deorbit_operation_latency_seconds_count{method=\"DeleteServices\"} 2",
        ] {
            assert!(text.contains(line), "{line} is not in {text}");
        }
    }
}
