//! All frontends, as the threads share them.
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
    services::frontend::{BackendPool, Frontend, WithoutBackends},
};

#[derive(Default)]
pub struct Table {
    frontends: RwLock<HashMap<Frontend, Plan>>,
    /// How many are to hear of a change, at frontends where somebody is: they wait, or try a backend that has not answered yet.
    seeking: Mutex<HashMap<Frontend, u32>>,
    affinity: Mutex<Affinity>,
}

/// One that looks for a backend.
pub struct Seeker<'a> {
    pub frontend: Frontend,
    pub search: &'a mut Search,
    /// Asked for only where clients stay with their backends.
    pub client: &'a dyn Fn() -> Option<Ipv4Addr>,
    /// It is counted at its frontend already.
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
    pub fn set(&self, frontend: Frontend, pool: Option<&BackendPool>) -> bool {
        if frontend.protocol != Protocol::Tcp {
            return false;
        }
        let before = match pool {
            // Where those inside have a pool of their own, nobody else comes here.
            Some(pool) => self.frontends.write().insert(frontend, Plan::from(pool.internal.as_deref().unwrap_or(pool))),
            None => self.frontends.write().remove(&frontend),
        };
        if before.is_some_and(|before| before.affinity.is_some()) && pool.is_none_or(|now| now.affinity.is_none()) {
            self.affinity.lock().forget(frontend);
        }
        self.seeking.lock().contains_key(&frontend)
    }

    /// The frontend that a connection was going to.
    pub fn frontend(&self, destination: SocketAddrV4) -> Option<Frontend> {
        let exact = Frontend { address: Some(*destination.ip()), protocol: Protocol::Tcp, port: destination.port() };
        let frontends = self.frontends.read();
        if frontends.contains_key(&exact) {
            return Some(exact);
        }
        let node_port = Frontend { address: None, ..exact };
        frontends.contains_key(&node_port).then_some(node_port)
    }

    /// What a connection does now that nothing is under way for it.
    pub fn decide(&self, seeker: Seeker<'_>, now: Instant) -> Decision {
        let frontends = self.frontends.read();
        let Some(plan) = frontends.get(&seeker.frontend) else { return Decision::Refuse };
        let first = |backends: &[SocketAddrV4]| self.first(seeker.frontend, plan, backends, seeker.client, now);
        let until = match seeker.search.next(plan, now, first) {
            Next::Try { backend, within } => return Decision::Try { backend, within },
            Next::Wait { until } => until,
            Next::Refuse => return Decision::Refuse,
        };
        if !seeker.is_counted {
            let mut seeking = self.seeking.lock();
            let count = seeking.entry(seeker.frontend).or_default();
            if *count >= WAITING_PER_FRONT {
                return Decision::Crowded;
            }
            *count += 1;
        }
        Decision::Wait { until }
    }

    /// One is counted that does not wait, but whose attempt takes a while.
    pub fn enter(&self, frontend: Frontend) {
        *self.seeking.lock().entry(frontend).or_default() += 1;
    }

    /// One that was counted has found a backend, or is gone.
    pub fn leave(&self, frontend: Frontend) {
        let mut seeking = self.seeking.lock();
        if let Some(count) = seeking.get_mut(&frontend) {
            *count -= 1;
            if *count == 0 {
                seeking.remove(&frontend);
            }
        }
    }

    /// Whether an attempt at this backend is still worth waiting for.
    pub fn still_sends(&self, frontend: Frontend, backend: SocketAddrV4) -> bool {
        self.frontends.read().get(&frontend).is_some_and(|plan| plan.backends.contains(&backend))
    }

    /// A client got this backend, and stays with it for as long as its frontend says.
    pub fn remember(
        &self,
        frontend: Frontend,
        client: impl FnOnce() -> Option<Ipv4Addr>,
        backend: SocketAddrV4,
        now: Instant,
    ) {
        let Some(time) = self.frontends.read().get(&frontend).and_then(|plan| plan.affinity) else { return };
        let Some(client) = client() else { return };
        self.affinity.lock().remember(frontend, client, backend, now, time);
    }

    #[cfg(test)]
    pub fn seeking(&self, frontend: Frontend) -> u32 {
        self.seeking.lock().get(&frontend).copied().unwrap_or_default()
    }

    fn first(
        &self,
        frontend: Frontend,
        plan: &Plan,
        backends: &[SocketAddrV4],
        client: &dyn Fn() -> Option<Ipv4Addr>,
        now: Instant,
    ) -> usize {
        let known = || self.affinity.lock().backend(frontend, client()?, now);
        let same = plan.affinity.and_then(|_| known()).and_then(|same| backends.iter().position(|b| *b == same));
        same.unwrap_or_else(|| if backends.len() == 1 { 0 } else { fastrand::usize(..backends.len()) })
    }
}

impl From<&BackendPool> for Plan {
    fn from(pool: &BackendPool) -> Self {
        let hold = match pool.without_backends {
            WithoutBackends::Hold(time) => time,
            // The client hears something all the same: the kernel has accepted for us.
            WithoutBackends::Reject | WithoutBackends::Drop => Duration::ZERO,
        };
        Self { backends: pool.backends.as_slice().into(), affinity: pool.affinity, hold }
    }
}
