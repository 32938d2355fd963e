//! Pods, machines and budgets as far as placing looks at them, and no further.
//!
//! What equal pods share is in [`Shape`] (what a pod asks of a machine) and [`Tags`] (what other pods' rules may
//! say of it). Both carry their own hash, made once when the pod is read, so that finding a pod's class costs
//! one look-up however long its rules are.

use std::{
    collections::BTreeMap,
    fmt,
    hash::{DefaultHasher, Hash, Hasher},
    ops::Deref,
    sync::Arc,
};

pub use mainstay_api::matching::{Effect, Taint, Toleration};

pub use super::{
    amounts::Amounts,
    ports::{GivenPort, HostPort, PortMapping, PortRanges, PortWish},
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
    /// Where it is placed.
    pub node: Option<String>,
    /// Where room is being made for it.
    pub nominated: Option<String>,
    /// Who is to place it.
    pub scheduler: String,
    /// It is not to be placed before these are taken away.
    pub gates: Vec<String>,
    /// Being deleted.
    pub terminating: bool,
    /// Succeeded or failed: holds nothing any more.
    pub ended: bool,
    /// Microseconds since 1970.
    pub created: i64,
    pub started: Option<i64>,
    /// The automatic ports it was given.
    pub given: Vec<GivenPort>,
    /// The label for port mapping says something unknown.
    pub odd_port_mapping: Option<String>,
    /// The machine that last refused it.
    pub refused_by: Option<String>,
    /// What its condition `PodScheduled` says while false: reason and message.
    pub complaint: Option<(String, String)>,
    /// Its claims, by name in its own namespace.
    pub claims: Vec<String>,
    pub tags: Tags,
    pub shape: Shape,
}

impl PodView {
    /// What its volumes ask of a machine: for each volume, one of the terms must match.
    pub fn with_volumes(mut self, volumes: Vec<Vec<NodeTerm>>) -> Self {
        let mut rules = Rules::clone(&self.shape);
        rules.machine.volumes = volumes;
        self.shape = Shape::new(rules);
        self
    }

    /// What has to exist before it can be placed at all, in the words for its owner.
    pub fn waiting_for(mut self, missing: Vec<String>) -> Self {
        let mut rules = Rules::clone(&self.shape);
        rules.missing = missing;
        self.shape = Shape::new(rules);
        self
    }
}

/// Namespace and labels: what selectors see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tags(Arc<(u64, String, Labels)>);

impl Tags {
    pub fn new(namespace: &str, labels: Labels) -> Self {
        Self(Arc::new((hashed(&(namespace, &labels)), namespace.to_owned(), labels)))
    }

    pub fn namespace(&self) -> &str {
        &self.0.1
    }

    pub fn labels(&self) -> &Labels {
        &self.0.2
    }

    pub(super) fn print(&self) -> u64 {
        self.0.0
    }
}

impl Default for Tags {
    fn default() -> Self {
        Self::new("", Labels::new())
    }
}

/// Everything a pod asks for. Pods of one shape are placed by the same thought.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape(Arc<(u64, Rules)>);

impl Shape {
    pub fn new(rules: Rules) -> Self {
        Self(Arc::new((hashed(&rules), rules)))
    }

    pub(super) fn print(&self) -> u64 {
        self.0.0
    }

    pub(super) fn same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0 == other.0
    }
}

impl Default for Shape {
    fn default() -> Self {
        Self::new(Rules::default())
    }
}

impl Deref for Shape {
    type Target = Rules;

    fn deref(&self) -> &Rules {
        &self.0.1
    }
}

fn hashed(what: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish()
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rules {
    pub priority: i32,
    /// `preemptionPolicy: Never`.
    pub never_preempts: bool,
    /// `pods: 1` included.
    pub requests: Amounts,
    pub ports: Vec<HostPort>,
    /// Ports without a number, and where they get one.
    pub wishes: Vec<PortWish>,
    pub mapping: PortMapping,
    pub machine: MachineRules,
    pub together: Together,
    pub spread: Vec<SpreadRule>,
    /// What has to exist before it can be placed at all.
    pub missing: Vec<String>,
}

/// What a machine has to be, whatever runs on it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct MachineRules {
    pub selector: Labels,
    /// One of these has to match, if there are any.
    pub required: Option<Vec<NodeTerm>>,
    pub preferred: Vec<(i32, NodeTerm)>,
    pub tolerations: Vec<Toleration>,
    /// For each volume, one of the terms has to match.
    pub volumes: Vec<Vec<NodeTerm>>,
}

/// What runs near: pod affinity and anti-affinity.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Together {
    pub required: Vec<Near>,
    pub preferred: Vec<(i32, Near)>,
    pub forbidden: Vec<Near>,
    pub avoided: Vec<(i32, Near)>,
}

/// Some pods, within machines that share a label's value.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Near {
    pub pods: PodSelector,
    pub topology: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SpreadRule {
    pub topology: String,
    pub pods: PodSelector,
    pub max_skew: i32,
    pub min_domains: Option<i32>,
    /// `whenUnsatisfiable: DoNotSchedule`.
    pub hard: bool,
    /// Only machines that the pod's selector and affinity allow are counted: `nodeAffinityPolicy: Honor`.
    pub honour_affinity: bool,
    /// Only machines whose taints the pod tolerates are counted: `nodeTaintsPolicy: Honor`.
    pub honour_taints: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeView {
    pub name: String,
    pub labels: Labels,
    pub taints: Vec<Taint>,
    pub unschedulable: bool,
    pub ready: bool,
    /// Its pods have no addresses of their own, and are reached at ports of the machine.
    pub by_host_port: bool,
    pub allocatable: Amounts,
}

/// What a machine offers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OfferView {
    pub free: Amounts,
    /// Free ones only.
    pub automatic: PortRanges,
    /// Taken or not.
    pub explicit: PortRanges,
    /// Pods bound at this version or before are already taken off.
    pub seen: u64,
}

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
