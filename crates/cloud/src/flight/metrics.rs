//! Metrics of flight control: one count per repair.

use mainstay_controllers::runtime::metrics::Registry;
use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeLabelValue},
    metrics::{counter::Counter, family::Family},
};

use super::plan::{DeleteReason, Repair};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum RepairKind {
    SecurityGroupRule,
    SecurityGroupAssignment,
    SoftReboot,
    ReplaceUnjoined,
    DeleteErrored,
    Role,
    Tags,
    SecurityGroupTouch,
}

impl From<&Repair> for RepairKind {
    fn from(repair: &Repair) -> Self {
        match repair {
            Repair::CreateRule { .. } => Self::SecurityGroupRule,
            Repair::AssignGroup { .. } => Self::SecurityGroupAssignment,
            Repair::SoftReboot { .. } => Self::SoftReboot,
            Repair::Delete { why: DeleteReason::NeverJoined { .. }, .. } => Self::ReplaceUnjoined,
            Repair::Delete { why: DeleteReason::Errored, .. } => Self::DeleteErrored,
            Repair::AssignRole { .. } => Self::Role,
            Repair::RestoreTags { .. } | Repair::RestoreMetadata { .. } => Self::Tags,
            Repair::TouchGroup { .. } | Repair::RemoveTouchRule { .. } => Self::SecurityGroupTouch,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum RepairResult {
    Success,
    Failure,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RepairLabels {
    repair: RepairKind,
    result: RepairResult,
}

/// Cheap to clone: all clones count together.
#[derive(Clone, Default)]
pub struct FlightMetrics {
    repairs: Family<RepairLabels, Counter>,
}

impl FlightMetrics {
    /// Metrics that `registry` shows.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let help = "Repairs of flight control, by what was repaired and whether that worked";
        registry.register("mainstay_cloud_flight_repairs", help, metrics.repairs.clone());
        metrics
    }

    pub fn count(&self, repair: RepairKind, result: RepairResult) {
        self.repairs.get_or_create(&RepairLabels { repair, result }).inc();
    }

    pub fn repairs(&self, repair: RepairKind, result: RepairResult) -> u64 {
        self.repairs.get_or_create(&RepairLabels { repair, result }).get()
    }
}
