//! The cluster as last heard of: machines with what they offer, and the pods on them.
//!
//! Kept up to date change by change; nothing is worked out twice. Names are numbers inside: a pod's rules are a
//! *class*, its namespace and labels a *profile*, and per topology domain there are tallies of the pods that some
//! rule speaks of. Pods may arrive before their machine and machines before their offer; only a machine with all
//! three parts known gets pods.

mod class;
mod counting;
mod intern;
mod log;
mod machine;
mod nominees;
mod tidy;
mod topology;

use std::{
    borrow::Borrow,
    collections::{BTreeMap, HashMap},
    hash::{Hash, Hasher},
    sync::Arc,
};

pub(super) use class::{Class, EXCLUDED, Fence, Spread};
pub(super) use log::{Log, Position};
pub(super) use machine::Machine;
pub(super) use topology::{Kind, Profile, Topology};

use super::{
    amounts::{CPU, MEMORY, PODS, STORAGE},
    index::Indexes,
    view::{BudgetView, GivenPort, Labels, NamespaceLabels, NodeView, OfferView, PodKey, PodView},
};
use class::ByPrint;

pub(super) type MachineId = usize;
pub(super) type PodId = usize;
pub(super) type ClassId = usize;
pub(super) type ProfileId = usize;
pub(super) type FenceId = usize;
pub(super) type SelId = usize;
pub(super) type TermId = usize;
pub(super) type TallyId = usize;
pub(super) type KeyId = usize;
pub(super) type ScopeId = usize;

/// Resources everybody knows come first.
pub(super) const KNOWN: [&str; 4] = [CPU, MEMORY, PODS, STORAGE];

#[derive(Debug, Default)]
pub struct Cluster {
    resources: Vec<String>,
    pub(super) machines: Vec<Machine>,
    by_name: HashMap<Arc<str>, MachineId>,
    pods: Vec<Option<Held>>,
    vacant: Vec<PodId>,
    by_key: HashMap<ByKey, PodId>,
    nominated: HashMap<PodKey, MachineId>,
    pub(super) classes: Vec<Class>,
    class_of: ByPrint<ClassId>,
    pub(super) fences: Vec<Fence>,
    pub(super) topology: Topology,
    namespaces: NamespaceLabels,
    pub(super) budgets: BTreeMap<(String, String), BudgetView>,
    pub(super) log: Log,
    pub(super) indexes: Indexes,
    /// Raised with every machine that is new.
    pub(super) roll: u64,
    /// The roll when machines were last counted.
    counted: u64,
}

/// A pod on a machine.
#[derive(Debug)]
pub(super) struct Held {
    pub view: Arc<PodView>,
    pub machine: MachineId,
    pub class: ClassId,
    pub profile: ProfileId,
    /// The version at which it was bound; `None` while that is only assumed.
    pub bound_at: Option<u64>,
    pub given: Vec<GivenPort>,
    /// Its requests are taken off what the machine offers; else the offer knows of it.
    pub taken_off: bool,
    /// Chosen to make room for another.
    pub chosen: bool,
}

impl Held {
    /// Nothing that matters here is different.
    fn is_as_before(&self, now: &PodView) -> bool {
        let was = &self.view;
        was.shape.same(&now.shape)
            && was.tags == now.tags
            && self.given == now.given
            && was.terminating == now.terminating
            && !now.ended
    }

    pub fn is_leaving(&self) -> bool {
        self.chosen || self.view.terminating
    }
}

#[derive(Debug)]
struct ByKey(Arc<PodView>);

impl PartialEq for ByKey {
    fn eq(&self, other: &Self) -> bool {
        self.0.key == other.0.key
    }
}

impl Eq for ByKey {}

impl Hash for ByKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.key.hash(state);
    }
}

impl Borrow<PodKey> for ByKey {
    fn borrow(&self) -> &PodKey {
        &self.0.key
    }
}

