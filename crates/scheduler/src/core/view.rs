//! Views: the parts of pods, nodes, offers and budgets that scheduling reads.
//!
//! What equal pods share is in [`SchedulingSpec`] (what a pod asks of a node) and [`LabelSet`] (what selectors of other
//! pods see). Both carry their own hash, computed once when the pod is decoded, so that finding a pod's class costs one
//! look-up however long its rules are.

use std::{
    collections::BTreeMap,
    fmt,
    hash::{DefaultHasher, Hash, Hasher},
    ops::Deref,
    sync::Arc,
};

pub use mainstay_api::{
    matching::{Effect, Taint, Toleration},
    ports::{AssignedHostPort, HostPort, PortRanges},
    resources::ResourceList,
    roles::{PodRoles, RoleShares},
};

use super::devices::extended::{ContainerRequests, ExtendedClaim};
pub use super::{
    host_ports::{AutomaticPort, PortMapping},
    selector::{Labels, NodeTerm, Operator, PodSelector, Requirement, Selector},
};

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PodKey {
    pub namespace: String,
    pub name: String,
}

impl PodKey {
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for PodKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

#[derive(Clone, Debug, Default)]
pub struct PodView {
    pub key: PodKey,
    pub uid: String,
    /// Its `resourceVersion`.
    pub version: u64,
    /// The node it is bound to.
    pub node: Option<String>,
    /// The node that others were preempted on for it.
    pub nominated_node: Option<String>,
    /// The name of the scheduler that is responsible.
    pub scheduler: String,
    /// Its scheduling gates.
    pub gates: Vec<String>,
    /// It has a deletion timestamp.
    pub terminating: bool,
    /// Succeeded or failed: it holds no resources any more.
    pub finished: bool,
    /// Microseconds since 1970.
    pub created: i64,
    pub started: Option<i64>,
    /// The host ports that its automatic ports got.
    pub assigned_ports: Vec<AssignedHostPort>,
    /// What it was recorded to take of the pools of its node when it was bound.
    pub role_shares: RoleShares,
    /// The value of the port mapping label, if it is unknown.
    pub unknown_port_mapping: Option<String>,
    /// The node that last refused it.
    pub refused_by: Option<String>,
    /// Reason and message of its condition `PodScheduled`, while that is false.
    pub unscheduled_condition: Option<(String, String)>,
    /// The PersistentVolumeClaims it uses, in its own namespace.
    pub claims: Vec<String>,
    /// Its ResourceClaims, in its own namespace.
    pub resource_claims: Vec<PodClaim>,
    /// The extended resources that its containers request.
    pub extended_requests: Vec<ContainerRequests>,
    /// All of these together, as the pod's requests count them.
    pub extended_amounts: ResourceList,
    /// Its status names a claim for some of them.
    pub has_extended_claim: bool,
    /// The claim for those of them that a DeviceClass stands for.
    pub extended_claim: Option<Arc<ExtendedClaim>>,
    pub label_set: LabelSet,
    pub spec: SchedulingSpec,
}

impl PodView {
    /// Restricts it to nodes of its volumes: for each volume, one of the terms must match.
    pub fn with_volumes(mut self, volumes: Vec<Vec<NodeTerm>>) -> Self {
        let mut rules = SchedulingRules::clone(&self.spec);
        rules.node.volumes = volumes;
        self.spec = SchedulingSpec::new(rules);
        self
    }

    /// What this claim stands for is asked of devices, and everything else of the node.
    pub fn with_extended_claim(mut self, claim: Option<Arc<ExtendedClaim>>) -> Self {
        let mut rules = SchedulingRules::clone(&self.spec);
        for (resource, amount) in &self.extended_amounts {
            match claim.as_ref().is_some_and(|claim| claim.resources.contains(resource)) {
                true => drop(rules.requests.remove(resource)),
                false => drop(rules.requests.insert(resource.clone(), *amount)),
            }
        }
        rules.claims_devices = !self.resource_claims.is_empty() || claim.is_some();
        self.spec = SchedulingSpec::new(rules);
        self.extended_claim = claim;
        self
    }

    /// Objects that have to exist before it can be scheduled, as texts for its owner.
    pub fn with_missing(mut self, missing: Vec<String>) -> Self {
        let mut rules = SchedulingRules::clone(&self.spec);
        rules.missing = missing;
        self.spec = SchedulingSpec::new(rules);
        self
    }
}

/// A ResourceClaim of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodClaim {
    Named {
        claim: String,
    },
    /// It was made for the pod.
    OfTemplate {
        claim: String,
    },
    /// It has still to be made for the pod, which calls it by this name.
    NotCreated {
        name: String,
    },
}

/// Namespace and labels of a pod: what selectors see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabelSet(Arc<(u64, String, Labels)>);

