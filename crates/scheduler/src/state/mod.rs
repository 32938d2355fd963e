//! The scheduler's state and decisions, without a clock, a socket or a thread.
//!
//! [`SchedulerState::apply`] takes events in; [`SchedulerState::schedule`] runs a scheduling cycle and returns the
//! [`Action`]s to carry out; their results come back as events. Time is an argument. Whoever drives the state decides
//! nothing, so that everything here can be tested without waiting.
//!
//! * [`pods`](self::pods), [`nodes`](self::nodes), [`devices`](self::devices): apply events about pods, about nodes, offers,
//!   budgets and namespaces, about ResourceClaims and the devices for them
//! * [`device_bindings`](self::device_bindings): pods that wait for their devices before they are bound
//! * [`schedule`](self::schedule): from verdicts to actions, and from their results to the cache
//! * [`queueing_hints`](self::queueing_hints): which unschedulable pods an event may make schedulable
//! * [`debug`](self::debug): the texts below `/debug`

mod debug;
mod device_bindings;
mod devices;
mod nodes;
mod pods;
#[cfg(test)]
mod properties;
mod queueing_hints;
mod schedule;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

use self::{
    device_bindings::WaitingBinding,
    queueing_hints::{ClusterChanges, EquivalenceClass},
};
use crate::{
    bind::{BindRequest, BindResult},
    claim_writer::WrittenClaim,
    core::{
        Cluster,
        decode::{NamespaceObject, NodeLease, OfferObject},
        devices::view::{ClaimKey, ClaimView as ResourceClaimView, DeviceClassView, DeviceTaintRuleView, SliceView},
        view::{BudgetView, Labels, NodeView, OfferView, PodKey, PodView},
    },
    event_recorder::PodEvent,
    metrics::{Metrics, PendingQueue, ReconcileKind},
    offers::OfferBoard,
    preemptor::Preemption,
    reconcile::{ReconcileStep, Reconciler},
    reflector::{Delta, Item, ObjectRef},
    scheduling_queue::SchedulingQueue,
    settings::Settings,
    status_writer::{StatusQueue, StatusUpdate},
    volumes::{ClaimView, StorageClassView, VolumeCache, VolumeView},
};

/// Most pods scheduled at a time.
const BATCH: usize = 2_000;
/// Most batches whose bindings are under way.
const MAX_BATCHES_IN_FLIGHT: usize = 4;
/// Most status writes under way.
const MAX_STATUS_WRITES: usize = 16;

/// The kinds that reflectors watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum WatchedKind {
    Pods,
    Nodes,
    Offers,
    Budgets,
    Namespaces,
    Claims,
    Volumes,
    StorageClasses,
    ResourceClaims,
    ResourceSlices,
    DeviceClasses,
    DeviceTaintRules,
}

/// Kinds that must be listed once before any pod is scheduled. Offers are not: a node without offer gets no pods.
const REQUIRED_KINDS: [WatchedKind; 7] = [
    WatchedKind::Pods,
    WatchedKind::Nodes,
    WatchedKind::Budgets,
    WatchedKind::Namespaces,
    WatchedKind::Claims,
    WatchedKind::Volumes,
    WatchedKind::StorageClasses,
];

#[expect(clippy::large_enum_variant, reason = "most events are of pods: a box would cost an allocation for each")]
pub enum SchedulerEvent {
    Pods(Delta<PodView>),
    Nodes(Delta<NodeView>),
    Offers(Delta<OfferObject>),
    /// Of nodes.
    Leases(Delta<NodeLease>),
    Budgets(Delta<BudgetView>),
    Namespaces(Delta<NamespaceObject>),
    Claims(Delta<ClaimView>),
    Volumes(Delta<VolumeView>),
    StorageClasses(Delta<StorageClassView>),
    ResourceClaims(Delta<ResourceClaimView>),
    ResourceSlices(Delta<SliceView>),
    DeviceClasses(Delta<DeviceClassView>),
    DeviceTaintRules(Delta<DeviceTaintRuleView>),
    /// `claims`: the ResourceClaims as they were written before.
    BindFinished {
        requests: Vec<BindRequest>,
        results: Vec<BindResult>,
        claims: Vec<WrittenClaim>,
        took: Duration,
    },
    /// A ResourceClaim as it is after it was deallocated.
    Deallocated {
        claim: WrittenClaim,
    },
    /// `done`: all victims are deleted or terminating.
    PreemptionFinished {
        preemption: Preemption,
        done: bool,
    },
    /// `done`: it is written, or need not be any more.
    StatusWritten {
        update: StatusUpdate,
        done: bool,
    },
}

