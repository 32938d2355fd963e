//! The kind Machine: a computer that somebody expects or that has joined, and what is true of it.
//!
//! Every axis of the status has one state at a time, with the time since when and the cause, so that setting one state takes the
//! other away in the same write. Each has one owner: the machine's own agent writes `provisioned`, `configured`, `validated` and
//! `version`, the machine controller `seen` and the conditions. NodeRestriction enforces it.

use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use serde::{Deserialize, Serialize};

use crate::own_object::{DefinitionDoc, OwnKind, OwnObject};

pub type Machine = OwnObject<MachineSpec, MachineStatus>;

/// Condition of a Machine that is where it should be: expected, and heard of.
pub const ACCOUNTED: &str = "Accounted";
/// Reasons why it is not.
pub const NEVER_SEEN: &str = "NeverSeen";
pub const SILENT: &str = "Silent";
pub const NOT_EXPECTED: &str = "NotExpected";

/// Taint of the Node of a machine whose static configuration failed the first time: it has to be provisioned anew.
pub const REPROVISION_TAINT: &str = "mainstay.dev/reprovision";

/// Fields of the status that the agent of the machine writes; all others are the controller's.
pub const STATUS_OF_NODE: [&str; 4] = ["provisioned", "configured", "validated", "version"];

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MachineSpec {
    /// Whether somebody expects it. A machine that joined by itself is not expected.
    pub expected: bool,
    /// The version that the machine is to bring itself to, as its Release says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version_since: Option<Time>,
    /// The Release that wants this version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub release: Option<String>,
    /// Whether the machine evicts its pods before it changes its version.
    pub drain: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MachineStatus {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provisioned: Option<MachineState>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seen: Option<MachineState>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub configured: Option<MachineState>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub validated: Option<MachineState>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<MachineVersion>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MachineState {
    pub state: StateValue,
    pub since: Time,
    /// Why; where the output of a failed step lies.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The last lines that a failed step printed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub output: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StateValue {
    Success,
    Failed,
    Running,
    #[default]
    Pending,
}

impl StateValue {
    pub const ALL: [&'static str; 4] = ["success", "failed", "running", "pending"];

    pub fn text(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Failed => "failed",
            Self::Running => "running",
            Self::Pending => "pending",
        }
    }
}

impl fmt::Display for StateValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

/// Versions as the machine itself knows them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MachineVersion {
    /// What it runs: a version counts from when validation passed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub running: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub running_since: Option<Time>,
    /// What it is on its way to, or stays at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wanted: Option<String>,
}

impl Machine {
    pub fn running_version(&self) -> Option<&str> {
        self.status.as_ref()?.version.as_ref()?.running.as_deref().filter(|version| !version.is_empty())
    }

    pub fn state(&self, axis: MachineAxis) -> Option<&MachineState> {
        let status = self.status.as_ref()?;
        match axis {
            MachineAxis::Provisioned => status.provisioned.as_ref(),
            MachineAxis::Seen => status.seen.as_ref(),
            MachineAxis::Configured => status.configured.as_ref(),
            MachineAxis::Validated => status.validated.as_ref(),
        }
    }

    pub fn condition(&self, kind: &str) -> Option<&Condition> {
        self.status.as_ref()?.conditions.iter().find(|condition| condition.type_ == kind)
    }

    /// The reason why it is unaccounted for, if it is.
    pub fn unaccounted(&self) -> Option<&str> {
        self.condition(ACCOUNTED).filter(|own| own.status == "False").map(|own| own.reason.as_str())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MachineAxis {
    Provisioned,
    Seen,
    Configured,
    Validated,
}

impl MachineAxis {
    pub const ALL: [Self; 4] = [Self::Provisioned, Self::Seen, Self::Configured, Self::Validated];

    pub fn field(self) -> &'static str {
        match self {
            Self::Provisioned => "provisioned",
            Self::Seen => "seen",
            Self::Configured => "configured",
            Self::Validated => "validated",
        }
    }
}

/// What is wrong with the name of a version; nothing if it can be one.
pub fn version_violation(version: &str) -> Option<&'static str> {
    let first = version.starts_with(|c: char| c.is_ascii_alphanumeric());
    let inside = |c: char| c.is_ascii_alphanumeric() || ".-_+:~".contains(c);
    if first && version.len() <= 128 && version.chars().all(inside) {
        return None;
    }
    Some("must be at most 128 letters, digits and any of `.-_+:~`, and begin with a letter or digit")
}

impl OwnKind for MachineSpec {
    type Scope = k8s_openapi::ClusterResourceScope;
    const KIND: &'static str = "Machine";
    const LIST_KIND: &'static str = "MachineList";
    const PLURAL: &'static str = "machines";
    const ABOUT: &'static str = "Machine is a computer that somebody expects or that has joined, under the name of its \
                                 Node, and what is true of it.";
    const DEFINITIONS: &'static [DefinitionDoc] = &[
        DefinitionDoc {
            name: "MachineSpec",
            about: "MachineSpec is what is wanted of a machine.",
            fields: &[
                ("drain", "Whether the machine evicts its pods, honouring budgets, before it changes its version."),
                ("expected", "Whether somebody expects this machine. One that joins by itself is not expected."),
                ("release", "The Release that wants the version."),
                (
                    "version",
                    "The version that the machine is to bring itself to. The release controller sets it when the \
                     machine's turn comes.",
                ),
                ("versionSince", "When the version was asked for."),
            ],
        },
        DefinitionDoc {
            name: "MachineStatus",
            about: "MachineStatus is what is true of a machine: one state for each axis.",
            fields: &[
                (
                    "conditions",
                    "Accounted is False for a machine that is expected and was never seen, that is silent, or that \
                     joined and is not expected.",
                ),
                ("configured", "Whether the machine's own configuration step passed. A failure is a warning."),
                (
                    "provisioned",
                    "Whether the machine's static configuration passed the first time. If it failed the machine has \
                     to be provisioned anew, and gets no pods.",
                ),
                ("seen", "Whether heartbeats arrive: pending if none ever did, failed if they stopped."),
                ("validated", "Whether the machine's own checks passed. A failure is a warning."),
                ("version", "Versions as the machine knows them."),
            ],
        },
        DefinitionDoc {
            name: "MachineState",
            about: "MachineState is one state, since when, and why.",
            fields: &[
                ("message", "The cause, and where the output of a failed step lies on the machine."),
                ("output", "The last lines that a failed step printed."),
                ("since", "Since when."),
                ("state", "One of success, failed, running and pending."),
            ],
        },
        DefinitionDoc {
            name: "MachineVersion",
            about: "MachineVersion is what a machine runs and what it is on its way to.",
            fields: &[
                ("running", "The version that the machine runs. It counts from when validation passed."),
                ("runningSince", "Since when."),
                ("wanted", "The version that the machine is on its way to, or stays at."),
            ],
        },
    ];
}
