//! The kind Release: a version for a selection of machines and workloads, and how they move to it.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::{
    apis::meta::v1::{Condition, LabelSelector, Time},
    util::intstr::IntOrString,
};
use serde::{Deserialize, Serialize};

use crate::own_object::{DefinitionDoc, OwnKind, OwnObject};
pub use crate::release_gate::{ExecGate, HttpGate};

pub type Release = OwnObject<ReleaseSpec, ReleaseStatus>;

/// Conditions of a Release.
pub const ACCEPTED: &str = "Accepted";
pub const COMPLETE: &str = "Complete";
pub const STUCK: &str = "Stuck";
/// Reasons of `Accepted`.
pub const ACCEPTED_REASON: &str = "Accepted";
pub const OVERLAPS: &str = "OverlapsOtherRelease";
pub const SELECTS_NOTHING: &str = "SelectsNothing";
pub const CHANGE_DOES_NOT_APPLY: &str = "ChangeDoesNotApply";

/// Values of `spec.onStuck`.
pub const HALT: &str = "Halt";
pub const ROLLBACK: &str = "Rollback";

/// Kinds of workloads that a Release changes.
pub const WORKLOAD_KINDS: [&str; 3] = ["DaemonSet", "Deployment", "StatefulSet"];
/// What a workload runs that no Release has changed yet. No version can be called so.
pub const UNRELEASED: &str = "unreleased";
/// In an image: the version of the Release.
pub const VERSION_VARIABLE: &str = "$(VERSION)";

pub const DEFAULT_PROGRESS_DEADLINE_SECONDS: i32 = 3600;
pub const MOST_WAVES: usize = 100;
pub const MOST_NAMED_MACHINES: usize = 1000;
pub const MOST_GATES: usize = 16;
pub const MOST_WINDOWS: usize = 32;
pub const MOST_ORDER_LABELS: usize = 8;
pub const MOST_WORKLOAD_CHANGES: usize = 32;
/// Longest patch of a template, in bytes.
pub const LONGEST_PATCH: usize = 64 * 1024;
/// Older entries of the history are dropped.
pub const HISTORY_LIMIT: usize = 10;
/// More failed machines are counted but not listed.
pub const FAILURES_SHOWN: usize = 10;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReleaseSpec {
    pub version: String,
    /// Which machines; none if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub workloads: Vec<WorkloadChange>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub waves: Vec<ReleaseWave>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_unavailable: Option<IntOrString>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_failed: Option<IntOrString>,
    pub drain: bool,
    /// Labels of machines: first those with the smallest value of the first label.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub order_by: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub soak_seconds: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress_deadline_seconds: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_stuck: Option<String>,
    /// For a rollback, in place of `max_unavailable`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rollback_max_unavailable: Option<IntOrString>,
    /// For a rollback, in place of `soak_seconds`, which it does not have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rollback_soak_seconds: Option<i32>,
    /// For a rollback, in place of `waves`; without gates.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rollback_waves: Vec<ReleaseWave>,
    /// While this is `version`, it is gone back to as in a rollback.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rollback_version: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub windows: Vec<ReleaseWindow>,
    pub paused: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hold: Option<ReleaseHold>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approval: Option<ReleaseApproval>,
    /// No machine is started for this version any more. Naming another version ends it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aborted_version: Option<String>,
}

/// Which workloads, and what changes in their pods' template: images, or a patch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkloadChange {
    /// All of [`WORKLOAD_KINDS`] if empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub kinds: Vec<String>,
    /// All if empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub namespaces: Vec<String>,
    pub selector: LabelSelector,
    /// By the name of the container.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub images: BTreeMap<String, String>,
    /// A strategic merge patch of the template.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub patch: Option<serde_json::Value>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReleaseWave {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub machines: Vec<String>,
    /// As [`workload_name`] writes them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub workloads: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub up_to: Option<IntOrString>,
    /// The error budget of this wave, beside that of the whole Release.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_failed: Option<IntOrString>,
    /// All have to be open before the wave begins.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gates: Vec<ReleaseGate>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReleaseGate {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub needs: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http: Option<HttpGate>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub https: Option<HttpGate>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exec: Option<ExecGate>,
    pub approval: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReleaseWindow {
    /// `Mon` to `Sun`; every day if empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub days: Vec<String>,
    pub from: String,
    pub to: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_zone: Option<String>,
}

