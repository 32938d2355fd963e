//! Which pod has to go when the machine runs out of something, or a pod of what it was given. Pure but for the
//! list of those that have to.

use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

use k8s_openapi::api::core::v1::{Container, Pod};
use mainstay_api::quantity::Quantity;
use mainstay_runtime::PodUid;
use parking_lot::RwLock;

use super::pressure::{Shortage, Signal};
use crate::{pods::Source, wake::Wake};

/// From here on pods belong to the cluster itself.
const SYSTEM_CRITICAL: i32 = 2_000_000_000;

/// Why a pod has to end: it becomes `Failed` with this reason and message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Eviction {
    pub reason: Cow<'static, str>,
    pub message: String,
}

/// The pods that have to end. Shared with those that end them.
#[derive(Clone)]
pub struct Evictions {
    list: Arc<RwLock<BTreeMap<PodUid, Eviction>>>,
    wake: Wake,
}

impl Evictions {
    pub fn new(wake: Wake) -> Self {
        Self { list: Arc::default(), wake }
    }

    pub fn evicted(&self, uid: &PodUid) -> Option<Eviction> {
        self.list.read().get(uid).cloned()
    }

    /// `true` the first time.
    pub fn evict(&self, uid: &PodUid, message: String) -> bool {
        let mut list = self.list.write();
        let new = !list.contains_key(uid);
        if new {
            list.insert(uid.clone(), Eviction { reason: "Evicted".into(), message });
        }
        drop(list);
        self.wake.pod(uid);
        new
    }

    /// A pod that may not be here, whatever the machine has left: `OutOfcpu`.
    pub fn reject(&self, uid: &PodUid, reason: String, message: String) {
        let rejection = Eviction { reason: reason.into(), message };
        self.list.write().entry(uid.clone()).or_insert(rejection);
        self.wake.pod(uid);
    }

    /// The pods that are still there.
    pub fn retain(&self, there: impl Fn(&PodUid) -> bool) {
        self.list.write().retain(|uid, _| there(uid));
    }
}

/// A pod as far as eviction is concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    pub uid: PodUid,
    pub priority: i32,
    /// Never evicted.
    pub critical: bool,
    pub containers: Vec<Share>,
    /// Disk used by volumes of the pod, in bytes: name, used, limit.
    pub volumes: Vec<(String, u64, Option<u64>)>,
    /// Disk used by `/etc/hosts` and the like, which all containers of the pod can write, in bytes.
    pub etc_files: u64,
}

/// What one container uses, and what it asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Share {
    pub name: String,
    pub memory: u64,
    pub memory_request: u64,
    /// Writable layer, logs and termination messages.
    pub disk: u64,
    pub disk_request: u64,
    pub disk_limit: Option<u64>,
    pub pids: u64,
}

impl Candidate {
    /// From what the pod asks for; what it uses is filled in by others.
    pub fn new(pod: &Pod, source: Source) -> Option<Self> {
        let spec = pod.spec.as_ref()?;
        let priority = spec.priority.unwrap_or(0);
        let mirror = pod
            .metadata
            .annotations
            .iter()
            .flatten()
            .any(|(key, _)| key == mainstay_api::wellknown::kubernetes::MIRROR_POD);
        let all = spec.init_containers.iter().flatten().chain(&spec.containers);
        Some(Self {
            uid: PodUid(pod.metadata.uid.clone()?),
            priority,
            critical: source == Source::File || mirror || priority >= SYSTEM_CRITICAL,
            containers: all.map(asked).collect(),
            volumes: Vec::new(),
            etc_files: 0,
        })
    }

    fn uses(&self, signal: Signal) -> (u64, u64) {
        let sum = |of: &dyn Fn(&Share) -> u64| self.containers.iter().map(of).sum::<u64>();
        match signal {
            Signal::Memory => (sum(&|c| c.memory), sum(&|c| c.memory_request)),
            Signal::Disk | Signal::Inodes => {
                let volumes = self.volumes.iter().map(|v| v.1).sum::<u64>();
                (sum(&|c| c.disk) + volumes + self.etc_files, sum(&|c| c.disk_request))
            }
            Signal::Pids => (sum(&|c| c.pids), 0),
        }
    }
}

