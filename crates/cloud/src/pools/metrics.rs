//! Metrics of pools, by the names that Kubernikus gave them.

use std::time::Duration;

use mainstay_api::cloud::node_pool::PoolStatus;
use mainstay_controllers::runtime::metrics::Registry;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{family::Family, gauge::Gauge},
};

use crate::operation_metrics::OperationMetrics;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PoolLabels {
    kluster_id: String,
    node_pool: String,
    status: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SizeLabels {
    kluster_id: String,
    node_pool: String,
}

#[derive(Clone, Default)]
pub struct PoolMetrics {
    operations: OperationMetrics,
    status: Family<PoolLabels, Gauge>,
    size: Family<SizeLabels, Gauge>,
}

impl PoolMetrics {
    /// Metrics that `registry` shows.
    pub fn register(registry: &mut Registry) -> Self {
        let operations = OperationMetrics::register(registry, "kubernikus_launch");
        let metrics = Self { operations, ..Self::default() };
        let help = "Machines of a pool, by what they are";
        registry.register("kubernikus_node_pool_status", help, metrics.status.clone());
        registry.register("kubernikus_node_pool_size", "Machines that a pool is to have", metrics.size.clone());
        metrics
    }

    pub fn count(&self, method: &'static str, took: Duration, succeeded: bool) {
        self.operations.count(method, took, succeeded);
    }

    /// How often an operation was tried, succeeded and failed.
    pub fn counts(&self, method: &'static str) -> (u64, u64, u64) {
        self.operations.counts(method)
    }

    pub fn show_pool(&self, kluster: &str, pool: &PoolStatus) {
        let values = [("running", pool.running), ("healthy", pool.healthy), ("schedulable", pool.schedulable)];
        for (status, value) in values {
            self.status.get_or_create(&labels(kluster, &pool.name, status)).set(value.into());
        }
        let size = SizeLabels { kluster_id: kluster.to_owned(), node_pool: pool.name.clone() };
        self.size.get_or_create(&size).set(pool.size.into());
    }

    /// A pool that is gone has no values.
    pub fn forget_pool(&self, kluster: &str, pool: &str) {
        for status in ["running", "healthy", "schedulable"] {
            self.status.remove(&labels(kluster, pool, status));
        }
        self.size.remove(&SizeLabels { kluster_id: kluster.to_owned(), node_pool: pool.to_owned() });
    }
}

fn labels(kluster: &str, pool: &str, status: &'static str) -> PoolLabels {
    PoolLabels { kluster_id: kluster.to_owned(), node_pool: pool.to_owned(), status }
}
