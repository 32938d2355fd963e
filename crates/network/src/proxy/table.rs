//! All fronts, as the threads share them.
//!
//! Whoever decides to wait is counted before the table is let go of, and whoever changes the table looks at the counts
//! afterwards: so nobody waits past a change that was meant for them. Whoever tries a backend that takes its time is
//! counted too, and looks at the table again after that.

use std::{
    collections::HashMap,
    net::{Ipv4Addr, SocketAddrV4},
    time::{Duration, Instant},
};

use parking_lot::{Mutex, RwLock};

use super::{
    affinity::Affinity,
    limits::WAITING_PER_FRONT,
    search::{Next, Plan, Search},
};
use crate::{
    journal::Protocol,
    services::frontend::{Front, Target, WithoutBackends},
};

#[derive(Default)]
pub struct Table {
    fronts: RwLock<HashMap<Front, Plan>>,
    /// How many are to hear of a change, at fronts where somebody is: they wait, or try a backend that has not answered yet.
    seeking: Mutex<HashMap<Front, u32>>,
    affinity: Mutex<Affinity>,
}

/// One that looks for a backend.
pub struct Seeker<'a> {
    pub front: Front,
    pub search: &'a mut Search,
    /// Asked for only where clients stay with their backends.
    pub client: &'a dyn Fn() -> Option<Ipv4Addr>,
    /// It is counted at its front already.
    pub is_counted: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    Try {
        backend: SocketAddrV4,
        within: Duration,
    },
    /// It is counted from now on.
    Wait {
        until: Instant,
    },
    Refuse,
    /// It would have to wait, and too many do.
    Crowded,
}

impl Table {
    /// Whether somebody is to hear of it.
    pub fn set(&self, front: Front, target: Option<&Target>) -> bool {
        if front.protocol != Protocol::Tcp {
            return false;
        }
        let before = match target {
            // Where those inside have a target of their own, nobody else comes here.
            Some(target) => self.fronts.write().insert(front, Plan::from(target.inside.as_deref().unwrap_or(target))),
            None => self.fronts.write().remove(&front),
        };
        if before.is_some_and(|before| before.affinity.is_some()) && target.is_none_or(|now| now.affinity.is_none()) {
            self.affinity.lock().forget(front);
        }
        self.seeking.lock().contains_key(&front)
    }

    /// The front that a connection was going to.
    pub fn front(&self, destination: SocketAddrV4) -> Option<Front> {
        let exact = Front { address: Some(*destination.ip()), protocol: Protocol::Tcp, port: destination.port() };
        let fronts = self.fronts.read();
        if fronts.contains_key(&exact) {
            return Some(exact);
        }
        let node_port = Front { address: None, ..exact };
        fronts.contains_key(&node_port).then_some(node_port)
    }

    /// What a connection does now that nothing is under way for it.
    pub fn decide(&self, seeker: Seeker<'_>, now: Instant) -> Decision {
        let fronts = self.fronts.read();
        let Some(plan) = fronts.get(&seeker.front) else { return Decision::Refuse };
        let first = |backends: &[SocketAddrV4]| self.first(seeker.front, plan, backends, seeker.client, now);
        let until = match seeker.search.next(plan, now, first) {
            Next::Try { backend, within } => return Decision::Try { backend, within },
            Next::Wait { until } => until,
            Next::Refuse => return Decision::Refuse,
        };
        if !seeker.is_counted {
            let mut seeking = self.seeking.lock();
            let count = seeking.entry(seeker.front).or_default();
            if *count >= WAITING_PER_FRONT {
                return Decision::Crowded;
            }
            *count += 1;
        }
        Decision::Wait { until }
    }

    /// One is counted that does not wait, but whose attempt takes a while.
    pub fn enter(&self, front: Front) {
        *self.seeking.lock().entry(front).or_default() += 1;
    }

    /// One that was counted has found a backend, or is gone.
    pub fn leave(&self, front: Front) {
        let mut seeking = self.seeking.lock();
        if let Some(count) = seeking.get_mut(&front) {
            *count -= 1;
            if *count == 0 {
                seeking.remove(&front);
            }
        }
    }

    /// Whether an attempt at this backend is still worth waiting for.
    pub fn still_sends(&self, front: Front, backend: SocketAddrV4) -> bool {
        self.fronts.read().get(&front).is_some_and(|plan| plan.backends.contains(&backend))
    }

    /// A client got this backend, and stays with it for as long as its front says.
    pub fn remember(
        &self,
        front: Front,
        client: impl FnOnce() -> Option<Ipv4Addr>,
        backend: SocketAddrV4,
        now: Instant,
    ) {
        let Some(time) = self.fronts.read().get(&front).and_then(|plan| plan.affinity) else { return };
        let Some(client) = client() else { return };
        self.affinity.lock().remember(front, client, backend, now, time);
    }

    #[cfg(test)]
    pub fn seeking(&self, front: Front) -> u32 {
        self.seeking.lock().get(&front).copied().unwrap_or_default()
    }

    fn first(
        &self,
        front: Front,
        plan: &Plan,
        backends: &[SocketAddrV4],
        client: &dyn Fn() -> Option<Ipv4Addr>,
        now: Instant,
    ) -> usize {
        let known = || self.affinity.lock().backend(front, client()?, now);
        let same = plan.affinity.and_then(|_| known()).and_then(|same| backends.iter().position(|b| *b == same));
        same.unwrap_or_else(|| if backends.len() == 1 { 0 } else { fastrand::usize(..backends.len()) })
    }
}

impl From<&Target> for Plan {
    fn from(target: &Target) -> Self {
        let hold = match target.without_backends {
            WithoutBackends::Hold(time) => time,
            // The client hears something all the same: the kernel has accepted for us.
            WithoutBackends::Refuse | WithoutBackends::Drop => Duration::ZERO,
        };
        Self { backends: target.backends.as_slice().into(), affinity: target.affinity, hold }
    }
}
