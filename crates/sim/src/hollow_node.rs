//! One hollow node: which pods it holds, what it offers, what it does about a pod that is bound to it. Pure.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::MicroTime};
use mainstay_api::{
    offer::OfferSpec,
    ports::{DEFAULT_AUTOMATIC_PORTS, DEFAULT_EXPLICIT_PORTS},
    resources::{CPU, MEMORY, PODS, ResourceList},
    wellknown::kubernetes::{ARCH, HOSTNAME, INSTANCE_TYPE, OS, ZONE},
};
use serde_json::{Value, json};

use crate::{faults::NodeBehavior, pod::Pod};

/// What every node of a fleet has.
#[derive(Clone, Debug)]
pub struct NodeTemplate {
    /// In thousandths.
    pub cpu: i64,
    /// In bytes.
    pub memory: i64,
    pub pods: i64,
    /// Nodes are spread over this many zones, in turn; 0 for none.
    pub zones: usize,
    pub labels: BTreeMap<String, String>,
    /// How long its offers are good for.
    pub ttl: Duration,
}

impl Default for NodeTemplate {
    fn default() -> Self {
        Self {
            cpu: 32_000,
            memory: 128 << 30,
            pods: 110,
            zones: 3,
            labels: BTreeMap::new(),
            ttl: Duration::from_secs(5),
        }
    }
}

impl NodeTemplate {
    fn resources(&self) -> NodeResources {
        NodeResources { cpu: self.cpu, memory: self.memory, pods: self.pods }
    }

    /// The Node object of the node with this number, ready from the start.
    pub fn node_object(&self, number: usize, name: &str, now: Timestamp) -> Value {
        let mut labels = json!({
            HOSTNAME: name, OS: "linux", ARCH: "amd64", INSTANCE_TYPE: "hollow",
        });
        if self.zones > 0 {
            labels[ZONE] = json!(format!("zone-{}", number % self.zones));
        }
        for (key, value) in &self.labels {
            labels[key] = json!(value);
        }
        let condition = |kind: &str, status: &str, reason: &str| {
            json!({
                "type": kind, "status": status, "reason": reason, "message": "a hollow node",
                "lastHeartbeatTime": now.strftime("%FT%TZ").to_string(),
                "lastTransitionTime": now.strftime("%FT%TZ").to_string(),
            })
        };
        let amounts = self.resources().quantities();
        json!({
            "kind": "Node", "apiVersion": "v1", "metadata": { "name": name, "labels": labels },
            "status": {
                "capacity": amounts, "allocatable": amounts,
                "addresses": [{ "type": "Hostname", "address": name }],
                "conditions": [
                    condition("MemoryPressure", "False", "KubeletHasSufficientMemory"),
                    condition("DiskPressure", "False", "KubeletHasNoDiskPressure"),
                    condition("PIDPressure", "False", "KubeletHasSufficientPID"),
                    condition("Ready", "True", "KubeletReady"),
                ],
            },
        })
    }
}

/// The amounts that a hollow node counts; others do not limit it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeResources {
    pub cpu: i64,
    pub memory: i64,
    pub pods: i64,
}

impl NodeResources {
    fn from_list(amounts: &ResourceList) -> Self {
        let amount = |resource: &str| amounts.get(resource).copied().unwrap_or(0);
        Self { cpu: amount(CPU), memory: amount(MEMORY), pods: amount(PODS) }
    }

    fn plus(self, other: Self) -> Self {
        Self {
            cpu: self.cpu.saturating_add(other.cpu),
            memory: self.memory.saturating_add(other.memory),
            pods: self.pods.saturating_add(other.pods),
        }
    }

    fn minus(self, other: Self) -> Self {
        Self {
            cpu: self.cpu.saturating_sub(other.cpu),
            memory: self.memory.saturating_sub(other.memory),
            pods: self.pods.saturating_sub(other.pods),
        }
    }

    /// The first resource of which less is free than requested.
    fn first_shortage(self, requested: Self) -> Option<(&'static str, i64, i64)> {
        let all = [
            (CPU, self.cpu, requested.cpu),
            (MEMORY, self.memory, requested.memory),
            (PODS, self.pods, requested.pods),
        ];
        all.into_iter().find(|(_, free, requested)| requested > free)
    }

