//! Finds UDP conntrack entries whose DNAT no longer matches their frontend. Pure.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    net::{Ipv4Addr, SocketAddrV4},
};

use super::{
    super::frontend::{BackendPool, Frontend},
    KernelSettings,
};
use crate::{conntrack::UdpEntry, journal::Protocol};

pub struct StaleUdp<'a> {
    pub settings: &'a KernelSettings,
    pub frontends: &'a HashMap<Frontend, BackendPool>,
    /// Frontends that were just removed.
    pub removed: &'a HashSet<Frontend>,
    /// This machine's addresses.
    pub node_addresses: &'a BTreeSet<Ipv4Addr>,
}

impl StaleUdp<'_> {
    /// Whether an entry sends to an address that is no backend of its frontend: to a backend that is gone, or to the
    /// frontend itself because the flow is older than the frontend.
    pub fn is_stale(&self, entry: &UdpEntry) -> bool {
        self.is_stale_flow(entry.original_destination, entry.reply_source)
    }

    fn is_stale_flow(&self, to: SocketAddrV4, reply_source: SocketAddrV4) -> bool {
        let (address, has_dnat) = (*to.ip(), to != reply_source);
        if address == self.settings.dns() {
            return false;
        }
        let frontend = |address| Frontend { address, protocol: Protocol::Udp, port: to.port() };
        let exact = frontend(Some(address));
        if let Some(pool) = self.frontends.get(&exact) {
            return !has_backend(pool, reply_source);
        }
        if self.removed.contains(&exact) || self.settings.services.contains(address) {
            return has_dnat;
        }
        if !self.node_addresses.contains(&address) {
            return false;
        }
        let node_port = frontend(None);
        match self.frontends.get(&node_port) {
            Some(pool) => !has_backend(pool, reply_source),
            None => has_dnat && self.removed.contains(&node_port),
        }
    }
}

/// Whether it is a backend for clients inside or outside the cluster.
fn has_backend(pool: &BackendPool, backend: SocketAddrV4) -> bool {
    pool.backends.contains(&backend) || pool.internal.as_deref().is_some_and(|internal| has_backend(internal, backend))
}

#[cfg(test)]
mod tests {
    use super::{super::super::frontend::WithoutBackends, *};

    #[test]
    fn only_flows_to_what_is_no_backend_are_stale() {
        let settings = KernelSettings {
            instance: "x".into(),
            services: "10.96.0.0/16".parse().unwrap(),
            pods: "10.244.0.0/16".parse().unwrap(),
            proxy_port: 1,
        };
        let end = |text: &str| -> SocketAddrV4 { text.parse().unwrap() };
        let frontend = |address: Option<[u8; 4]>, port| Frontend {
            address: address.map(Ipv4Addr::from),
            protocol: Protocol::Udp,
            port,
        };
        let pool = BackendPool {
            backends: vec![end("10.244.0.2:53")],
            affinity: None,
            masquerade: false,
            through_user_space: false,
            without_backends: WithoutBackends::Reject,
            internal: None,
            terminating: Vec::new(),
        };
        let frontends =
            HashMap::from([(frontend(Some([10, 96, 0, 1]), 53), pool.clone()), (frontend(None, 30053), pool)]);
        let removed = HashSet::from([frontend(Some([192, 0, 2, 1]), 53), frontend(None, 30054)]);
        let node_addresses = BTreeSet::from([Ipv4Addr::new(192, 168, 77, 1)]);
        let stale =
            StaleUdp { settings: &settings, frontends: &frontends, removed: &removed, node_addresses: &node_addresses };
        for (to, reply_source, expected) in [
            ("10.96.0.1:53", "10.244.0.2:53", false),
            ("10.96.0.1:53", "10.244.0.3:53", true),
            ("10.96.0.1:53", "10.96.0.1:53", true),
            ("10.96.0.1:54", "10.244.0.2:53", true),
            ("10.96.0.10:53", "10.96.0.10:53", false),
            ("192.168.77.1:30053", "10.244.0.2:53", false),
            ("192.168.77.1:30053", "10.244.0.3:53", true),
            ("192.168.77.1:30053", "192.168.77.1:30053", true),
            ("192.168.77.2:30053", "192.168.77.2:30053", false),
            ("192.168.77.2:30053", "10.244.0.3:53", false),
            ("192.168.77.1:30054", "10.244.0.2:53", true),
            ("192.168.77.1:30054", "192.168.77.1:30054", false),
            ("192.0.2.1:53", "10.244.0.2:53", true),
            ("192.0.2.2:53", "192.0.2.2:53", false),
        ] {
            assert_eq!(stale.is_stale_flow(end(to), end(reply_source)), expected, "{to} answered by {reply_source}");
        }
    }
}