impl Cluster {
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether anything changed.
    pub fn put_machine(&mut self, node: NodeView) -> bool {
        let at = self.slot(&node.name);
        if self.machines[at].node.as_ref() == Some(&node) {
            return false;
        }
        let whole: Vec<(usize, i64)> = node.allocatable.iter().map(|(name, n)| (self.resource(name), *n)).collect();
        let whole = self.by_resource(&whole);
        self.describe(at, |machine| {
            machine.whole = whole;
            machine.node = Some(node);
        });
        true
    }

    pub fn remove_machine(&mut self, name: &str) {
        if let Some(at) = self.by_name.get(name).copied().filter(|at| self.machines[*at].node.is_some()) {
            self.describe(at, |machine| {
                machine.node = None;
                machine.whole.clear();
            });
        }
    }

    /// Whether there is anything different to be had.
    pub fn put_offer(&mut self, machine: &str, offer: OfferView) -> bool {
        let at = self.slot(machine);
        let known: Vec<(usize, i64)> = offer.free.iter().map(|(name, n)| (self.resource(name), *n)).collect();
        let free = self.by_resource(&known);
        let seen = offer.seen;
        let before = self.machines[at].offer.replace(offer);
        let had = std::mem::replace(&mut self.machines[at].free, free);
        for pod in self.machines[at].pods.clone() {
            let held = self.pods[pod].as_mut().expect("a machine lists only pods that are held");
            held.taken_off = held.bound_at.is_none_or(|version| version > seen);
            if held.taken_off {
                self.machines[at].take(&self.classes[held.class].requests);
            }
        }
        let now = &self.machines[at];
        let same_ports = |a: &OfferView, b: &OfferView| a.automatic == b.automatic && a.explicit == b.explicit;
        let changed =
            had != now.free || !before.as_ref().zip(now.offer.as_ref()).is_some_and(|(a, b)| same_ports(a, b));
        if changed {
            self.touch(at);
        }
        changed
    }

    pub fn remove_offer(&mut self, machine: &str) {
        if let Some(at) = self.by_name.get(machine).copied()
            && self.machines[at].offer.take().is_some()
        {
            self.machines[at].free.clear();
            self.touch(at);
        }
    }

    /// What is known of a pod now: on a machine, having room made for it somewhere, or neither.
    pub fn put_pod(&mut self, pod: Arc<PodView>) {
        let held = self.by_key.get(&pod.key).copied();
        let held = held.filter(|id| self.held(*id).view.uid == pod.uid || !self.drop_pod(*id));
        if let Some(id) = held {
            let was = self.held(id);
            let assumed = was.bound_at.is_none();
            if was.bound_at.is_some_and(|bound| pod.version < bound) {
                return;
            }
            if pod.node.is_none() && assumed && !pod.ended && !pod.terminating {
                return; // Seen as it was before it was placed.
            }
            let (bound_at, chosen) = (was.bound_at, was.chosen);
            let stays = pod.node.as_deref() == Some(&*self.machines[was.machine].name);
            if stays && bound_at.is_some() && was.is_as_before(&pod) {
                return self.look_anew(id, pod);
            }
            self.drop_pod(id);
            if let Some(node) = pod.node.clone().filter(|_| !pod.ended) {
                let bound_at = bound_at.filter(|_| stays).unwrap_or(pod.version);
                let given = pod.given.clone();
                let id = self.hold(pod, &node, Some(bound_at), given);
                self.set_chosen(id, chosen && stays);
            }
            return;
        }
        if pod.ended {
            self.unnominate(&pod.key);
        } else if let Some(node) = pod.node.clone() {
            self.unnominate(&pod.key);
            let (version, given) = (pod.version, pod.given.clone());
            self.hold(pod, &node, Some(version), given);
        } else if let Some(node) = pod.nominated.clone().filter(|_| !pod.terminating) {
            self.nominate(&pod, &node);
        }
    }

    pub fn remove_pod(&mut self, key: &PodKey) {
        self.unnominate(key);
        self.forget(key);
    }

    /// The pod is taken to be on the machine until the API says so or [`Cluster::forget`] is called.
    pub fn assume(&mut self, pod: Arc<PodView>, machine: &str, ports: Vec<GivenPort>) {
        if let Some(id) = self.by_key.get(&pod.key).copied() {
            self.drop_pod(id);
        }
        self.unnominate(&pod.key);
        self.hold(pod, machine, None, ports);
    }

