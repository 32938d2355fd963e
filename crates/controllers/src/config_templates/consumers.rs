//! Consumers: the pods that read a template's output, how far each has come with a version, and whether it is well. ([`machines`](super::machines)
//! are consumers as well.)
//!
//! What was done with a pod is in an annotation of it, so that it goes with the pod. Its node says in a condition which versions the files of
//! the pod are of ([`FILES_CONDITION`]): nobody is notified before.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Patch, PatchParams};
use mainstay_api::{
    config_template::{CONSUMER_ANNOTATION, ConfigTemplate, Consumer, OnChange, OutputKind, TIMEOUT_SECONDS},
    config_versions::{self, CONTAINERS_CONDITION, ConfigKind, ConfigSource, ConfigVersions, FILES_CONDITION},
    matching::UNLABELLED,
    needs,
    validation::labels,
};
use mainstay_waves::Health;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{
    candidates::CandidateIndex,
    copy_index::CopyIndex,
    input_index::Source,
    machines::MachineTarget,
    notify::{NotifyRequest, NotifyResult, PodAction},
    plan::Outcome,
    render_cache::TemplateVersion,
};
use crate::{
    objects::pod::Pod,
    runtime::{ApiError, Caches, Context, ObjectKey, error},
};

/// How often a write is repeated that met another one.
const ATTEMPTS: usize = 5;

/// How far a pod has come with a version of one template.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConsumerState {
    pub version: String,
    pub step: Step,
    pub time: Time,
    /// How often its containers had been restarted by then.
    #[serde(default)]
    pub restarts: i32,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Step {
    /// It is to read this version; its files follow.
    Assigned,
    /// It reads it, and was notified where that is asked for.
    Notified,
    /// It could not be notified.
    Failed,
}

/// By the name of the template: what the annotation of a pod says.
type ConsumerStates = BTreeMap<String, ConsumerState>;

/// A pod as far as rollouts look at it.
#[derive(Clone, Debug)]
pub struct ConsumerView {
    pub name: String,
    pub uid: String,
    pub action: PodAction,
    /// The first one is meant where none is named.
    pub containers: Vec<ConsumerContainer>,
    pub state: Option<ConsumerState>,
    /// The copy of the output that its files are of, as its node says.
    pub files: Option<String>,
    /// The copy of the output that its containers were made with, as its node says: what is in their environment. Empty if they were made with none,
    /// nothing if the node does not say.
    pub begun_with: Option<String>,
    /// A container of it has started.
    pub started: bool,
    /// The container that is notified runs.
    pub running: bool,
    pub deleting: bool,
    /// It waits for what it needs, before its start or after: that is no fault of the version.
    pub waits: bool,
    /// When it last had all that it needs.
    pub needs_met: Option<Timestamp>,
    pub health: Health,
    pub restarts: i32,
    /// How a container that was restarted ended, if that was a failure.
    pub crash: Option<String>,
    /// It is a machine, not a pod.
    pub machine: Option<MachineTarget>,
}

/// A container of a pod that is a consumer.
#[derive(Clone, Debug)]
pub struct ConsumerContainer {
    pub name: String,
    pub is_running: bool,
}

/// What the pods of a namespace are to a template.
#[derive(Default)]
pub struct PodConsumers {
    /// Those that are not at their end, by name.
    pub consumers: Vec<ConsumerView>,
    pub former: Vec<FormerConsumer>,
    /// The copies of the output that pods read, consumers or not.
    pub read_copies: BTreeSet<String>,
}

/// Looks at the pods that may be consumers, or may have been.
pub fn observe(caches: &Caches, candidates: &CandidateIndex, template: &ConfigTemplate) -> PodConsumers {
    let (mut found, source) = (PodConsumers::default(), output_source(template));
    let is_candidate = |pod: &Pod| {
        concerns(caches, template, pod) || source.as_ref().is_some_and(|source| read_copy(pod, source).is_some())
    };
    let (key, version) = (ObjectKey::from_meta(&template.metadata), TemplateVersion::new(template));
    let pods = candidates.pods(&key, version, &caches.pods, is_candidate);
    for pod in pods.iter().filter(|pod| !pod.is_finished()) {
        match find(caches, template, pod) {
            Some(consumer) => found.consumers.push(view(template, consumer, pod)),
            None if pod.is_active() && was_told_by(pod, template) => {
                found.former.push(FormerConsumer { pod: pod.name().to_owned(), uid: pod.uid().to_owned() });
            }
            None => {}
        }
        found.read_copies.extend(source.as_ref().and_then(|source| read_copy(pod, source)));
    }
    found
}

