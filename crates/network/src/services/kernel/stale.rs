//! Which of the flows that the kernel remembers go where nobody is. Pure.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    net::{Ipv4Addr, SocketAddrV4},
};

use super::{
    super::frontend::{Front, Target},
    KernelSettings,
};
use crate::{conntrack::Flow, journal::Protocol};

pub struct Judge<'a> {
    pub settings: &'a KernelSettings,
    pub fronts: &'a HashMap<Front, Target>,
    /// Those that have just gone.
    pub gone: &'a HashSet<Front>,
    /// The machine's own addresses.
    pub here: &'a BTreeSet<Ipv4Addr>,
}

impl Judge<'_> {
    /// Whether a UDP flow goes to what is no backend of its front: to one that was, or to the front itself because
    /// it began before the front was there.
    pub fn is_dead(&self, flow: &Flow) -> bool {
        self.ends_wrong(flow.to, flow.answered_by)
    }

    fn ends_wrong(&self, to: SocketAddrV4, answered_by: SocketAddrV4) -> bool {
        let (address, diverted) = (*to.ip(), to != answered_by);
        if address == self.settings.dns() {
            return false;
        }
        let at = |address| Front { address, protocol: Protocol::Udp, port: to.port() };
        let exact = at(Some(address));
        if let Some(target) = self.fronts.get(&exact) {
            return !answers(target, answered_by);
        }
        if self.gone.contains(&exact) || self.settings.services.contains(address) {
            return diverted;
        }
        if !self.here.contains(&address) {
            return false;
        }
        let node = at(None);
        match self.fronts.get(&node) {
            Some(target) => !answers(target, answered_by),
            None => diverted && self.gone.contains(&node),
        }
    }
}

/// Whether it is a backend for anybody.
fn answers(target: &Target, backend: SocketAddrV4) -> bool {
    target.backends.contains(&backend) || target.inside.as_deref().is_some_and(|inside| answers(inside, backend))
}

#[cfg(test)]
mod tests {
    use super::{super::super::frontend::WithoutBackends, *};

    #[test]
    fn only_flows_that_end_nowhere_are_dead() {
        let settings = KernelSettings {
            instance: "x".into(),
            services: "10.96.0.0/16".parse().unwrap(),
            pods: "10.244.0.0/16".parse().unwrap(),
            proxy_port: 1,
        };
        let end = |text: &str| -> SocketAddrV4 { text.parse().unwrap() };
        let front = |address: Option<[u8; 4]>, port| Front {
            address: address.map(Ipv4Addr::from),
            protocol: Protocol::Udp,
            port,
        };
        let target = Target {
            backends: vec![end("10.244.0.2:53")],
            affinity: None,
            masquerade: false,
            through_user_space: false,
            without_backends: WithoutBackends::Refuse,
            inside: None,
        };
        let fronts = HashMap::from([(front(Some([10, 96, 0, 1]), 53), target.clone()), (front(None, 30053), target)]);
        let gone = HashSet::from([front(Some([192, 0, 2, 1]), 53), front(None, 30054)]);
        let here = BTreeSet::from([Ipv4Addr::new(192, 168, 77, 1)]);
        let judge = Judge { settings: &settings, fronts: &fronts, gone: &gone, here: &here };
        for (to, answered_by, dead) in [
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
            assert_eq!(judge.ends_wrong(end(to), end(answered_by)), dead, "{to} answered by {answered_by}");
        }
    }
}