fn asked(container: &Container) -> Share {
    let of = |limits: bool, name: &str| {
        let resources = container.resources.as_ref()?;
        let list = if limits { &resources.limits } else { &resources.requests };
        bytes(&list.as_ref()?.get(name)?.0)
    };
    Share {
        name: container.name.clone(),
        memory_request: of(false, "memory").unwrap_or(0),
        disk_request: of(false, "ephemeral-storage").unwrap_or(0),
        disk_limit: of(true, "ephemeral-storage"),
        ..Share::default()
    }
}

pub fn bytes(quantity: &str) -> Option<u64> {
    u64::try_from(Quantity::parse(quantity).ok()?.value()).ok()
}

/// The pod that has to go first: one that uses more than it asked for, of the lowest priority, with the most beyond
/// what it asked for. The uid makes the order total.
pub fn first(signal: Signal, candidates: &[Candidate]) -> Option<&Candidate> {
    let pods = candidates.iter().filter(|candidate| !candidate.critical);
    pods.max_by_key(|candidate| {
        let (used, asked) = candidate.uses(signal);
        let exceeds = used > asked && signal != Signal::Pids;
        let beyond = i128::from(used) - i128::from(asked);
        (exceeds, std::cmp::Reverse(candidate.priority), beyond, &candidate.uid)
    })
}

/// Upstream's words for it.
pub fn message(shortage: &Shortage, pod: &Candidate) -> String {
    let resource = shortage.signal.resource();
    let shown = |amount: u64| match shortage.signal {
        Signal::Memory | Signal::Disk => shown(amount),
        Signal::Inodes | Signal::Pids => amount.to_string(),
    };
    let mut text = format!(
        "The node was low on resource: {resource}. Threshold quantity: {}, available: {}. ",
        shown(shortage.threshold),
        shown(shortage.available)
    );
    for container in &pod.containers {
        let (used, asked) = match shortage.signal {
            Signal::Memory => (container.memory, container.memory_request),
            Signal::Disk => (container.disk, container.disk_request),
            Signal::Inodes | Signal::Pids => continue,
        };
        if used > asked {
            text.push_str(&format!(
                "Container {} was using {}, request is {}, has larger consumption of {resource}. ",
                container.name,
                shown(used),
                shown(asked)
            ));
        }
    }
    text
}

/// Why a pod that uses more disk than it may has to go.
pub fn exceeds_own_limit(pod: &Candidate) -> Option<String> {
    if pod.critical {
        return None;
    }
    for (name, used, limit) in &pod.volumes {
        if limit.is_some_and(|limit| *used > limit) {
            let limit = shown(limit.unwrap_or(0));
            return Some(format!("Usage of EmptyDir volume {name:?} exceeds the limit {limit:?}. "));
        }
    }
    let limits = pod.containers.iter().map(|c| c.disk_limit);
    if let Some(total) = limits.sum::<Option<u64>>().filter(|_| !pod.containers.is_empty()) {
        let (used, _) = pod.uses(Signal::Disk);
        if used > total {
            let total = shown(total);
            return Some(format!("Pod ephemeral local storage usage exceeds the total limit of containers {total}. "));
        }
    }
    pod.containers.iter().find_map(|c| {
        let limit = c.disk_limit.filter(|limit| c.disk > *limit)?;
        Some(format!("Container {} exceeded its local ephemeral storage limit {:?}. ", c.name, shown(limit)))
    })
}

