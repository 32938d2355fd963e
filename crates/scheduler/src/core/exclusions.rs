//! Nodes that are no choice for one pod, whatever its class says: they refused it, or its ResourceClaims cannot be allocated there.

use std::collections::{HashMap, HashSet};

use super::{cluster::NodeId, devices::AllocationFailure};

#[derive(Debug, Default)]
pub struct NodeExclusions {
    pub refused: HashSet<NodeId>,
    pub devices: HashMap<NodeId, AllocationFailure>,
}

impl NodeExclusions {
    pub fn is_empty(&self) -> bool {
        self.refused.is_empty() && self.devices.is_empty()
    }

    pub fn contains(&self, node: NodeId) -> bool {
        self.refused.contains(&node) || self.devices.contains_key(&node)
    }
}
