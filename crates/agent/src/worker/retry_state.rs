//! What a worker keeps between turns: operations in progress, failures and when to retry. All of it can be lost: it is
//! observed again from the runtime, at the price of a retry that comes sooner.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::Timestamp;
use mainstay_backoff::Backoff;
use mainstay_runtime::{ContainerId, ContainerStatus, spec::Resources};

use super::drain::Drain;
use crate::heal::{Diagnosis, HealingDecision, RestartPermission, Rung};

/// Of steps that fail, such as pulling an image.
const STEP_BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60), 0.0);

/// Upstream's kubelet waits this long for volumes before it says so.
const LONG_WAIT: Duration = Duration::from_secs(123);

/// Work under way; one of each at a time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    Volumes,
    Sandbox,
    Release,
    ApiRemoval,
    Report,
    /// Starting, stopping or changing the container of this name.
    Container(String),
    /// Removing containers that are left over.
    Cleanup,
    /// Asking for a slot of the restart budget.
    RestartRequest,
    TurnRequest,
}

#[derive(Clone, Debug, Default)]
pub struct PodRetryState {
    pub in_progress: BTreeSet<Operation>,
    pub volumes: Step,
    pub sandbox: Step,
    pub release: Step,
    pub api_removal: Step,
    /// Removing what is left over; undone again once it worked.
    pub cleanup: Step,
    pub report: Step,
    pub containers: BTreeMap<String, ContainerRetryState>,
    /// What the pod refers to, as of this count of changes.
    pub objects: u64,
    /// This incarnation is given up; the pod starts anew here.
    pub recreate: Option<String>,
    /// How long machines may go on sending to the pod although it ends.
    pub drain: Option<Drain>,
    /// The pod's owner is to make another one elsewhere.
    pub moving: Option<String>,
}

