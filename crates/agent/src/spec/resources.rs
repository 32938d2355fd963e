//! Requests and limits as the kernel counts them.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{Container, Pod, PodSpec},
    apimachinery::pkg::api::resource::Quantity,
};
use mainstay_api::{groups::core::rules::pod::qos_class, quantity::Quantity as Amount, validation::resources as rules};
use mainstay_runtime::spec::Resources;

use super::{container::is_sidecar, machine::Machine};

/// Processes and threads of one pod. Kubernetes sets no limit unless told to; then one pod that forks
/// without end takes its machine along.
pub const PIDS: i64 = 4096;

const PERIOD: u64 = 100_000;
const MIN_QUOTA: i64 = 1000;
const MIN_SHARES: u64 = 2;
const MAX_SHARES: u64 = 262_144;
/// Of containers whose memory is all requested, and of what the machine itself needs.
const GUARANTEED: i32 = -997;
const BEST_EFFORT: i32 = 1000;

/// Resource names to amounts.
type Amounts = BTreeMap<String, Amount>;

pub fn container(pod: &Pod, container: &Container, machine: &Machine) -> Resources {
    let resources = container.resources.as_ref();
    let limits = amounts(resources.and_then(|resources| resources.limits.as_ref()));
    let requests = amounts(resources.and_then(|resources| resources.requests.as_ref()));
    let cpu = milli(&requests, "cpu").or(milli(&limits, "cpu")).unwrap_or_default();
    let quota = milli(&limits, "cpu").map(quota);
    Resources {
        cpu_shares: Some(shares(cpu)),
        cpu_quota: quota,
        cpu_period: quota.map(|_| PERIOD),
        memory_limit: bytes(&limits, "memory"),
        pids_limit: Some(PIDS),
        oom_score_adj: Some(oom_score_adj(pod, container, machine.memory)),
        hugepages: hugepages(&limits),
    }
}

/// Limits of the pod as a whole.
pub fn pod(pod: &Pod) -> Resources {
    let nothing = PodSpec::default();
    let spec = pod.spec.as_ref().unwrap_or(&nothing);
    let whole = spec.resources.as_ref();
    let mut requests = total(spec, |container| container.resources.as_ref()?.requests.as_ref());
    let mut limits = total(spec, |container| container.resources.as_ref()?.limits.as_ref());
    // What is said of the whole pod stands before what its containers add up to.
    requests.extend(amounts(whole.and_then(|whole| whole.requests.as_ref())));
    limits.extend(amounts(whole.and_then(|whole| whole.limits.as_ref())));
    let overhead = amounts(spec.overhead.as_ref());
    for (name, more) in &overhead {
        add(&mut requests, name, *more);
        if limits.contains_key(name) {
            add(&mut limits, name, *more);
        }
    }
    // A pod is limited only if everything in it is.
    let limited = |name: &str| {
        whole.is_some_and(|whole| milli(&amounts(whole.limits.as_ref()), name).is_some())
            || spec.containers.iter().chain(spec.init_containers.iter().flatten()).all(|container| {
                container.resources.as_ref().is_some_and(|own| milli(&amounts(own.limits.as_ref()), name).is_some())
            })
    };
    let class = qos_class(spec);
    let best_effort = class == "BestEffort";
    let quota = milli(&limits, "cpu").filter(|_| !best_effort && limited("cpu")).map(quota);
    Resources {
        cpu_shares: Some(if best_effort {
            MIN_SHARES
        } else {
            shares(milli(&requests, "cpu").or(milli(&limits, "cpu")).unwrap_or_default())
        }),
        cpu_quota: quota,
        cpu_period: quota.map(|_| PERIOD),
        memory_limit: bytes(&limits, "memory").filter(|_| !best_effort && limited("memory")),
        pids_limit: Some(PIDS),
        oom_score_adj: None,
        hugepages: hugepages(&limits),
    }
}

/// Below the runtime's own parent.
pub fn cgroup(pod: &Pod) -> String {
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    match pod.spec.as_ref().map(qos_class) {
        Some("Guaranteed") => format!("pod{uid}"),
        Some("Burstable") => format!("burstable/pod{uid}"),
        _ => format!("besteffort/pod{uid}"),
    }
}