impl LabelSet {
    pub fn new(namespace: &str, labels: Labels) -> Self {
        Self(Arc::new((fingerprint(&(namespace, &labels)), namespace.to_owned(), labels)))
    }

    pub fn namespace(&self) -> &str {
        &self.0.1
    }

    pub fn labels(&self) -> &Labels {
        &self.0.2
    }

    pub(super) fn fingerprint(&self) -> u64 {
        self.0.0
    }
}

impl Default for LabelSet {
    fn default() -> Self {
        Self::new("", Labels::new())
    }
}

/// [`SchedulingRules`], shared and with their hash. Pods with equal rules are one class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchedulingSpec(Arc<(u64, SchedulingRules)>);

impl SchedulingSpec {
    pub fn new(rules: SchedulingRules) -> Self {
        Self(Arc::new((fingerprint(&rules), rules)))
    }

    pub(super) fn fingerprint(&self) -> u64 {
        self.0.0
    }

    pub(super) fn is_equal(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0 == other.0
    }
}

impl Default for SchedulingSpec {
    fn default() -> Self {
        Self::new(SchedulingRules::default())
    }
}

impl Deref for SchedulingSpec {
    type Target = SchedulingRules;

    fn deref(&self) -> &SchedulingRules {
        &self.0.1
    }
}

fn fingerprint(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// Everything that a pod asks of its node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct SchedulingRules {
    pub priority: i32,
    /// `preemptionPolicy: Never`.
    pub never_preempts: bool,
    /// `pods: 1` included.
    pub requests: ResourceList,
    /// Host ports asked for by number.
    pub ports: Vec<HostPort>,
    pub automatic_ports: Vec<AutomaticPort>,
    pub port_mapping: PortMapping,
    /// The roles whose pools it may use.
    pub roles: PodRoles,
    pub node: NodeRules,
    pub pod_affinity: PodAffinityRules,
    pub spread: Vec<SpreadConstraint>,
    /// Objects that have to exist before it can be scheduled.
    pub missing: Vec<String>,
    /// It has ResourceClaims, or extended resources that devices stand for.
    pub claims_devices: bool,
}

/// What the Node object has to be, whatever runs on the node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct NodeRules {
    pub selector: Labels,
    /// Node affinity: one of these has to match.
    pub required: Option<Vec<NodeTerm>>,
    pub preferred: Vec<(i32, NodeTerm)>,
    pub tolerations: Vec<Toleration>,
    /// For each volume, one of the terms has to match.
    pub volumes: Vec<Vec<NodeTerm>>,
}

/// Pod affinity and anti-affinity.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PodAffinityRules {
    pub required: Vec<AffinityTerm>,
    pub preferred: Vec<(i32, AffinityTerm)>,
    pub anti_required: Vec<AffinityTerm>,
    pub anti_preferred: Vec<(i32, AffinityTerm)>,
}

/// Some pods, within nodes that have the same value of the topology key.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AffinityTerm {
    pub pods: PodSelector,
    pub topology_key: String,
}

/// A topology spread constraint.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SpreadConstraint {
    pub topology_key: String,
    pub pods: PodSelector,
    pub max_skew: i32,
    pub min_domains: Option<i32>,
    /// `whenUnsatisfiable: DoNotSchedule`.
    pub hard: bool,
    /// `nodeAffinityPolicy: Honor`: only nodes that match the pod's node selector and affinity count.
    pub honor_affinity: bool,
    /// `nodeTaintsPolicy: Honor`: only nodes whose taints the pod tolerates count.
    pub honor_taints: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeView {
    pub name: String,
    pub labels: Labels,
    pub taints: Vec<Taint>,
    pub unschedulable: bool,
    pub ready: bool,
    /// Its pods have no addresses of their own and are reached at ports of the node.
    pub by_host_port: bool,
    pub allocatable: ResourceList,
}

/// What a node offers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OfferView {
    /// Another uid is another offer, also under the same name.
    pub uid: String,
    pub free: ResourceList,
    /// Free ones only.
    pub automatic_ports: PortRanges,
    /// Taken or not.
    pub explicit_ports: PortRanges,
    /// What each role has; none if nothing is reserved for roles.
    pub pools: Vec<PoolView>,
    /// Pods bound at this version or before are subtracted already.
    pub seen: u64,
}

/// What a node offers to one role.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolView {
    pub role: String,
    pub capacity: ResourceList,
    pub free: ResourceList,
    /// Free ones only.
    pub automatic_ports: PortRanges,
    /// Taken or not.
    pub explicit_ports: PortRanges,
}

/// A PodDisruptionBudget.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BudgetView {
    pub namespace: String,
    pub name: String,
    /// `None` matches no pod.
    pub selector: Option<Selector>,
    pub disruptions_allowed: i32,
    /// Pods whose eviction is already counted.
    pub disrupted: Vec<String>,
}

pub type NamespaceLabels = BTreeMap<String, Labels>;
