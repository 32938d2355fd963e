//! The frontends, as the proxy's threads share them.
//!
//! A connection that decides to wait is counted before the lock of the table is released, and a change of the table
//! looks at the counts afterwards: so no connection waits past a change that is meant for it. A connection whose
//! attempt takes a while is counted too, and looks at the table again after that.

use std::{
    collections::HashMap,
    net::{Ipv4Addr, SocketAddrV4},
    time::{Duration, Instant},
};

use parking_lot::{Mutex, RwLock};

use super::{
    affinity::Affinity,
    resources::MAX_WAITING_PER_FRONTEND,
    search::{BackendSearch, FrontendPolicy, SearchStep},
};
use crate::{
    journal::Protocol,
    services::frontend::{BackendPool, Frontend, WithoutBackends},
};

#[derive(Default)]
pub struct FrontendTable {
    frontends: RwLock<HashMap<Frontend, FrontendPolicy>>,
    /// Connections that have to be notified of a change, by frontend: they wait, or try a backend that has not
    /// answered yet.
    waiting: Mutex<HashMap<Frontend, u32>>,
    affinity: Mutex<Affinity>,
}

/// A connection that needs a backend.
pub struct SearchRequest<'a> {
    pub frontend: Frontend,
    pub search: &'a mut BackendSearch,
    /// The client's address; used only with session affinity.
    pub client: &'a dyn Fn() -> Option<Ipv4Addr>,
    /// It is counted already.
    pub is_counted: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    Connect {
        backend: SocketAddrV4,
        within: Duration,
    },
    /// It is counted from now on.
    Wait {
        until: Instant,
    },
    Reset,
    /// It would have to wait, and too many do.
    TooManyWaiting,
}

impl FrontendTable {
    /// Returns whether connections have to be notified.
    pub fn set(&self, frontend: Frontend, pool: Option<&BackendPool>) -> bool {
        if frontend.protocol != Protocol::Tcp {
            return false;
        }
        let before = match pool {
            // Where clients inside the cluster have their own pool, only they come here.
            Some(pool) => {
                self.frontends.write().insert(frontend, FrontendPolicy::from(pool.internal.as_deref().unwrap_or(pool)))
            }
            None => self.frontends.write().remove(&frontend),
        };
        if before.is_some_and(|before| before.affinity.is_some()) && pool.is_none_or(|now| now.affinity.is_none()) {
            self.affinity.lock().forget(frontend);
        }
        self.waiting.lock().contains_key(&frontend)
    }

    /// The frontend of an original destination.
    pub fn frontend(&self, destination: SocketAddrV4) -> Option<Frontend> {
        let exact = Frontend { address: Some(*destination.ip()), protocol: Protocol::Tcp, port: destination.port() };
        let frontends = self.frontends.read();
        if frontends.contains_key(&exact) {
            return Some(exact);
        }
        let node_port = Frontend { address: None, ..exact };
        frontends.contains_key(&node_port).then_some(node_port)
    }

    /// Decides what a connection does next while no attempt is under way.
    pub fn decide(&self, request: SearchRequest<'_>, now: Instant) -> Decision {
        let frontends = self.frontends.read();
        let Some(policy) = frontends.get(&request.frontend) else { return Decision::Reset };
        let first =
            |backends: &[SocketAddrV4]| self.first_backend(request.frontend, policy, backends, request.client, now);
        let until = match request.search.next(policy, now, first) {
            SearchStep::Connect { backend, within } => return Decision::Connect { backend, within },
            SearchStep::Wait { until } => until,
            SearchStep::Reset => return Decision::Reset,
        };
        if !request.is_counted {
            let mut waiting = self.waiting.lock();
            let count = waiting.entry(request.frontend).or_default();
            if *count >= MAX_WAITING_PER_FRONTEND {
                return Decision::TooManyWaiting;
            }
            *count += 1;
        }
        Decision::Wait { until }
    }

    /// Counts a connection whose attempt takes a while.
    pub fn begin_wait(&self, frontend: Frontend) {
        *self.waiting.lock().entry(frontend).or_default() += 1;
    }

    /// A counted connection has got a backend, or is gone.
    pub fn end_wait(&self, frontend: Frontend) {
        let mut waiting = self.waiting.lock();
        if let Some(count) = waiting.get_mut(&frontend) {
            *count -= 1;
            if *count == 0 {
                waiting.remove(&frontend);
            }
        }
    }

    /// Whether an attempt at this backend is still useful.
    pub fn has_backend(&self, frontend: Frontend, backend: SocketAddrV4) -> bool {
        self.frontends.read().get(&frontend).is_some_and(|policy| policy.backends.contains(&backend))
    }

    /// Renews session affinity after a connection to this backend.
    pub fn remember(
        &self,
        frontend: Frontend,
        client: impl FnOnce() -> Option<Ipv4Addr>,
        backend: SocketAddrV4,
        now: Instant,
    ) {
        let Some(time) = self.frontends.read().get(&frontend).and_then(|policy| policy.affinity) else { return };
        let Some(client) = client() else { return };
        self.affinity.lock().remember(frontend, client, backend, now, time);
    }

    #[cfg(test)]
    pub fn waiting(&self, frontend: Frontend) -> u32 {
        self.waiting.lock().get(&frontend).copied().unwrap_or_default()
    }

    fn first_backend(
        &self,
        frontend: Frontend,
        policy: &FrontendPolicy,
        backends: &[SocketAddrV4],
        client: &dyn Fn() -> Option<Ipv4Addr>,
        now: Instant,
    ) -> usize {
        let known = || self.affinity.lock().backend(frontend, client()?, now);
        let same = policy.affinity.and_then(|_| known()).and_then(|same| backends.iter().position(|b| *b == same));
        same.unwrap_or_else(|| if backends.len() == 1 { 0 } else { fastrand::usize(..backends.len()) })
    }
}

impl From<&BackendPool> for FrontendPolicy {
    fn from(pool: &BackendPool) -> Self {
        let hold = match pool.without_backends {
            WithoutBackends::Hold(time) => time,
            // The client gets an RST all the same: the kernel has accepted its connection for us.
            WithoutBackends::Reject | WithoutBackends::Drop => Duration::ZERO,
        };
        Self { backends: pool.backends.as_slice().into(), affinity: pool.affinity, hold }
    }
}
