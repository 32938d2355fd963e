//! Pods and nodes as far as placement looks at them.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{Container, Node, NodeSelectorTerm, Pod, PodSpec, Taint, Toleration},
    apimachinery::pkg::api::resource::Quantity,
};
use mainstay_api::quantity;

/// Namespace and name.
pub type Key = (String, String);

/// By resource; cpu in thousandths, everything else in whole units.
pub type Amounts = BTreeMap<String, i128>;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodView {
    pub uid: String,
    /// Empty while it is not placed.
    pub node: String,
    /// It holds nothing any more.
    pub ended: bool,
    /// Not ours to place: being deleted, gated, or another scheduler's.
    pub barred: bool,
    pub requests: Amounts,
    pub host_ports: Vec<HostPort>,
    pub selector: BTreeMap<String, String>,
    /// One of these has to match, if there are any.
    pub terms: Option<Vec<NodeSelectorTerm>>,
    pub tolerations: Vec<Toleration>,
    /// What its condition `PodScheduled` already says.
    pub complaint: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPort {
    pub protocol: String,
    pub ip: String,
    pub port: i32,
}

impl HostPort {
    pub fn clashes(&self, other: &Self) -> bool {
        let all = |ip: &str| ip.is_empty() || ip == "0.0.0.0" || ip == "::";
        self.port == other.port
            && self.protocol == other.protocol
            && (self.ip == other.ip || all(&self.ip) || all(&other.ip))
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeView {
    pub ready: bool,
    pub unschedulable: bool,
    pub labels: BTreeMap<String, String>,
    /// Those that keep pods away.
    pub taints: Vec<Taint>,
    pub allocatable: Amounts,
}

impl From<&Pod> for PodView {
    fn from(pod: &Pod) -> Self {
        let missing = PodSpec::default();
        let spec = pod.spec.as_ref().unwrap_or(&missing);
        let status = pod.status.as_ref();
        let phase = status.and_then(|status| status.phase.as_deref());
        let scheduler = spec.scheduler_name.as_deref().unwrap_or("default-scheduler");
        let gated = spec.scheduling_gates.as_ref().is_some_and(|gates| !gates.is_empty());
        let affinity = spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
        let required = affinity.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref());
        let conditions = status.iter().flat_map(|status| status.conditions.iter().flatten());
        let mut unplaced = conditions.filter(|c| c.type_ == "PodScheduled" && c.status == "False");
        Self {
            uid: pod.metadata.uid.clone().unwrap_or_default(),
            node: spec.node_name.clone().unwrap_or_default(),
            ended: matches!(phase, Some("Succeeded" | "Failed")),
            barred: gated || scheduler != "default-scheduler" || pod.metadata.deletion_timestamp.is_some(),
            requests: requests(spec),
            host_ports: spec.containers.iter().chain(spec.init_containers.iter().flatten()).flat_map(ports).collect(),
            selector: spec.node_selector.clone().unwrap_or_default(),
            terms: required.map(|required| required.node_selector_terms.clone()),
            tolerations: spec.tolerations.clone().unwrap_or_default(),
            complaint: unplaced.find_map(|condition| condition.message.clone()),
        }
    }
}

fn ports(container: &Container) -> impl Iterator<Item = HostPort> {
    container.ports.iter().flatten().filter_map(|port| {
        let number = port.host_port.filter(|number| *number > 0)?;
        let protocol = port.protocol.clone().unwrap_or_else(|| "TCP".to_owned());
        Some(HostPort { protocol, ip: port.host_ip.clone().unwrap_or_default(), port: number })
    })
}

impl From<&Node> for NodeView {
    fn from(node: &Node) -> Self {
        let status = node.status.as_ref();
        let conditions = status.iter().flat_map(|status| status.conditions.iter().flatten());
        let mut ready = conditions.filter(|condition| condition.type_ == "Ready");
        let spec = node.spec.as_ref();
        let taints = spec.iter().flat_map(|spec| spec.taints.iter().flatten());
        Self {
            ready: ready.any(|condition| condition.status == "True"),
            unschedulable: spec.is_some_and(|spec| spec.unschedulable == Some(true)),
            labels: node.metadata.labels.clone().unwrap_or_default(),
            taints: taints.filter(|taint| taint.effect != "PreferNoSchedule").cloned().collect(),
            allocatable: amounts(status.and_then(|status| status.allocatable.as_ref())),
        }
    }
}

fn amounts(list: Option<&BTreeMap<String, Quantity>>) -> Amounts {
    let number = |name: &str, text: &str| {
        let parsed = quantity::Quantity::parse(text).ok()?;
        Some(if name == "cpu" { parsed.as_milli() } else { parsed.value() })
    };
    let all = list.into_iter().flatten();
    all.filter_map(|(name, quantity)| Some((name.clone(), number(name, &quantity.0)?))).collect()
}

/// What a pod needs at once: all containers together with those that start before and stay, or the largest of
/// those that start before and go.
fn requests(spec: &PodSpec) -> Amounts {
    let own = |container: &Container| amounts(container.resources.as_ref().and_then(|r| r.requests.as_ref()));
    let (mut staying, mut most) = (Amounts::new(), Amounts::new());
    for container in spec.init_containers.iter().flatten() {
        let mut needed = own(container);
        if container.restart_policy.as_deref() == Some("Always") {
            add(&mut staying, &needed);
            needed = staying.clone();
        } else {
            add(&mut needed, &staying);
        }
        raise(&mut most, &needed);
    }
    let mut running = staying;
    spec.containers.iter().for_each(|container| add(&mut running, &own(container)));
    raise(&mut running, &most);
    if let Some(whole) = spec.resources.as_ref().and_then(|resources| resources.requests.as_ref()) {
        running.extend(amounts(Some(whole)));
    }
    add(&mut running, &amounts(spec.overhead.as_ref()));
    running.insert("pods".to_owned(), 1);
    running
}

pub fn add(to: &mut Amounts, more: &Amounts) {
    for (name, amount) in more {
        *to.entry(name.clone()).or_default() += amount;
    }
}

fn raise(to: &mut Amounts, least: &Amounts) {
    for (name, amount) in least {
        let entry = to.entry(name.clone()).or_default();
        *entry = (*entry).max(*amount);
    }
}
