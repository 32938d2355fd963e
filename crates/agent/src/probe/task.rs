//! One probe of one container, from its first attempt to the container's end.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Probe};
use tokio::time::Instant;

use super::{
    FailedProbe, ProbeKind, Shared,
    check::{self, Outcome, Target},
    probed_container::ProbedContainer,
    schedule::{Attempt, Schedule},
    tally::{ProbeResult, Tally, Thresholds},
};
use crate::events::EventType;

/// An attempt that could not be made is made again this often before the next period.
const RETRIES: usize = 3;

pub(super) struct Task {
    pub shared: Arc<Shared>,
    pub followed: Arc<ProbedContainer>,
    pub container: Container,
    pub kind: ProbeKind,
    pub probe: Probe,
    /// Until then, nothing is asked: start of the container and the probe's own delay.
    pub first: Instant,
}

impl Task {
    pub async fn run(self) {
        if self.kind != ProbeKind::Startup {
            self.followed.until_started().await;
        }
        tokio::time::sleep_until(self.first).await;
        let began = Instant::now();
        let mut tally = Tally::default();
        let impatient = match self.kind {
            ProbeKind::Startup => true,
            ProbeKind::Readiness => !self.followed.results().ready,
            ProbeKind::Liveness => false,
        };
        let mut schedule = Schedule::new(seconds(self.probe.period_seconds, 10), impatient);
        loop {
            let (due, attempt) = schedule.next(began.elapsed());
            tokio::time::sleep_until(began + due).await;
            if self.kind != ProbeKind::Readiness {
                if self.followed.is_terminating() {
                    return; // a pod that is being stopped is neither started nor kept alive
                }
                if self.followed.is_stopping() {
                    continue;
                }
            }
            let (found, why) = match self.attempt().await {
                Outcome::Gone => return,
                Outcome::Errored(_) | Outcome::Failure(_) if attempt == Attempt::Extra => continue,
                // It was killed while it was asked.
                Outcome::Errored(_) | Outcome::Failure(_)
                    if self.kind != ProbeKind::Readiness && self.followed.is_stopping() =>
                {
                    continue;
                }
                Outcome::Errored(why) => {
                    let kind = self.kind.name();
                    self.record_event(
                        "Unhealthy",
                        format!("{kind} probe errored and resulted in unknown state: {why}"),
                    );
                    continue;
                }
                Outcome::Success => (ProbeResult::Success, String::new()),
                Outcome::Warning(why) => {
                    self.record_event("ProbeWarning", format!("{} probe warning: {why}", self.kind.name()));
                    (ProbeResult::Success, String::new())
                }
                Outcome::Failure(why) => {
                    self.record_event("Unhealthy", format!("{} probe failed: {why}", self.kind.name()));
                    (ProbeResult::Failure, why)
                }
            };
            if found == ProbeResult::Success {
                schedule.succeeded();
            }
            let thresholds = self.thresholds(found);
            let now = began.elapsed();
            match tally.count(found, thresholds, now) {
                None => {}
                Some(ProbeResult::Success) => {
                    self.record_success();
                    if self.kind == ProbeKind::Startup {
                        return;
                    }
                }
                Some(ProbeResult::Failure) => {
                    self.record_failure(why, now.saturating_sub(tally.since().unwrap_or(now)))
                }
            }
        }
    }

    async fn attempt(&self) -> Outcome {
        let mut outcome = Outcome::Gone;
        for _ in 0..RETRIES {
            let target = Target {
                runtime: &*self.shared.runtime,
                id: &self.followed.id,
                container: &self.container,
                address: self.followed.address(),
            };
            outcome = check::attempt(&target, &self.probe).await;
            if !matches!(outcome, Outcome::Errored(_)) {
                break;
            }
        }
        outcome
    }

    fn thresholds(&self, found: ProbeResult) -> Thresholds {
        let at_least_one = |given: Option<i32>, stock| given.filter(|n| *n > 0).unwrap_or(stock) as u32;
        let hold = match (self.kind, found) {
            (ProbeKind::Liveness, ProbeResult::Failure) => {
                let pod = self.followed.pod();
                self.shared.policies.refresh(&pod);
                self.shared.policies.policy(&pod).hold
            }
            (ProbeKind::Startup | ProbeKind::Liveness | ProbeKind::Readiness, _) => Duration::ZERO,
        };
        Thresholds {
            success: at_least_one(self.probe.success_threshold, 1),
            failure: at_least_one(self.probe.failure_threshold, 3),
            hold,
        }
    }

    fn record_success(&self) {
        let changed = match self.kind {
            ProbeKind::Startup => self.followed.set_started(),
            ProbeKind::Readiness => self.followed.set_ready(true),
            ProbeKind::Liveness => self.followed.set_failed(None),
        };
        self.wake_worker(changed);
    }

    fn record_failure(&self, why: String, lasted: Duration) {
        let changed = match self.kind {
            ProbeKind::Readiness => self.followed.set_ready(false),
            ProbeKind::Startup | ProbeKind::Liveness => {
                self.followed.set_failed(Some(FailedProbe {
                    probe: self.kind,
                    why,
                    since: Timestamp::now() - lasted,
                    grace_seconds: self.probe.termination_grace_period_seconds,
                }));
                true // also when it failed before: whoever was denied a restart may ask again
            }
        };
        self.wake_worker(changed);
    }

    fn wake_worker(&self, changed: bool) {
        if changed {
            self.shared.wake.pod(&self.followed.uid);
        }
    }

    fn record_event(&self, reason: &'static str, message: String) {
        self.shared.events.container(&self.followed.pod(), &self.container.name, EventType::Warning, reason, message);
    }
}

pub(super) fn seconds(given: Option<i32>, stock: u64) -> Duration {
    Duration::from_secs(given.and_then(|n| u64::try_from(n).ok()).filter(|n| *n > 0).unwrap_or(stock))
}
