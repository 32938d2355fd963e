//! Metrics of routes and their collection.

use mainstay_controllers::runtime::metrics::Registry;
use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeLabelValue},
    metrics::{counter::Counter, family::Family},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum RouteOperation {
    Create,
    Remove,
    /// A route was taken back because its node's port refused the range.
    RollBack,
    Nudge,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OperationLabels {
    operation: RouteOperation,
}

/// Cheap to clone: all clones count together.
#[derive(Clone, Default)]
pub struct RouteMetrics {
    orphaned: Counter,
    collection_failed: Counter,
    operations: Family<OperationLabels, Counter>,
    failed: Family<OperationLabels, Counter>,
}

impl RouteMetrics {
    /// Metrics that `registry` shows.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let help = "Orphaned routes that route collection removed";
        registry.register("kubernikus_routegc_orphaned_routes", help, metrics.orphaned.clone());
        let help = "Rounds of route collection that failed";
        registry.register("kubernikus_routegc_failed_operation", help, metrics.collection_failed.clone());
        let help = "Changes of routers' routes, by what was done";
        registry.register("mainstay_cloud_route_operations", help, metrics.operations.clone());
        let help = "Changes of routers' routes that failed";
        registry.register("mainstay_cloud_route_operation_failures", help, metrics.failed.clone());
        metrics
    }

    pub fn count_orphans(&self, count: usize) {
        self.orphaned.inc_by(count as u64);
    }

    pub fn count_collection_failure(&self) {
        self.collection_failed.inc();
    }

    pub fn count(&self, operation: RouteOperation, count: usize) {
        self.operations.get_or_create(&OperationLabels { operation }).inc_by(count as u64);
    }

    pub fn count_failure(&self, operation: RouteOperation) {
        self.failed.get_or_create(&OperationLabels { operation }).inc();
    }

    pub fn orphans(&self) -> u64 {
        self.orphaned.get()
    }

    pub fn collection_failures(&self) -> u64 {
        self.collection_failed.get()
    }

    pub fn operations(&self, operation: RouteOperation) -> u64 {
        self.operations.get_or_create(&OperationLabels { operation }).get()
    }
}
