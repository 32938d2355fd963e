//! Why a pod does not run, is not ready, or does not go away.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, Node, Pod, PodCondition};
use mainstay_api::{
    needs,
    node_loss::is_unique,
    pod::{is_finished, is_ready},
    wellknown::mainstay::REFUSED_BY,
};

use super::{
    AwaitedFacts, Cause, ClaimFacts, Explanation, containers, dependencies,
    node::{condition, is_lost, not_ready},
    text, unscheduled,
};

/// What was observed of a pod.
#[derive(Clone, Debug, Default)]
pub struct PodFacts {
    pub pod: Pod,
    pub events: Vec<Event>,
    /// The last line that containers printed before they ended, by container.
    pub last_lines: BTreeMap<String, String>,
    /// Claims that the pod uses and that are not bound; those without a claim do not exist.
    pub unbound_claims: Vec<(String, Option<ClaimFacts>)>,
    /// Of the claims that it uses, as far as they exist.
    pub access_modes: BTreeMap<String, Vec<String>>,
    /// Claims whose volumes are on one node alone.
    pub local_volumes: Vec<LocalVolume>,
    pub node: AssignedNode,
    /// What it waits for, if it waits for its needs.
    pub awaited: Option<AwaitedFacts>,
    /// The Deployment, Job or the like to edit instead of the pod.
    pub owner: Option<OwnerName>,
}

/// The node that `spec.nodeName` names.
#[derive(Clone, Debug, Default)]
pub enum AssignedNode {
    /// None is named, or it could not be read.
    #[default]
    Unknown,
    Missing,
    Found(Box<Node>),
}

/// A claim whose volume is on one node alone.
#[derive(Clone, Debug)]
pub struct LocalVolume {
    pub claim: String,
    pub volume: String,
    pub node: String,
    /// Nothing if the node is gone.
    pub found: Option<Box<Node>>,
}

/// A pod that is gone, of which events still tell, and what is there in its place.
#[derive(Clone, Debug, Default)]
pub struct RemovedPodFacts {
    pub namespace: String,
    pub name: String,
    pub events: Vec<Event>,
    /// Pods of the same owner, by their name.
    pub siblings: Vec<Pod>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnerName {
    /// In small letters, as kubectl takes it.
    pub kind: String,
    pub name: String,
}

/// Conditions that the headline and the lines of containers cover.
const COVERED_CONDITIONS: [&str; 8] = [
    "PodScheduled",
    "Ready",
    "ContainersReady",
    "Initialized",
    "PodReadyToStartContainers",
    needs::CONDITION,
    needs::OBJECTS_CONDITION,
    needs::CYCLE_CONDITION,
];

/// Events of attempts to start a pod.
const START_FAILURES: [&str; 4] = ["FailedMount", "FailedAttachVolume", "FailedMapVolume", "FailedCreatePodSandBox"];

impl PodFacts {
    pub fn node_name(&self) -> Option<&str> {
        let node = self.pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
        node.filter(|node| !node.is_empty())
    }

    pub fn condition(&self, kind: &str) -> Option<&PodCondition> {
        let mut conditions = self.pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
        conditions.find(|condition| condition.type_ == kind)
    }