/// Something for the executor to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    Bind(Vec<BindRequest>),
    Preempt(Preemption),
    /// Clears `nominatedNodeName`.
    ClearNomination {
        pod: PodKey,
        uid: String,
    },
    WriteStatus(StatusUpdate),
    RecordEvent(PodEvent),
    /// Takes the devices from a claim that this pod used, or its reservation alone if others use it: fenced by its version.
    Deallocate {
        claim: ClaimKey,
        version: u64,
        pod_uid: String,
    },
    /// An offer that has expired or is withdrawn, fenced by its version.
    DeleteOffer {
        node: String,
        version: u64,
    },
    /// All kinds are to be listed again.
    Relist {
        round: u64,
    },
}

/// A pod as last observed.
pub(crate) struct CachedPod {
    pub view: Arc<PodView>,
    /// A binding of ours that is under way, or done and not yet observed.
    pub assumed: Option<AssumedBinding>,
}

impl CachedPod {
    /// The node it is observed or assumed to be on.
    fn node(&self) -> Option<&str> {
        self.view.node.as_deref().or(self.assumed.as_ref().map(|assumed| assumed.node.as_str()))
    }
}

pub(crate) struct AssumedBinding {
    pub node: String,
    /// The version of the pod that the binding wrote, once it is known.
    pub version: Option<u64>,
}

pub struct SchedulerState {
    settings: Settings,
    pub(crate) metrics: Metrics,
    started: Instant,
    cluster: Cluster,
    queue: SchedulingQueue<PodKey, EquivalenceClass>,
    /// One pod of each class that waits, for queueing hints.
    class_samples: HashMap<EquivalenceClass, Arc<PodView>>,
    offers: OfferBoard<OfferView>,
    /// The version of each offer.
    offer_versions: HashMap<String, u64>,
    /// The version of each node's Lease.
    lease_versions: HashMap<String, u64>,
    status_queue: StatusQueue,
    volumes: VolumeCache,
    pods: HashMap<PodKey, CachedPod>,
    pods_by_uid: HashMap<String, PodKey>,
    /// Waiting pods that use PersistentVolumeClaims.
    pods_with_claims: HashSet<PodKey>,
    /// Waiting pods that request extended resources.
    pods_with_extended: HashSet<PodKey>,
    /// Pods that are bound once their devices are ready.
    waiting_bindings: HashMap<PodKey, WaitingBinding>,
    /// The nodes that waiting pods are nominated for.
    nominations: HashMap<PodKey, String>,
    nodes: HashSet<String>,
    /// By namespace and name.
    budgets: BTreeSet<(String, String)>,
    namespaces: HashMap<String, Labels>,
    reconciler: Reconciler,
    relist_round: u64,
    /// The relist round that each kind was last listed in.
    synced: HashMap<WatchedKind, u64>,
    changes: ClusterChanges,
    /// Pods whose failure was not reported because the scheduler had just started.
    unreported: Vec<PodKey>,
    /// When pods that ended, and that no offer shows to be gone, are aged next.
    age_ended_pods_at: Option<Instant>,
    /// Batches whose bindings are under way.
    batches: usize,
    status_writes: usize,
    /// Returned by the next [`SchedulerState::schedule`].
    actions: Vec<Action>,
}

impl SchedulerState {
    pub fn new(settings: Settings, metrics: Metrics, now: Instant) -> Self {
        Self {
            settings,
            metrics,
            started: now,
            cluster: Cluster::new(),
            queue: SchedulingQueue::new(settings.backoff, settings.seed),
            class_samples: HashMap::new(),
            offers: OfferBoard::new(settings.offer_times()),
            offer_versions: HashMap::new(),
            lease_versions: HashMap::new(),
            status_queue: StatusQueue::default(),
            volumes: VolumeCache::default(),
            pods: HashMap::new(),
            pods_by_uid: HashMap::new(),
            pods_with_claims: HashSet::new(),
            pods_with_extended: HashSet::new(),
            waiting_bindings: HashMap::new(),
            nominations: HashMap::new(),
            nodes: HashSet::new(),
            budgets: BTreeSet::new(),
            namespaces: HashMap::new(),
            reconciler: Reconciler::new(settings.reconcile, now),
            relist_round: 0,
            synced: HashMap::new(),
            changes: ClusterChanges::default(),
            unreported: Vec::new(),
            age_ended_pods_at: None,
            batches: 0,
            status_writes: 0,
            actions: Vec::new(),
        }
    }