    /// The API bound it, at this version.
    pub fn confirm(&mut self, key: &PodKey, version: u64) {
        let Some(id) = self.by_key.get(key).copied() else { return };
        let held = self.pods[id].as_mut().expect("a key leads to a pod that is held");
        if held.bound_at.is_some() {
            return;
        }
        held.bound_at = Some(version);
        let at = held.machine;
        let known = self.machines[at].offer.as_ref().is_some_and(|offer| version <= offer.seen);
        if held.taken_off && known {
            held.taken_off = false;
            self.machines[at].give_back(&self.classes[held.class].requests);
            self.touch(at);
        }
    }

    /// The pod is not on its machine after all.
    pub fn forget(&mut self, key: &PodKey) {
        if let Some(id) = self.by_key.get(key).copied() {
            self.drop_pod(id);
        }
    }

    /// A pod chosen to make room could not be made to leave.
    pub fn stays(&mut self, key: &PodKey) {
        if let Some(id) = self.by_key.get(key).copied() {
            self.set_chosen(id, false);
        }
    }

    pub fn put_budget(&mut self, budget: BudgetView) {
        self.budgets.insert((budget.namespace.clone(), budget.name.clone()), budget);
    }

    pub fn remove_budget(&mut self, namespace: &str, name: &str) {
        self.budgets.remove(&(namespace.to_owned(), name.to_owned()));
    }

    /// Rules may choose pods by their namespace's labels.
    pub fn put_namespace(&mut self, name: &str, labels: Labels) {
        if self.namespaces.get(name) != Some(&labels) {
            self.namespaces.insert(name.to_owned(), labels);
            self.namespace_changed(name);
        }
    }

    pub fn remove_namespace(&mut self, name: &str) {
        if self.namespaces.remove(name).is_some() {
            self.namespace_changed(name);
        }
    }

    /// Machines whose Node is known.
    pub fn machines(&self) -> impl Iterator<Item = &NodeView> {
        self.machines.iter().filter_map(|machine| machine.node.as_ref())
    }

    /// What a machine offers, as last heard.
    pub fn offer(&self, machine: &str) -> Option<&OfferView> {
        self.machines[*self.by_name.get(machine)?].offer.as_ref()
    }

    /// What is free on a machine now, by resource.
    pub fn room(&self, machine: &str) -> BTreeMap<&str, i64> {
        let Some(at) = self.by_name.get(machine) else { return BTreeMap::new() };
        let amounts = self.machines[*at].free.iter().copied();
        self.resources.iter().map(String::as_str).zip(amounts).collect()
    }

    /// Pods taken to be on a machine.
    pub fn pods_on(&self, machine: &str) -> impl Iterator<Item = &PodView> {
        let at = self.by_name.get(machine);
        let ids = at.into_iter().flat_map(|at| &self.machines[*at].pods);
        ids.map(|id| &*self.held(*id).view)
    }

    /// The version at which a pod was bound to where it is; `None` while that is only assumed.
    pub fn bound_at(&self, key: &PodKey) -> Option<u64> {
        self.held(*self.by_key.get(key)?).bound_at
    }

    /// Where a pod is taken to be.
    pub fn placed(&self, key: &PodKey) -> Option<&str> {
        self.by_key.get(key).map(|id| &*self.machines[self.held(*id).machine].name)
    }
}

/// What the decision and the parts of the cluster use.
impl Cluster {
    pub(super) fn held(&self, id: PodId) -> &Held {
        self.pods[id].as_ref().expect("an id in use leads to a pod that is held")
    }

    pub(super) fn resource_name(&self, resource: usize) -> &str {
        &self.resources[resource]
    }

    pub(super) fn find_machine(&self, name: &str) -> Option<MachineId> {
        self.by_name.get(name).copied()
    }

    pub(super) fn touch(&mut self, at: MachineId) {
        self.log.push(at, self.machines.len());
    }

