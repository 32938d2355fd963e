//! The kind ConfigTemplate: configuration that is rendered from objects of the cluster and reaches its consumers in waves.
//!
//! The template is rendered over its [inputs](Input) into one key of a ConfigMap or Secret, the [output](Output). Each version of the
//! content has a name, a digest of it; the output holds the last good one. Pods that read it are its [consumers](Consumer): a new version
//! reaches them as [`Rollout`] says, and is taken back when it does not do them good. Machines that have the output as a file
//! ([`machine_file`](crate::machine_file)) are consumers as well.

mod documentation;

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::{
    apis::meta::v1::{Condition, LabelSelector, Time},
    util::intstr::IntOrString,
};
use mainstay_templates::version;
use serde::{Deserialize, Serialize};

use crate::{machine_file::FileAttributes, own_object::OwnObject};

/// Stock values of what a spec leaves out.
pub const QUIET_SECONDS: i32 = 1;
pub const MAX_DELAY_SECONDS: i32 = 10;
pub const HISTORY_LIMIT: i32 = 10;
pub const TIMEOUT_SECONDS: i32 = 10;
pub const PROGRESS_DEADLINE_SECONDS: i32 = 600;
pub const MAX_UNAVAILABLE: &str = "25%";
pub const HTTP_METHOD: &str = "POST";
pub const HTTP_PATH: &str = "/";

/// Bounds of what a spec may ask for.
pub const MOST_INPUTS: usize = 64;
pub const MOST_CONSUMERS: usize = 32;
pub const MOST_WAVES: usize = 32;
pub const MOST_HISTORY: i32 = 50;
pub const LONGEST_QUIET: i32 = 600;
pub const LONGEST_TIMEOUT: i32 = 300;
pub const LONGEST_ROLLOUT: i32 = 7 * 24 * 3600;
pub const LONGEST_COMMAND: usize = 32 * 1024;

/// Conditions of a ConfigTemplate.
pub const RENDERED: &str = "Rendered";
pub const PROGRESSING: &str = "Progressing";
pub const CURRENT: &str = "Current";

/// Signals that a consumer may be sent.
pub const SIGNALS: [&str; 8] = ["SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGUSR1", "SIGUSR2", "SIGWINCH", "SIGCONT"];
pub const HTTP_METHODS: [&str; 3] = ["GET", "POST", "PUT"];
pub const WORKLOAD_KINDS: [&str; 4] = ["DaemonSet", "Deployment", "ReplicaSet", "StatefulSet"];

/// Of a pod: what each ConfigTemplate whose consumer it is did with it, as JSON by the name of the template.
pub const CONSUMER_ANNOTATION: &str = "mainstay.dev/config-consumer";
/// Of copies of the output: the ConfigTemplate that they are versions of.
pub const TEMPLATE_LABEL: &str = "mainstay.dev/config-template";

pub type ConfigTemplate = OwnObject<ConfigTemplateSpec, ConfigTemplateStatus>;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ConfigTemplateSpec {
    pub inputs: Vec<Input>,
    pub template: String,
    pub output: Output,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub consumers: Vec<Consumer>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub validate: Option<Validate>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rollout: Option<Rollout>,
    /// How long inputs have to be unchanged before the template is rendered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quiet_seconds: Option<i32>,
    /// How long a change waits at most for the inputs to be quiet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_delay_seconds: Option<i32>,
    /// How many versions are remembered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub history_limit: Option<i32>,
    /// No further consumer gets a new version.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
    /// The version that consumers shall have, whatever is rendered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pinned_version: Option<String>,
}

/// What the template reads, under a name. Exactly one of the sources is set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Input {
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<ServiceInput>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config_map: Option<ObjectInput>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<ObjectInput>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodes: Option<NodesInput>,
    /// What does not exist is `none` in the template, instead of an error.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub optional: bool,
}

/// One Service by name, or all that a selector matches.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceInput {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// That of the template if left out; `*` with a selector: all of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
}

/// A ConfigMap or Secret of the template's namespace.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectInput {
    pub name: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodesInput {
    /// All nodes if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
}

/// Where the result is written: exactly one of both.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Output {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config_map: Option<OutputKey>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<OutputKey>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OutputKey {
    pub name: String,
    pub key: String,
}

