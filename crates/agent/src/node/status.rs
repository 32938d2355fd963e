//! Computes the NodeStatus from facts and the latest observation. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{
        ContainerImage, DaemonEndpoint, NodeAddress, NodeCondition, NodeDaemonEndpoints, NodeStatus, NodeSystemInfo,
    },
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::Time},
};
use mainstay_api::pod_range_routes::{ROUTE_CONTROLLER_MESSAGE, route_broken};
use mainstay_api::resources::{ResourceList, parse_list};
use mainstay_runtime::{RuntimeVersion, images::Image};
use serde_json::{Value, json};

use super::{
    facts::{Facts, VERSION},
    measure,
    pressure::NodeMeasurement,
};
use crate::{route_check::RouteMeasurement, settings::Settings};

/// No more images than these are reported, the largest first.
const MOST_IMAGES: usize = 50;
const MOST_NAMES: usize = 5;
/// The condition of a node whose pods do not reach those of others; servers taint such a node.
const NETWORK_UNAVAILABLE: &str = "NetworkUnavailable";

/// What was seen of the machine, at one moment.
#[derive(Clone, Debug)]
pub struct MachineObservation {
    /// The runtime, or why it does not answer.
    pub runtime: Result<RuntimeVersion, String>,
    pub measured: NodeMeasurement,
    /// Conditions of pressure that hold.
    pub pressures: BTreeSet<&'static str>,
    pub images: Vec<Image>,
    /// Why pods had better be elsewhere.
    pub suspect: Option<String>,
    /// Why pods of other nodes cannot be reached.
    pub route_problem: Option<String>,
    /// What the check of the route to this node's pods measured, if it is made.
    pub route_check: Option<RouteMeasurement>,
}

pub fn status(
    settings: &Settings,
    facts: &Facts,
    observed: &MachineObservation,
    before: Option<&NodeStatus>,
    now: Timestamp,
) -> NodeStatus {
    let mut capacity = capacity(settings, facts, observed);
    capacity.extend(others_resources(before));
    NodeStatus {
        allocatable: Some(allocatable(settings, facts, observed, &capacity)),
        capacity: Some(capacity),
        addresses: Some(addresses(settings, facts)),
        conditions: Some(conditions(observed, before, now)),
        daemon_endpoints: Some(NodeDaemonEndpoints {
            kubelet_endpoint: Some(DaemonEndpoint { port: i32::from(settings.port) }),
        }),
        images: Some(images(&observed.images)),
        node_info: Some(node_info(facts, observed, before)),
        ..NodeStatus::default()
    }
}

fn kib(bytes: u64) -> Quantity {
    Quantity(format!("{}Ki", bytes / 1024))
}

fn capacity(settings: &Settings, facts: &Facts, observed: &MachineObservation) -> BTreeMap<String, Quantity> {
    let mut capacity = BTreeMap::from([
        ("cpu".to_owned(), Quantity(facts.cpus.to_string())),
        ("memory".to_owned(), kib(facts.memory)),
        ("ephemeral-storage".to_owned(), kib(observed.measured.disk.capacity)),
        ("pods".to_owned(), Quantity(settings.max_pods.to_string())),
    ]);
    capacity.extend(facts.hugepages.iter().map(|(size, bytes)| (format!("hugepages-{size}"), huge(*bytes))));
    capacity
}

/// Whether the agent alone says how much of a resource there is.
fn is_own_resource(name: &str) -> bool {
    matches!(name, "cpu" | "memory" | "ephemeral-storage" | "pods") || name.starts_with("hugepages-")
}

/// Extended resources, which an administrator or a device plugin set on the Node's capacity: all of them are allocatable.
fn others_resources(before: Option<&NodeStatus>) -> BTreeMap<String, Quantity> {
    let capacity = before.and_then(|status| status.capacity.clone()).unwrap_or_default();
    capacity.into_iter().filter(|(name, _)| !is_own_resource(name)).collect()
}

fn huge(bytes: u64) -> Quantity {
    Quantity(if bytes == 0 { "0".to_owned() } else { format!("{}Mi", bytes >> 20) })
}