/// The outputs that a pod reads a copy of.
pub fn copied_sources(namespace: &str, pod: &Pod) -> Vec<Source> {
    if annotation(pod, config_versions::ANNOTATION).is_none() {
        return Vec::new();
    }
    let source = |source: ConfigSource| {
        let key = ObjectKey::new(namespace, source.name);
        match source.kind {
            ConfigKind::ConfigMap => Source::ConfigMap(key),
            ConfigKind::Secret => Source::Secret(key),
        }
    };
    ConfigVersions::from_annotations(&pod.metadata.annotations).copies.into_keys().map(source).collect()
}

/// The copy of an output that a pod reads.
fn read_copy(pod: &Pod, source: &ConfigSource) -> Option<String> {
    // Few pods of a namespace read this output: the others are not worth parsing.
    annotation(pod, config_versions::ANNOTATION).filter(|text| text.contains(&source.name))?;
    ConfigVersions::from_annotations(&pod.metadata.annotations).copies.remove(source)
}

/// The templates that did something with a pod.
pub fn named_templates(pod: &Pod) -> Vec<String> {
    states(pod).into_keys().collect()
}

/// Whether a pod is a consumer of the template, or was one.
pub fn concerns(caches: &Caches, template: &ConfigTemplate, pod: &Pod) -> bool {
    let in_namespace = pod.metadata.namespace.as_deref() == Some(template.namespace());
    in_namespace && (find(caches, template, pod).is_some() || was_told_by(pod, template))
}

/// A pod that was a consumer, until the template or its labels changed.
#[derive(Clone, Debug, PartialEq)]
pub struct FormerConsumer {
    pub pod: String,
    pub uid: String,
}

/// The entry of the template that a pod is a consumer by: the first that fits.
pub fn find<'t>(caches: &Caches, template: &'t ConfigTemplate, pod: &Pod) -> Option<&'t Consumer> {
    if pod.metadata.namespace.as_deref() != Some(template.namespace()) {
        return None;
    }
    template.spec.consumers.iter().find(|consumer| {
        let own = pod.metadata.labels.as_ref().unwrap_or(&UNLABELLED);
        let selected = consumer.selector.as_ref().is_some_and(|selector| labels::matches(selector, own));
        let belongs = || consumer.workload.as_ref().is_some_and(|own| belongs(caches, pod, &own.kind, &own.name));
        selected || belongs()
    })
}

/// Whether a workload controls the pod, a Deployment by its ReplicaSets.
fn belongs(caches: &Caches, pod: &Pod, kind: &str, name: &str) -> bool {
    let controller = |meta: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta| {
        let owner = meta.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))?;
        Some((owner.kind.clone(), owner.name.clone()))
    };
    let Some(owner) = controller(&pod.metadata) else { return false };
    if kind != "Deployment" {
        return owner == (kind.to_owned(), name.to_owned());
    }
    let (owner_kind, owner_name) = owner;
    let key = ObjectKey::new(pod.metadata.namespace.clone().unwrap_or_default(), owner_name);
    let set = caches.replica_sets.get(&key).filter(|_| owner_kind == "ReplicaSet");
    set.and_then(|set| controller(&set.metadata)).is_some_and(|own| own == (kind.to_owned(), name.to_owned()))
}

/// What a template's output is called in a pod's map of versions.
pub fn output_source(template: &ConfigTemplate) -> Option<ConfigSource> {
    let (output, kind) = template.spec.output.target()?;
    Some(ConfigSource { kind: config_kind(kind), name: output.name.clone() })
}

pub fn config_kind(kind: OutputKind) -> ConfigKind {
    match kind {
        OutputKind::ConfigMap => ConfigKind::ConfigMap,
        OutputKind::Secret => ConfigKind::Secret,
    }
}

fn annotation<'p>(pod: &'p Pod, key: &str) -> Option<&'p str> {
    pod.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

/// Whether the template did something with the pod. Looked at for every pod of the namespace, so what does not even name it is not parsed.
fn was_told_by(pod: &Pod, template: &ConfigTemplate) -> bool {
    annotation(pod, CONSUMER_ANNOTATION).is_some_and(|text| text.contains(template.name()))
        && states(pod).contains_key(template.name())
}

fn states(pod: &Pod) -> ConsumerStates {
    annotation(pod, CONSUMER_ANNOTATION).and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}

