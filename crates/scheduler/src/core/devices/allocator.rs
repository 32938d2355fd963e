//! The search for devices on one node: a choice for every request of all claims of a pod, or the reason why there is none.
//!
//! Requests are satisfied in their order, alternatives of a request as they are preferred, devices in the order of pools:
//! those without binding conditions first, so that a pod waits for a device only if there is no other.
//! Where a choice leads nowhere, the last one is taken back. The number of steps is bounded, for a node and for all nodes
//! together: claims of users must not hold up the scheduling of others. Devices of one request are interchangeable, so they
//! are only chosen in one order.

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    fmt,
    sync::Arc,
};

use k8s_openapi::api::resource::v1::DeviceTaintRuleSpec;

use super::{
    candidates::Candidates,
    capacity::{CapacitySum, ConsumedCapacity},
    constraint::Constraint,
    pool::{self, Device, DeviceId, Pool, PoolKey},
    requests::{Alternative, ClaimRequests, DeviceCount},
    result::{self, Allocation, ChosenDevice},
    usage::DeviceUsage,
};
use crate::core::view::NodeView;

/// The most devices of a claim (upstream's `AllocationResultsMaxSize`).
const MAX_DEVICES_PER_CLAIM: usize = 32;
const STEPS_PER_NODE: usize = 20_000;
const STEPS_PER_POD: usize = 500_000;

/// Why the claims of a pod cannot be allocated on a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AllocationFailure {
    /// A claim is allocated, to devices that this node cannot use.
    ClaimElsewhere {
        claim: String,
    },
    /// Too few devices are selected by a request, or free.
    TooFewDevices {
        claim: String,
        request: String,
        wanted: usize,
        selected: usize,
        free: usize,
    },
    /// There are enough devices, but no choice of them satisfies all requests and constraints.
    Unsatisfiable,
    /// The search was given up.
    TooComplex,
    TooManyDevices {
        claim: String,
    },
    /// A selector cannot be evaluated.
    Selector {
        claim: String,
        request: String,
        message: String,
    },
    /// All devices are asked for, and a pool is incomplete or invalid.
    Pool {
        claim: String,
        request: String,
        pool: String,
        message: String,
    },
}

impl AllocationFailure {
    /// As upstream's scheduler counts nodes by it.
    pub fn reason(&self) -> String {
        match self {
            Self::ClaimElsewhere { .. } => "resourceclaim not available on the node".to_owned(),
            Self::TooFewDevices { .. } | Self::Unsatisfiable | Self::TooComplex => {
                "cannot allocate all claims".to_owned()
            }
            Self::TooManyDevices { claim } => {
                format!("claim {claim}: exceeds the claim limit of {MAX_DEVICES_PER_CLAIM} devices")
            }
            Self::Selector { claim, request, message } => format!("claim {claim}, request {request}: {message}"),
            Self::Pool { claim, request, pool, message } => {
                format!("claim {claim}, request {request}: asks for all devices, but resource pool {pool} {message}")
            }
        }
    }
}

impl fmt::Display for AllocationFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ClaimElsewhere { claim } => write!(f, "the devices of claim {claim} could be used there"),
            Self::TooFewDevices { claim, request, wanted, selected, free } => {
                let devices = if *wanted == 1 { "a device were" } else { "devices were" };
                write!(f, "{devices} free for request {request} of claim {claim} ({wanted} wanted, ")?;
                write!(f, "{selected} selected, {free} of them free)")
            }
            Self::Unsatisfiable => {
                f.write_str("other devices were free: none of those satisfy all requests and constraints")
            }
            Self::TooComplex => f.write_str("its claims were simpler: the search for devices was given up"),
            Self::TooManyDevices { .. } | Self::Selector { .. } | Self::Pool { .. } => {
                write!(f, "its claims could be allocated: {}", self.reason())
            }
        }
    }
}

/// A request, and the devices for each of its alternatives.
struct Slot<'a> {
    claim: usize,
    alternatives: Vec<(&'a Alternative, Arc<Candidates>)>,
}

/// What allocation depends on beside the claims.
pub struct World<'a> {
    pub pools: &'a BTreeMap<PoolKey, Pool>,
    pub usage: &'a DeviceUsage,
    pub taint_rules: &'a BTreeMap<String, DeviceTaintRuleSpec>,
}

/// Allocates the claims of one pod on any node.
pub struct Allocator<'a> {
    world: World<'a>,
    claims: &'a [ClaimRequests],
    slots: Vec<Slot<'a>>,
    steps_left: Cell<usize>,
}