    fn quantities(self) -> BTreeMap<String, Quantity> {
        let amounts =
            [(CPU, format!("{}m", self.cpu)), (MEMORY, self.memory.to_string()), (PODS, self.pods.to_string())];
        amounts.into_iter().map(|(name, amount)| (name.to_owned(), Quantity(amount))).collect()
    }
}

/// What a node does about a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodAction {
    Ignore,
    Start,
    Stop,
    Refuse { reason: String, message: String },
}

struct HeldPod {
    requests: NodeResources,
    stopping: bool,
}

pub struct HollowNode {
    template: Arc<NodeTemplate>,
    pub behavior: NodeBehavior,
    pods: HashMap<String, HeldPod>,
    used: NodeResources,
    /// The newest resourceVersion of its pods; the offer takes all up to it into account.
    newest_version: u64,
    /// Resources came back that no offer says yet.
    offer_changed: bool,
}

impl HollowNode {
    pub fn new(template: Arc<NodeTemplate>, behavior: NodeBehavior) -> Self {
        Self {
            template,
            behavior,
            pods: HashMap::new(),
            used: NodeResources::default(),
            newest_version: 0,
            offer_changed: false,
        }
    }

    pub fn pod_count(&self) -> usize {
        self.pods.len()
    }

    /// Applies the current state of a pod that is bound to this node.
    pub fn observe_pod(&mut self, pod: &Pod) -> PodAction {
        self.newest_version = self.newest_version.max(pod.version());
        if pod.is_finished() {
            self.release(pod.uid());
            return PodAction::Ignore;
        }
        if let Some(held) = self.pods.get_mut(pod.uid()) {
            let starts_stopping = pod.is_terminating() && !std::mem::replace(&mut held.stopping, pod.is_terminating());
            return if starts_stopping { PodAction::Stop } else { PodAction::Ignore };
        }
        if pod.is_terminating() {
            return PodAction::Stop; // it was never started here
        }
        let requests = NodeResources::from_list(&pod.requests());
        let is_new = pod.status.phase == "Pending" || pod.status.phase.is_empty();
        if is_new && let Some(action) = self.refusal(requests) {
            self.offer_changed = true; // the scheduler has already subtracted it
            return action;
        }
        self.used = self.used.plus(requests);
        self.pods.insert(pod.uid().to_owned(), HeldPod { requests, stopping: false });
        if is_new { PodAction::Start } else { PodAction::Ignore }
    }

    fn refusal(&self, requests: NodeResources) -> Option<PodAction> {
        if self.behavior == NodeBehavior::Refusing {
            let message = "the node takes no pods".to_owned();
            return Some(PodAction::Refuse { reason: "Unwilling".to_owned(), message });
        }
        let (resource, free, requested) = self.template.resources().minus(self.used).first_shortage(requests)?;
        let message = format!("{requested} {resource} requested, {free} free");
        Some(PodAction::Refuse { reason: format!("OutOf{resource}"), message })
    }

    /// A pod was deleted or is no longer bound to this node.
    pub fn forget_pod(&mut self, pod: &Pod) {
        self.newest_version = self.newest_version.max(pod.version());
        self.release(pod.uid());
    }

    fn release(&mut self, uid: &str) {
        if let Some(held) = self.pods.remove(uid) {
            self.used = self.used.minus(held.requests);
            self.offer_changed = true;
        }
    }

    /// Whether the offer has to be renewed early. A pod that was started does not count: the scheduler that bound it
    /// has subtracted its requests already.
    pub fn take_offer_change(&mut self) -> bool {
        std::mem::take(&mut self.offer_changed)
    }