    /// The command with which to change what the pod is made of.
    pub fn edit_command(&self) -> String {
        let kubectl = text::kubectl(&self.pod.metadata);
        match &self.owner {
            Some(OwnerName { kind, name }) => format!("{kubectl} edit {kind}/{name}"),
            None => format!("{kubectl} get pod {} -o yaml", text::name(&self.pod.metadata)),
        }
    }
}

/// Whether a pod of a workload is worth explaining.
pub fn is_troubled(pod: &Pod) -> bool {
    let succeeded = pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Succeeded");
    !(is_ready(pod) || succeeded) || pod.metadata.deletion_timestamp.is_some()
}

pub fn explain_pod(facts: &PodFacts, now: Timestamp) -> Explanation {
    let mut cause = find_cause(facts, now);
    cause.details.extend(containers::describe_states(&facts.pod, now));
    cause.details.extend(odd_conditions(&facts.pod, now));
    let annotations = facts.pod.metadata.annotations.as_ref();
    cause
        .details
        .extend(annotations.and_then(|all| all.get(REFUSED_BY)).map(|node| format!("last refused by node {node}")));
    cause.into_explanation(text::subject("pod", &facts.pod.metadata), text::history(&facts.events, now))
}

fn find_cause(facts: &PodFacts, now: Timestamp) -> Cause {
    if facts.pod.metadata.deletion_timestamp.is_some() {
        return deletion(facts, now);
    }
    if is_finished(&facts.pod) {
        return end(facts);
    }
    let Some(node_name) = facts.node_name() else { return unscheduled::find_cause(facts, now) };
    match &facts.node {
        AssignedNode::Missing => {
            return Cause::new(format!("cannot run: it is bound to node {node_name}, which does not exist"))
                .next("kubectl get nodes", "choose one of these in spec.nodeName, or leave it to the scheduler");
        }
        AssignedNode::Found(node) => {
            if let Some(why) = not_ready(node, now) {
                return on_node_in_trouble(facts, node, &why);
            }
        }
        AssignedNode::Unknown => {}
    }
    if is_ready(&facts.pod) {
        return Cause::new(running(facts, node_name, now, "ready"));
    }
    if let Some(cause) = dependencies::find_cause(facts, now) {
        return cause;
    }
    if let Some(cause) = containers::find_cause(facts, now) {
        return cause;
    }
    let phase = facts.pod.status.as_ref().and_then(|status| status.phase.as_deref());
    if phase != Some("Running") {
        return starting(facts, node_name, now);
    }
    if let Some(gate) = unmet_readiness_gate(facts) {
        return Cause::new(format!("runs on {node_name}, but is not ready: its readiness gate {gate} is not met"));
    }
    Cause::new(running(facts, node_name, now, "not ready"))
}

/// Of a pod whose node is not ready or lost: what becomes of it.
fn on_node_in_trouble(facts: &PodFacts, node: &Node, why: &str) -> Cause {
    let name = text::name(&node.metadata);
    let mut cause = Cause::new(format!("is on node {name}, which is not ready: {why}"));
    if let Some(paused) = condition(node, "EvictionsPaused").filter(|condition| condition.status == "True") {
        cause = cause.detail(format!("it stays there: {}", paused.message.as_deref().unwrap_or_default()));
    } else if is_lost(node) {
        let unique = is_unique(&facts.pod, |claim| facts.access_modes.get(claim).map(Vec::as_slice));
        let fate = match (facts.owner.is_some(), unique) {
            (_, true) => {
                "it must never run twice: it is replaced only once its node has promised to have stopped it and other \
                 nodes are heard"
            }
            (true, false) => "it is replaced elsewhere when it no longer tolerates the taint",
            (false, false) => "nobody would replace it: it is failed when it no longer tolerates the taint",
        };
        cause = cause.detail(fate);
        if unique {
            let kubectl = text::kubectl(&facts.pod.metadata);
            let command = format!("{kubectl} delete pod {} --force --grace-period=0", text::name(&facts.pod.metadata));
            cause = cause.next(command, "only if the machine is off: replaces it at once");
        }
    }
    let local = facts.local_volumes.iter().filter(|local| local.node == name);
    for LocalVolume { claim, volume, .. } in local {
        cause = cause.detail(format!("cannot move: its claim {claim:?} is volume {volume} on node {name} itself"));
    }
    cause.next(format!("mainstay why node/{name}"), "why the node is not ready")
}

/// Why a pod is gone, if events say so.
pub fn explain_removed_pod(facts: &RemovedPodFacts, now: Timestamp) -> Option<Explanation> {
    let lost = text::newest(&facts.events, &["NodeLost"])?;
    let why = text::clause(lost.message.as_deref().unwrap_or_default());
    let mut cause = Cause::new(format!("is gone. {why}"));
    for pod in &facts.siblings {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).filter(|node| !node.is_empty());
        let place = match (node, is_ready(pod)) {
            (Some(node), true) => format!("runs on {node}"),
            (Some(node), false) => format!("is on {node}, not ready yet"),
            (None, _) => "waits for a node".to_owned(),
        };
        cause = cause.detail(format!("pod {} {place}", text::name(&pod.metadata)));
    }
    if let Some(waiting) = facts.siblings.iter().find(|pod| !is_ready(pod)) {
        let name = text::name(&waiting.metadata);
        cause = cause.next(format!("mainstay why -n {} pod/{name}", facts.namespace), "what it waits for");
    }
    let subject = format!("pod {}/{}", facts.namespace, facts.name);
    Some(cause.into_explanation(subject, text::history(&facts.events, now)))
}

fn running(facts: &PodFacts, node: &str, now: Timestamp, readiness: &str) -> String {
    let status = facts.pod.status.as_ref();
    let address = status.and_then(|status| status.pod_ip.as_ref()).map_or_else(String::new, |ip| format!(" at {ip}"));
    let start = status.and_then(|status| status.start_time.as_ref());
    let since = text::age_of(start.or(facts.pod.metadata.creation_timestamp.as_ref()), now);
    format!("runs on {node}{address} for {}, {readiness}", since.unwrap_or_default())
}

