//! The cache of everything that allocation depends on, and the allocations that are assumed until the API shows them.
//!
//! A claim that was allocated for a pod is assumed to be from then on, so that no other pod gets its devices. The
//! assumption ends when the API shows the claim allocated, or when all pods that it was made for are known not to be bound. If it
//! is not known whether the API took an allocation, the assumption stays, and the next attempt writes the same again.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use k8s_openapi::api::resource::v1::{
    DeviceClaim, DeviceClassSpec, DeviceTaintRuleSpec, ResourceClaimConsumerReference, ResourceSliceSpec,
};

use super::{
    allocator::{Allocator, World},
    binding::BindingProgress,
    candidates::CandidateCache,
    extended::{CLASS_PREFIX, ExtendedClaim},
    pod_claims::{ClaimBinding, PodClaims},
    pool::{Pool, PoolKey},
    requests::ClaimRequests,
    result::Allocation,
    selectors::SelectorCache,
    usage::DeviceUsage,
    view::{ClaimKey, ClaimView},
};
use crate::core::view::{PodClaim, PodView};

/// The most pods that use a claim at once.
const MAX_CONSUMERS: usize = 256;

#[derive(Debug)]
struct AssumedAllocation {
    allocation: Allocation,
    /// Uids of the pods that it was made for.
    pods: BTreeSet<String>,
}

#[derive(Debug, Default)]
pub struct DeviceCatalog {
    pools: BTreeMap<PoolKey, Pool>,
    /// The pool of each slice.
    slices: HashMap<String, PoolKey>,
    classes: BTreeMap<String, DeviceClassSpec>,
    /// When each class was created, in microseconds since 1970.
    class_ages: BTreeMap<String, i64>,
    taint_rules: BTreeMap<String, DeviceTaintRuleSpec>,
    claims: HashMap<ClaimKey, ClaimView>,
    assumed: HashMap<ClaimKey, AssumedAllocation>,
    usage: DeviceUsage,
    selectors: SelectorCache,
    candidates: CandidateCache,
    /// All kinds have been listed.
    pub is_listed: bool,
}

impl DeviceCatalog {
    pub fn update_slice(&mut self, name: &str, version: u64, spec: ResourceSliceSpec) {
        let key = PoolKey::from_slice(&spec);
        if let Some(known) = self.slices.get(name) {
            if *known == key && self.pools.get(&key).and_then(|pool| pool.slice_version(name)) == Some(version) {
                return;
            }
            if *known != key {
                self.remove_slice(name);
            }
        }
        self.candidates.clear();
        self.slices.insert(name.to_owned(), key.clone());
        self.pools.entry(key.clone()).or_default().update_slice(&key, name, version, spec);
    }

    pub fn remove_slice(&mut self, name: &str) {
        let Some(key) = self.slices.remove(name) else { return };
        self.candidates.clear();
        if let Some(pool) = self.pools.get_mut(&key) {
            pool.remove_slice(&key, name);
            if pool.is_empty() {
                self.pools.remove(&key);
            }
        }
    }

    pub fn update_class(&mut self, name: &str, created: i64, class: DeviceClassSpec) {
        self.classes.insert(name.to_owned(), class);
        self.class_ages.insert(name.to_owned(), created);
    }

    pub fn remove_class(&mut self, name: &str) {
        self.classes.remove(name);
        self.class_ages.remove(name);
    }

    /// The class that an extended resource stands for. Of several with its name it is the newest.
    pub fn class_of_resource(&self, resource: &str) -> Option<&str> {
        if let Some(class) = resource.strip_prefix(CLASS_PREFIX) {
            return self.classes.get_key_value(class).map(|(name, _)| name.as_str());
        }
        let named = self.classes.iter().filter(|(_, class)| class.extended_resource_name.as_deref() == Some(resource));
        named.map(|(name, _)| name.as_str()).max_by_key(|name| (self.class_ages.get(*name).copied(), Reverse(*name)))
    }

    pub fn update_taint_rule(&mut self, name: &str, rule: DeviceTaintRuleSpec) {
        self.taint_rules.insert(name.to_owned(), rule);
    }

    pub fn remove_taint_rule(&mut self, name: &str) {
        self.taint_rules.remove(name);
    }

    /// Names of everything that is known, to find out what a list does not have.
    pub fn slice_names(&self) -> impl Iterator<Item = &String> {
        self.slices.keys()
    }

    pub fn class_names(&self) -> impl Iterator<Item = &String> {
        self.classes.keys()
    }

    pub fn taint_rule_names(&self) -> impl Iterator<Item = &String> {
        self.taint_rules.keys()
    }

    pub fn claims(&self) -> impl Iterator<Item = (&ClaimKey, &ClaimView)> {
        self.claims.iter()
    }

