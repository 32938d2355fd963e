//! Both data paths together.
//!
//! A front whose last backend goes is first announced to our own process and then turned over by the kernel; when
//! backends return, connections that wait are delivered first and then the kernel takes new ones. Whichever
//! of the two a new connection meets, it is answered.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use tokio::sync::Mutex;

use super::{
    frontend::{Front, Target},
    kernel::{Drift, Kernel, KernelSettings},
};
use crate::{catalogue::Key, error::NetworkError, proxy::Proxy, range::Range};

#[derive(Clone, Debug)]
pub struct BalancerSettings {
    pub instance: String,
    pub services: Range,
    /// All machines' pods.
    pub pods: Range,
}

pub struct Balancer {
    proxy: Arc<Proxy>,
    state: Mutex<State>,
}

struct State {
    kernel: Kernel,
    /// Whose a front is. Of two Services that ask for the same one, the first in order has it.
    wanted: BTreeMap<Front, BTreeMap<Key, Target>>,
    fronts_of: HashMap<Key, BTreeSet<Front>>,
    /// The kernel has been told everything once.
    begun: bool,
}

impl Balancer {
    /// Takes a port for connections that wait. Packet rules come with the first `apply`.
    pub fn start(settings: BalancerSettings) -> Result<Arc<Self>, NetworkError> {
        let proxy = Proxy::start().map_err(NetworkError::system("listen for connections that wait for a backend"))?;
        let kernel = Kernel::new(KernelSettings {
            instance: settings.instance,
            services: settings.services,
            pods: settings.pods,
            proxy_port: proxy.port(),
        });
        let state = State { kernel, wanted: BTreeMap::new(), fronts_of: HashMap::new(), begun: false };
        Ok(Arc::new(Self { proxy, state: Mutex::new(state) }))
    }

    /// These Services have exactly these fronts. The first call is about all there are, and replaces what an
    /// earlier process left. In force when this returns.
    pub async fn apply(&self, services: Vec<(Key, Vec<(Front, Target)>)>) -> Result<(), NetworkError> {
        let mut state = self.state.lock().await;
        let changes = state.change(services);
        // First our own process, which answers for a front whether or not the kernel already sends it there; last
        // what is gone, which the kernel may send there until then.
        for (front, target) in changes.iter().filter(|(_, target)| target.is_some()) {
            self.proxy.set(*front, target.as_ref());
        }
        let gone: Vec<Front> = changes.iter().filter(|(_, t)| t.is_none()).map(|(front, _)| *front).collect();
        let written = match state.begun {
            true => state.kernel.apply(changes).await,
            false => {
                let all = state.all();
                state.kernel.replace(all).await
            }
        };
        state.begun |= written.is_ok();
        gone.iter().for_each(|front| self.proxy.set(*front, None));
        written
    }

    /// Looks at what the kernel really has, and mends it.
    pub async fn reconcile(&self) -> Result<Drift, NetworkError> {
        let mut state = self.state.lock().await;
        if !state.begun {
            return Ok(Drift::default());
        }
        state.kernel.reconcile().await
    }

    pub async fn remove(instance: &str) -> Result<(), NetworkError> {
        Kernel::remove(instance).await
    }
}

impl State {
    /// What changes for fronts when these Services have exactly these.
    fn change(&mut self, services: Vec<(Key, Vec<(Front, Target)>)>) -> BTreeMap<Front, Option<Target>> {
        let mut before: BTreeMap<Front, Option<Target>> = BTreeMap::new();
        for (service, fronts) in services {
            let old = self.fronts_of.get(&service).into_iter().flatten();
            for front in old.chain(fronts.iter().map(|(front, _)| front)) {
                before.entry(*front).or_insert_with(|| self.target(front).cloned());
            }
            self.set(service, fronts);
        }
        let now = before.into_iter().map(|(front, before)| (front, before, self.target(&front)));
        now.filter(|(_, before, now)| before.as_ref() != *now).map(|(front, _, now)| (front, now.cloned())).collect()
    }

    fn all(&self) -> BTreeMap<Front, Target> {
        self.wanted.keys().filter_map(|front| Some((*front, self.target(front)?.clone()))).collect()
    }

    fn set(&mut self, service: Key, fronts: Vec<(Front, Target)>) {
        for front in self.fronts_of.remove(&service).unwrap_or_default() {
            if let Some(claims) = self.wanted.get_mut(&front) {
                claims.remove(&service);
                if claims.is_empty() {
                    self.wanted.remove(&front);
                }
            }
        }
        if !fronts.is_empty() {
            self.fronts_of.insert(service.clone(), fronts.iter().map(|(front, _)| *front).collect());
        }
        for (front, target) in fronts {
            self.wanted.entry(front).or_default().insert(service.clone(), target);
        }
    }

    fn target(&self, front: &Front) -> Option<&Target> {
        self.wanted.get(front)?.values().next()
    }
}

#[cfg(test)]
mod tests;