fn deletion(facts: &PodFacts, now: Timestamp) -> Cause {
    let meta = &facts.pod.metadata;
    let (kubectl, name) = (text::kubectl(meta), text::name(meta));
    let since = match (&meta.deletion_timestamp, meta.deletion_grace_period_seconds) {
        (Some(at), _) if at.0 > now => format!("; its containers have until {} to stop", at.0),
        (Some(at), _) => format!("; its grace period ended {} ago", text::age(at.0, now)),
        (None, _) => String::new(),
    };
    let unready = match &facts.node {
        AssignedNode::Found(node) => not_ready(node, now).map(|why| format!("is not ready ({why})")),
        AssignedNode::Missing => Some("does not exist".to_owned()),
        AssignedNode::Unknown => None,
    };
    if let (Some(why), Some(node)) = (unready, facts.node_name()) {
        return Cause::new(format!("is being deleted, but its node {node} {why}, so nobody confirms that it stopped"))
            .next(
                format!("{kubectl} delete pod {name} --force --grace-period=0"),
                "only if the machine is off: its containers may run on",
            );
    }
    if let Some(finalizers) = text::finalizers(meta) {
        return Cause::new(format!("is being deleted, but {finalizers}{since}")).next(
            format!("{kubectl} patch pod {name} --type=merge -p '{{\"metadata\":{{\"finalizers\":null}}}}'"),
            "only if whoever set the finalizer is gone for good",
        );
    }
    Cause::new(format!("is being deleted{since}"))
}

fn end(facts: &PodFacts) -> Cause {
    let status = facts.pod.status.as_ref();
    let phase = status.and_then(|status| status.phase.as_deref()).unwrap_or_default();
    let node = facts.node_name().map_or_else(String::new, |node| format!(" on {node}"));
    let reason = [status.and_then(|s| s.reason.as_deref()), status.and_then(|s| s.message.as_deref())];
    let reason: Vec<&str> = reason.into_iter().flatten().filter(|text| !text.is_empty()).collect();
    if phase == "Succeeded" {
        return Cause::new(format!("succeeded{node}"));
    }
    if !reason.is_empty() {
        return Cause::new(format!("failed{node}: {}", reason.join(": ")));
    }
    containers::failed_end(facts).unwrap_or_else(|| Cause::new(format!("failed{node}")))
}

fn starting(facts: &PodFacts, node: &str, now: Timestamp) -> Cause {
    if let Some(event) = text::newest(&facts.events, &START_FAILURES) {
        let attempts = text::attempts(event, now).map_or_else(String::new, |attempts| format!(" ({attempts})"));
        let message = text::clause(event.message.as_deref().unwrap_or_default());
        let cause = Cause::new(format!("cannot start on {node}: {message}{attempts}"));
        return containers::missing_object_step(&facts.pod.metadata, message, cause);
    }
    let age = text::age_of(facts.pod.metadata.creation_timestamp.as_ref(), now).unwrap_or_default();
    Cause::new(format!("starts on {node}; created {age} ago"))
}

fn unmet_readiness_gate(facts: &PodFacts) -> Option<&str> {
    let gates = facts.pod.spec.iter().flat_map(|spec| spec.readiness_gates.iter().flatten());
    let mut gates = gates.map(|gate| gate.condition_type.as_str());
    gates.find(|gate| facts.condition(gate).is_none_or(|condition| condition.status != "True"))
}

/// Conditions that are not as they should be.
fn odd_conditions(pod: &Pod, now: Timestamp) -> Vec<String> {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let covered = |kind: &str| COVERED_CONDITIONS.contains(&kind);
    let bad_if_true = |kind: &str| matches!(kind, "DisruptionTarget" | "Degraded");
    let odd = conditions.filter(|c| !covered(&c.type_) && (c.status == "True") == bad_if_true(&c.type_));
    let line = |condition: &PodCondition| {
        let since = text::age_of(condition.last_transition_time.as_ref(), now);
        let since = since.map_or_else(String::new, |since| format!(" for {since}"));
        let words = [condition.reason.as_deref(), condition.message.as_deref()];
        let words: Vec<&str> = words.into_iter().flatten().filter(|text| !text.is_empty()).collect();
        let words = if words.is_empty() { String::new() } else { format!(": {}", words.join(": ")) };
        format!("{} is {}{since}{words}", condition.type_, condition.status)
    };
    odd.map(line).collect()
}
