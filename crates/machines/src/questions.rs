//! JioCloud's questions about machines, answered from a list of them. Exit codes are those of its commands.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use mainstay_api::machine::{Machine, MachineAxis, StateValue};

/// A machine that was silent for so long no longer counts as running a version, if nothing else is asked for.
pub const VERSION_EXPIRY: SignedDuration = SignedDuration::from_secs(130);

/// The version that a machine is to run, as far as it can be found out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WantedVersion {
    Version(String),
    Unset,
    /// The API does not answer.
    Unreachable,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PendingUpdate {
    Available {
        wanted: String,
        local: Option<String>,
    },
    UpToDate {
        version: String,
    },
    /// The API does not answer; the machine stays at what it has.
    Unreachable {
        local: String,
    },
    /// Nobody says which version there should be, or nobody can be asked and there is none.
    Unknown {
        wanted_unset: bool,
    },
}

impl PendingUpdate {
    pub fn find(wanted: WantedVersion, local: Option<String>) -> Self {
        match (wanted, local) {
            (WantedVersion::Version(wanted), Some(local)) if wanted == local => Self::UpToDate { version: wanted },
            (WantedVersion::Version(wanted), local) => Self::Available { wanted, local },
            (WantedVersion::Unreachable, Some(local)) => Self::Unreachable { local },
            (WantedVersion::Unreachable, None) => Self::Unknown { wanted_unset: false },
            (WantedVersion::Unset, _) => Self::Unknown { wanted_unset: true },
        }
    }

    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Available { .. } => 0,
            Self::UpToDate { .. } => 1,
            Self::Unreachable { .. } => 2,
            Self::Unknown { .. } => 3,
        }
    }

    pub fn message(&self) -> String {
        match self {
            Self::Available { wanted, local: Some(local) } => format!("update available: from {local} to {wanted}"),
            Self::Available { wanted, local: None } => format!("update available: to {wanted}"),
            Self::UpToDate { version } => format!("up to date at {version}"),
            Self::Unreachable { local } => format!("no server answers; local version is {local}"),
            Self::Unknown { wanted_unset: true } => "no version is wanted of this machine".to_owned(),
            Self::Unknown { wanted_unset: false } => "no server answers, and there is no local version".to_owned(),
        }
    }
}

/// The version that a machine runs, unless it is silent since before a time.
pub fn current_record(machine: &Machine, heard_since: Timestamp) -> Option<&str> {
    let seen = machine.state(MachineAxis::Seen);
    let expired = seen.is_some_and(|seen| seen.state == StateValue::Failed && seen.since.0 < heard_since);
    machine.running_version().filter(|_| !expired)
}

/// The machines at each version that some run, without those that are silent since before a time.
pub fn machines_by_version(machines: &[Machine], heard_since: Timestamp) -> BTreeMap<&str, BTreeSet<&str>> {
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for machine in machines {
        if let Some(version) = current_record(machine, heard_since) {
            versions.entry(version).or_default().insert(machine.name());
        }
    }
    versions
}

/// Those of the names that do not run the version.
pub fn not_at_version<'n>(
    machines: &[Machine],
    version: &str,
    names: &'n [String],
    heard_since: Timestamp,
) -> Vec<&'n str> {
    let by_version = machines_by_version(machines, heard_since);
    let at_version = by_version.get(version);
    let runs = |name: &str| at_version.is_some_and(|names| names.contains(name));
    names.iter().map(String::as_str).filter(|name| !runs(name)).collect()
}

/// Something about a machine that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MachineProblem {
    pub machine: String,
    pub check: String,
    pub output: String,
}

/// What is said of a service of a machine that fails its checks, whose output stays on the machine.
pub fn service_problem(machine: &str, id: &str) -> MachineProblem {
    let (machine, check) = (machine.to_owned(), format!("service:{id}"));
    MachineProblem { machine, check, output: "critical; mainstay service list, on the machine, says why".to_owned() }
}

/// What fails: a silent machine, failed provisioning, configuration or validation. `pending` states are warnings, shown if asked
/// for.
pub fn problems(machine: &Machine, show_warnings: bool) -> Vec<MachineProblem> {
    let mut found = Vec::new();
    for axis in MachineAxis::ALL {
        let state = machine.state(axis);
        let value = state.map_or(StateValue::Pending, |state| state.state);
        let counts = match value {
            StateValue::Failed => true,
            StateValue::Pending => show_warnings || axis == MachineAxis::Seen,
            StateValue::Success | StateValue::Running => false,
        };
        if counts {
            let output = state.map(|state| state.message.clone()).unwrap_or_default();
            let output = if output.is_empty() { value.to_string() } else { output };
            found.push(MachineProblem { machine: machine.name().to_owned(), check: axis.field().to_owned(), output });
        }
    }
    found
}

