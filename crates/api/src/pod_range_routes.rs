//! What servers, agents and the route controller of a cloud have to agree on about routes to pod ranges.
//!
//! The ConfigMap lists ranges to which a router of the cloud still has a route. No Node is given such a range: the route leads to whoever
//! had it before. Without a cloud there is no such ConfigMap.

/// In `kube-system`.
pub const CONFIG_MAP: &str = "pod-range-routes";
/// When the router was last nudged, as an annotation of the ConfigMap.
pub const LAST_NUDGE: &str = "mainstay.dev/last-route-nudge";
/// The first word of every message that the route controller writes into a condition `NetworkUnavailable`; those of agents begin otherwise.
pub const ROUTE_CONTROLLER_MESSAGE: &str = "RouteController";

/// The condition of a Node whose router does not route to it, and its reasons.
pub mod route_broken {
    pub const TYPE: &str = "RouteBroken";
    /// The router redirects packets for the node's own range to the node.
    pub const REDIRECT_OK: &str = "RedirectOK";
    pub const REDIRECT_FAILED: &str = "RedirectFailed";
    /// Pods of other nodes answer.
    pub const PEERS_REACHABLE: &str = "PeersReachable";
    pub const PEERS_UNREACHABLE: &str = "PeersUnreachable";
}

/// The key of a range in the data of the ConfigMap: keys have no slashes.
pub fn key_for_range(range: &str) -> String {
    range.replace('/', "_")
}

/// And back.
pub fn range_of_key(key: &str) -> String {
    key.replace('_', "/")
}
