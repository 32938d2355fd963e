//! Routes, nodes and ports, as far as decisions about routes need them.

use std::{fmt, net::IpAddr};

use ipnet::IpNet;

/// An extra route of a router, exactly as the router lists it: what cannot be parsed is still there, and stays as it is.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Route {
    pub destination: String,
    pub next_hop: String,
}

impl Route {
    pub fn new(destination: impl Into<String>, next_hop: impl Into<String>) -> Self {
        Self { destination: destination.into(), next_hop: next_hop.into() }
    }

    /// Nothing if it is no range.
    pub fn range(&self) -> Option<IpNet> {
        self.destination.parse::<IpNet>().ok()
    }

    pub fn next_hop(&self) -> Option<IpAddr> {
        self.next_hop.parse().ok()
    }

    /// Whether the destination's first and last address lie in `cluster`.
    pub fn is_within(&self, cluster: &IpNet) -> bool {
        self.range().is_some_and(|range| cluster.contains(&range.network()) && cluster.contains(&range.broadcast()))
    }

    /// Whether the destination has any address in common with `range`.
    pub fn overlaps(&self, range: &IpNet) -> bool {
        self.range().is_some_and(|own| own.contains(&range.network()) || range.contains(&own.network()))
    }
}

impl fmt::Debug for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} via {}", self.destination, self.next_hop)
    }
}

/// A Node, and the port of its server.
#[derive(Clone, Debug, PartialEq)]
pub struct RoutedNode {
    pub name: String,
    pub uid: String,
    /// `spec.podCIDR`.
    pub range: Option<IpNet>,
    /// Its InternalIP.
    pub address: Option<IpAddr>,
    /// The port with that address on a network of the router.
    pub port: Option<PortView>,
    /// Whether it is known to be a server of this cloud. A Node elsewhere has no port, and that is no fault of it.
    pub in_cloud: bool,
    /// What its condition `NetworkUnavailable` says.
    pub network_unavailable: Option<ReportedCondition>,
    /// Whether it says that the router does not route to it (`RouteBroken` with `RedirectFailed`).
    pub route_broken: bool,
}

impl RoutedNode {
    /// The route it needs; none while it lacks a range or an address of the same family.
    pub fn wanted_route(&self) -> Option<Route> {
        let (range, address) = (self.range?, self.address?);
        let same_family = range.addr().is_ipv4() == address.is_ipv4();
        same_family.then(|| Route::new(range.trunc().to_string(), address.to_string()))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortView {
    pub id: String,
    /// Ranges among the addresses that it may use besides its own.
    pub allowed: Vec<String>,
}

impl PortView {
    pub fn allows(&self, range: &str) -> bool {
        self.allowed.iter().any(|allowed| allowed == range)
    }
}

/// A condition of a Node, as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportedCondition {
    pub holds: bool,
    pub message: String,
}