/// What pods may ask for: all but what is reserved, and what has to stay free.
fn allocatable(
    settings: &Settings,
    facts: &Facts,
    observed: &MachineObservation,
    capacity: &BTreeMap<String, Quantity>,
) -> BTreeMap<String, Quantity> {
    let (reserved, limits) = (&settings.reserved, &settings.eviction);
    let millis = (facts.cpus * 1000).saturating_sub(reserved.cpu_millis);
    let cpu = if millis.is_multiple_of(1000) { (millis / 1000).to_string() } else { format!("{millis}m") };
    let retained = reserved.memory + facts.hugepages.values().sum::<u64>() + limits.memory_available;
    let disk = observed.measured.disk.capacity;
    let disk_kept = disk / 100 * u64::from(limits.disk_available) + reserved.ephemeral_storage;
    let mut allocatable = capacity.clone();
    allocatable.extend([
        ("cpu".to_owned(), Quantity(cpu)),
        ("memory".to_owned(), kib(facts.memory.saturating_sub(retained))),
        ("ephemeral-storage".to_owned(), Quantity(disk.saturating_sub(disk_kept).to_string())),
    ]);
    allocatable
}

/// What pods may ask for on this machine, as it is now, without what others added to its Node.
pub fn measured_allocatable(settings: &Settings) -> ResourceList {
    // Before the first start the directory is not there yet.
    let existing = settings.directory.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
    let (facts, disk) = (Facts::read(), measure::disk(existing).0);
    let observed = MachineObservation {
        runtime: Err(String::new()),
        measured: NodeMeasurement { disk, ..NodeMeasurement::default() },
        pressures: BTreeSet::new(),
        images: vec![],
        suspect: None,
        route_problem: None,
        route_check: None,
    };
    let allocatable = allocatable(settings, &facts, &observed, &capacity(settings, &facts, &observed));
    parse_list(allocatable.iter().map(|(name, quantity)| (name.as_str(), quantity.0.as_str())))
}

fn addresses(settings: &Settings, facts: &Facts) -> Vec<NodeAddress> {
    let address = |kind: &str, address: String| NodeAddress { type_: kind.to_owned(), address };
    let mut addresses: Vec<_> = settings.addresses.iter().map(|ip| address("InternalIP", ip.to_string())).collect();
    let hostname = if facts.hostname.is_empty() { &settings.node_name } else { &facts.hostname };
    addresses.push(address("Hostname", hostname.clone()));
    addresses
}

fn images(images: &[Image]) -> Vec<ContainerImage> {
    let mut images: Vec<&Image> = images.iter().filter(|image| image.size > 0).collect();
    images.sort_by(|a, b| b.size.cmp(&a.size).then_with(|| a.id.cmp(&b.id)));
    let named = images.into_iter().take(MOST_IMAGES).map(|image| {
        let names = image.digests.iter().chain(&image.tags).take(MOST_NAMES).cloned().collect();
        ContainerImage { names: Some(names), size_bytes: Some(image.size as i64) }
    });
    named.collect()
}

fn node_info(facts: &Facts, observed: &MachineObservation, before: Option<&NodeStatus>) -> NodeSystemInfo {
    let known = || before.and_then(|status| Some(status.node_info.as_ref()?.container_runtime_version.clone()));
    let runtime = match &observed.runtime {
        Ok(about) => format!("{}://{}", about.name, about.version),
        Err(_) => known().unwrap_or_default(),
    };
    NodeSystemInfo {
        architecture: facts.architecture.clone(),
        boot_id: facts.boot_id.clone(),
        container_runtime_version: runtime,
        kernel_version: facts.kernel.clone(),
        kube_proxy_version: String::new(),
        kubelet_version: VERSION.to_owned(),
        machine_id: facts.machine_id.clone(),
        operating_system: "linux".to_owned(),
        os_image: facts.os_image.clone(),
        system_uuid: facts.system_uuid.clone(),
        ..NodeSystemInfo::default()
    }
}