    pub fn offer(&self, now: Timestamp) -> OfferSpec {
        let used = if self.behavior == NodeBehavior::Lying { NodeResources::default() } else { self.used };
        OfferSpec {
            free: self.template.resources().minus(used).quantities(),
            automatic_ports: vec![DEFAULT_AUTOMATIC_PORTS.to_owned()],
            explicit_ports: vec![DEFAULT_EXPLICIT_PORTS.to_owned()],
            pools: vec![],
            ttl_seconds: i32::try_from(self.template.ttl.as_secs()).unwrap_or(i32::MAX).max(1),
            renew_time: Some(MicroTime(now)),
            seen: self.newest_version.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(uid: &str, version: u64, cpu: &str) -> Pod {
        serde_json::from_value(json!({
            "metadata": { "namespace": "default", "name": uid, "uid": uid, "resourceVersion": version.to_string() },
            "spec": { "nodeName": "m", "containers": [{ "name": "c", "resources": { "requests": { "cpu": cpu } } }] },
            "status": { "phase": "Pending" },
        }))
        .unwrap()
    }

    fn terminating(mut pod: Pod) -> Pod {
        pod.metadata.deletion_timestamp =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::UNIX_EPOCH));
        pod
    }

    fn node(behavior: NodeBehavior) -> HollowNode {
        HollowNode::new(Arc::new(NodeTemplate { cpu: 1000, pods: 3, ..NodeTemplate::default() }), behavior)
    }

    fn free(node: &HollowNode, what: &str) -> String {
        node.offer(Timestamp::UNIX_EPOCH).free[what].0.clone()
    }

    #[test]
    fn a_pod_takes_its_requests_and_starts_once() {
        let mut node = node(NodeBehavior::Honest);
        assert_eq!(node.observe_pod(&pod("a", 5, "300m")), PodAction::Start);
        assert_eq!(node.observe_pod(&pod("a", 6, "300m")), PodAction::Ignore);
        assert_eq!((free(&node, "cpu"), free(&node, "pods")), ("700m".into(), "2".into()));
        assert_eq!(node.offer(Timestamp::UNIX_EPOCH).seen, "6");
        assert!(!node.take_offer_change(), "the scheduler has subtracted it");
    }

    #[test]
    fn a_pod_that_does_not_fit_is_refused_with_the_reason() {
        let mut node = node(NodeBehavior::Honest);
        node.observe_pod(&pod("a", 5, "800m"));
        let action = node.observe_pod(&pod("b", 6, "300m"));
        let message = "300 cpu requested, 200 free".to_owned();
        assert_eq!(action, PodAction::Refuse { reason: "OutOfcpu".to_owned(), message });
        assert_eq!(node.pod_count(), 1);
        assert!(node.take_offer_change());
    }

    #[test]
    fn resources_come_back_when_a_pod_is_deleted_and_the_offer_is_renewed_early() {
        let mut node = node(NodeBehavior::Honest);
        node.observe_pod(&pod("a", 5, "800m"));
        assert_eq!(node.observe_pod(&terminating(pod("a", 6, "800m"))), PodAction::Stop);
        assert_eq!(node.observe_pod(&terminating(pod("a", 7, "800m"))), PodAction::Ignore);
        assert_eq!(free(&node, "cpu"), "200m", "it holds its requests until it is deleted");
        node.forget_pod(&pod("a", 9, "800m"));
        assert_eq!(
            (free(&node, "cpu"), node.take_offer_change(), node.take_offer_change()),
            ("1000m".into(), true, false)
        );
        assert_eq!(node.offer(Timestamp::UNIX_EPOCH).seen, "9");
    }

    #[test]
    fn a_lying_node_offers_more_than_it_has_and_then_refuses() {
        let mut node = node(NodeBehavior::Lying);
        node.observe_pod(&pod("a", 5, "800m"));
        assert_eq!(free(&node, "cpu"), "1000m");
        assert!(matches!(node.observe_pod(&pod("b", 6, "800m")), PodAction::Refuse { .. }));
    }

    #[test]
    fn a_pod_that_already_runs_is_counted_and_not_started_again() {
        let mut node = node(NodeBehavior::Honest);
        let mut running = pod("a", 5, "800m");
        running.status.phase = "Running".to_owned();
        assert_eq!(node.observe_pod(&running), PodAction::Ignore);
        assert_eq!(free(&node, "cpu"), "200m");
    }
}