    /// Takes in a claim unless a newer version of it is known. Returns whether anything changed.
    pub fn update_claim(&mut self, key: &ClaimKey, claim: ClaimView) -> bool {
        let known = self.claims.get(key);
        if known.is_some_and(|known| known.uid == claim.uid && known.version >= claim.version) {
            return false;
        }
        let is_another = known.is_some_and(|known| known.uid != claim.uid);
        let ends_assumption = is_another || claim.allocation.is_some();
        self.change_claim(key, |catalog| {
            if ends_assumption {
                catalog.assumed.remove(key);
            }
            catalog.claims.insert(key.clone(), claim);
        });
        true
    }

    /// Returns whether there was such a claim.
    pub fn remove_claim(&mut self, key: &ClaimKey, uid: &str) -> bool {
        if self.claims.get(key).is_none_or(|known| known.uid != uid) {
            return false; // another has its name already
        }
        self.change_claim(key, |catalog| {
            catalog.assumed.remove(key);
            catalog.claims.remove(key);
        });
        true
    }

    /// The pod was bound, or is known not to be: what was assumed for it alone is so no longer. Returns whether that
    /// may have freed devices.
    pub fn forget_pod(&mut self, pod_uid: &str) -> bool {
        let of_pod = self.assumed.iter().filter(|(_, assumed)| assumed.pods.contains(pod_uid));
        let of_pod: Vec<ClaimKey> = of_pod.map(|(key, _)| key.clone()).collect();
        for key in &of_pod {
            self.change_claim(key, |catalog| {
                if let Some(assumed) = catalog.assumed.get_mut(key) {
                    assumed.pods.remove(pod_uid);
                }
                catalog.assumed.retain(|_, assumed| !assumed.pods.is_empty());
            });
        }
        !of_pod.is_empty()
    }

    /// These claims are assumed to be allocated, for the pod.
    pub fn assume(&mut self, pod_uid: &str, bindings: &[ClaimBinding]) {
        for ClaimBinding { claim, allocation, .. } in bindings {
            let is_written = self.claims.get(claim).is_some_and(|known| known.allocation.is_some());
            if is_written {
                continue;
            }
            self.change_claim(claim, |catalog| {
                let assumed = catalog
                    .assumed
                    .entry(claim.clone())
                    .or_insert_with(|| AssumedAllocation { allocation: allocation.clone(), pods: BTreeSet::new() });
                assumed.pods.insert(pod_uid.to_owned());
            });
        }
    }

    /// Changes a claim, and counts what it uses before and after.
    fn change_claim(&mut self, key: &ClaimKey, change: impl FnOnce(&mut Self)) {
        if let Some(before) = self.allocation(key).cloned() {
            self.usage.remove(&before);
        }
        change(self);
        if let Some(after) = self.allocation(key).cloned() {
            self.usage.add(&after);
        }
    }

    /// What is allocated to a claim, or assumed to be.
    fn allocation(&self, key: &ClaimKey) -> Option<&Allocation> {
        let assumed = self.assumed.get(key).map(|assumed| &assumed.allocation);
        assumed.or_else(|| self.claims.get(key)?.allocation.as_ref())
    }

    /// The claims of a pod. The error says what has to happen first, in upstream's words.
    pub fn claims_of(&self, pod: &PodView) -> Result<PodClaims, Vec<String>> {
        let (mut claims, mut missing) = (PodClaims::default(), Vec::new());
        if (!pod.resource_claims.is_empty() || pod.extended_claim.is_some()) && !self.is_listed {
            missing.push("ResourceClaims are not listed yet".to_owned());
            return Err(missing);
        }
        for own in &pod.resource_claims {
            if let Err(why) = self.add_claim(pod, own, &mut claims)
                && !missing.contains(&why)
            {
                missing.push(why);
            }
        }
        if let Some(extended) = &pod.extended_claim {
            missing.extend(self.add_extended_claim(pod, extended, &mut claims).err());
        }
        if missing.is_empty() { Ok(claims) } else { Err(missing) }
    }

    fn add_claim(&self, pod: &PodView, own: &PodClaim, claims: &mut PodClaims) -> Result<(), String> {
        let (name, of_template) = match own {
            PodClaim::Named { claim } => (claim, false),
            PodClaim::OfTemplate { claim } => (claim, true),
            PodClaim::NotCreated { name } => return Err(format!("pod claim {name:?}: ResourceClaim not created yet")),
        };
        let key = ClaimKey::new(&pod.key.namespace, name);
        let Some(claim) = self.claims.get(&key) else {
            return Err(format!("resourceclaim.resource.k8s.io {name:?} not found"));
        };
        if claim.deleting {
            return Err(format!("resourceclaim {name:?} is being deleted"));
        }
        if of_template && claim.made_for.as_ref() != Some(&pod.uid) {
            return Err(format!("ResourceClaim {key} was not created for pod {} (pod is not owner)", pod.key));
        }
        let is_duplicate =
            claims.allocated.iter().map(|known| &known.claim).chain(claims.pending.iter().map(|known| &known.key));
        if is_duplicate.into_iter().any(|known| *known == key) {
            return Ok(());
        }
        let Some(allocation) = self.allocation(&key) else {
            claims.pending.push(ClaimRequests::new(&key, claim, &self.classes)?);
            return Ok(());
        };
        if !claim.is_reserved_for(&pod.uid) && claim.reserved_for.len() >= MAX_CONSUMERS {
            return Err("resourceclaim in use".to_owned());
        }
        self.note_failure(&key, claims);
        let allocation = allocation.clone();
        claims.allocated.push(ClaimBinding { claim: key, uid: claim.uid.clone(), allocation, extended: None });
        Ok(())
    }

