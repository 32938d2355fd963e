//! Converts requests and limits into cgroup settings and OOM scores.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{Container, Pod, PodSpec},
    apimachinery::pkg::api::resource::Quantity,
};
use mainstay_api::{
    groups::core::rules::pod::qos_class,
    pod::is_sidecar,
    resources::{self, InitContainer, ResourceList},
    wellknown::kubernetes::{MIRROR_POD, POD_SOURCE},
};
use mainstay_runtime::spec::Resources;

use super::machine::NodeFacts;

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

pub fn container(pod: &Pod, container: &Container, machine: &NodeFacts) -> Resources {
    let resources = container.resources.as_ref();
    let limits = amounts(resources.and_then(|resources| resources.limits.as_ref()));
    let requests = amounts(resources.and_then(|resources| resources.requests.as_ref()));
    let cpu = positive(&requests, "cpu").or(positive(&limits, "cpu")).unwrap_or_default();
    let quota = positive(&limits, "cpu").map(quota);
    Resources {
        cpu_shares: Some(shares(cpu)),
        cpu_quota: quota,
        cpu_period: quota.map(|_| PERIOD),
        memory_limit: positive(&limits, "memory"),
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
    // Resources of the whole pod stand before the sum of its containers.
    requests.extend(amounts(whole.and_then(|whole| whole.requests.as_ref())));
    limits.extend(amounts(whole.and_then(|whole| whole.limits.as_ref())));
    let overhead = amounts(spec.overhead.as_ref());
    resources::add(&mut requests, &overhead);
    let limited_overhead = overhead.into_iter().filter(|(name, _)| limits.contains_key(name)).collect();
    resources::add(&mut limits, &limited_overhead);
    // A pod is limited only if everything in it is.
    let limited = |name: &str| {
        whole.is_some_and(|whole| positive(&amounts(whole.limits.as_ref()), name).is_some())
            || spec.containers.iter().chain(spec.init_containers.iter().flatten()).all(|container| {
                container.resources.as_ref().is_some_and(|own| positive(&amounts(own.limits.as_ref()), name).is_some())
            })
    };
    let class = qos_class(spec);
    let best_effort = class == "BestEffort";
    let quota = positive(&limits, "cpu").filter(|_| !best_effort && limited("cpu")).map(quota);
    Resources {
        cpu_shares: Some(if best_effort {
            MIN_SHARES
        } else {
            shares(positive(&requests, "cpu").or(positive(&limits, "cpu")).unwrap_or_default())
        }),
        cpu_quota: quota,
        cpu_period: quota.map(|_| PERIOD),
        memory_limit: positive(&limits, "memory").filter(|_| !best_effort && limited("memory")),
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

/// What all containers together need at the worst moment.
fn total<'a>(
    spec: &'a PodSpec,
    pick: impl Fn(&'a Container) -> Option<&'a BTreeMap<String, Quantity>>,
) -> ResourceList {
    let init = spec.init_containers.iter().flatten().map(|container| match is_sidecar(container) {
        true => InitContainer::Sidecar(amounts(pick(container))),
        false => InitContainer::Ordinary(amounts(pick(container))),
    });
    resources::peak(init, spec.containers.iter().map(|container| amounts(pick(container))))
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
        let request = positive(&requests, "memory").unwrap_or_default();
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
    annotation(POD_SOURCE).is_some_and(|source| source != "api")
        || annotation(MIRROR_POD).is_some()
        || pod.spec.as_ref().and_then(|spec| spec.priority).is_some_and(|priority| priority >= 2_000_000_000)
}

fn shares(milli: i64) -> u64 {
    (milli.max(0) as u64).saturating_mul(1024).wrapping_div(1000).clamp(MIN_SHARES, MAX_SHARES)
}

fn quota(milli: i64) -> i64 {
    milli.saturating_mul(PERIOD as i64).wrapping_div(1000).max(MIN_QUOTA)
}

fn amounts(list: Option<&BTreeMap<String, Quantity>>) -> ResourceList {
    resources::parse_list(list.into_iter().flatten().map(|(name, quantity)| (name.as_str(), quantity.0.as_str())))
}

/// Zero is as good as not saying.
fn positive(amounts: &ResourceList, name: &str) -> Option<i64> {
    amounts.get(name).copied().filter(|amount| *amount > 0)
}

fn hugepages(limits: &ResourceList) -> BTreeMap<String, u64> {
    let sizes = limits
        .iter()
        .filter_map(|(name, amount)| Some((name.strip_prefix("hugepages-")?.to_owned(), u64::try_from(*amount).ok()?)));
    sizes.collect()
}
