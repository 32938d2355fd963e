//! The health of checks and of the instances they belong to. Pure.
//!
//! An instance with a critical check is not ready and leaves its service; a warning is for people. A check has a result after its first
//! run; until then it has the status of its definition, or, after a restart of the agent, the one it had before.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::definition::{CheckDefinition, CheckKind, CheckStatus, ServiceDefinition};

/// What one run of a check, or the program itself, says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckReport {
    pub status: CheckStatus,
    pub output: String,
    pub time: Timestamp,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckHealth {
    pub status: CheckStatus,
    pub output: String,
    /// Since when it has this status.
    pub since: Timestamp,
    /// Results of the same sort in a row, which is not that of the status.
    #[serde(default)]
    pub streak: u32,
}

impl CheckHealth {
    pub fn initial(check: &CheckDefinition, now: Timestamp) -> Self {
        Self { status: check.initial, output: "there is no result yet".to_owned(), since: now, streak: 0 }
    }

    /// Takes in a result. Says whether the status is another now.
    pub fn record(&mut self, check: &CheckDefinition, report: CheckReport) -> bool {
        let is_bad = |status| status == CheckStatus::Critical;
        if is_bad(report.status) == is_bad(self.status) {
            self.streak = 0;
        } else {
            self.streak = self.streak.saturating_add(1);
            let enough =
                if is_bad(report.status) { check.failures_before_critical } else { check.successes_before_passing };
            if self.streak < enough.max(1) {
                self.output = report.output;
                return false;
            }
            self.streak = 0;
        }
        self.output = report.output;
        let differs = self.status != report.status;
        if differs {
            (self.status, self.since) = (report.status, report.time);
        }
        differs
    }
}

/// The health of all checks of one instance, by their ids.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstanceHealth {
    pub checks: BTreeMap<String, CheckHealth>,
}

impl InstanceHealth {
    /// Has all checks of the definition and no others. Those that stay keep their health.
    pub fn follow(&mut self, definition: &ServiceDefinition, now: Timestamp) {
        self.checks.retain(|id, _| definition.checks.iter().any(|check| check.id == *id));
        for check in &definition.checks {
            self.checks.entry(check.id.clone()).or_insert_with(|| CheckHealth::initial(check, now));
        }
    }

    pub fn is_ready(&self) -> bool {
        self.checks.values().all(|check| check.status != CheckStatus::Critical)
    }

    pub fn worst(&self) -> CheckStatus {
        self.checks.values().map(|check| check.status).max().unwrap_or(CheckStatus::Passing)
    }
}

/// What a TTL check is now, and when that changes by itself. A report of the future counts as one of now.
pub fn ttl_report(
    ttl: std::time::Duration,
    last: Option<&CheckReport>,
    now: Timestamp,
) -> (Option<CheckReport>, Option<Timestamp>) {
    let Some(last) = last else { return (None, None) };
    let ttl = SignedDuration::try_from(ttl).unwrap_or(SignedDuration::MAX);
    let expires = last.time.min(now).saturating_add(ttl).unwrap_or(Timestamp::MAX);
    if expires <= now {
        let output = format!("nothing was reported since {}", last.time);
        return (Some(CheckReport { status: CheckStatus::Critical, output, time: now }), None);
    }
    (Some(last.clone()), Some(expires))
}

/// The TTL of a check that the program itself reports.
pub fn ttl(check: &CheckDefinition) -> Option<std::time::Duration> {
    match check.kind {
        CheckKind::Ttl { ttl } => Some(ttl),
        CheckKind::Script { .. } | CheckKind::Http { .. } | CheckKind::Tcp { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::host_services::definition::parse_definitions;

    fn definition(text: &str) -> ServiceDefinition {
        parse_definitions(text.as_bytes()).unwrap().remove(0)
    }

    fn time(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn report(status: CheckStatus, second: i64) -> CheckReport {
        CheckReport { status, output: String::new(), time: time(second) }
    }

    #[test]
    fn an_instance_is_ready_when_no_check_is_critical() {
        use CheckStatus::{Critical, Passing, Warning};
        let web = definition(r#"{"name": "web", "checks": [{"id": "a", "ttl": "9s"}, {"id": "b", "ttl": "9s"}]}"#);
        let mut health = InstanceHealth::default();
        health.follow(&web, time(0));
        assert!(!health.is_ready(), "nothing is known yet");
        let mut set = |index: usize, status: CheckStatus| {
            let check = &web.checks[index];
            health.checks.get_mut(&check.id).unwrap().record(check, report(status, 1));
            (health.is_ready(), health.worst())
        };
        assert_eq!(set(0, Passing), (false, Critical));
        assert_eq!(set(1, Warning), (true, Warning));
        assert_eq!(set(1, Passing), (true, Passing));
        assert_eq!(set(0, Critical), (false, Critical));
        let bare = definition(r#"{"name": "web"}"#);
        health.follow(&bare, time(2));
        assert!(health.is_ready() && health.checks.is_empty(), "without checks it is ready");
    }

    #[test]
    fn several_results_in_a_row_can_be_asked_for() {
        use CheckStatus::{Critical, Passing};
        let check = r#"{"ttl": "9s", "failures_before_critical": 3, "success_before_passing": 2}"#;
        let web = definition(&format!(r#"{{"name": "web", "check": {check}}}"#));
        let check = &web.checks[0];
        let mut health = CheckHealth::initial(check, time(0));
        let results = [Passing, Critical, Passing, Passing, Critical, Critical, Passing, Critical, Critical, Critical];
        let expected = [Critical, Critical, Critical, Passing, Passing, Passing, Passing, Passing, Passing, Critical];
        for (second, (result, expected)) in results.into_iter().zip(expected).enumerate() {
            health.record(check, report(result, second as i64));
            assert_eq!(health.status, expected, "after {second}");
        }
        assert_eq!(health.since, time(9));
    }

    #[test]
    fn a_program_that_stops_telling_is_critical() {
        let ttl = Duration::from_secs(10);
        let last = report(CheckStatus::Passing, 100);
        assert_eq!(ttl_report(ttl, None, time(100)), (None, None));
        assert_eq!(ttl_report(ttl, Some(&last), time(109)), (Some(last.clone()), Some(time(110))));
        let (expired, wake) = ttl_report(ttl, Some(&last), time(110));
        assert_eq!((expired.unwrap().status, wake), (CheckStatus::Critical, None));
        let (_, wake) = ttl_report(ttl, Some(&report(CheckStatus::Passing, 999_999)), time(100));
        assert_eq!(wake, Some(time(110)), "a clock that is ahead does not keep it alive");
    }
}