    /// The claim is made when the pod is bound; it may be there from an attempt before.
    fn add_extended_claim(
        &self,
        pod: &PodView,
        extended: &Arc<ExtendedClaim>,
        claims: &mut PodClaims,
    ) -> Result<(), String> {
        let key = ClaimKey::new(&pod.key.namespace, &extended.name);
        let known = self.claims.get(&key);
        if known.is_some_and(|claim| claim.deleting) {
            return Err(format!("resourceclaim {:?} is being deleted", key.name));
        }
        if known.is_some_and(|claim| claim.made_for.as_ref() != Some(&pod.uid)) {
            return Err(format!("ResourceClaim {key} was not created for pod {} (pod is not owner)", pod.key));
        }
        let Some(allocation) = self.allocation(&key) else {
            let devices = DeviceClaim { requests: Some(extended.requests.clone()), ..DeviceClaim::default() };
            // Shares of devices are named after the uid, which the claim does not have yet.
            let view = ClaimView { uid: pod.uid.clone(), devices, ..ClaimView::default() };
            let requests = ClaimRequests::new(&key, &view, &self.classes)?;
            claims.pending.push(ClaimRequests { extended: Some(Arc::clone(extended)), ..requests });
            return Ok(());
        };
        self.note_failure(&key, claims);
        let (uid, allocation) = (known.map(|claim| claim.uid.clone()).unwrap_or_default(), allocation.clone());
        claims.allocated.push(ClaimBinding { claim: key, uid, allocation, extended: Some(Arc::clone(extended)) });
        Ok(())
    }

    fn note_failure(&self, key: &ClaimKey, claims: &mut PodClaims) {
        if self.claims.get(key).is_some_and(|claim| claim.binding.is_failed()) {
            claims.failed.push(key.clone());
        }
    }

    /// How far the devices of claims are that were reserved for a pod. `None` if one of them is not any more.
    pub fn binding_progress(&self, pod_uid: &str, bindings: &[ClaimBinding]) -> Option<BindingProgress> {
        let mut progress = BindingProgress::Ready;
        for binding in bindings {
            let claim = self.claims.get(&binding.claim)?;
            let is_usable = claim.allocation.as_ref().is_some_and(|own| own.is_same(&binding.allocation));
            if !is_usable || !claim.is_reserved_for(pod_uid) {
                return None;
            }
            match &claim.binding {
                BindingProgress::Ready => {}
                BindingProgress::Pending => progress = BindingProgress::Pending,
                failed @ BindingProgress::Failed { .. } => return Some(failed.clone()),
            }
        }
        Some(progress)
    }

    /// The version of a claim, to change it as it is known.
    pub fn claim_version(&self, key: &ClaimKey) -> Option<u64> {
        self.claims.get(key).map(|claim| claim.version)
    }

    /// Finds devices for the claims that have none.
    pub fn allocator<'a>(&'a mut self, claims: &'a PodClaims) -> Allocator<'a> {
        let world = World { pools: &self.pools, usage: &self.usage, taint_rules: &self.taint_rules };
        let (pools, selectors, candidates) = (&self.pools, &mut self.selectors, &mut self.candidates);
        Allocator::new(world, &claims.pending, |expressions| candidates.find(expressions, pools, selectors))
    }

    /// The claim of a pod that keeps it from other nodes although nobody else uses it: with its version, if the API has it
    /// allocated. What is only assumed is forgotten.
    pub fn deallocatable(&mut self, pod: &PodView) -> Option<(ClaimKey, u64)> {
        self.forget_pod(&pod.uid);
        let is_own = |consumer: &ResourceClaimConsumerReference| consumer.uid == pod.uid;
        let named = pod.resource_claims.iter().filter_map(|own| match own {
            PodClaim::Named { claim } | PodClaim::OfTemplate { claim } => Some(claim),
            PodClaim::NotCreated { .. } => None,
        });
        named.chain(pod.extended_claim.iter().map(|own| &own.name)).find_map(|claim| {
            let key = ClaimKey::new(&pod.key.namespace, claim);
            let known = self.claims.get(&key).filter(|claim| claim.allocation.is_some() && !claim.deleting)?;
            let restricts = known.allocation.as_ref().is_some_and(|allocation| allocation.node_selector.is_some());
            ((restricts || known.binding.is_failed())
                && !self.assumed.contains_key(&key)
                && known.reserved_for.iter().all(is_own))
            .then_some((key, known.version))
        })
    }
}
