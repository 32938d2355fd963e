//! Automatic host ports: container ports that leave the host port open and get one from the node's offer.

pub use mainstay_api::ports::AssignedHostPort;

/// A container port that leaves its host port open.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AutomaticPort {
    pub container_port: u16,
    pub protocol: String,
    /// Empty if it has none.
    pub name: String,
}

impl AutomaticPort {
    pub fn assign(&self, host_port: u16) -> AssignedHostPort {
        let (protocol, name) = (self.protocol.clone(), self.name.clone());
        AssignedHostPort { protocol, container_port: self.container_port, name, host_port }
    }
}

/// Whether container ports that leave their host port open get one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PortMapping {
    /// On nodes whose pods have no addresses of their own: nothing else leads to the pods there.
    #[default]
    AsNeeded,
    Always,
    Never,
}

impl PortMapping {
    /// `by_host_port`: the node's pods are reached at ports of the node.
    pub fn applies(self, by_host_port: bool) -> bool {
        match self {
            Self::AsNeeded => by_host_port,
            Self::Always => true,
            Self::Never => false,
        }
    }
}
