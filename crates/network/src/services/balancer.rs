//! Keeps the two data paths of Services together: the kernel's nftables table and the user-space proxy.
//!
//! When a frontend loses its last backend, the proxy learns of it before the kernel redirects connections there. When
//! backends return, the proxy delivers what it holds before the kernel takes new connections. So a new connection is
//! served whichever of the two it meets.
//!
//! While a Service has no ready backend, connections are held, and endpoints that are terminating but still serve get
//! nothing: most stop soon, and a connection that waits for the next backend is better off. If none appears for half of
//! the time that connections are held, what still serves gets them ([`BackendPool::fall_back`]).

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Weak},
};

use tokio::{sync::Mutex, time::Instant};

use super::{
    frontend::{BackendPool, Frontend},
    kernel::{Drift, KernelProxy, KernelSettings},
};
use crate::{catalogue::Key, error::NetworkError, proxy::Proxy, range::Range};

#[derive(Clone, Debug)]
pub struct BalancerSettings {
    pub instance: String,
    pub services: Range,
    /// The pods of all machines.
    pub pods: Range,
}

pub struct Balancer {
    own: Weak<Self>,
    proxy: Arc<Proxy>,
    state: Mutex<State>,
}

struct State {
    kernel: KernelProxy,
    /// The Services that have a frontend, which should be one. Of several, the first in order gets it.
    claims: BTreeMap<Frontend, BTreeMap<Key, BackendPool>>,
    frontends_of: HashMap<Key, BTreeSet<Frontend>>,
    /// When terminating endpoints become the backends of a Service's frontend, or since when they are.
    fallbacks: HashMap<(Key, Frontend), Instant>,
    /// The whole table was written once.
    is_initialized: bool,
}

impl Balancer {
    /// Binds the port of the user-space proxy. The nftables table comes with the first `apply`.
    pub fn start(settings: BalancerSettings) -> Result<Arc<Self>, NetworkError> {
        let proxy = Proxy::start().map_err(NetworkError::system("bind the port of the user-space proxy"))?;
        let kernel = KernelProxy::new(KernelSettings {
            instance: settings.instance,
            services: settings.services,
            pods: settings.pods,
            proxy_port: proxy.port(),
        });
        let state = Mutex::new(State::new(kernel));
        Ok(Arc::new_cyclic(|own| Self { own: own.clone(), proxy, state }))
    }

    /// Sets the frontends of these Services. The first call has all Services there are, and replaces what an earlier
    /// process left. In force when this returns.
    pub async fn apply(&self, services: Vec<(Key, Vec<(Frontend, BackendPool)>)>) -> Result<(), NetworkError> {
        let mut state = self.state.lock().await;
        let now = Instant::now();
        let changes = state.change(services, now);
        if let Some(at) = state.next_fallback(now) {
            let balancer = self.own.clone();
            tokio::spawn(async move {
                tokio::time::sleep_until(at).await;
                if let Some(balancer) = balancer.upgrade() {
                    balancer.fall_back().await;
                }
            });
        }
        self.write(&mut state, changes).await
    }

    /// Gives connections that were held long enough to terminating endpoints.
    async fn fall_back(&self) {
        let mut state = self.state.lock().await;
        let changes = state.fall_back(Instant::now());
        if changes.is_empty() {
            return;
        }
        tracing::info!(frontends = changes.len(), "no backend is ready; terminating endpoints that serve are used");
        if let Err(error) = self.write(&mut state, changes).await {
            // The next change of these Services, or the comparison with the kernel, writes them again.
            tracing::warn!(error = error.chain(), "cannot send to terminating endpoints");
        }
    }

    async fn write(
        &self,
        state: &mut State,
        changes: BTreeMap<Frontend, Option<BackendPool>>,
    ) -> Result<(), NetworkError> {
        // The proxy first: it serves a frontend whether or not the kernel already redirects connections to it. Removed
        // frontends last: the kernel may redirect their connections until then.
        for (frontend, pool) in changes.iter().filter(|(_, pool)| pool.is_some()) {
            self.proxy.set(*frontend, pool.as_ref());
        }
        let removed: Vec<Frontend> =
            changes.iter().filter(|(_, t)| t.is_none()).map(|(frontend, _)| *frontend).collect();
        let written = match state.is_initialized {
            true => state.kernel.apply(changes).await,
            false => {
                let all = state.all();
                state.kernel.replace(all).await
            }
        };
        state.is_initialized |= written.is_ok();
        removed.iter().for_each(|frontend| self.proxy.set(*frontend, None));
        written
    }