/// What a result of JioCloud's `update_own_status` means: its tool puppet ends with 1, 4 or 6 if it failed, and -1 says that other
/// services are not there yet.
pub fn status_from_result(axis: MachineAxis, result: i32) -> StateValue {
    match (axis, result) {
        (MachineAxis::Configured, 1 | 4 | 6) => StateValue::Failed,
        (MachineAxis::Configured, -1) => StateValue::Pending,
        (MachineAxis::Configured, _) | (_, 0) => StateValue::Success,
        (_, _) => StateValue::Failed,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn machine(name: &str, running: Option<&str>, seen: &str, validated: &str) -> Machine {
        serde_json::from_value(json!({
            "metadata": {"name": name},
            "status": {
                "seen": {"state": seen, "since": "2026-01-01T00:00:00Z"},
                "configured": {"state": "success", "since": "2026-01-01T00:00:00Z"},
                "validated": {"state": validated, "since": "2026-01-01T00:00:00Z", "message": "disk is full"},
                "version": {"running": running},
            },
        }))
        .unwrap()
    }

    fn after(seconds: i64) -> Timestamp {
        "2026-01-01T00:00:00Z".parse::<Timestamp>().unwrap() + SignedDuration::from_secs(seconds)
    }

    #[test]
    fn an_update_is_pending_in_six_ways() {
        let version = |text: &str| WantedVersion::Version(text.to_owned());
        let local = || Some("v1".to_owned());
        for (wanted, local, code) in [
            (version("v2"), local(), 0),
            (version("v2"), None, 0),
            (version("v1"), local(), 1),
            (WantedVersion::Unreachable, local(), 2),
            (WantedVersion::Unreachable, None, 3),
            (WantedVersion::Unset, local(), 3),
        ] {
            let pending = PendingUpdate::find(wanted, local);
            assert_eq!(pending.exit_code(), code, "{pending:?}");
            assert!(!pending.message().is_empty());
        }
    }

    #[test]
    fn a_silent_machine_runs_nothing_after_130_seconds() {
        let machines = [
            machine("a", Some("v1"), "success", "success"),
            machine("b", Some("v2"), "failed", "success"),
            machine("c", None, "success", "success"),
        ];
        let versions = |now| machines_by_version(&machines, now - VERSION_EXPIRY).into_keys().collect::<Vec<_>>();
        assert_eq!(versions(after(130)), ["v1", "v2"]);
        assert_eq!(versions(after(131)), ["v1"]);
        let names = ["a".to_owned(), "b".to_owned(), "nobody".to_owned()];
        let heard_since = after(0) - VERSION_EXPIRY;
        assert_eq!(not_at_version(&machines, "v1", &names, heard_since), ["b", "nobody"]);
        assert_eq!(not_at_version(&machines, "v1", &[], heard_since), Vec::<&str>::new());
    }

    #[test]
    fn failures_are_silence_and_failed_steps_and_warnings_what_is_pending() {
        let checks = |machine: &Machine, warnings| {
            problems(machine, warnings).into_iter().map(|problem| problem.check).collect::<Vec<_>>()
        };
        let failing = machine("a", None, "failed", "failed");
        assert_eq!(checks(&failing, false), ["seen", "validated"]);
        assert_eq!(problems(&failing, false)[1].output, "disk is full");
        assert_eq!(checks(&failing, true), ["provisioned", "seen", "validated"]);
        assert_eq!(checks(&machine("b", None, "success", "success"), false), Vec::<String>::new());
    }

    #[test]
    fn results_mean_what_they_meant() {
        for (axis, result, state) in [
            (MachineAxis::Configured, 0, StateValue::Success),
            (MachineAxis::Configured, 2, StateValue::Success),
            (MachineAxis::Configured, 1, StateValue::Failed),
            (MachineAxis::Configured, 4, StateValue::Failed),
            (MachineAxis::Configured, 6, StateValue::Failed),
            (MachineAxis::Configured, -1, StateValue::Pending),
            (MachineAxis::Validated, 0, StateValue::Success),
            (MachineAxis::Validated, 3, StateValue::Failed),
        ] {
            assert_eq!(status_from_result(axis, result), state, "{axis:?} {result}");
        }
    }
}