    pub fn apply(&mut self, event: SchedulerEvent, now: Instant) {
        match event {
            SchedulerEvent::Pods(delta) => self.apply_pods(delta, now),
            SchedulerEvent::Nodes(delta) => self.apply_nodes(delta),
            SchedulerEvent::Offers(delta) => self.apply_offers(delta, now),
            SchedulerEvent::Leases(delta) => self.apply_leases(delta, now),
            SchedulerEvent::Budgets(delta) => self.apply_budgets(delta),
            SchedulerEvent::Namespaces(delta) => self.apply_namespaces(delta),
            SchedulerEvent::Claims(delta) => {
                self.update_volumes(WatchedKind::Claims, delta, |volumes, object, claim| {
                    insert_or_remove(&mut volumes.claims, (object.namespace, object.name), claim)
                });
                self.volumes_changed(now);
            }
            SchedulerEvent::Volumes(delta) => {
                self.update_volumes(WatchedKind::Volumes, delta, |volumes, object, volume| {
                    insert_or_remove(&mut volumes.volumes, object.name, volume)
                });
                self.volumes_changed(now);
            }
            SchedulerEvent::StorageClasses(delta) => {
                self.update_volumes(WatchedKind::StorageClasses, delta, |volumes, object, class| {
                    insert_or_remove(&mut volumes.classes, object.name, class)
                });
                self.volumes_changed(now);
            }
            SchedulerEvent::ResourceClaims(delta) => self.apply_resource_claims(delta),
            SchedulerEvent::ResourceSlices(delta) => self.apply_slices(delta),
            SchedulerEvent::DeviceClasses(delta) => self.apply_device_classes(delta),
            SchedulerEvent::DeviceTaintRules(delta) => self.apply_device_taint_rules(delta),
            SchedulerEvent::BindFinished { requests, results, claims, took } => {
                self.take_in_written_claims(claims);
                self.apply_bind_results(&requests, results, took, now);
            }
            SchedulerEvent::Deallocated { claim } => self.take_in_written_claims(vec![claim]),
            SchedulerEvent::PreemptionFinished { preemption, done } => self.apply_preemption_result(&preemption, done),
            SchedulerEvent::StatusWritten { update, done } => {
                self.status_writes = self.status_writes.saturating_sub(1);
                if !done {
                    self.status_queue.retry(&update);
                }
            }
        }
    }

    /// Runs a scheduling cycle at `now` and returns what is to be done.
    pub fn schedule(&mut self, now: Instant) -> Vec<Action> {
        self.expire_offers(now);
        self.age_ended_pods(now);
        if now >= self.started + self.settings.offer_ttl {
            for pod in std::mem::take(&mut self.unreported) {
                self.activate(&pod, now);
            }
        }
        self.resolve_waiting_bindings(now);
        self.update_extended_pods(now);
        self.apply_queueing_hints(now);
        if self.has_synced() {
            while self.batches < MAX_BATCHES_IN_FLIGHT && self.schedule_batch(now) {}
        }
        self.reconcile(now);
        let free = MAX_STATUS_WRITES.saturating_sub(self.status_writes);
        let updates = self.status_queue.pop_due(free, now);
        self.status_writes += updates.len();
        self.actions.extend(updates.into_iter().map(Action::WriteStatus));
        let unschedulable = self.queue.unschedulable_count();
        self.metrics.set_pending(PendingQueue::Unschedulable, unschedulable);
        self.metrics.set_pending(PendingQueue::Active, self.queue.len().saturating_sub(unschedulable));
        self.metrics.offers_viable.set(i64::try_from(self.offers.len()).unwrap_or(i64::MAX));
        std::mem::take(&mut self.actions)
    }

    /// Whether everything that a decision depends on has been listed.
    fn has_synced(&self) -> bool {
        REQUIRED_KINDS.iter().all(|kind| self.synced.contains_key(kind))
    }

