//! Nodes as far as endpoints depend on them.

use k8s_openapi::api::core::v1::Node;

use crate::nodes;

const ZONE: &str = "topology.kubernetes.io/zone";
/// Says how pods of a machine are reached, where that is not by addresses of their own.
const ENDPOINTS: &str = "mainstay.dev/endpoints";
const HOST_PORT: &str = "host-port";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    pub zone: Option<String>,
    /// Its pods' addresses lead nowhere; they are reached at the machine's address and host ports.
    pub by_host_port: bool,
    /// It has not been heard of for so long, while others were, that its pods may be gone, whatever was last said of
    /// them.
    pub lost: bool,
}

impl Machine {
    pub fn of(node: &Node) -> Self {
        let text = |map: Option<&std::collections::BTreeMap<String, String>>, key: &str| map?.get(key).cloned();
        let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
        let mut conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
        Self {
            zone: text(node.metadata.labels.as_ref(), ZONE).filter(|zone| !zone.is_empty()),
            by_host_port: text(node.metadata.annotations.as_ref(), ENDPOINTS).as_deref() == Some(HOST_PORT),
            lost: conditions.any(|condition| condition.type_ == "Ready" && condition.status == "Unknown")
                && nodes::is_lost(taints),
        }
    }
}
