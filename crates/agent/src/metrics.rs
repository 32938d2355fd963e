//! The agent's Prometheus metrics, served at `/metrics` on its port.

use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeLabelValue, text::encode},
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct Owner {
    pub namespace: String,
    /// Kind and name: `ReplicaSet web-5d4f`.
    pub owner: String,
}

/// What has to be done before a container runs, in order.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, EncodeLabelValue)]
pub enum StartStep {
    Volumes,
    Sandbox,
    Image,
    Container,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct SlowStartLabels {
    pub step: StartStep,
}

/// The phase of a pod whose status was written.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, EncodeLabelValue)]
pub enum Phase {
    Pending,
    Running,
    Succeeded,
    Failed,
    Unknown,
}

impl Phase {
    pub fn parse(phase: Option<&str>) -> Self {
        match phase {
            Some("Pending") => Self::Pending,
            Some("Running") => Self::Running,
            Some("Succeeded") => Self::Succeeded,
            Some("Failed") => Self::Failed,
            Some(_) | None => Self::Unknown,
        }
    }
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct StatusUpdateLabels {
    pub phase: Phase,
}

#[derive(Clone, Default)]
pub struct Metrics {
    /// Statuses of pods that were written, by phase.
    pub status_updates: Family<StatusUpdateLabels, Counter>,
    /// Containers restarted because their liveness failed.
    pub liveness_restarts: Family<Owner, Counter>,
    /// Pods that had not started a container in time, by the step they hung in.
    pub slow_starts: Family<SlowStartLabels, Counter>,
    /// Faults of our own while working on a pod.
    pub worker_panics: Counter,
    /// Services that the table has.
    pub services: Gauge,
    /// Times that the table was changed.
    pub table_changes: Counter,
    /// Rules that were missing from the kernel or did not belong there.
    pub table_drift: Counter,
}

impl Metrics {
    /// In the form that Prometheus reads.
    pub fn exposed(&self) -> String {
        let mut registry = Registry::with_prefix("mainstay_agent");
        let help = "Containers restarted because their liveness failed, by owner";
        registry.register("liveness_restarts", help, self.liveness_restarts.clone());
        let help = "Statuses of pods that were written to the API, by phase";
        registry.register("status_updates", help, self.status_updates.clone());
        let help = "Pods that had not started a container within the limit, by the step they hung in";
        registry.register("slow_starts", help, self.slow_starts.clone());
        let help = "Times that the worker of a pod panicked and was started again";
        registry.register("worker_panics", help, self.worker_panics.clone());
        registry.register("services", "Services known on this machine", self.services.clone());
        registry.register("service_table_changes", "Changes of the table of Services", self.table_changes.clone());
        let help = "Packet rules of Services that were missing from the kernel or did not belong there";
        registry.register("service_table_drift", help, self.table_drift.clone());
        let mut text = String::new();
        match encode(&mut text, &registry) {
            Ok(()) => text,
            Err(error) => format!("# cannot encode: {error}\n"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn liveness_restarts_are_shown_by_owner() {
        let metrics = Metrics::default();
        let owner = Owner { namespace: "shop".into(), owner: "ReplicaSet web".into() };
        metrics.liveness_restarts.get_or_create(&owner).inc_by(3);
        let line = "mainstay_agent_liveness_restarts_total{namespace=\"shop\",owner=\"ReplicaSet web\"} 3";
        assert!(metrics.exposed().contains(line), "{}", metrics.exposed());
    }

    #[test]
    fn status_updates_are_shown_by_phase() {
        let metrics = Metrics::default();
        for phase in [Some("Running"), Some("Running"), None] {
            metrics.status_updates.get_or_create(&StatusUpdateLabels { phase: Phase::parse(phase) }).inc();
        }
        for line in ["{phase=\"Running\"} 2", "{phase=\"Unknown\"} 1"] {
            let line = format!("mainstay_agent_status_updates_total{line}");
            assert!(metrics.exposed().contains(&line), "{}", metrics.exposed());
        }
    }
}
