//! Registers this Node, reports its status and renews its Lease.
//!
//! Three loops that need each other only by what they leave behind: status, Lease, upkeep. Each survives an API
//! that is away; it is asked again at least every two seconds, so that the Node is current as soon as it
//! returns. A new agent finds the Node as the last one left it: Ready stays.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Node, NodeSpec, NodeStatus, Taint},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use mainstay_api::{
    validation::names,
    wellknown::{
        NO_POD_RANGE,
        kubernetes::{ARCH, HOSTNAME, OS},
    },
};
use mainstay_errors::error_chain;
use mainstay_runtime::Runtime;
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use super::{
    eviction::Evictions,
    facts::Facts,
    labels::{self, LabelChange, Labels, WantedLabels},
    measure,
    pressure::NodeMeasurement,
    status::{self, MachineObservation, PodsAfterStop},
    upkeep::Upkeep,
};
use crate::{
    events::{EventType, Events},
    fence::Fence,
    pod_routes::RouteProblem,
    pods::Pods,
    route_check::RouteCheckResult,
    servers::Servers,
    settings::{Network, Settings},
    wake::Wake,
    watch_backoff::api_retries,
};

/// How often the machine is looked at.
const LOOK: Duration = Duration::from_secs(10);
/// No call of API or runtime may hold up the others longer.
const DEADLINE: Duration = Duration::from_secs(8);
/// How soon a label that the API refused is tried again.
const REFUSED_LABEL_RETRY: Duration = Duration::from_secs(600);
/// Says that pods of this machine are reached at ports of its own.
const ENDPOINTS: &str = mainstay_api::wellknown::mainstay::ENDPOINTS;
const HOST_PORT: &str = mainstay_api::wellknown::mainstay::ENDPOINTS_HOST_PORT;

pub struct Parts {
    pub client: Client,
    /// Another is called when the one that is called does not renew the lease.
    pub servers: Servers,
    pub settings: Arc<Settings>,
    pub runtime: Arc<dyn Runtime>,
    pub pods: Arc<Pods>,
    pub events: Events,
    pub wake: Wake,
    /// What heartbeats promise, and what hears of them.
    pub fence: Arc<Fence>,
    /// Why pods had better be elsewhere, if healing says so.
    pub suspect: Box<dyn Fn() -> Option<String> + Send + Sync>,
    /// Why pods of other nodes cannot be reached from here.
    pub route_problem: RouteProblem,
    /// What the check of the route to this node's pods measured.
    pub route_check: RouteCheckResult,
}

pub struct NodeReporter {
    pub(super) parts: Parts,
    pub(super) evictions: Evictions,
    pub(super) upkeep: Mutex<Upkeep>,
    pub(super) measure: Box<dyn Fn() -> NodeMeasurement + Send + Sync>,
    facts: Facts,
    node: watch::Sender<Option<Node>>,
    /// The version of the node's Offer that heartbeats renew.
    renewed_offer: watch::Sender<Option<String>>,
    look: Notify,
    /// Labels from flags that the API refuses, by key, and since when.
    refused_labels: Mutex<BTreeMap<String, Instant>>,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum ReportError {
    #[error("{doing}")]
    Api {
        doing: &'static str,
        #[source]
        source: Box<kube::Error>,
    },
    #[error("the API does not answer")]
    Silent,
}

fn api(doing: &'static str) -> impl FnOnce(kube::Error) -> ReportError {
    move |source| ReportError::Api { doing, source: Box::new(source) }
}

/// The message of an API that will not have what was written, now or later.
fn refusal(error: &kube::Error) -> Option<&str> {
    match error {
        kube::Error::Api(status) if matches!(status.code, 403 | 422) => Some(&status.message),
        _ => None,
    }
}

pub(super) fn has_code(error: &kube::Error, code: u16) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == code)
}

impl NodeReporter {
    pub fn new(parts: Parts) -> Arc<Self> {
        let directory = parts.settings.directory.clone();
        Self::measuring(parts, move || measure::measure(&directory))
    }