impl<'a> Allocator<'a> {
    pub fn new(
        world: World<'a>,
        claims: &'a [ClaimRequests],
        mut find: impl FnMut(&[String]) -> Arc<Candidates>,
    ) -> Self {
        let mut slots = Vec::new();
        for (claim, own) in claims.iter().enumerate() {
            for request in &own.requests {
                let alternatives = request.alternatives.iter();
                let alternatives = alternatives.map(|alternative| (alternative, find(&alternative.selectors)));
                slots.push(Slot { claim, alternatives: alternatives.collect() });
            }
        }
        Self { world, claims, slots, steps_left: Cell::new(STEPS_PER_POD) }
    }

    /// An allocation for each claim, in their order.
    pub fn allocate_on(&self, node: &NodeView) -> Result<Vec<Allocation>, AllocationFailure> {
        let devices = self.slots.iter().map(|slot| self.devices_on(node, slot)).collect::<Result<Vec<_>, _>>()?;
        let allowed = self.steps_left.get().min(STEPS_PER_NODE);
        let mut search = Search {
            allocator: self,
            devices,
            chosen: vec![],
            taken: HashSet::new(),
            shares: HashMap::new(),
            counters: HashMap::new(),
            constraints: self.claims.iter().map(|claim| claim.constraints.clone()).collect(),
            steps_left: allowed,
        };
        let found = search.satisfy_slot(0);
        self.steps_left.set(self.steps_left.get() - (allowed - search.steps_left));
        if !found {
            return Err(if search.steps_left == 0 {
                AllocationFailure::TooComplex
            } else {
                AllocationFailure::Unsatisfiable
            });
        }
        let of_claim = |(nth, claim): (usize, &ClaimRequests)| {
            let chosen: Vec<ChosenDevice<'_>> = search
                .chosen
                .iter()
                .filter(|(slot, _)| self.slots[*slot].claim == nth)
                .map(|(_, own)| own.clone())
                .collect();
            result::allocation(claim, &chosen, &node.name)
        };
        Ok(self.claims.iter().enumerate().map(of_claim).collect())
    }

    /// The devices of each alternative that are free on the node. Fails if no alternative can be satisfied.
    fn devices_on<'s>(
        &'s self,
        node: &NodeView,
        slot: &'s Slot<'a>,
    ) -> Result<Vec<Vec<&'s Device>>, AllocationFailure> {
        let claim = || self.claims[slot.claim].key.to_string();
        let mut failure = None;
        let mut of_alternatives = Vec::with_capacity(slot.alternatives.len());
        for (alternative, candidates) in &slot.alternatives {
            let request = || alternative.name.clone();
            let local = candidates.by_node.get(node.name.as_str()).into_iter().flatten();
            let shared = candidates.elsewhere.iter().filter(|candidate| candidate.device.place.includes(node));
            let (mut selected, mut free) = (0, Vec::new());
            for candidate in local.chain(shared) {
                if let Some(message) = &candidate.error {
                    let message = message.clone();
                    return Err(AllocationFailure::Selector { claim: claim(), request: request(), message });
                }
                selected += 1;
                if self.is_available(alternative, &candidate.device) {
                    free.push(&*candidate.device);
                }
            }
            free.sort_by_key(|device| device.is_considered_late);
            let (wanted, is_enough) = match alternative.count {
                DeviceCount::Exactly(count) => {
                    // A shared device may be chosen more than once.
                    (count, free.len() >= count || free.iter().any(|device| device.is_shared))
                }
                DeviceCount::All => {
                    if let Some((pool, message)) = self.unusable_pool(node) {
                        let pool = pool.to_string();
                        return Err(AllocationFailure::Pool { claim: claim(), request: request(), pool, message });
                    }
                    (selected.max(1), selected > 0 && free.len() == selected)
                }
            };
            if wanted > MAX_DEVICES_PER_CLAIM {
                failure.get_or_insert_with(|| AllocationFailure::TooManyDevices { claim: claim() });
                free.clear();
            } else if !is_enough {
                let free_count = free.len();
                failure.get_or_insert_with(|| AllocationFailure::TooFewDevices {
                    claim: claim(),
                    request: request(),
                    wanted,
                    selected,
                    free: free_count,
                });
                free.clear();
            }
            of_alternatives.push(free);
        }
        match failure {
            Some(failure) if of_alternatives.iter().all(Vec::is_empty) => Err(failure),
            _ => Ok(of_alternatives),
        }
    }

    /// Whether the device can be chosen as long as no other choice is made.
    fn is_available(&self, alternative: &Alternative, device: &Device) -> bool {
        let of_rules = self.world.taint_rules.values().filter(|rule| rule_selects(rule, &device.id));
        let of_rules: Vec<_> = of_rules.filter_map(|rule| pool::taint(&rule.taint)).collect();
        if device.taints.iter().chain(&of_rules).any(|taint| taint.effect.is_hard() && !alternative.tolerates(taint)) {
            return false;
        }
        if alternative.admin_access {
            return true;
        }
        let used = self.world.usage.get(&device.id);
        if device.is_shared {
            return used.is_none_or(|used| !used.is_exclusive()) && self.consumed(alternative, device).is_some();
        }
        let has_capacity = alternative.capacity.is_empty() || self.consumed(alternative, device).is_some();
        used.is_none() && has_capacity
    }

    fn consumed(&self, alternative: &Alternative, device: &Device) -> Option<ConsumedCapacity> {
        ConsumedCapacity::of_request(&device.id.driver, &device.capacity, &alternative.capacity)
    }

    /// A pool with devices of the node from which nothing can be allocated, and why.
    fn unusable_pool(&self, node: &NodeView) -> Option<(&'a PoolKey, String)> {
        self.world.pools.iter().find_map(|(key, pool)| {
            let why = match &pool.invalid {
                Some(why) => format!("is invalid: {why}"),
                None if !pool.is_complete => "is currently being updated".to_owned(),
                None => return None,
            };
            pool.devices.iter().any(|device| device.place.includes(node)).then_some((key, why))
        })
    }
}

