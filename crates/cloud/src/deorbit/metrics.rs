//! Metrics of deorbit: its operations, by the names that Kubernikus gave them.

use std::time::Duration;

use mainstay_controllers::runtime::metrics::Registry;

use super::{
    cluster::operation_name,
    notice::Notice,
    plan::{Action, DeorbitPlan},
};
use crate::operation_metrics::OperationMetrics;

#[derive(Clone, Default)]
pub struct DeorbitMetrics(OperationMetrics);

impl DeorbitMetrics {
    /// Metrics that `registry` shows.
    pub fn register(registry: &mut Registry) -> Self {
        Self(OperationMetrics::register(registry, "kubernikus_deorbit"))
    }

    pub fn count_action(&self, action: &Action, took: Duration, succeeded: bool) {
        self.0.count(operation_name(action), took, succeeded);
    }

    /// Counts waits that ended and self-destruction, which notices tell of.
    pub fn count_notices(&self, notices: &[Notice], plan: &DeorbitPlan) {
        let round = plan.status.round_started.as_ref().map(|time| time.0);
        let now = plan.status.finished.as_ref().map(|time| time.0).or(round);
        let waited = now.zip(plan.status.started.as_ref()).map(|(now, started)| now.duration_since(started.0));
        let waited = waited.and_then(|waited| Duration::try_from(waited).ok()).unwrap_or_default();
        for (method, succeeded) in notices.iter().filter_map(|notice| notice.operation) {
            self.0.count(method, waited, succeeded);
        }
    }

    pub fn count_reconcile(&self, took: Duration, succeeded: bool) {
        self.0.count("Reconcile", took, succeeded);
    }

    /// How often an operation was tried, succeeded and failed.
    pub fn counts(&self, method: &'static str) -> (u64, u64, u64) {
        self.0.counts(method)
    }
}