/// Something that must be done once, and is tried until it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Step {
    #[default]
    Undone,
    Done,
    Failed(StepFailure),
    /// For something of the API that is on its way. Whoever watches it has the step retried.
    Waiting {
        since: Timestamp,
        retry_at: Timestamp,
        /// What for.
        message: String,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepFailure {
    pub kind: FailureKind,
    pub message: String,
    pub failures: u32,
    pub retry_at: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    Pull,
    InvalidImageName,
    NeverPull,
    Config,
    Create,
    Run,
    /// A claim is not bound yet, or a certificate not issued: no failure unless it takes long.
    PendingVolume,
    /// Devices of a claim are not prepared, or not unprepared: tried again at once when their driver is there.
    Devices,
    Other,
}

#[derive(Clone, Debug, Default)]
pub struct ContainerRetryState {
    /// Why it could not be made or started.
    pub failure: Option<StepFailure>,
    /// Its image was fetched ahead of its start.
    pub has_image: bool,
    /// Attempts up to here do not count as failures.
    pub forgiven: u32,
    /// The newest attempt that ended, and what is to be done about it.
    pub decided: Option<(u32, Rung)>,
    /// Its startup or liveness probe has failed.
    pub probe_failure: Option<ProbeFailure>,
    /// The attempt that was stopped on purpose: its end is no failure.
    pub stopped_on_purpose: Option<u32>,
    /// How many containers of this name there have been up to the last that was removed. The API may not know yet.
    pub removed: u32,
    /// Limits as last set in place.
    pub applied: Option<(ContainerId, Resources)>,
    /// When the stop under way will kill.
    pub stop_deadline: Option<Timestamp>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeFailure {
    pub attempt: u32,
    pub message: String,
    /// Whether the container may be killed for it.
    pub permission: RestartPermission,
}

impl Step {
    pub fn is_done(&self) -> bool {
        *self == Self::Done
    }

    /// Whether to try now; else when.
    pub fn due(&self, now: Timestamp) -> Result<(), Option<Timestamp>> {
        match self {
            Self::Undone => Ok(()),
            Self::Done => Err(None),
            Self::Failed(trouble) if now >= trouble.retry_at => Ok(()),
            Self::Failed(trouble) => Err(Some(trouble.retry_at)),
            Self::Waiting { retry_at, .. } if now >= *retry_at => Ok(()),
            Self::Waiting { retry_at, .. } => Err(Some(*retry_at)),
        }
    }

    pub fn fail(&mut self, kind: FailureKind, message: String, now: Timestamp) {
        let failures = match self {
            Self::Failed(trouble) => trouble.failures,
            Self::Undone | Self::Done | Self::Waiting { .. } => 0,
        };
        *self = Self::Failed(StepFailure::after(failures, kind, message, now));
    }

    /// Fails without a penalty: what it waits for may be there any moment, and is cheap to ask for.
    pub fn fail_without_backoff(&mut self, kind: FailureKind, message: String, now: Timestamp) {
        *self = Self::Failed(StepFailure::after(0, kind, message, now));
    }

    /// Waits on. Says whether it has taken so long that somebody should know.
    pub fn wait(&mut self, message: String, now: Timestamp) -> bool {
        let since = if let Self::Waiting { since, .. } = self { *since } else { now };
        *self = Self::Waiting { since, retry_at: now + LONG_WAIT, message };
        now >= since + LONG_WAIT
    }

    /// Why it is not done, as far as that is known.
    pub fn obstacle(&self) -> Option<&str> {
        match self {
            Self::Undone | Self::Done => None,
            Self::Failed(failure) => Some(&failure.message),
            Self::Waiting { message, .. } => Some(message),
        }
    }

    /// Something has changed that the step depends on: it is tried at once.
    pub fn retry_now(&mut self) {
        *self = match self {
            Self::Waiting { since, message, .. } => {
                Self::Waiting { since: *since, retry_at: Timestamp::UNIX_EPOCH, message: std::mem::take(message) }
            }
            Self::Undone | Self::Done | Self::Failed(_) => Self::Undone,
        };
    }
}

impl StepFailure {
    /// One failure more than before.
    pub fn after(before: u32, kind: FailureKind, message: String, now: Timestamp) -> Self {
        let failures = before + 1;
        Self { kind, message, failures, retry_at: now + STEP_BACKOFF.ceiling(failures) }
    }
}

impl PodRetryState {
    /// What the planner decided about failures, for the rest of the plan and for the turns after it.
    pub fn apply(&mut self, decision: &HealingDecision) {
        let attempt = decision.attempt;
        let rung = match &decision.diagnosis {
            Diagnosis::Ended { .. } => Rung::Restart,
            Diagnosis::DecidedBefore(rung) => rung.clone(),
            Diagnosis::Failed { step, .. } => step.rung.clone(),
            Diagnosis::ProbeFailed { message, permission, .. } => {
                let (message, permission) = (message.clone(), permission.clone());
                self.container_mut(&decision.container).probe_failure =
                    Some(ProbeFailure { attempt, message, permission });
                return;
            }
            Diagnosis::ProbeRecovered => {
                self.container_mut(&decision.container).probe_failure = None;
                return;
            }
        };
        match &rung {
            Rung::Restart => {}
            Rung::Recreate { why } => self.recreate = Some(why.clone()),
            Rung::Move { why } => self.moving = Some(why.clone()),
        }
        let container = self.container_mut(&decision.container);
        container.decided = Some((attempt, rung));
        if (Diagnosis::Ended { resets_backoff: true }) == decision.diagnosis {
            container.forgiven = attempt + 1;
        }
    }

    /// The next container of this name counts on, though the runtime forgets this one.
    pub fn record_removal(&mut self, container: &ContainerStatus) {
        if container.state.has_ended() {
            let retry_state = self.container_mut(&container.name);
            retry_state.removed = retry_state.removed.max(container.attempt + 1);
        }
    }

    fn container_mut(&mut self, name: &str) -> &mut ContainerRetryState {
        self.containers.entry(name.to_owned()).or_default()
    }

    pub fn container(&self, name: &str) -> ContainerRetryState {
        self.containers.get(name).cloned().unwrap_or_default()
    }

    pub fn is_in_progress(&self, with: &str) -> bool {
        self.in_progress.contains(&Operation::Container(with.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_step_is_due_again_after_its_backoff() {
        let now = Timestamp::UNIX_EPOCH;
        let mut step = Step::default();
        assert_eq!(step.due(now), Ok(()));
        step.fail(FailureKind::Other, "no".into(), now);
        step.fail(FailureKind::Other, "no".into(), now);
        let later = now + Duration::from_secs(2);
        assert_eq!(step.due(now), Err(Some(later)));
        assert_eq!(step.due(later), Ok(()));
    }

    #[test]
    fn waiting_is_no_failure_and_is_reported_once_it_takes_long() {
        let now = Timestamp::UNIX_EPOCH;
        let mut step = Step::default();
        let wait = |step: &mut Step, now| step.wait("claim".into(), now);
        assert!(!wait(&mut step, now));
        assert_eq!(step.obstacle(), Some("claim"));
        assert_eq!(step.due(now), Err(Some(now + LONG_WAIT)));
        step.retry_now();
        assert_eq!(step.due(now), Ok(()));
        assert!(!wait(&mut step, now + Duration::from_secs(100)));
        assert!(wait(&mut step, now + LONG_WAIT), "the wait began before it was retried");
        step.fail(FailureKind::Other, "no".into(), now);
        assert!(matches!(step, Step::Failed(StepFailure { failures: 1, .. })));
    }
}