/// An empty selector selects every device, a rule without one none.
fn rule_selects(rule: &DeviceTaintRuleSpec, device: &DeviceId) -> bool {
    let Some(selector) = &rule.device_selector else { return false };
    let parts =
        [(&selector.driver, &device.driver), (&selector.pool, &device.pool), (&selector.device, &device.device)];
    parts.iter().all(|(wanted, own)| wanted.as_deref().is_none_or(|wanted| *wanted == ***own))
}

/// What is used of a counter set, with the compatibility groups of the devices that use it.
#[derive(Clone, Debug, Default)]
struct CounterSetUse<'a> {
    used: BTreeMap<&'a str, i128>,
    groups: Vec<&'a BTreeSet<String>>,
}

struct Search<'s, 'a> {
    allocator: &'s Allocator<'a>,
    /// By slot and alternative: the devices to choose from.
    devices: Vec<Vec<Vec<&'s Device>>>,
    /// With the slot of each.
    chosen: Vec<(usize, ChosenDevice<'s>)>,
    taken: HashSet<&'s DeviceId>,
    shares: HashMap<&'s DeviceId, (usize, CapacitySum)>,
    counters: HashMap<(PoolKey, &'s str), CounterSetUse<'s>>,
    /// By claim.
    constraints: Vec<Vec<Constraint>>,
    steps_left: usize,
}

impl<'s> Search<'s, '_> {
    /// Satisfies the slots from this one on.
    fn satisfy_slot(&mut self, slot: usize) -> bool {
        let Some(own) = self.allocator.slots.get(slot) else { return true };
        (0..own.alternatives.len()).any(|nth| {
            let count = match own.alternatives[nth].0.count {
                DeviceCount::Exactly(count) => count,
                DeviceCount::All => self.devices[slot][nth].len(),
            };
            !self.devices[slot][nth].is_empty() && self.choose_devices(slot, nth, count, 0)
        })
    }

    /// Chooses as many devices for an alternative, beginning with this one, and satisfies the slots after it.
    fn choose_devices(&mut self, slot: usize, nth: usize, count: usize, from: usize) -> bool {
        if count == 0 {
            return self.satisfy_slot(slot + 1);
        }
        let needs_all = self.allocator.slots[slot].alternatives[nth].0.count == DeviceCount::All;
        for at in from..self.devices[slot][nth].len() {
            if self.steps_left == 0 {
                return false;
            }
            self.steps_left -= 1;
            let device = self.devices[slot][nth][at];
            if self.choose(slot, nth, device) {
                let next = if device.is_shared && !needs_all { at } else { at + 1 };
                if self.choose_devices(slot, nth, count - 1, next) {
                    return true;
                }
                self.take_back();
            }
            if needs_all {
                return false;
            }
        }
        false
    }

    /// Chooses a device unless that violates something; then nothing is changed.
    fn choose(&mut self, slot: usize, nth: usize, device: &'s Device) -> bool {
        let Slot { claim, alternatives } = &self.allocator.slots[slot];
        let (claim, alternative) = (*claim, alternatives[nth].0);
        let of_claim = self.chosen.iter().filter(|(slot, _)| self.allocator.slots[*slot].claim == claim).count();
        if of_claim >= MAX_DEVICES_PER_CLAIM {
            return false;
        }
        let mut consumed = None;
        if !alternative.admin_access {
            if device.is_shared {
                let Some(amount) = self.allocator.consumed(alternative, device) else { return false };
                let before = self.allocator.world.usage.get(&device.id).map(|used| &used.consumed);
                let here = self.shares.get(&device.id).map(|(_, sum)| sum);
                let used: Vec<&CapacitySum> = before.into_iter().chain(here).collect();
                if !amount.fits(&device.capacity, &used) {
                    return false;
                }
                consumed = Some(amount);
            } else if self.taken.contains(&device.id) {
                return false;
            }
            if self.is_first_use(device) && !self.counters_suffice(device) {
                return false;
            }
        }
        if !self.add_to_constraints(claim, alternative, device) {
            return false;
        }
        if !alternative.admin_access {
            if self.is_first_use(device) {
                self.count_device(device, 1);
            }
            match &consumed {
                Some(amount) => {
                    let share = self.shares.entry(&device.id).or_default();
                    share.0 += 1;
                    share.1.add(amount);
                }
                None => drop(self.taken.insert(&device.id)),
            }
        }
        self.chosen.push((slot, ChosenDevice { alternative, device, consumed }));
        true
    }

    /// Takes back the last choice.
    fn take_back(&mut self) {
        let Some((slot, ChosenDevice { alternative, device, consumed })) = self.chosen.pop() else { return };
        let claim = self.allocator.slots[slot].claim;
        self.constraints[claim].iter_mut().for_each(|constraint| constraint.remove_last(alternative));
        if alternative.admin_access {
            return;
        }
        match consumed {
            Some(amount) => {
                let share = self.shares.entry(&device.id).or_default();
                share.0 -= 1;
                share.1.subtract(&amount);
                if share.0 == 0 {
                    self.shares.remove(&device.id);
                }
            }
            None => drop(self.taken.remove(&device.id)),
        }
        if self.is_first_use(device) {
            self.count_device(device, -1);
        }
    }

    /// Whether no allocation and no choice so far uses the device.
    fn is_first_use(&self, device: &Device) -> bool {
        !self.allocator.world.usage.is_used(&device.id)
            && !self.taken.contains(&device.id)
            && !self.shares.contains_key(&device.id)
    }

    fn add_to_constraints(&mut self, claim: usize, alternative: &Alternative, device: &Device) -> bool {
        let constraints = &mut self.constraints[claim];
        let violated = (0..constraints.len()).find(|nth| !constraints[*nth].add(alternative, device));
        if let Some(violated) = violated {
            constraints[..violated].iter_mut().for_each(|constraint| constraint.remove_last(alternative));
        }
        violated.is_none()
    }

    /// Whether the counter sets of its pool have what the device takes, beside all other devices in use.
    fn counters_suffice(&mut self, device: &'s Device) -> bool {
        device.counter_uses.iter().all(|wanted| {
            let pool = pool_of(device);
            let Some(available) = self.allocator.world.pools.get(&pool).and_then(|own| own.counters.get(&wanted.set))
            else {
                return false;
            };
            let set = self.counter_set_use(pool, &wanted.set);
            let suffices = wanted.counters.iter().all(|(name, amount)| {
                let used = set.used.get(name.as_str()).copied().unwrap_or(0);
                available.get(name).is_some_and(|all| used + amount <= *all)
            });
            suffices && are_compatible(&wanted.compatibility_groups, &set.groups)
        })
    }

    fn count_device(&mut self, device: &'s Device, times: i128) {
        for own in &device.counter_uses {
            let set = self.counter_set_use(pool_of(device), &own.set);
            for (name, amount) in &own.counters {
                *set.used.entry(name).or_default() += times * amount;
            }
            if times > 0 {
                set.groups.push(&own.compatibility_groups);
            } else {
                set.groups.pop();
            }
        }
    }

    fn counter_set_use(&mut self, pool: PoolKey, set: &'s str) -> &mut CounterSetUse<'s> {
        let World { pools, usage, .. } = &self.allocator.world;
        self.counters.entry((pool, set)).or_insert_with_key(|(pool, set)| {
            let mut sum = CounterSetUse::default();
            let devices = pools.get(pool).into_iter().flat_map(|pool| &pool.devices);
            for own in devices.filter(|device| usage.is_used(&device.id)).flat_map(|device| &device.counter_uses) {
                if own.set == *set {
                    own.counters.iter().for_each(|(name, amount)| *sum.used.entry(name).or_default() += amount);
                    sum.groups.push(&own.compatibility_groups);
                }
            }
            sum
        })
    }
}

fn pool_of(device: &Device) -> PoolKey {
    PoolKey { driver: Arc::clone(&device.id.driver), pool: Arc::clone(&device.id.pool) }
}

/// Devices use a counter set together only if all share a group, or none has any.
fn are_compatible(own: &BTreeSet<String>, others: &[&BTreeSet<String>]) -> bool {
    if own.is_empty() {
        return others.iter().all(|other| other.is_empty());
    }
    others.is_empty() || own.iter().any(|group| others.iter().all(|other| other.contains(group)))
}