    pub(super) fn measuring(parts: Parts, measure: impl Fn() -> NodeMeasurement + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self {
            evictions: Evictions::new(parts.wake.clone()),
            upkeep: Mutex::default(),
            measure: Box::new(measure),
            facts: Facts::read(),
            node: watch::Sender::default(),
            renewed_offer: watch::Sender::default(),
            look: Notify::new(),
            refused_labels: Mutex::default(),
            parts,
        })
    }

    /// The pods that have to end because the machine, or they themselves, ran out of something.
    pub fn evictions(&self) -> Evictions {
        self.evictions.clone()
    }

    /// The Node as last seen in the API.
    pub fn node(&self) -> watch::Receiver<Option<Node>> {
        self.node.subscribe()
    }

    /// Where the version of the Offer is told that heartbeats are to renew.
    pub fn renewed_offer(&self) -> watch::Sender<Option<String>> {
        self.renewed_offer.clone()
    }

    /// Something that the status tells of may have changed.
    pub fn look_again(&self) {
        self.look.notify_one();
    }

    /// Until asked to stop. The Node stays as it is then.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        let all = async { tokio::join!(self.report(), self.heartbeat(), self.run_upkeep()) };
        stop.run_until_cancelled(all).await;
    }

    /// Says that the agent was stopped on purpose, and what becomes of its pods. For after [`NodeReporter::run`].
    pub async fn retire(&self, pods: PodsAfterStop) {
        let retirement = async {
            let nodes = self.nodes();
            let Some(node) = nodes.get_opt(self.name()).await? else { return Ok(()) };
            let ready = status::retired(&node.status.unwrap_or_default(), pods, Timestamp::now());
            let patch = Patch::Strategic(json!({ "status": { "conditions": [ready] } }));
            nodes.patch_status(self.name(), &PatchParams::default(), &patch).await.map(drop)
        };
        match tokio::time::timeout(DEADLINE, retirement).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(error = error_chain(&error), "cannot report in the API that the agent stops")
            }
            Err(_) => tracing::warn!("cannot report in the API that the agent stops: no answer"),
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.parts.settings.node_name
    }

    fn nodes(&self) -> Api<Node> {
        Api::all(self.parts.client.clone())
    }

    async fn report(&self) {
        let (mut written, mut retries) = (None::<Instant>, api_retries());
        loop {
            let done = tokio::time::timeout(DEADLINE, self.report_once(written)).await;
            match done.unwrap_or(Err(ReportError::Silent)) {
                Ok(wrote) => {
                    retries.reset();
                    written = if wrote { Some(Instant::now()) } else { written };
                    let _ = tokio::time::timeout(LOOK, self.look.notified()).await;
                }
                Err(error) => {
                    match &error {
                        ReportError::Api { source, .. } if matches!(**source, kube::Error::Api(_)) => {
                            tracing::warn!(
                                error = error_chain(&error),
                                "cannot report the status of the node; will retry"
                            );
                        }
                        _ => tracing::debug!(
                            error = error_chain(&error),
                            "cannot report the status of the node; will retry"
                        ),
                    }
                    tokio::time::sleep(retries.record_failure()).await;
                }
            }
        }
    }

    /// `true` if the status was written.
    async fn report_once(&self, written: Option<Instant>) -> Result<bool, ReportError> {
        let observed = self.observe().await;
        let node = self.registered().await?;
        let none = NodeStatus::default();
        let before = node.status.as_ref().unwrap_or(&none);
        let settings = &self.parts.settings;
        let after = status::status(settings, &self.facts, &observed, Some(before), Timestamp::now());
        let due = written.is_none_or(|at| at.elapsed() >= settings.status_interval);
        if !due && !status::differs(before, &after) {
            self.node.send_replace(Some(node));
            return Ok(false);
        }
        let patch = json!({ "metadata": { "uid": node.metadata.uid }, "status": status::patch(before, &after) });
        let (nodes, patch) = (self.nodes(), Patch::Strategic(patch));
        let patched = nodes.patch_status(self.name(), &PatchParams::default(), &patch).await;
        let now = patched.map_err(api("write the node's status"))?;
        self.announce(&now, before, &after);
        self.node.send_replace(Some(now));
        Ok(true)
    }

    async fn observe(&self) -> MachineObservation {
        let runtime = &self.parts.runtime;
        let answers = async {
            let version = runtime.version().await.map_err(|error| error.to_string());
            (version, runtime.images().list().await.unwrap_or_default())
        };
        let silent = || (Err("it does not answer".to_owned()), Vec::new());
        let (runtime, images) = tokio::time::timeout(DEADLINE / 2, answers).await.unwrap_or_else(|_| silent());
        let measured = (self.measure)();
        let pressures = self.upkeep.lock().pressures(&measured, &self.parts.settings.eviction, Timestamp::now());
        let (suspect, route_problem) = ((self.parts.suspect)(), self.parts.route_problem.get());
        let route_check = self.parts.route_check.get();
        MachineObservation { runtime, measured, pressures, images, suspect, route_problem, route_check }
    }

    /// The Node in the API with our labels and how its pods are reached, created if it does not exist.
    async fn registered(&self) -> Result<Node, ReportError> {
        let nodes = self.nodes();
        let node = match nodes.get_opt(self.name()).await.map_err(api("read the node"))? {
            Some(node) => node,
            None => self.register(&nodes).await?,
        };
        match self.label(&nodes, &node).await {
            Ok(labelled) => Ok(labelled.unwrap_or(node)),
            Err(error) if refusal(&error).is_some() => {
                self.find_refused_labels(&nodes, &node).await?;
                match self.label(&nodes, &node).await {
                    Err(error) if refusal(&error).is_some() => {
                        tracing::warn!(
                            why = refusal(&error),
                            "the API refuses labels of the node; it goes on without them"
                        );
                        Ok(node)
                    }
                    labelled => labelled.map(|labelled| labelled.unwrap_or(node)).map_err(api("label the node")),
                }
            }
            Err(error) => Err(api("label the node")(error)),
        }
    }

    /// Without the labels from flags if the API refuses the Node with them: one wrong label must not keep a node away.
    async fn register(&self, nodes: &Api<Node>) -> Result<Node, ReportError> {
        let wanted = self.node_wanted(&self.wanted_labels());
        let created = match nodes.create(&PostParams::default(), &wanted).await {
            Err(error) if refusal(&error).is_some() => {
                let labels = WantedLabels { from_flags: Labels::new(), ..self.wanted_labels() };
                nodes.create(&PostParams::default(), &self.node_wanted(&labels)).await
            }
            created => created,
        };
        if let Err(kube::Error::Api(status)) = &created
            && status.message.starts_with(NO_POD_RANGE)
        {
            // There is no Node that could have a condition: the event is what people find.
            self.parts.events.node(&wanted, EventType::Warning, "CIDRNotAvailable", status.message.as_str());
        }
        let node = created.map_err(api("register the node"))?;
        tracing::info!(node = self.name(), "registered the node");
        self.parts.events.node(&node, EventType::Normal, "Starting", "Starting mainstay agent.");
        Ok(node)
    }

    /// Writes the labels and annotations that differ from what is wanted; nothing if none does.
    async fn label(&self, nodes: &Api<Node>, node: &Node) -> Result<Option<Node>, kube::Error> {
        let annotation =
            |node: &Node, key: &str| node.metadata.annotations.as_ref().and_then(|all| all.get(key).cloned());
        let (current, applied) = (node.metadata.labels.clone().unwrap_or_default(), annotation(node, labels::APPLIED));
        let wanted = self.wanted_labels();
        let change = labels::change(&current, applied.as_deref(), &wanted);
        let endpoints = annotation(&self.node_wanted(&wanted), ENDPOINTS);
        if change.is_none() && annotation(node, ENDPOINTS) == endpoints {
            return Ok(None);
        }
        let mut metadata = json!({ "annotations": { ENDPOINTS: endpoints } });
        if let Some(LabelChange { labels, applied }) = change {
            metadata["labels"] = json!(labels);
            metadata["annotations"][labels::APPLIED] = json!(applied);
        }
        let patch = Patch::Merge(json!({ "metadata": metadata }));
        nodes.patch(self.name(), &PatchParams::default(), &patch).await.map(Some)
    }

    /// Finds out by dry runs which labels from flags the API refuses, and leaves those out for a while.
    async fn find_refused_labels(&self, nodes: &Api<Node>, node: &Node) -> Result<(), ReportError> {
        let is_set = |key: &str, value: &str| {
            node.metadata.labels.as_ref().and_then(|labels| labels.get(key)).is_some_and(|current| current == value)
        };
        for (key, value) in self.wanted_labels().from_flags.into_iter().filter(|(key, value)| !is_set(key, value)) {
            let patch = Patch::Merge(json!({ "metadata": { "labels": { key.as_str(): value } } }));
            let dry_run = PatchParams { dry_run: true, ..PatchParams::default() };
            let Err(error) = nodes.patch(self.name(), &dry_run, &patch).await else { continue };
            let Some(why) = refusal(&error) else { return Err(api("label the node")(error)) };
            tracing::warn!(
                label = %key, %value, why,
                "the API refuses a label given by --node-label; the node goes without it"
            );
            self.refused_labels.lock().insert(key, Instant::now());
        }
        Ok(())
    }

    fn wanted_labels(&self) -> WantedLabels {
        let architecture = &self.facts.architecture;
        let mut machine = Labels::new();
        for (key, value) in [(OS, "linux"), (ARCH, architecture.as_str())] {
            machine.insert(key.to_owned(), value.to_owned());
            machine.insert(format!("beta.{key}"), value.to_owned());
        }
        // A node's name may be longer than a label's value.
        let hostname = Some(self.name()).filter(|name| names::label_value(name).is_empty());
        let defaults = hostname.map(|name| (HOSTNAME.to_owned(), name.to_owned())).into_iter().collect();
        let refused = self.refused_labels.lock();
        let is_refused = |key: &str| refused.get(key).is_some_and(|since| since.elapsed() < REFUSED_LABEL_RETRY);
        let from_flags = self.parts.settings.labels.iter().filter(|(key, _)| !is_refused(key));
        WantedLabels { machine, defaults, from_flags: from_flags.cloned().collect() }
    }

    fn node_wanted(&self, labels: &WantedLabels) -> Node {
        let settings = &self.parts.settings;
        let endpoints = match settings.network {
            Network::Bridge => None,
            Network::Host => Some((ENDPOINTS.to_owned(), HOST_PORT.to_owned())),
        };
        let applied = labels::encode(&labels.from_flags).map(|applied| (labels::APPLIED.to_owned(), applied));
        let annotations: BTreeMap<String, String> = endpoints.into_iter().chain(applied).collect();
        let taints: Vec<Taint> = settings.taints.iter().filter_map(|text| taint(text)).collect();
        Node {
            metadata: ObjectMeta {
                name: Some(self.name().to_owned()),
                labels: Some(labels.initial()),
                annotations: (!annotations.is_empty()).then_some(annotations),
                ..ObjectMeta::default()
            },
            spec: Some(NodeSpec { taints: (!taints.is_empty()).then_some(taints), ..NodeSpec::default() }),
            status: None,
        }
    }

    /// Events for conditions that changed, as upstream names them, and for a machine that was down.
    fn announce(&self, node: &Node, before: &NodeStatus, after: &NodeStatus) {
        let events = &self.parts.events;
        let boot = |status: &NodeStatus| status.node_info.as_ref().map(|info| info.boot_id.clone());
        if let (Some(old), Some(new)) = (boot(before), boot(after))
            && !old.is_empty()
            && old != new
        {
            let message = format!("Node {} has been rebooted, boot id: {new}", self.name());
            events.node(node, EventType::Warning, "Rebooted", message);
        }
        for condition in after.conditions.iter().flatten() {
            let was = status::condition(before, &condition.type_).map(|before| before.status.as_str());
            if was == Some(condition.status.as_str()) {
                continue;
            }
            let reason = match (condition.type_.as_str(), condition.status == "True") {
                ("Ready", true) => "NodeReady",
                ("Ready", false) => "NodeNotReady",
                ("MemoryPressure", true) => "NodeHasInsufficientMemory",
                ("MemoryPressure", false) => "NodeHasSufficientMemory",
                ("DiskPressure", true) => "NodeHasDiskPressure",
                ("DiskPressure", false) => "NodeHasNoDiskPressure",
                ("PIDPressure", true) => "NodeHasInsufficientPID",
                ("PIDPressure", false) => "NodeHasSufficientPID",
                ("Suspect", true) => "NodeSuspect",
                ("Suspect", false) => "NodeNotSuspect",
                _ => continue,
            };
            events.node(node, EventType::Normal, reason, format!("Node {} status is now: {reason}", self.name()));
        }
    }
}

pub(super) fn owner(node: &Node) -> Option<OwnerReference> {
    Some(OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: node.metadata.name.clone()?,
        uid: node.metadata.uid.clone()?,
        ..OwnerReference::default()
    })
}

/// `key=value:Effect`, `key:Effect`.
fn taint(text: &str) -> Option<Taint> {
    let (name, effect) = text.rsplit_once(':')?;
    let (key, value) = name.split_once('=').map_or((name, None), |(key, value)| (key, Some(value.to_owned())));
    Some(Taint { key: key.to_owned(), value, effect: effect.to_owned(), ..Taint::default() })
}

#[cfg(test)]
mod tests;
