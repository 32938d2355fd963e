//! The Endpoints controller: Endpoints of Services that have a selector.
//!
//! Nobody of ours reads them, and a large one is written whole at every change; so large ones wait a moment for
//! more to change. When a Service is deleted, so is the object of its name. Of those deleted while nobody looked, only
//! what was ours is known to be theirs.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Endpoints as Object;
use kube::{Api, Client, api::PostParams};
use parking_lot::Mutex;

use super::{
    ServiceContext,
    endpoint_node::EndpointNode,
    slices::CONCURRENT_RECONCILES,
    subsets::{self, CONTROLLER, MANAGED_BY},
};
use crate::{
    objects::{pod::Pod, service::Service},
    runtime::{ApiError, Controller, Limits, ObjectKey, Plan, Runnable, error, object_writes},
};

const LARGE: usize = 100;
const BATCH_PERIOD: Duration = Duration::from_millis(500);
/// On objects that hold no endpoints, but the leader lock of old clients.
pub const LEADER: &str = "control-plane.alpha.kubernetes.io/leader";

pub struct EndpointsController {
    client: Client,
    shared: Arc<ServiceContext>,
    /// Services that were there and are gone, until what they leave is.
    deleted_services: Arc<Mutex<HashSet<ObjectKey>>>,
}

pub fn controller(client: Client, shared: &Arc<ServiceContext>) -> Runnable {
    let queue = shared.context.queue::<EndpointsController>();
    let deleted_services: Arc<Mutex<HashSet<ObjectKey>>> = Arc::default();
    shared.caches().services.on_change({
        let deleted = deleted_services.clone();
        move |change| match change.after {
            Some(_) => drop(deleted.lock().remove(change.key)),
            None => drop(deleted.lock().insert(change.key.clone())),
        }
    });
    shared.caches().endpoints.on_change({
        let queue = queue.clone();
        move |change| {
            if !change.own {
                queue.add(change.key.clone());
            }
        }
    });
    shared.selected_pods.on_change({
        let queue = queue.clone();
        move |service, pods| queue.add_after(service, if pods > LARGE { BATCH_PERIOD } else { Duration::ZERO })
    });
    let limits = Limits { concurrent_reconciles: CONCURRENT_RECONCILES, ..Limits::default() };
    let endpoints = EndpointsController { client, shared: shared.clone(), deleted_services };
    shared.context.runnable(Arc::new(endpoints), queue, limits)
}

pub struct World {
    service: Option<Arc<Service>>,
    /// There was a Service of this name while we looked.
    service_existed: bool,
    pods: Vec<Arc<Pod>>,
    nodes: HashMap<String, EndpointNode>,
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
        Some(service) if service.is_being_deleted() => None,
        Some(service) if service.selects() => {
            let wanted = Box::new(subsets::plan(service, &world.pods, &world.nodes, current)?);
            Some(if current.is_some() { Action::Replace(wanted) } else { Action::Create(wanted) })
        }
        Some(service) if service.is_alias() && current.is_some_and(is_ours) => delete(),
        Some(_) => None, // written by people
        None if current.is_some_and(is_lock) => None,
        None if world.service_existed || current.is_some_and(is_ours) => delete(),
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

impl Controller for EndpointsController {
    const NAME: &'static str = "endpoint";
    type Key = ObjectKey;
    type World = World;
    type Action = Action;
    type Outcome = ();
    type Status = ();

    async fn observe(&self, key: &ObjectKey) -> Result<Option<World>, ApiError> {
        let caches = self.shared.caches();
        let service_existed = self.deleted_services.lock().contains(key);
        let (service, current) = (caches.services.get(key), caches.endpoints.get(key));
        if service.is_none() && current.is_none() {
            self.deleted_services.lock().remove(key);
            return Ok(None);
        }
        let pods = self.shared.pods_of(key);
        let nodes = self.shared.nodes_of(&pods);
        Ok(Some(World { service, service_existed, pods, nodes, current }))
    }

    fn plan(world: &World, _: Timestamp) -> Plan<Action, ()> {
        Plan::act(plan(world))
    }

    async fn apply(&self, key: &ObjectKey, action: Action) -> Result<(), ApiError> {
        let caches = self.shared.caches();
        let api: Api<Object> = Api::namespaced(self.client.clone(), &key.namespace);
        let params = PostParams::default();
        let written = match action {
            Action::Create(object) => api.create(&params, &object).await,
            Action::Replace(object) => api.replace(&key.name, &params, &object).await,
            Action::Delete { uid } => {
                object_writes::delete(&api, &caches.endpoints, key, &uid).await?;
                self.deleted_services.lock().remove(key);
                return Ok(());
            }
        };
        match written {
            Ok(written) => caches.endpoints.wrote(written),
            Err(error) if error::is_namespace_terminating(&error) => {}
            Err(error) => return Err(ApiError::new(format!("write endpoints {key:?}"), error)),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
