//! Stages of a deorbit, and the events that tell of them on the Kluster.

use super::plan::SelfDestructReason;

/// What is waited for, in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    #[default]
    Snapshots,
    Volumes,
    LoadBalancers,
    /// Nothing is left; whether it stays so is looked at once more.
    Settling,
}

/// An event about the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    pub warning: bool,
    pub reason: &'static str,
    pub message: String,
    /// The operation that ended by it, and whether it succeeded, for the metrics.
    pub operation: Option<(&'static str, bool)>,
}

/// Words of a stage.
struct StageText {
    stage: Stage,
    text: &'static str,
    things: &'static str,
    waiting: &'static str,
    successful: &'static str,
    failed: &'static str,
    operation: &'static str,
}

const STAGES: [StageText; 3] = [
    StageText {
        stage: Stage::Snapshots,
        text: "WaitingForSnapshots",
        things: "volume snapshots",
        waiting: "WaitingForDeorbitSnapshots",
        successful: "SuccessfulDeorbitSnapshots",
        failed: "FailedDeorbitSnapshots",
        operation: "WaitForSnapshotCleanUp",
    },
    StageText {
        stage: Stage::Volumes,
        text: "WaitingForVolumes",
        things: "Cinder volumes",
        waiting: "WaitingForDeorbitPVs",
        successful: "SuccessfulDeorbitPVs",
        failed: "FailedDeorbitPVs",
        operation: "WaitForPersistentVolumeCleanup",
    },
    StageText {
        stage: Stage::LoadBalancers,
        text: "WaitingForLoadBalancers",
        things: "load balancers",
        waiting: "WaitingForDeorbitLoadBalancers",
        successful: "SuccessfulDeorbitLoadBalancers",
        failed: "FailedDeorbitLoadBalancers",
        operation: "WaitForServiceCleanup",
    },
];

const SETTLING: &str = "Settling";

impl Stage {
    /// As the receipt has it.
    pub fn text(self) -> &'static str {
        STAGES.iter().find(|row| row.stage == self).map_or(SETTLING, |row| row.text)
    }

    pub fn parse(text: &str) -> Option<Self> {
        let row = STAGES.iter().find(|row| row.text == text).map(|row| row.stage);
        row.or_else(|| (text == SETTLING).then_some(Self::Settling))
    }

    /// The events of going from one stage to another. Every stage on the way is waited for, however short; one that is gone back to is waited for anew.
    pub fn notices_between(before: Option<Self>, now: Self) -> Vec<Notice> {
        let mut notices = Vec::new();
        for row in &STAGES {
            let is_entered = match before {
                None => row.stage <= now,
                Some(before) if now < before => row.stage == now,
                Some(before) => before < row.stage && row.stage <= now,
            };
            if is_entered {
                notices.push(Notice::normal(row.waiting, format!("Waiting for cleanup of {}", row.things)));
            }
            let is_passed = row.stage < now && before.is_none_or(|before| before <= row.stage);
            if is_passed {
                let message = format!("Successfully cleaned up {}", row.things);
                notices
                    .push(Notice { operation: Some((row.operation, true)), ..Notice::normal(row.successful, message) });
            }
        }
        notices
    }

    /// A round waited for too long.
    pub fn timeout_notice(self) -> Option<Notice> {
        let row = STAGES.iter().find(|row| row.stage == self)?;
        let message = format!("Failed to clean up {}: they are still there after 10 minutes; it goes on", row.things);
        Some(Notice { operation: Some((row.operation, false)), ..Notice::normal(row.failed, message) })
    }
}

impl Notice {
    pub fn normal(reason: &'static str, message: impl Into<String>) -> Self {
        Self { warning: false, reason, message: message.into(), operation: None }
    }

    pub fn warning(reason: &'static str, message: impl Into<String>) -> Self {
        Self { warning: true, ..Self::normal(reason, message) }
    }

    pub fn self_destruct(reason: SelfDestructReason) -> Self {
        let why = match reason {
            SelfDestructReason::ApiUnavailable => "its API was not available for 2 minutes",
            SelfDestructReason::DeorbitHanging => "it took more than 24 hours",
        };
        let message = format!(
            "Gave up removing what the cluster has in the cloud: {why}. Volumes, load balancers and floating IPs may be left; the TeardownReceipt names them."
        );
        Self { operation: Some(("SelfDestruct", true)), ..Self::normal("SuccessfulDeorbitSelfDestruct", message) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reasons(before: Option<Stage>, now: Stage) -> Vec<&'static str> {
        Stage::notices_between(before, now).into_iter().map(|notice| notice.reason).collect()
    }

    #[test]
    fn every_stage_is_waited_for_and_passed_in_order() {
        assert_eq!(
            reasons(None, Stage::Settling),
            [
                "WaitingForDeorbitSnapshots",
                "SuccessfulDeorbitSnapshots",
                "WaitingForDeorbitPVs",
                "SuccessfulDeorbitPVs",
                "WaitingForDeorbitLoadBalancers",
                "SuccessfulDeorbitLoadBalancers",
            ]
        );
        assert_eq!(reasons(None, Stage::Snapshots), ["WaitingForDeorbitSnapshots"]);
        assert_eq!(reasons(Some(Stage::Snapshots), Stage::Snapshots), Vec::<&str>::new());
        assert_eq!(
            reasons(Some(Stage::Snapshots), Stage::LoadBalancers),
            [
                "SuccessfulDeorbitSnapshots",
                "WaitingForDeorbitPVs",
                "SuccessfulDeorbitPVs",
                "WaitingForDeorbitLoadBalancers"
            ]
        );
        assert_eq!(reasons(Some(Stage::LoadBalancers), Stage::Settling), ["SuccessfulDeorbitLoadBalancers"]);
    }

    #[test]
    fn what_appears_again_is_waited_for_anew() {
        assert_eq!(reasons(Some(Stage::Settling), Stage::LoadBalancers), ["WaitingForDeorbitLoadBalancers"]);
        assert_eq!(reasons(Some(Stage::LoadBalancers), Stage::Volumes), ["WaitingForDeorbitPVs"]);
        assert_eq!(reasons(Some(Stage::Settling), Stage::Settling), Vec::<&str>::new());
    }

    #[test]
    fn stages_are_read_as_they_are_written() {
        for stage in [Stage::Snapshots, Stage::Volumes, Stage::LoadBalancers, Stage::Settling] {
            assert_eq!(Stage::parse(stage.text()), Some(stage));
        }
        assert_eq!(Stage::parse(""), None);
    }
}