fn view(template: &ConfigTemplate, consumer: &Consumer, pod: &Pod) -> ConsumerView {
    let action = pod_action(consumer.on_change.as_ref(), pod);
    let copy_in = |condition: &str| {
        let condition = pod.condition(condition).filter(|condition| condition.status == "True")?;
        let versions: ConfigVersions = condition.message.as_deref()?.parse().ok()?;
        versions.copies.get(&output_source(template)?).cloned()
    };
    let (statuses, needs) = (&pod.status.container_statuses, pod.condition(needs::CONDITION));
    let is_running = |name: &str| {
        statuses.iter().any(|own| own.name == name && own.state.as_ref().is_some_and(|state| state.running.is_some()))
    };
    let started = statuses.iter().any(|own| {
        own.restart_count > 0
            || own.state.as_ref().is_some_and(|state| state.running.is_some() || state.terminated.is_some())
    });
    let crash = statuses.iter().find_map(|own| {
        let ended = [&own.state, &own.last_state].into_iter().flatten().find_map(|state| state.terminated.as_ref())?;
        (ended.exit_code != 0).then(|| format!("container {} ended with {}", own.name, ended.exit_code))
    });
    ConsumerView {
        name: pod.name().to_owned(),
        uid: pod.uid().to_owned(),
        running: match action.container() {
            Some(container) => is_running(container),
            None => statuses.iter().any(|own| is_running(&own.name)),
        },
        action,
        containers: {
            let containers = pod.spec.containers.iter();
            containers
                .map(|own| ConsumerContainer { name: own.name.clone(), is_running: is_running(&own.name) })
                .collect()
        },
        state: states(pod).remove(template.name()),
        files: copy_in(FILES_CONDITION),
        begun_with: pod.condition(CONTAINERS_CONDITION).map(|_| copy_in(CONTAINERS_CONDITION).unwrap_or_default()),
        started,
        deleting: pod.is_being_deleted(),
        waits: needs.is_some_and(|own| own.status == "False" && own.reason.as_deref() != Some(needs::TIMEOUT)),
        needs_met: needs.filter(|own| own.status == "True").and_then(|own| Some(own.last_transition_time.as_ref()?.0)),
        health: health(pod),
        restarts: statuses.iter().map(|own| own.restart_count).sum(),
        crash,
        machine: None,
    }
}

fn health(pod: &Pod) -> Health {
    let ready = pod.condition("Ready");
    let since = ready.and_then(|ready| ready.last_transition_time.as_ref()).map_or(pod.created(), |Time(time)| *time);
    match ready.map(|ready| ready.status.as_str()) {
        Some("True") => Health::Healthy { since },
        Some("Unknown") => Health::Unknown { since },
        _ => Health::Unhealthy { since },
    }
}

/// What is done in a pod when it has a new version; the container is its first one if none is named.
fn pod_action(on_change: Option<&OnChange>, pod: &Pod) -> PodAction {
    let container = |named: &Option<String>| {
        let first = || pod.spec.containers.first().map(|container| container.name.clone());
        named.clone().or_else(first).unwrap_or_default()
    };
    let timeout = |seconds: Option<i32>| seconds.unwrap_or(TIMEOUT_SECONDS).unsigned_abs();
    match on_change {
        Some(OnChange { signal: Some(signal), .. }) => {
            PodAction::Signal { container: container(&signal.container), signal: signal.signal.clone() }
        }
        Some(OnChange { exec: Some(exec), .. }) => PodAction::Exec {
            container: container(&exec.container),
            command: exec.command.clone(),
            timeout: timeout(exec.timeout_seconds),
        },
        Some(OnChange { http: Some(http), .. }) => PodAction::Http {
            port: http.port,
            path: http.path.clone().unwrap_or_default(),
            method: http.method.clone().unwrap_or_default(),
            timeout: timeout(http.timeout_seconds),
        },
        Some(OnChange { restart: Some(_), .. }) => PodAction::Restart,
        _ => PodAction::Nothing,
    }
}

/// What is to be written to a pod.
#[derive(Clone, Debug, PartialEq)]
pub struct ConsumerChange {
    pub pod: String,
    pub uid: String,
    pub output: ConfigSource,
    /// The copy that it is to read; without one the output itself.
    pub copy: Option<String>,
    pub state: ConsumerState,
}

impl ConsumerChange {
    /// The same once the pod was notified, or could not be.
    pub fn finished(mut self, result: NotifyResult, now: Timestamp) -> Self {
        (self.state.step, self.state.message) = match result {
            NotifyResult::Notified => (Step::Notified, String::new()),
            NotifyResult::Failed(message) => (Step::Failed, message),
        };
        self.state.time = Time(now);
        self
    }
}

impl ConsumerView {
    /// The container of this name, or the first one.
    pub fn container(&self, name: Option<&str>) -> Option<&ConsumerContainer> {
        match name {
            Some(name) => self.containers.iter().find(|container| container.name == name),
            None => self.containers.first(),
        }
    }

    pub fn change(
        &self,
        output: &ConfigSource,
        copy: Option<&str>,
        version: &str,
        step: Step,
        now: Timestamp,
    ) -> ConsumerChange {
        let state = ConsumerState {
            version: version.to_owned(),
            step,
            time: Time(now),
            restarts: self.restarts,
            message: String::new(),
        };
        let (pod, uid) = (self.name.clone(), self.uid.clone());
        ConsumerChange { pod, uid, output: output.clone(), copy: copy.map(str::to_owned), state }
    }