    /// When to schedule next if there is no event until then. Pods that wait for a list that has not come are no reason: the
    /// list is an event.
    pub fn next_deadline(&self, now: Instant) -> Option<Instant> {
        let can_schedule = self.batches < MAX_BATCHES_IN_FLIGHT && self.has_synced();
        let queue = self.queue.next_deadline(now).filter(|_| can_schedule);
        let status_queue = self.status_queue.next_due().filter(|_| self.status_writes < MAX_STATUS_WRITES);
        let unreported = (!self.unreported.is_empty()).then(|| self.started + self.settings.offer_ttl);
        let ended = self.age_ended_pods_at;
        let devices = self.next_binding_deadline();
        [
            queue,
            status_queue,
            unreported,
            ended,
            devices,
            self.offers.next_expiry(),
            Some(self.reconciler.next_deadline()),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Asks for all objects to be listed again and compared with the cache.
    pub fn request_reconcile(&mut self, kind: ReconcileKind, now: Instant) {
        self.metrics.record_reconcile_requested(kind);
        if !self.reconciler.request(kind, now) {
            self.metrics.record_reconcile_cancelled(kind);
        }
    }

    /// Lets a pod be tried at once, unless a binding is under way.
    fn activate(&mut self, pod: &PodKey, now: Instant) {
        if self.pods.get(pod).is_some_and(|cached| cached.assumed.is_none()) {
            self.queue.activate(pod, now);
        }
    }

    /// A pod that was nominated may have to preempt others if the room of those that ended does not appear.
    fn age_ended_pods(&mut self, now: Instant) {
        if self.age_ended_pods_at.is_some_and(|at| at <= now) {
            for node in self.cluster.age_ended_pods() {
                self.changes.add_node(&node, true);
            }
            self.age_ended_pods_at = None;
        }
        if self.age_ended_pods_at.is_none() && self.cluster.has_ended_pods() {
            self.age_ended_pods_at = Some(now + self.settings.offer_ttl);
        }
    }

    fn reconcile(&mut self, now: Instant) {
        let is_listed = self.relist_round > 0
            && REQUIRED_KINDS.iter().all(|kind| self.synced.get(kind) >= Some(&self.relist_round));
        if is_listed && let Some((kind, took)) = self.reconciler.finish(now) {
            self.metrics.record_reconcile_executed(kind, took.as_secs_f64());
        }
        while let Some(step) = self.reconciler.next_step(now) {
            match step {
                ReconcileStep::Start(_) => {
                    self.relist_round += 1;
                    self.actions.push(Action::Relist { round: self.relist_round });
                }
                ReconcileStep::Abort(kind) => self.metrics.record_reconcile_cancelled(kind),
            }
        }
    }

    /// All objects of a kind were listed.
    fn mark_synced(&mut self, kind: WatchedKind, round: u64) {
        self.synced.insert(kind, round);
    }

    /// Applies an event about claims, volumes or storage classes.
    fn update_volumes<T>(
        &mut self,
        kind: WatchedKind,
        delta: Delta<T>,
        set: impl Fn(&mut VolumeCache, ObjectRef, Option<T>),
    ) {
        match delta {
            Delta::Replaced { items, round, .. } => {
                match kind {
                    WatchedKind::Claims => self.volumes.claims.clear(),
                    WatchedKind::Volumes => self.volumes.volumes.clear(),
                    _ => self.volumes.classes.clear(),
                }
                for Item { object, view } in items {
                    set(&mut self.volumes, object, Some(view));
                }
                self.mark_synced(kind, round);
            }
            Delta::Updated(Item { object, view }) => set(&mut self.volumes, object, Some(view)),
            Delta::Deleted(object) => set(&mut self.volumes, object, None),
        }
    }
}

fn insert_or_remove<K: Eq + std::hash::Hash, V>(map: &mut HashMap<K, V>, key: K, value: Option<V>) {
    match value {
        Some(value) => drop(map.insert(key, value)),
        None => drop(map.remove(&key)),
    }
}

/// Those of `known` that a list of all objects does not have.
fn missing_names<'a>(known: impl Iterator<Item = &'a String>, listed: &BTreeSet<&str>) -> Vec<String> {
    known.filter(|name| !listed.contains(name.as_str())).cloned().collect()
}