pub const DAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReleaseHold {
    pub reason: String,
    /// Until somebody ends it, if not set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Time>,
}

/// Waves of a version up to this one, counted from zero, may begin.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReleaseApproval {
    pub version: String,
    pub wave: i32,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReleaseStatus {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The resource version at which the controller first saw it. Of Releases that select the same, the one with the smallest has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_revision: Option<i64>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub phase: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Where machines are being moved to: the version of the spec, or the one it is rolled back to.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub target: String,
    /// When machines began to move there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// The last version that all machines ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_complete_version: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rollback: Option<ReleaseRollback>,
    pub machines: i32,
    #[serde(skip_serializing_if = "is_zero")]
    pub workloads: i32,
    pub updated: i32,
    pub moving: i32,
    pub failed: i32,
    pub unavailable: i32,
    /// Counted from zero.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wave: Option<i32>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub waves: Vec<WaveProgress>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<MachineFailure>,
    /// The newest last.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<ReleaseRecord>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReleaseRollback {
    pub from: String,
    pub to: String,
    pub since: Time,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WaveProgress {
    pub machines: i32,
    pub updated: i32,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MachineFailure {
    pub machine: String,
    pub message: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReleaseRecord {
    pub version: String,
    /// `Complete`, `Superseded`, `RolledBack` or `Aborted`.
    pub result: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    pub end_time: Time,
}

fn is_zero(number: &i32) -> bool {
    *number == 0
}

/// How a workload is called among the members of a Release: `deployment/shop/web`.
pub fn workload_name(kind: &str, namespace: &str, name: &str) -> String {
    format!("{}/{namespace}/{name}", kind.to_lowercase())
}

impl Release {
    /// Whether somebody goes back to the version, and said how machines go back.
    pub fn goes_back(&self) -> bool {
        let spec = &self.spec;
        let says_how = !spec.rollback_waves.is_empty()
            || spec.rollback_max_unavailable.is_some()
            || spec.rollback_soak_seconds.is_some();
        says_how && spec.rollback_version.as_ref() == Some(&spec.version)
    }

    pub fn condition(&self, kind: &str) -> Option<&Condition> {
        self.status.as_ref()?.conditions.iter().find(|condition| condition.type_ == kind)
    }
}

impl OwnKind for ReleaseSpec {
    type Scope = k8s_openapi::ClusterResourceScope;
    const KIND: &'static str = "Release";
    const LIST_KIND: &'static str = "ReleaseList";
    const PLURAL: &'static str = "releases";
    const ABOUT: &'static str = "Release brings a selection of machines and workloads to a version: in waves, with gates \
                                 between them, and no further once too many fail.";
    const DEFINITIONS: &'static [DefinitionDoc] = &[
        DefinitionDoc {
            name: "ReleaseSpec",
            about: "ReleaseSpec is the version, who gets it, and in which order.",
            fields: &[
                (
                    "abortedVersion",
                    "No machine is started for this version any more; those under way end what they do. Another \
                     version ends it.",
                ),
                ("approval", "Which waves of which version somebody has approved."),
                ("drain", "Whether machines evict their pods, honouring budgets, before they change their version."),
                ("hold", "Why no machine is started for now, and until when."),
                (
                    "maxFailed",
                    "How many machines, or which share of them, may fail before no further ones are started. None if \
                     left out.",
                ),
                (
                    "maxUnavailable",
                    "How many machines, or which share of them, may be unavailable at once, for whatever cause. One if \
                     left out.",
                ),
                ("onStuck", "Halt, or Rollback to the last version that all machines ran. Halt if left out."),
                (
                    "orderBy",
                    "Labels of machines by whose values they are ordered, the first label first; machines with the same \
                     values by name. Those without a label come last. By name alone if left out.",
                ),
                ("paused", "Whether no machine is started."),
                (
                    "progressDeadlineSeconds",
                    "How long a machine may take before it counts as failed. 3600 if left out.",
                ),
                ("rollbackMaxUnavailable", "What maxUnavailable is for a rollback. The same if left out."),
                ("rollbackSoakSeconds", "What soakSeconds is for a rollback. None if left out."),
                (
                    "rollbackVersion",
                    "A version that is gone back to: while it is the version, what is said for a rollback counts, if anything is.",
                ),
                ("rollbackWaves", "The waves of a rollback, without gates. One wave of all if there are none."),
                ("selector", "Which machines; none if left out. No other Release may select one of them."),
                ("soakSeconds", "How long all machines of a wave have to be healthy before the next begins."),
                ("version", "The version that machines are to run."),
                ("waves", "In order. One wave of all machines if there are none; all that are left come last."),
                ("windows", "When machines may be started; at any time if there are none."),
                (
                    "workloads",
                    "Which Deployments, StatefulSets and DaemonSets, and what changes in them. No other Release may select one \
                     of them.",
                ),
            ],
        },
        DefinitionDoc {
            name: "ReleaseStatus",
            about: "ReleaseStatus is how far a release has come, and what it waits for.",
            fields: &[
                ("conditions", "Accepted, Complete and Stuck."),
                ("failed", "How many machines failed on the way to the target."),
                ("failures", "Some of them, and why."),
                (
                    "firstRevision",
                    "The resource version at which the controller first saw it. Of Releases that select the same machine or workload, the \
                     one with the smallest has it.",
                ),
                ("history", "Versions before, the newest last."),
                ("lastCompleteVersion", "The last version that all machines ran."),
                ("machines", "How many machines are selected."),
                ("message", "What it waits for, or why it stopped."),
                ("moving", "How many machines are on their way."),
                ("observedGeneration", "The generation of the spec that this is about."),
                ("phase", "Progressing, Soaking, Gated, Paused, Stuck, RollingBack, Complete, Aborted or Refused."),
                ("rollback", "From which version it is rolled back to which, and why."),
                ("startTime", "When machines began to move to the target."),
                ("target", "The version that machines are moved to."),
                ("unavailable", "How many machines are unavailable, for whatever cause."),
                ("updated", "How many machines run the target."),
                ("wave", "The wave that is under way, counted from zero."),
                ("waves", "How far each wave has come."),
                ("workloads", "How many workloads are selected."),
            ],
        },
        DefinitionDoc {
            name: "WorkloadChange",
            about: "WorkloadChange is which workloads are changed, and what in their pods' template. They replace their pods by their \
                    own rolling update.",
            fields: &[
                ("images", "The image of each container, by its name. $(VERSION) stands for the version."),
                ("kinds", "Deployment, StatefulSet and DaemonSet. All three if left out."),
                ("namespaces", "In these namespaces. In all if left out."),
                ("patch", "A strategic merge patch of the template, in place of images."),
                ("selector", "By the labels of the workloads."),
            ],
        },
        DefinitionDoc {
            name: "ReleaseWave",
            about: "ReleaseWave is machines and workloads that move before others: either some by name, or so many.",
            fields: &[
                ("gates", "All have to be open before the wave begins."),
                ("machines", "These machines."),
                (
                    "maxFailed",
                    "How many members of this wave, or which share of them, may fail before no further ones are started. As many as the \
                     Release allows in all if left out.",
                ),
                (
                    "upTo",
                    "So many of all machines and workloads, or this share of them, those of earlier waves counted.",
                ),
                ("workloads", "These workloads, by kind, namespace and name: deployment/shop/web."),
            ],
        },
        DefinitionDoc {
            name: "ReleaseGate",
            about: "ReleaseGate is a condition before a wave, of exactly one kind.",
            fields: &[
                ("approval", "Somebody has to approve: mainstay release approve."),
                ("exec", "A command in a container has to end with 0."),
                ("http", "A URL has to answer as expected, without TLS."),
                ("https", "The same with TLS."),
                (
                    "needs",
                    "Services have to have endpoints, as in the annotation mainstay.dev/needs, each with its namespace: \
                     mysql.db >= 2 ready.",
                ),
            ],
        },
        DefinitionDoc {
            name: "HttpGate",
            about: "HttpGate is open while a URL answers as expected. The server that runs the controllers asks.",
            fields: &[
                (
                    "certificateAuthority",
                    "Who signs the certificate, as PEM. For https only; those whom the server's machine trusts if left out.",
                ),
                (
                    "expect",
                    "A CEL expression that has to be true, over status, body and json, which is null unless the body is JSON.",
                ),
                ("serverName", "The name that the certificate is for, if not that of the URL. For https only."),
                ("statuses", "Statuses that are as expected. 200 to 299 if left out."),
                ("timeoutSeconds", "How long the answer may take. 5 if left out."),
                ("url", "With the scheme http or https."),
            ],
        },
        DefinitionDoc {
            name: "ExecGate",
            about: "ExecGate is open while a command in a container ends with 0. It runs in the pod, never on a machine itself.",
            fields: &[
                ("command", "The program and its arguments; no shell is used."),
                ("container", "In which container. The first if left out."),
                ("namespace", "In which namespace the pod is."),
                ("pod", "In which pod."),
                ("timeoutSeconds", "How long it may take. 10 if left out."),
            ],
        },
        DefinitionDoc {
            name: "ReleaseWindow",
            about: "ReleaseWindow is a time of day at which machines may be started.",
            fields: &[
                ("days", "Mon, Tue, Wed, Thu, Fri, Sat, Sun: on which days it begins. Every day if left out."),
                ("from", "When it begins: 22:00."),
                ("timeZone", "A name of the time zone database: Europe/Berlin. UTC if left out."),
                ("to", "When it ends: 04:00. On the next day if that is not after the beginning."),
            ],
        },
        DefinitionDoc {
            name: "ReleaseHold",
            about: "ReleaseHold keeps machines from being started.",
            fields: &[("reason", "Why."), ("until", "When it ends by itself; when somebody ends it if left out.")],
        },
        DefinitionDoc {
            name: "ReleaseApproval",
            about: "ReleaseApproval lets waves begin that wait for somebody's approval.",
            fields: &[("version", "Of this version alone."), ("wave", "Waves up to this one, counted from zero.")],
        },
        DefinitionDoc {
            name: "ReleaseRollback",
            about: "ReleaseRollback says that machines are moved back.",
            fields: &[
                ("from", "The version that failed."),
                ("reason", "Why."),
                ("since", "Since when."),
                ("to", "The version that they are moved to."),
            ],
        },
        DefinitionDoc {
            name: "WaveProgress",
            about: "WaveProgress is how far a wave has come, earlier waves counted.",
            fields: &[
                ("machines", "How many machines run the target once the wave has ended."),
                ("updated", "How many of them do."),
            ],
        },
        DefinitionDoc {
            name: "MachineFailure",
            about: "MachineFailure is why a machine failed.",
            fields: &[
                ("machine", "Its name; of a workload its kind, namespace and name."),
                ("message", "In the words of the machine."),
            ],
        },
        DefinitionDoc {
            name: "ReleaseRecord",
            about: "ReleaseRecord is how the release of a version ended.",
            fields: &[
                ("endTime", "When."),
                ("result", "Complete, Superseded, RolledBack or Aborted."),
                ("startTime", "When it began."),
                ("version", "Which version."),
            ],
        },
    ];
}