    /// Puts the pod on the machine and counts it everywhere.
    pub(super) fn place(
        &mut self,
        pod: Arc<PodView>,
        (class, profile): (ClassId, ProfileId),
        machine: MachineId,
        bound_at: Option<u64>,
        given: Vec<GivenPort>,
    ) -> PodId {
        let id = self.vacant.pop().unwrap_or_else(|| {
            self.pods.push(None);
            self.pods.len() - 1
        });
        self.by_key.insert(ByKey(Arc::clone(&pod)), id);
        let at = &mut self.machines[machine];
        let seen = at.offer.as_ref().map(|offer| offer.seen);
        let taken_off = bound_at.is_none_or(|version| seen.is_none_or(|seen| version > seen));
        if taken_off && at.offer.is_some() {
            at.take(&self.classes[class].requests);
        }
        at.hold_ports(id, &self.classes[class].shape.ports, &given);
        at.pods.push(id);
        self.classes[class].held += 1;
        self.pods[id] = Some(Held { view: pod, machine, class, profile, bound_at, given, taken_off, chosen: false });
        self.count(id, 1);
        self.touch(machine);
        id
    }

    /// The same pod in the same place, with other things said of it.
    fn look_anew(&mut self, id: PodId, pod: Arc<PodView>) {
        self.by_key.remove(&pod.key);
        self.by_key.insert(ByKey(Arc::clone(&pod)), id);
        if let Some(held) = &mut self.pods[id] {
            held.view = pod;
        }
    }

    fn hold(&mut self, pod: Arc<PodView>, machine: &str, bound_at: Option<u64>, given: Vec<GivenPort>) -> PodId {
        let at = self.slot(machine);
        let kind = (self.class(&pod.shape), self.profile(&pod.tags));
        self.place(pod, kind, at, bound_at, given)
    }

    /// Always true, to be used where a filter drops.
    fn drop_pod(&mut self, id: PodId) -> bool {
        self.count(id, -1);
        let held = self.pods[id].take().expect("only what is held is dropped");
        let at = &mut self.machines[held.machine];
        if held.taken_off && at.offer.is_some() {
            at.give_back(&self.classes[held.class].requests);
        }
        at.release_ports(id, &self.classes[held.class].shape.ports, &held.given);
        at.pods.retain(|pod| *pod != id);
        self.classes[held.class].held -= 1;
        self.by_key.remove(&held.view.key);
        self.vacant.push(id);
        self.touch(held.machine);
        true
    }

    pub(super) fn set_chosen(&mut self, id: PodId, chosen: bool) {
        if self.held(id).chosen != chosen {
            self.count(id, -1);
            if let Some(held) = &mut self.pods[id] {
                held.chosen = chosen;
            }
            self.count(id, 1);
            self.touch(self.held(id).machine);
        }
    }

    /// Where a pod is, and with which automatic ports.
    pub(super) fn placement(&self, key: &PodKey) -> Option<(Arc<str>, Vec<GivenPort>)> {
        let held = self.held(*self.by_key.get(key)?);
        Some((Arc::clone(&self.machines[held.machine].name), held.given.clone()))
    }

    fn slot(&mut self, name: &str) -> MachineId {
        if let Some(at) = self.by_name.get(name) {
            return *at;
        }
        let (at, machine) = (self.machines.len(), Machine::new(name));
        self.by_name.insert(Arc::clone(&machine.name), at);
        self.machines.push(machine);
        self.fences.iter_mut().for_each(|fence| fence.fixed.push(EXCLUDED));
        self.topology.add_machine();
        self.roll += 1;
        at
    }

    pub(super) fn resource(&mut self, name: &str) -> usize {
        if self.resources.is_empty() {
            self.resources = KNOWN.map(str::to_owned).to_vec();
        }
        let known = self.resources.iter().position(|known| known == name);
        known.unwrap_or_else(|| {
            self.resources.push(name.to_owned());
            self.resources.len() - 1
        })
    }

    fn by_resource(&self, amounts: &[(usize, i64)]) -> Vec<i64> {
        let mut all = vec![0; self.resources.len()];
        amounts.iter().for_each(|(resource, amount)| all[*resource] = *amount);
        all
    }
}
