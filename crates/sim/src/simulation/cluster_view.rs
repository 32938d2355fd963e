//! What is in the store, as far as readers of a trace and invariants need it, fed by every commit.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use serde_json::Value;
use tokio::time::Instant;

use super::{store::Commit, trace::Trace, workload};

/// The reason of pods that were given up because their node is lost.
const NODE_LOST: &str = "NodeLost";
const UNREACHABLE_NO_EXECUTE: &str = "node.kubernetes.io/unreachable:NoExecute";

pub struct ClusterView {
    trace: Arc<Trace>,
    pub pods: BTreeMap<String, PodView>,
    pub nodes: BTreeMap<String, NodeView>,
    /// When nodes became ready again.
    ready_since: BTreeMap<String, Instant>,
    /// Of Services: their address, and whose it is.
    addresses: BTreeMap<String, String>,
    /// Revision and name of everything that was ever written.
    written: BTreeSet<(u64, String)>,
    /// The last commit that was no heartbeat, by revision and time.
    pub last_change: Instant,
    pub commits: u64,
    /// Of the Deployment.
    replicas: Option<u64>,
    /// Pods of the Deployment that were evicted and whose place nobody has taken yet.
    evicted: usize,
    /// Since when no server is there.
    pub outage_since: Option<Instant>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodView {
    pub uid: String,
    pub node: String,
    pub phase: String,
    pub is_ready: bool,
    pub is_terminating: bool,
    /// Its eviction was granted.
    pub is_evicted: bool,
    pub app: String,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeView {
    pub ready: String,
    pub taints: Vec<String>,
    pub range: String,
}

impl ClusterView {
    pub fn new(trace: Arc<Trace>) -> Self {
        let (pods, nodes, ready_since, addresses, written) = Default::default();
        Self {
            trace,
            pods,
            nodes,
            ready_since,
            addresses,
            written,
            last_change: Instant::now(),
            commits: 0,
            replicas: None,
            evicted: 0,
            outage_since: None,
        }
    }

    /// All servers have been down for so long that everybody has noticed.
    pub fn outage_is_settled(&self) -> bool {
        self.outage_since.is_some_and(|since| since.elapsed() > Duration::from_secs(9))
    }

    /// A pod of the Deployment that served is disrupted on purpose.
    pub fn record_disruption(&mut self) {
        self.evicted += 1;
        if self.evicted > workload::WEB_DISRUPTIONS {
            let (evicted, allowed) = (self.evicted, workload::WEB_DISRUPTIONS);
            self.trace
                .violate(format_args!("{evicted} pods of web are evicted at a time, its budget allows {allowed}"));
        }
    }

    /// A write was acknowledged with this version: it has to be in the store.
    pub fn check_acknowledged(&self, name: &str, version: u64) {
        if !self.written.contains(&(version, name.to_owned())) {
            self.trace.violate(format_args!("version {version} of {name} was acknowledged and is not in the store"));
        }
    }

    /// Whether a node has been ready for so long that everybody knows.
    pub fn is_well(&self, node: &str) -> bool {
        let settled = Duration::from_secs(15);
        self.nodes.get(node).is_some_and(|node| node.ready == "True")
            && self.ready_since.get(node).is_none_or(|since| since.elapsed() > settled)
    }

    pub fn observe(&mut self, commit: &Commit<'_>) {
        self.commits += 1;
        let last = commit.key.rsplit('/').next().unwrap_or_default();
        self.written.insert((commit.revision, last.to_owned()));
        self.trace.absorb(commit.key.as_bytes());
        self.trace.absorb(commit.value.unwrap_or_default());
        let mut parts = commit.key.trim_start_matches("/registry/").splitn(2, '/');
        let (kind, name) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let value: Value = match (kind, commit.value) {
            ("pods" | "minions" | "nodes" | "services" | "deployments", Some(bytes)) => {
                serde_json::from_slice(bytes).unwrap_or_default()
            }
            _ => Value::Null,
        };
        if !matches!(kind, "leases" | "events" | "mainstay.dev" | "offers") {
            self.last_change = Instant::now();
        }
        match kind {
            "pods" => self.observe_pod(commit, name, &value),
            "minions" | "nodes" => self.observe_node(commit, name, &value),
            "services" => self.observe_service(name, &value),
            "deployments" => {
                let replicas = value["spec"]["replicas"].as_u64();
                // Another size is another budget.
                if std::mem::replace(&mut self.replicas, replicas) != replicas {
                    self.evicted = 0;
                }
            }
            _ => {}
        }
    }

    fn observe_pod(&mut self, commit: &Commit<'_>, name: &str, value: &Value) {
        let server = commit.server;
        if commit.value.is_none() {
            self.pods.remove(name);
            return self.trace.record(format_args!("store: pod {name} removed (by server {server})"));
        }
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let conditions = || value["status"]["conditions"].as_array().into_iter().flatten();
        let pod = PodView {
            uid: text(&value["metadata"]["uid"]),
            node: text(&value["spec"]["nodeName"]),
            phase: text(&value["status"]["phase"]),
            is_ready: conditions().any(|condition| condition["type"] == "Ready" && condition["status"] == "True"),
            is_evicted: conditions().any(|condition| condition["reason"] == "EvictionByEvictionAPI"),
            is_terminating: !value["metadata"]["deletionTimestamp"].is_null(),
            app: text(&value["metadata"]["labels"]["app"]),
        };
        let is_given_up = pod.phase == "Failed" && value["status"]["reason"] == NODE_LOST;
        if is_given_up && self.pods.get(name).is_none_or(|before| before.phase != pod.phase) {
            self.check_given_up(name, &pod.node);
        }
        let before = self.pods.insert(name.to_owned(), pod.clone());
        let was_ready = before.as_ref().is_some_and(|before| before.uid == pod.uid && before.is_ready);
        if pod.is_ready && !was_ready && pod.app == workload::WEB {
            self.evicted = self.evicted.saturating_sub(1);
        }
        // Somebody who deletes it without asking is not bound by the budget.
        let was_terminating = before.as_ref().is_some_and(|before| before.uid == pod.uid && before.is_terminating);
        if pod.is_evicted && pod.is_terminating && !was_terminating && was_ready && pod.app == workload::WEB {
            self.record_disruption();
        }
        if before.as_ref() != Some(&pod) {
            let PodView { uid, node, phase, is_ready, is_terminating, .. } = pod;
            let uid = uid.get(..8).unwrap_or_default();
            let ready = if is_ready { " ready" } else { "" };
            let ending = if is_terminating { " terminating" } else { "" };
            self.trace.record(format_args!(
                "store: pod {name} ({uid}) {phase}{ready}{ending} on {node:?} (by server {server})"
            ));
        }
    }

    /// Pods are given up while their node is tainted; who takes the taint away does so after that. So it was decided by a leader whose
    /// term is over if there is none.
    fn check_given_up(&self, pod: &str, node: &str) {
        let is_lost = |view: &NodeView| view.taints.iter().any(|taint| taint == UNREACHABLE_NO_EXECUTE);
        if self.nodes.get(node).is_some_and(|view| !is_lost(view)) {
            self.trace.violate(format_args!("pod {pod} is given up as lost with {node}, which is back"));
        }
    }

    fn observe_node(&mut self, commit: &Commit<'_>, name: &str, value: &Value) {
        if commit.value.is_none() {
            self.nodes.remove(name);
            return;
        }
        let mut conditions = value["status"]["conditions"].as_array().into_iter().flatten();
        let ready = conditions.find(|condition| condition["type"] == "Ready");
        let taint = |taint: &Value| {
            let text = |key: &str| taint[key].as_str().unwrap_or_default().to_owned();
            format!("{}:{}", text("key"), text("effect"))
        };
        let node = NodeView {
            ready: ready.and_then(|ready| ready["status"].as_str()).unwrap_or_default().to_owned(),
            taints: value["spec"]["taints"].as_array().into_iter().flatten().map(taint).collect(),
            range: value["spec"]["podCIDR"].as_str().unwrap_or_default().to_owned(),
        };
        let taken = self.nodes.iter().find(|(other, view)| *other != name && view.range == node.range);
        if let Some((other, _)) = taken.filter(|_| !node.range.is_empty()) {
            self.trace.violate(format_args!("{} is the pod range of {other} and of {name}", node.range));
        }
        if self.nodes.get(name).is_none_or(|before| before.ready != node.ready) {
            self.ready_since.insert(name.to_owned(), Instant::now());
        }
        if self.nodes.get(name) != Some(&node) {
            self.trace.record(format_args!("store: node {name} ready={} taints={:?}", node.ready, node.taints));
        }
        self.nodes.insert(name.to_owned(), node);
    }

    fn observe_service(&mut self, name: &str, value: &Value) {
        self.addresses.retain(|_, owner| owner != name);
        let address = value["spec"]["clusterIP"].as_str().unwrap_or_default();
        if address.is_empty() || address == "None" {
            return;
        }
        if let Some(other) = self.addresses.insert(address.to_owned(), name.to_owned()) {
            self.trace.violate(format_args!("{address} is the address of Service {other} and of {name}"));
        }
    }
}