/// Bytes as a canonical quantity.
fn shown(bytes: u64) -> String {
    for (shift, suffix) in [(40, "Ti"), (30, "Gi"), (20, "Mi"), (10, "Ki")] {
        if bytes > 0 && bytes.is_multiple_of(1 << shift) {
            return format!("{}{suffix}", bytes >> shift);
        }
    }
    bytes.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(uid: &str, priority: i32, memory: u64, request: u64) -> Candidate {
        let share = Share { name: "c".into(), memory, memory_request: request, ..Share::default() };
        let (critical, volumes) = (false, vec![]);
        Candidate { uid: PodUid(uid.into()), priority, critical, containers: vec![share], volumes, etc_files: 0 }
    }

    fn victim(pods: &[Candidate]) -> &str {
        &first(Signal::Memory, pods).unwrap().uid.0
    }

    #[test]
    fn who_uses_more_than_asked_for_goes_before_whoever_does_not() {
        assert_eq!(victim(&[pod("modest", 0, 900, 1000), pod("greedy", 1000, 11, 10)]), "greedy");
    }

    #[test]
    fn among_equals_the_lowest_priority_goes_then_the_largest_excess() {
        assert_eq!(victim(&[pod("high", 10, 500, 0), pod("low", -5, 20, 0)]), "low");
        assert_eq!(victim(&[pod("small", 0, 20, 0), pod("large", 0, 100, 50), pod("none", 0, 0, 0)]), "large");
    }

    #[test]
    fn critical_pods_stay() {
        let critical = Candidate { critical: true, ..pod("c", 0, 1000, 0) };
        assert_eq!(first(Signal::Memory, std::slice::from_ref(&critical)), None);
        assert_eq!(victim(&[critical, pod("d", 0, 1, 1)]), "d");
    }

    #[test]
    fn the_message_names_what_was_short_and_who_used_it() {
        let short = Shortage { signal: Signal::Memory, threshold: 100 << 20, available: 30 << 20 };
        assert_eq!(
            message(&short, &pod("p", 0, 2 << 30, 0)),
            "The node was low on resource: memory. Threshold quantity: 100Mi, available: 30Mi. \
             Container c was using 2Gi, request is 0, has larger consumption of memory. "
        );
    }

    #[test]
    fn a_pod_has_to_keep_to_its_own_limits() {
        let mut own = pod("p", 0, 0, 0);
        own.volumes = vec![("cache".into(), 11 << 20, Some(10 << 20))];
        assert_eq!(exceeds_own_limit(&own).unwrap(), "Usage of EmptyDir volume \"cache\" exceeds the limit \"10Mi\". ");
        own.volumes[0].1 = 1;
        assert_eq!(exceeds_own_limit(&own), None);
        (own.containers[0].disk, own.containers[0].disk_limit) = (3 << 20, Some(2 << 20));
        assert_eq!(
            exceeds_own_limit(&own).unwrap(),
            "Pod ephemeral local storage usage exceeds the total limit of containers 2Mi. "
        );
        own.containers.push(Share::default());
        assert_eq!(
            exceeds_own_limit(&own).unwrap(),
            "Container c exceeded its local ephemeral storage limit \"2Mi\". ",
            "without a limit for all, each counts alone"
        );
    }

    #[test]
    fn files_that_containers_share_beside_their_volumes_count_as_disk_of_the_pod() {
        let mut own = pod("p", 0, 0, 0);
        own.containers[0].disk_limit = Some(2 << 20);
        own.etc_files = 3 << 20;
        assert_eq!(
            exceeds_own_limit(&own).unwrap(),
            "Pod ephemeral local storage usage exceeds the total limit of containers 2Mi. "
        );
        let idle = pod("q", 0, 0, 0);
        assert_eq!(first(Signal::Disk, &[own.clone(), idle]), Some(&own), "and under pressure");
    }

    #[tokio::test]
    async fn an_evicted_pod_is_woken_and_remembered_while_it_is_there() {
        let wake = Wake::default();
        let (evictions, uid) = (Evictions::new(wake.clone()), PodUid("u".into()));
        assert!(evictions.evict(&uid, "m".into()) && !evictions.evict(&uid, "n".into()));
        assert!(wake.due().await.contains(&uid));
        assert_eq!(evictions.evicted(&uid).unwrap().message, "m");
        evictions.retain(|_| false);
        assert_eq!(evictions.evicted(&uid), None);
    }
}