/// What all containers together need at the worst moment: the running ones, or an init container beside
/// the sidecars that were started before it.
fn total<'a>(spec: &'a PodSpec, pick: impl Fn(&'a Container) -> Option<&'a BTreeMap<String, Quantity>>) -> Amounts {
    let mut running = Amounts::new();
    for container in &spec.containers {
        add_all(&mut running, &amounts(pick(container)));
    }
    let (mut sidecars, mut peak) = (Amounts::new(), Amounts::new());
    for container in spec.init_containers.iter().flatten() {
        let own = amounts(pick(container));
        if is_sidecar(container) {
            add_all(&mut sidecars, &own);
            add_all(&mut running, &own);
            raise(&mut peak, &sidecars);
        } else {
            let mut now = sidecars.clone();
            add_all(&mut now, &own);
            raise(&mut peak, &now);
        }
    }
    raise(&mut running, &peak);
    running
}

/// As the kernel is to choose when memory runs out: who uses more than it asked for goes first.
fn oom_score_adj(pod: &Pod, container: &Container, capacity: u64) -> i32 {
    let nothing = PodSpec::default();
    let spec = pod.spec.as_ref().unwrap_or(&nothing);
    if is_critical(pod) {
        return GUARANTEED;
    }
    let score = |container: &Container| {
        let requests = amounts(container.resources.as_ref().and_then(|own| own.requests.as_ref()));
        let request = bytes(&requests, "memory").unwrap_or_default();
        let share = if capacity == 0 { 0 } else { i128::from(request) * 1000 / i128::from(capacity) };
        (1000 - share).clamp(i128::from(1000 + GUARANTEED), i128::from(BEST_EFFORT - 1)) as i32
    };
    match qos_class(spec) {
        "Guaranteed" => GUARANTEED,
        "BestEffort" => BEST_EFFORT,
        // A sidecar does not go before those it serves.
        _ if spec.init_containers.iter().flatten().any(|init| init.name == container.name && is_sidecar(init)) => {
            spec.containers.iter().map(score).chain([score(container)]).min().unwrap_or_default()
        }
        _ => score(container),
    }
}

/// Static pods, and those without which a machine is of no use.
fn is_critical(pod: &Pod) -> bool {
    let annotation = |name: &str| pod.metadata.annotations.as_ref().and_then(|all| all.get(name));
    annotation("kubernetes.io/config.source").is_some_and(|source| source != "api")
        || annotation("kubernetes.io/config.mirror").is_some()
        || pod.spec.as_ref().and_then(|spec| spec.priority).is_some_and(|priority| priority >= 2_000_000_000)
}

fn shares(milli: i64) -> u64 {
    (milli.max(0) as u64).saturating_mul(1024).wrapping_div(1000).clamp(MIN_SHARES, MAX_SHARES)
}

fn quota(milli: i64) -> i64 {
    milli.saturating_mul(PERIOD as i64).wrapping_div(1000).max(MIN_QUOTA)
}

fn amounts(list: Option<&BTreeMap<String, Quantity>>) -> Amounts {
    list.into_iter().flatten().map(|(name, quantity)| (name.clone(), rules::amount(quantity))).collect()
}

/// Zero is as good as not saying.
fn milli(amounts: &Amounts, name: &str) -> Option<i64> {
    amounts.get(name).and_then(|amount| i64::try_from(amount.as_milli()).ok()).filter(|milli| *milli > 0)
}

fn bytes(amounts: &Amounts, name: &str) -> Option<i64> {
    amounts.get(name).and_then(|amount| i64::try_from(amount.value()).ok()).filter(|bytes| *bytes > 0)
}

fn hugepages(limits: &Amounts) -> BTreeMap<String, u64> {
    limits
        .iter()
        .filter_map(|(name, amount)| {
            Some((name.strip_prefix("hugepages-")?.to_owned(), u64::try_from(amount.value()).ok()?))
        })
        .collect()
}

fn add(to: &mut Amounts, name: &str, more: Amount) {
    let amount = to.get(name).copied().unwrap_or_default() + more;
    to.insert(name.to_owned(), amount);
}

fn add_all(to: &mut Amounts, more: &Amounts) {
    for (name, amount) in more {
        add(to, name, *amount);
    }
}

fn raise(to: &mut Amounts, least: &Amounts) {
    for (name, amount) in least {
        let entry = to.entry(name.clone()).or_default();
        *entry = (*entry).max(*amount);
    }
}