/// Pods that read the output, by labels or by the workload they belong to, and what is done when it changes; or machines that have it as a file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Consumer {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machines: Option<MachineConsumer>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workload: Option<WorkloadReference>,
    /// Nothing but the changed file if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_change: Option<OnChange>,
}

/// Machines, by the labels of their Nodes, and the file that they have the output in. What is done there when it changes is for the machine's own
/// configuration file to say.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MachineConsumer {
    /// All machines if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
    #[serde(flatten)]
    pub file: FileAttributes,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkloadReference {
    pub kind: String,
    pub name: String,
}

/// At most one of them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OnChange {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<SignalAction>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exec: Option<ExecAction>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http: Option<HttpAction>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restart: Option<RestartAction>,
}

/// Sends a signal to the first process of a container, by its own `kill`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SignalAction {
    pub signal: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
}

/// Runs a command in a container; it has to end with 0.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ExecAction {
    pub command: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<i32>,
}

/// Sends a request to the pod; the answer has to be a 2xx.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HttpAction {
    pub port: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<i32>,
}

/// Evicts the pod, as far as disruption budgets allow; its workload makes another one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RestartAction {}

/// A command in a container of a consumer that judges a new version, which it reads from its standard input.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Validate {
    pub command: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<i32>,
}

/// In which order and how fast a new version reaches consumers, and when it is taken back.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Rollout {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_unavailable: Option<IntOrString>,
    /// Shares of all consumers, each including those before: `[1, "50%", "100%"]`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub waves: Vec<IntOrString>,
    /// How long the consumers of a wave have to be healthy before the next one begins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub soak_seconds: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress_deadline_seconds: Option<i32>,
    /// How many consumers may fail before the version is taken back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_failed: Option<IntOrString>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ConfigTemplateStatus {
    pub observed_generation: i64,
    /// The last good version, which the output holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The version that is on its way to consumers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<TargetVersion>,
    /// The version that was last refused or taken back; it is not tried again while the template and inputs give the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rejected: Option<RejectedVersion>,
    /// For each input an opaque text that changes with it.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub inputs: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consumers: Option<ConsumerCounts>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// The newest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<HistoryEntry>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TargetVersion {
    pub version: String,
    pub began: Time,
    /// The last good version when it began: where consumers return to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<String>,
    /// The command of `validate` has accepted it, or there is none.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub validated: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RejectedVersion {
    pub version: String,
    pub time: Time,
    pub reason: String,
    #[serde(default)]
    pub message: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ConsumerCounts {
    pub total: i32,
    /// Have the version that is wanted and were notified of it.
    pub updated: i32,
    pub healthy: i32,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HistoryEntry {
    pub version: String,
    pub time: Time,
    /// What changed: `template`, or the names of inputs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changed: Vec<String>,
    /// The field manager that wrote it last, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manager: Option<String>,
    pub result: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// Results in a history.
pub mod result {
    pub const PROGRESSING: &str = "Progressing";
    pub const SUCCEEDED: &str = "Succeeded";
    pub const SUPERSEDED: &str = "Superseded";
    pub const INVALID: &str = "Invalid";
    pub const ROLLED_BACK: &str = "RolledBack";
}

/// Labels are shorter than names.
const LONGEST_LABEL: usize = 63;

/// The value of [`TEMPLATE_LABEL`]: the template's name, or if that is too long for a label, a digest of it.
pub fn template_label(template: &str) -> String {
    if template.len() <= LONGEST_LABEL { template.to_owned() } else { version(template) }
}

impl ConfigTemplateSpec {
    /// Whether what it renders may contain a Secret's value, so that errors and outputs of commands are not shown.
    pub fn reads_secrets(&self) -> bool {
        self.inputs.iter().any(|input| input.secret.is_some())
    }

    /// Whether machines have the output as a file.
    pub fn has_machines(&self) -> bool {
        self.consumers.iter().any(|consumer| consumer.machines.is_some())
    }
}

impl Output {
    /// The key that is written, and whether it is one of a Secret.
    pub fn target(&self) -> Option<(&OutputKey, OutputKind)> {
        let map = self.config_map.as_ref().map(|key| (key, OutputKind::ConfigMap));
        map.or_else(|| self.secret.as_ref().map(|key| (key, OutputKind::Secret)))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OutputKind {
    ConfigMap,
    Secret,
}