    pub fn notification(&self, show_output: bool) -> NotifyRequest {
        NotifyRequest { pod: self.name.clone(), action: self.action.clone(), show_output }
    }
}

/// Has a pod read a version, and records how far it has come.
pub async fn write(context: &Context, template: &ObjectKey, change: ConsumerChange) -> Result<Outcome, ApiError> {
    let ConsumerChange { pod, uid, output, copy, state } = change;
    let key = ObjectKey::new(template.namespace.clone(), pod);
    let edit = |versions: &mut ConfigVersions, states: &mut ConsumerStates| {
        match &copy {
            Some(copy) => versions.copies.insert(output.clone(), copy.clone()),
            None => versions.copies.remove(&output),
        };
        states.insert(template.name.clone(), state.clone());
    };
    edit_annotations(context, &key, &uid, edit).await
}

/// Has a pod that is no consumer any longer read the output itself.
pub async fn release(
    context: &Context,
    template: &ObjectKey,
    former: FormerConsumer,
    output: &ConfigSource,
) -> Result<Outcome, ApiError> {
    let key = ObjectKey::new(template.namespace.clone(), former.pod);
    let edit = |versions: &mut ConfigVersions, states: &mut ConsumerStates| {
        versions.copies.remove(output);
        states.remove(&template.name);
    };
    edit_annotations(context, &key, &former.uid, edit).await
}

/// A pod that reads a copy of the output of a template which is gone.
#[derive(Clone, Debug, PartialEq)]
pub struct LeftBehind {
    pub pod: FormerConsumer,
    /// Copies of that output.
    pub copies: BTreeSet<String>,
}

/// Pods that a template which is gone did something with.
pub fn left_behind(caches: &Caches, copies: &CopyIndex, template: &ObjectKey) -> Vec<LeftBehind> {
    let mut pods = caches.pods.in_namespace(&template.namespace);
    pods.retain(|pod| pod.is_active() && states(pod).contains_key(&template.name));
    if pods.is_empty() {
        return Vec::new();
    }
    let kinds = [OutputKind::ConfigMap, OutputKind::Secret].into_iter();
    let all = kinds.flat_map(|kind| copies.copies(kind, &template.namespace, &template.name));
    let copies: BTreeSet<String> = all.map(|copy| copy.name).collect();
    let former = |pod: &Pod| FormerConsumer { pod: pod.name().to_owned(), uid: pod.uid().to_owned() };
    pods.iter().map(|pod| LeftBehind { pod: former(pod), copies: copies.clone() }).collect()
}

/// Has such a pod read the output itself, which stays.
pub async fn forget(context: &Context, template: &ObjectKey, left: LeftBehind) -> Result<Outcome, ApiError> {
    let key = ObjectKey::new(template.namespace.clone(), left.pod.pod);
    let edit = |versions: &mut ConfigVersions, states: &mut ConsumerStates| {
        versions.copies.retain(|_, copy| !left.copies.contains(copy));
        states.remove(&template.name);
    };
    edit_annotations(context, &key, &left.pod.uid, edit).await
}

/// Other templates have theirs in the same annotations: the write is fenced by the version that it was made from.
async fn edit_annotations(
    context: &Context,
    key: &ObjectKey,
    uid: &str,
    edit: impl Fn(&mut ConfigVersions, &mut ConsumerStates),
) -> Result<Outcome, ApiError> {
    let pods = context.pods_in(&key.namespace);
    let failed = |error| ApiError::new(format!("write the configuration version of pod {key:?}"), error);
    let mut pod = context.caches.pods.get(key).map(|pod| (*pod).clone());
    for attempt in 1..=ATTEMPTS {
        let Some(current) = pod.filter(|pod| pod.uid() == uid) else { return Ok(Outcome::Done) };
        let mut versions = ConfigVersions::from_annotations(&current.metadata.annotations);
        let mut states = states(&current);
        edit(&mut versions, &mut states);
        let patch = Patch::Merge(json!({ "metadata": {
            "uid": uid,
            "resourceVersion": current.metadata.resource_version,
            "annotations": {
                config_versions::ANNOTATION: (!versions.is_empty()).then(|| versions.to_string()),
                CONSUMER_ANNOTATION: (!states.is_empty()).then(|| json!(states).to_string()),
            },
        }}));
        match pods.patch(&key.name, &PatchParams::default(), &patch).await {
            Ok(written) => {
                context.caches.pods.wrote(written);
                return Ok(Outcome::Done);
            }
            Err(error) if error::is_not_found(&error, &key.name) => return Ok(Outcome::Done),
            Err(error) if error::has_code(&error, 409) && attempt < ATTEMPTS => {
                pod = pods.get_opt(&key.name).await.map_err(failed)?;
            }
            Err(error) => return Err(failed(error)),
        }
    }
    Ok(Outcome::Done)
}