/// What a condition says: status, reason and message.
type ConditionContent = (bool, &'static str, String);

fn conditions(observed: &MachineObservation, before: Option<&NodeStatus>, now: Timestamp) -> Vec<NodeCondition> {
    let pressure = |kind: &'static str, yes: (&'static str, &str), no: (&'static str, &str)| {
        let held = observed.pressures.contains(kind);
        let (reason, message) = if held { yes } else { no };
        (kind, (held, reason, message.to_owned()))
    };
    let ready = match &observed.runtime {
        Ok(_) => (true, "KubeletReady", "kubelet is posting ready status".to_owned()),
        Err(why) => (false, "KubeletNotReady", format!("container runtime is down: {why}")),
    };
    let mut all: Vec<(&str, ConditionContent)> = vec![
        pressure(
            "MemoryPressure",
            ("KubeletHasInsufficientMemory", "kubelet has insufficient memory available"),
            ("KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
        ),
        pressure(
            "DiskPressure",
            ("KubeletHasDiskPressure", "kubelet has disk pressure"),
            ("KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
        ),
        pressure(
            "PIDPressure",
            ("KubeletHasInsufficientPID", "kubelet has insufficient PID available"),
            ("KubeletHasSufficientPID", "kubelet has sufficient PID available"),
        ),
    ];
    // What the route controller of a cloud reports is its own to clear.
    let had_problem = before.and_then(|status| condition(status, NETWORK_UNAVAILABLE)).is_some_and(|before| {
        !before.message.as_deref().is_some_and(|message| message.starts_with(ROUTE_CONTROLLER_MESSAGE))
    });
    match &observed.route_problem {
        Some(why) => all.push((NETWORK_UNAVAILABLE, (true, "NoRouteCreated", why.clone()))),
        None if had_problem => {
            let message = "routes to the pods of other nodes are there".to_owned();
            all.push((NETWORK_UNAVAILABLE, (false, "RouteCreated", message)));
        }
        None => {}
    }
    if let Some(RouteMeasurement { is_broken, reason, message }) = &observed.route_check {
        all.push((route_broken::TYPE, (*is_broken, *reason, message.clone())));
    }
    let was_suspect = before.is_some_and(|status| condition(status, "Suspect").is_some());
    match &observed.suspect {
        Some(why) => all.push(("Suspect", (true, "HealingFailed", why.clone()))),
        None if was_suspect => all.push(("Suspect", (false, "Healthy", "pods run as they should".to_owned()))),
        None => {}
    }
    all.push(("Ready", ready));
    all.into_iter().map(|(kind, words)| node_condition(kind, words, before, now)).collect()
}

fn node_condition(
    kind: &str,
    (held, reason, message): ConditionContent,
    before: Option<&NodeStatus>,
    now: Timestamp,
) -> NodeCondition {
    let status = if held { "True" } else { "False" };
    let since = before.and_then(|before| condition(before, kind)).filter(|before| before.status == status);
    NodeCondition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message),
        last_heartbeat_time: Some(Time(now)),
        last_transition_time: since.and_then(|since| since.last_transition_time.clone()).or(Some(Time(now))),
    }
}

pub fn condition<'a>(status: &'a NodeStatus, kind: &str) -> Option<&'a NodeCondition> {
    status.conditions.iter().flatten().find(|condition| condition.type_ == kind)
}

/// What becomes of the pods of an agent that stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodsAfterStop {
    KeepRunning,
    /// `mainstay down`.
    End,
}

/// The Node of a machine whose agent was stopped on purpose.
pub fn retired(before: &NodeStatus, pods: PodsAfterStop, now: Timestamp) -> NodeCondition {
    let message = match pods {
        PodsAfterStop::KeepRunning => "the agent was stopped; containers keep running",
        PodsAfterStop::End => "the agent was stopped, and its pods were ended",
    };
    let message = message.to_owned();
    node_condition("Ready", (false, "AgentStopped", message), Some(before), now)
}

/// Whether anything but the time is different; conditions of others do not count.
pub fn differs(before: &NodeStatus, after: &NodeStatus) -> bool {
    let mut before = before.clone();
    let own = |kind: &str| condition(after, kind).is_some();
    before.conditions.iter_mut().for_each(|all| all.retain(|condition| own(&condition.type_)));
    let plain = |status: &NodeStatus| {
        let mut status = status.clone();
        status.conditions.iter_mut().flatten().for_each(|condition| condition.last_heartbeat_time = None);
        status.conditions.iter_mut().for_each(|all| all.sort_by(|a, b| a.type_.cmp(&b.type_)));
        (status.volumes_attached, status.volumes_in_use, status.phase, status.config) = Default::default();
        (status.runtime_handlers, status.features) = Default::default();
        if status.images.as_ref().is_some_and(Vec::is_empty) {
            status.images = None;
        }
        status
    };
    plain(&before) != plain(after)
}

/// As a strategic merge patch: conditions of others stay, addresses and images are exactly ours.
pub fn patch(before: &NodeStatus, after: &NodeStatus) -> Value {
    let mut status = json!(after);
    if let Some(addresses) = status["addresses"].as_array_mut() {
        addresses.insert(0, json!({ "$patch": "replace" }));
    }
    for (field, old) in [("capacity", &before.capacity), ("allocatable", &before.allocatable)] {
        for name in old.iter().flat_map(BTreeMap::keys) {
            if status[field].get(name).is_none() {
                status[field][name] = Value::Null;
            }
        }
    }
    status
}

#[cfg(test)]
pub(super) mod tests;
