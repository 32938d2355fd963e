//! The scheduler's cache: nodes with what they offer, and the pods on them, as last observed or assumed.
//!
//! It is updated change by change ([`updates`]); nothing is computed twice. Names are ids inside: a pod's rules are a
//! *class* ([`compile`]), its namespace and labels a *profile*, and per topology domain there are counts of the pods
//! that some rule selects ([`topology`], [`pod_counts`]). Pods may arrive before their node and nodes before their offer;
//! only a node whose Node object and offer are known gets pods.

mod change_log;
mod class;
mod compaction;
mod compile;
mod ended_pods;
mod node_info;
mod nominator;
mod pod_counts;
mod pods;
mod role_pools;
mod topology;
mod updates;

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

pub(super) use change_log::{ChangeLog, LogPosition};
use class::FingerprintMap;
pub(super) use class::{CompiledSpread, EXCLUDED, NodeFilter, PodClass};
use mainstay_api::{
    resources::{CPU, EPHEMERAL_STORAGE, MEMORY, PODS},
    roles::ANY_ROLE,
};
pub(super) use node_info::NodeInfo;
pub(super) use pods::PodInfo;
use pods::PodTable;
pub(super) use role_pools::{PoolInfo, PoolShare};
pub(super) use topology::{LabelProfile, TermKind, Topology};

use super::{
    devices::DeviceCatalog,
    score_index::ScoreIndexes,
    view::{AssignedHostPort, BudgetView, NamespaceLabels, NodeView, OfferView, PodKey, PodView, RoleShares},
};

pub(super) type NodeId = usize;
pub(super) type PodId = usize;
pub(super) type ClassId = usize;
pub(super) type ProfileId = usize;
pub(super) type FilterId = usize;
pub(super) type SelectionId = usize;
pub(super) type TermId = usize;
pub(super) type CountsId = usize;
pub(super) type KeyId = usize;
pub(super) type ScopeId = usize;
pub(super) type RoleId = usize;

#[derive(Debug, Default)]
pub struct Cluster {
    resources: ResourceNames,
    roles: RoleNames,
    pub(super) nodes: Vec<NodeInfo>,
    node_ids: HashMap<Arc<str>, NodeId>,
    pods: PodTable,
    nominations: HashMap<PodKey, NodeId>,
    pub(super) classes: Vec<PodClass>,
    class_ids: FingerprintMap<ClassId>,
    pub(super) node_filters: Vec<NodeFilter>,
    pub(super) topology: Topology,
    namespaces: NamespaceLabels,
    pub(super) budgets: BTreeMap<(String, String), BudgetView>,
    /// Devices and the claims to them.
    pub devices: DeviceCatalog,
    pub(super) change_log: ChangeLog,
    pub(super) indexes: ScoreIndexes,
    /// Raised with every node that is new.
    pub(super) node_epoch: u64,
    /// The epoch when removed nodes were last counted.
    checked_epoch: u64,
}

/// What is known of the cluster.
impl Cluster {
    pub fn new() -> Self {
        Self::default()
    }

    /// The Node objects that are known.
    pub fn nodes(&self) -> impl Iterator<Item = &NodeView> {
        self.nodes.iter().filter_map(|info| info.node.as_ref())
    }

    /// The last offer of a node.
    pub fn offer(&self, node: &str) -> Option<&OfferView> {
        self.nodes[*self.node_ids.get(node)?].offer.as_ref()
    }

    /// What is free on a node now, by resource.
    pub fn free_resources(&self, node: &str) -> BTreeMap<&str, i64> {
        let Some(id) = self.node_ids.get(node) else { return BTreeMap::new() };
        let amounts = self.nodes[*id].free.iter().copied();
        self.resources.names().zip(amounts).collect()
    }

    /// The pods observed or assumed to be on a node.
    pub fn pods_on(&self, node: &str) -> impl Iterator<Item = &PodView> {
        let ids = self.node_ids.get(node).into_iter().flat_map(|id| &self.nodes[*id].pods);
        ids.map(|id| &*self.pod_info(*id).view)
    }

    /// The version at which a pod was bound to its node; `None` while that is only assumed.
    pub fn bound_version(&self, key: &PodKey) -> Option<u64> {
        self.pod_info(self.pods.find(key)?).bound_version
    }

    /// The node that a pod is observed or assumed to be on.
    pub fn node_of_pod(&self, key: &PodKey) -> Option<&str> {
        self.pods.find(key).map(|id| &*self.nodes[self.pod_info(id).node].name)
    }

    /// The node of a pod, its automatic ports, and what it takes of the node's pools.
    pub(super) fn placement_of_pod(&self, key: &PodKey) -> Option<(Arc<str>, Vec<AssignedHostPort>, RoleShares)> {
        let id = self.pods.find(key)?;
        let pod = self.pod_info(id);
        Some((Arc::clone(&self.nodes[pod.node].name), pod.assigned_ports.clone(), self.named_shares(id)))
    }

    pub(super) fn pod_info(&self, id: PodId) -> &PodInfo {
        self.pods.get(id)
    }

    pub(super) fn resource_name(&self, resource: usize) -> &str {
        &self.resources.0[resource]
    }

    pub(super) fn role_name(&self, role: RoleId) -> &str {
        &self.roles.0[role]
    }

    pub(super) fn find_node(&self, name: &str) -> Option<NodeId> {
        self.node_ids.get(name).copied()
    }
}

/// Names of roles by id. The first is that of the rest of each machine.
#[derive(Debug)]
struct RoleNames(Vec<String>);

/// The id of [`ANY_ROLE`].
pub(super) const REST: RoleId = 0;

impl Default for RoleNames {
    fn default() -> Self {
        Self(vec![ANY_ROLE.to_owned()])
    }
}

impl RoleNames {
    fn id(&mut self, name: &str) -> RoleId {
        self.0.iter().position(|known| known == name).unwrap_or_else(|| {
            self.0.push(name.to_owned());
            self.0.len() - 1
        })
    }
}

/// Names of resources by id. The first ids are those of the resources that every node has.
#[derive(Debug)]
struct ResourceNames(Vec<String>);

impl Default for ResourceNames {
    fn default() -> Self {
        Self([CPU, MEMORY, PODS, EPHEMERAL_STORAGE].map(str::to_owned).to_vec())
    }
}

impl ResourceNames {
    fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }

    fn id(&mut self, name: &str) -> usize {
        self.0.iter().position(|known| known == name).unwrap_or_else(|| {
            self.0.push(name.to_owned());
            self.0.len() - 1
        })
    }

    fn by_id<'a>(&mut self, amounts: impl IntoIterator<Item = (&'a String, &'a i64)>) -> Vec<i64> {
        let amounts: Vec<(usize, i64)> = amounts.into_iter().map(|(name, amount)| (self.id(name), *amount)).collect();
        let mut by_id = vec![0; self.0.len()];
        amounts.into_iter().for_each(|(id, amount)| by_id[id] = amount);
        by_id
    }
}