    /// Compares the kernel's table with the desired one, and repairs it.
    pub async fn reconcile(&self) -> Result<Drift, NetworkError> {
        let mut state = self.state.lock().await;
        if !state.is_initialized {
            return Ok(Drift::default());
        }
        state.kernel.reconcile().await
    }

    pub async fn remove(instance: &str) -> Result<(), NetworkError> {
        KernelProxy::remove(instance).await
    }
}

impl State {
    fn new(kernel: KernelProxy) -> Self {
        let (claims, frontends_of, fallbacks) = Default::default();
        Self { kernel, claims, frontends_of, fallbacks, is_initialized: false }
    }

    /// Sets the frontends of these Services. Returns the frontends that change by it.
    fn change(
        &mut self,
        services: Vec<(Key, Vec<(Frontend, BackendPool)>)>,
        now: Instant,
    ) -> BTreeMap<Frontend, Option<BackendPool>> {
        let mut before: BTreeMap<Frontend, Option<BackendPool>> = BTreeMap::new();
        for (service, frontends) in services {
            let old = self.frontends_of.get(&service).into_iter().flatten();
            for frontend in old.chain(frontends.iter().map(|(frontend, _)| frontend)) {
                before.entry(*frontend).or_insert_with(|| self.pool(frontend).cloned());
            }
            self.set(service, frontends, now);
        }
        self.differences(before)
    }

    /// Makes terminating endpoints the backends where connections were held long enough. Returns what changes by it.
    fn fall_back(&mut self, now: Instant) -> BTreeMap<Frontend, Option<BackendPool>> {
        let due: Vec<(Key, Frontend)> =
            self.fallbacks.iter().filter(|(_, at)| **at <= now).map(|(place, _)| place.clone()).collect();
        let before = due.iter().map(|(_, frontend)| (*frontend, self.pool(frontend).cloned())).collect();
        for (service, frontend) in &due {
            let pool = self.claims.get_mut(frontend).and_then(|claims| claims.get_mut(service));
            pool.into_iter().for_each(BackendPool::fall_back);
        }
        self.differences(before)
    }

    /// When the next frontend falls back to terminating endpoints.
    fn next_fallback(&self, now: Instant) -> Option<Instant> {
        self.fallbacks.values().copied().filter(|at| *at > now).min()
    }

    fn differences(&self, before: BTreeMap<Frontend, Option<BackendPool>>) -> BTreeMap<Frontend, Option<BackendPool>> {
        let changes = before.into_iter().map(|(frontend, before)| (frontend, before, self.pool(&frontend)));
        changes
            .filter(|(_, before, now)| before.as_ref() != *now)
            .map(|(frontend, _, now)| (frontend, now.cloned()))
            .collect()
    }

    fn all(&self) -> BTreeMap<Frontend, BackendPool> {
        self.claims.keys().filter_map(|frontend| Some((*frontend, self.pool(frontend)?.clone()))).collect()
    }

    fn set(&mut self, service: Key, frontends: Vec<(Frontend, BackendPool)>, now: Instant) {
        let mut fallbacks = Vec::new();
        for frontend in self.frontends_of.remove(&service).unwrap_or_default() {
            let place = (service.clone(), frontend);
            fallbacks.extend(self.fallbacks.remove(&place).map(|at| (frontend, at)));
            if let Some(of_services) = self.claims.get_mut(&frontend) {
                of_services.remove(&service);
                if of_services.is_empty() {
                    self.claims.remove(&frontend);
                }
            }
        }
        if !frontends.is_empty() {
            self.frontends_of.insert(service.clone(), frontends.iter().map(|(frontend, _)| *frontend).collect());
        }
        for (frontend, mut pool) in frontends {
            if let Some(delay) = pool.fallback_delay() {
                let known = fallbacks.iter().find(|(known, _)| *known == frontend).map(|(_, at)| *at);
                let at = known.unwrap_or(now + delay);
                self.fallbacks.insert((service.clone(), frontend), at);
                if at <= now {
                    pool.fall_back();
                }
            }
            self.claims.entry(frontend).or_default().insert(service.clone(), pool);
        }
    }

    fn pool(&self, frontend: &Frontend) -> Option<&BackendPool> {
        self.claims.get(frontend)?.values().next()
    }
}

#[cfg(test)]
mod tests;
