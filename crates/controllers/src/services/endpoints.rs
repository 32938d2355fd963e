//! Endpoints objects of Services that select their pods.
//!
//! Nobody of ours reads them, and a large one is written whole at every change; so large ones wait a moment for
//! more to change. When a Service goes, so does the object of its name. Of those that went while
//! nobody looked, only what was ours is known to be theirs.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Endpoints as Object;
use kube::{Api, api::PostParams};
use parking_lot::Mutex;

use super::{
    Shared, Waker,
    machine::Machine,
    object::Service,
    slices::WIDTH,
    subsets::{self, CONTROLLER, MANAGED_BY},
};
use crate::{
    cache::Key,
    failure::{self, Failure},
    runner::{Limits, Queue},
    shell::{Controller, Plan},
    workloads::{Turns, act, pod::Pod, turns},
};

const LARGE: usize = 100;
const A_MOMENT: Duration = Duration::from_millis(500);
/// On objects that are nobody's endpoints, but a lock of old.
pub const LEADER: &str = "control-plane.alpha.kubernetes.io/leader";

pub struct Endpoints {
    shared: Arc<Shared>,
    /// Services that were there and are gone, until what they leave is.
    gone: Arc<Mutex<HashSet<Key>>>,
}

/// Begins to listen.
pub fn listen(shared: &Arc<Shared>) -> (Turns, Waker) {
    let queue = Queue::new();
    let gone: Arc<Mutex<HashSet<Key>>> = Arc::default();
    shared.caches().services.on_change({
        let gone = gone.clone();
        move |change| match change.after {
            Some(_) => drop(gone.lock().remove(change.key)),
            None => drop(gone.lock().insert(change.key.clone())),
        }
    });
    shared.caches().endpoints.on_change({
        let queue = queue.clone();
        move |change| {
            if !change.own {
                queue.wake(change.key.clone());
            }
        }
    });
    let waker = Box::new({
        let queue = queue.clone();
        move |service, pods| queue.wake_within(service, if pods > LARGE { A_MOMENT } else { Duration::ZERO })
    });
    let limits = Limits { width: WIDTH, ..Limits::default() };
    (turns(Arc::new(Endpoints { shared: shared.clone(), gone }), queue, limits), waker)
}

pub struct World {
    service: Option<Arc<Service>>,
    /// There was a Service of this name while we looked.
    was_there: bool,
    pods: Vec<Arc<Pod>>,
    machines: HashMap<String, Machine>,
    current: Option<Arc<Object>>,
}

#[derive(Debug, PartialEq)]
pub enum Action {
    Create(Box<Object>),
    /// Carries the version that was judged.
    Replace(Box<Object>),
    Delete {
        uid: String,
    },
}

pub fn plan(world: &World) -> Option<Action> {
    let current = world.current.as_deref();
    let delete = || Some(Action::Delete { uid: current?.metadata.uid.clone().unwrap_or_default() });
    match &world.service {
        Some(service) if service.is_leaving() => None,
        Some(service) if service.selects() => {
            let wanted = Box::new(subsets::plan(service, &world.pods, &world.machines, current)?);
            Some(if current.is_some() { Action::Replace(wanted) } else { Action::Create(wanted) })
        }
        Some(service) if service.is_alias() && current.is_some_and(is_ours) => delete(),
        Some(_) => None, // people write them
        None if current.is_some_and(is_lock) => None,
        None if world.was_there || current.is_some_and(is_ours) => delete(),
        None => None,
    }
}

fn is_ours(endpoints: &Object) -> bool {
    let labels = endpoints.metadata.labels.as_ref();
    labels.and_then(|labels| labels.get(MANAGED_BY)).is_some_and(|by| by == CONTROLLER)
}

pub fn is_lock(endpoints: &Object) -> bool {
    endpoints.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(LEADER))
}

impl Controller for Endpoints {
    const NAME: &'static str = "endpoints";
    type Key = Key;
    type World = World;
    type Action = Action;
    type Status = ();

    async fn observe(&self, key: &Key) -> Result<Option<World>, Failure> {
        let caches = self.shared.caches();
        let was_there = self.gone.lock().contains(key);
        let (service, current) = (caches.services.get(key), caches.endpoints.get(key));
        if service.is_none() && current.is_none() {
            self.gone.lock().remove(key);
            return Ok(None);
        }
        let pods = self.shared.pods_of(key);
        let machines = self.shared.machines_of(&pods);
        Ok(Some(World { service, was_there, pods, machines, current }))
    }

    fn plan(world: &World, _: Timestamp) -> Plan<Action, ()> {
        Plan::act(plan(world))
    }

    async fn apply(&self, key: &Key, action: Action) -> Result<(), Failure> {
        let (workloads, caches) = (&self.shared.workloads, self.shared.caches());
        let api: Api<Object> = Api::namespaced(workloads.client.clone(), &key.namespace);
        let params = PostParams::default();
        let written = match action {
            Action::Create(object) => api.create(&params, &object).await,
            Action::Replace(object) => api.replace(&key.name, &params, &object).await,
            Action::Delete { uid } => {
                act::delete(&api, &caches.endpoints, key, &uid).await?;
                self.gone.lock().remove(key);
                return Ok(());
            }
        };
        match written {
            Ok(written) => caches.endpoints.wrote(written),
            Err(error) if failure::namespace_goes(&error) => {}
            Err(error) => return Err(Failure::new(format!("write endpoints {key:?}"), error)),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
