//! All fronts, as the threads share them.
//!
//! Whoever decides to wait is counted before the table is let go of, and whoever changes the table looks at the counts
//! afterwards: so nobody waits past a change that was meant for them.

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
    /// How many wait, at fronts where somebody does.
    waiting: Mutex<HashMap<Front, u32>>,
    affinity: Mutex<Affinity>,
}

/// One that looks for a backend.
pub struct Seeker<'a> {
    pub front: Front,
    pub search: &'a mut Search,
    /// Asked for only where clients stay with their backends.
    pub client: &'a dyn Fn() -> Option<Ipv4Addr>,
    /// It is among those that wait.
    pub is_counted: &'a mut bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    Do(Next),
    /// Too many wait already.
    Crowded,
}

impl Table {
    /// Whether somebody waits there.
    pub fn set(&self, front: Front, target: Option<&Target>) -> bool {
        if front.protocol != Protocol::Tcp {
            return false;
        }
        let before = match target {
            Some(target) => self.fronts.write().insert(front, Plan::from(target)),
            None => self.fronts.write().remove(&front),
        };
        if before.is_some_and(|before| before.affinity.is_some()) && target.is_none_or(|now| now.affinity.is_none()) {
            self.affinity.lock().forget(front);
        }
        self.waiting.lock().contains_key(&front)
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
        let Some(plan) = fronts.get(&seeker.front) else { return Decision::Do(Next::Refuse) };
        let first = |backends: &[SocketAddrV4]| self.first(seeker.front, plan, backends, seeker.client, now);
        let next = seeker.search.next(plan, now, first);
        if matches!(next, Next::Wait { .. }) && !*seeker.is_counted {
            let mut waiting = self.waiting.lock();
            let count = waiting.entry(seeker.front).or_default();
            if *count >= WAITING_PER_FRONT {
                return Decision::Crowded;
            }
            *count += 1;
            *seeker.is_counted = true;
        }
        Decision::Do(next)
    }

    /// One that was counted waits no longer.
    pub fn leave(&self, front: Front) {
        let mut waiting = self.waiting.lock();
        if let Some(count) = waiting.get_mut(&front) {
            *count -= 1;
            if *count == 0 {
                waiting.remove(&front);
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
    pub fn waiting(&self, front: Front) -> u32 {
        self.waiting.lock().get(&front).copied().unwrap_or_default()
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
