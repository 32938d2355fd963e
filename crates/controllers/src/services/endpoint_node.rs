//! Nodes as far as endpoints depend on them: zone, how their pods are reached, and whether they are lost.

use k8s_openapi::api::core::v1::Node;

use crate::node_lifecycle;

const ZONE: &str = mainstay_api::wellknown::kubernetes::ZONE;
/// Says how pods of a node are reached, where that is not by addresses of their own.
const ENDPOINTS: &str = mainstay_api::wellknown::mainstay::ENDPOINTS;
const HOST_PORT: &str = mainstay_api::wellknown::mainstay::ENDPOINTS_HOST_PORT;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndpointNode {
    pub zone: Option<String>,
    /// Its pods' addresses lead nowhere; they are reached at the node's address and host ports.
    pub by_host_port: bool,
    /// It has had no heartbeat for so long, while others had, that its pods may be gone, whatever was last reported of
    /// them.
    pub lost: bool,
}

impl From<&Node> for EndpointNode {
    fn from(node: &Node) -> Self {
        let text = |map: Option<&std::collections::BTreeMap<String, String>>, key: &str| map?.get(key).cloned();
        let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
        let mut conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
        Self {
            zone: text(node.metadata.labels.as_ref(), ZONE).filter(|zone| !zone.is_empty()),
            by_host_port: text(node.metadata.annotations.as_ref(), ENDPOINTS).as_deref() == Some(HOST_PORT),
            lost: conditions.any(|condition| condition.type_ == "Ready" && condition.status == "Unknown")
                && node_lifecycle::is_lost(taints),
        }
    }
}
