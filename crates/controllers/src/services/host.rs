//! Services of programs that are not pods: agents publish their EndpointSlices; the Service that makes them one name is made here.
//!
//! A node may not write Services. So the Service is made with the first slice of its name, headless and without ports (instances may
//! listen on different ones), and deleted with the last, if it was made here: one that somebody else made in that namespace, say with a
//! cluster IP, is left alone. Slices of a node that is lost or deleted are deleted: it publishes them anew when it returns.

use std::{collections::BTreeSet, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::api::{core::v1::Node, discovery::v1::EndpointSlice};
use kube::{Api, Client};
use mainstay_api::host_service::{MANAGED_BY, MANAGER, NAMESPACE};
use serde_json::json;

use super::{ServiceContext, slice_index::SERVICE_NAME};
use crate::{
    objects::service::Service,
    runtime::{ApiError, Change, Controller, Limits, ObjectKey, Plan, Runnable, error, object_writes},
};

pub struct HostServiceController {
    client: Client,
    shared: Arc<ServiceContext>,
}

/// A name: its Service, and what agents publish for it.
#[derive(Debug, Default)]
pub struct World {
    service: Option<ServiceFacts>,
    slices: Vec<SliceFacts>,
}

#[derive(Debug)]
struct ServiceFacts {
    uid: String,
    is_ours: bool,
    is_being_deleted: bool,
}

#[derive(Debug)]
struct SliceFacts {
    name: String,
    uid: String,
    is_node_lost: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Action {
    CreateService,
    /// Nobody publishes it any more.
    DeleteService {
        uid: String,
    },
    /// Its node is lost.
    DeleteSlice {
        name: String,
        uid: String,
    },
}

pub fn controller(client: Client, shared: &Arc<ServiceContext>) -> Runnable {
    let (queue, caches) = (shared.context.queue::<HostServiceController>(), shared.caches());
    caches.slices.on_change({
        let queue = queue.clone();
        move |change: Change<'_, EndpointSlice>| {
            // How an instance fares is in the slice alone.
            if change.before.is_some() && change.after.is_some() {
                return;
            }
            let one = change.before.or(change.after);
            one.and_then(published_service).into_iter().for_each(|name| queue.add(name.to_owned()));
        }
    });
    caches.services.on_change({
        let queue = queue.clone();
        move |change: Change<'_, Service>| {
            if change.key.namespace == NAMESPACE {
                queue.add(change.key.name.clone());
            }
        }
    });
    caches.nodes.on_change({
        let (queue, slices) = (queue.clone(), Arc::downgrade(&caches.slices));
        move |change: Change<'_, Node>| {
            if change.before.map(is_lost) == change.after.map(is_lost) {
                return;
            }
            let Some(slices) = slices.upgrade() else { return };
            let published = slices.in_namespace(NAMESPACE);
            let on_node = published.iter().filter(|slice| node_of(slice) == Some(&change.key.name));
            let names: BTreeSet<&str> = on_node.filter_map(|slice| published_service(slice)).collect();
            names.into_iter().for_each(|name| queue.add(name.to_owned()));
        }
    });
    let controller = HostServiceController { client, shared: shared.clone() };
    shared.context.runnable(Arc::new(controller), queue, Limits::default())
}

/// The name of the service, if an agent published the slice.
fn published_service(slice: &EndpointSlice) -> Option<&str> {
    let labels = slice.metadata.labels.as_ref()?;
    let is_published = labels.get(MANAGED_BY).is_some_and(|by| by == MANAGER);
    let is_here = slice.metadata.namespace.as_deref() == Some(NAMESPACE);
    labels.get(SERVICE_NAME).filter(|_| is_published && is_here).map(String::as_str)
}

fn node_of(slice: &EndpointSlice) -> Option<&String> {
    slice.endpoints.iter().flatten().find_map(|endpoint| endpoint.node_name.as_ref())
}

/// Whether the control plane no longer hears of the node.
fn is_lost(node: &Node) -> bool {
    let mut conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "Unknown")
}

fn plan(world: &World) -> Vec<Action> {
    let lost = world.slices.iter().filter(|slice| slice.is_node_lost);
    let mut actions: Vec<Action> =
        lost.map(|slice| Action::DeleteSlice { name: slice.name.clone(), uid: slice.uid.clone() }).collect();
    let is_published = world.slices.iter().any(|slice| !slice.is_node_lost);
    match &world.service {
        None if is_published => actions.push(Action::CreateService),
        Some(service) if !is_published && service.is_ours && !service.is_being_deleted => {
            actions.push(Action::DeleteService { uid: service.uid.clone() });
        }
        None | Some(_) => {}
    }
    actions
}

impl Controller for HostServiceController {
    const NAME: &'static str = "host-service";
    type Key = String;
    type World = World;
    type Action = Action;
    type Outcome = ();
    type Status = ();

    async fn observe(&self, name: &String) -> Result<Option<World>, ApiError> {
        let (caches, key) = (self.shared.caches(), ObjectKey::new(NAMESPACE, name));
        let service = caches.services.get(&key).map(|service| ServiceFacts {
            uid: service.uid().to_owned(),
            is_ours: service.labels().get(MANAGED_BY).is_some_and(|by| by == MANAGER),
            is_being_deleted: service.is_being_deleted(),
        });
        let is_node_lost = |slice: &EndpointSlice| match node_of(slice) {
            Some(node) => caches.nodes.get(&ObjectKey::new("", node)).is_none_or(|node| is_lost(&node)),
            None => false,
        };
        let slices = self.shared.slices.members(&key).into_iter().filter_map(|key| caches.slices.get(&key));
        let published = slices.filter(|slice| published_service(slice).is_some());
        let slices = published.map(|slice| SliceFacts {
            name: slice.metadata.name.clone().unwrap_or_default(),
            uid: slice.metadata.uid.clone().unwrap_or_default(),
            is_node_lost: is_node_lost(&slice),
        });
        let slices = slices.collect();
        Ok(Some(World { service, slices }))
    }

    fn plan(world: &World, _now: Timestamp) -> Plan<Action, ()> {
        Plan::act(plan(world))
    }

    async fn apply(&self, name: &String, action: Action) -> Result<(), ApiError> {
        let (client, caches) = (&self.client, self.shared.caches());
        match action {
            Action::CreateService => {
                let service = json!({
                    "apiVersion": "v1", "kind": "Service",
                    "metadata": {"name": name, "namespace": NAMESPACE, "labels": {MANAGED_BY: MANAGER}},
                    "spec": {"clusterIP": "None"},
                });
                match object_writes::create_from::<Service>(client, NAMESPACE, &service).await {
                    Ok(service) => caches.services.wrote(service),
                    Err(error) if error::has_code(&error, 409) => {} // somebody made it by now
                    Err(error) => return Err(ApiError::new(format!("create service {NAMESPACE}/{name}"), error)),
                }
            }
            Action::DeleteService { uid } => {
                let services: Api<Service> = Api::namespaced(client.clone(), NAMESPACE);
                let key = ObjectKey::new(NAMESPACE, name);
                object_writes::delete(&services, &caches.services, &key, &uid).await?;
            }
            Action::DeleteSlice { name, uid } => {
                let slices: Api<EndpointSlice> = Api::namespaced(client.clone(), NAMESPACE);
                let key = ObjectKey::new(NAMESPACE, name);
                object_writes::delete(&slices, &caches.slices, &key, &uid).await?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(name: &str, is_node_lost: bool) -> SliceFacts {
        SliceFacts { name: name.to_owned(), uid: format!("uid-{name}"), is_node_lost }
    }

    fn service(is_ours: bool) -> Option<ServiceFacts> {
        Some(ServiceFacts { uid: "s".to_owned(), is_ours, is_being_deleted: false })
    }

    #[test]
    fn a_service_is_made_with_its_first_instance_and_goes_with_its_last() {
        assert_eq!(plan(&World { service: None, slices: vec![slice("a", false)] }), [Action::CreateService]);
        assert_eq!(plan(&World { service: service(true), slices: vec![slice("a", false)] }), []);
        assert_eq!(
            plan(&World { service: service(true), slices: vec![] }),
            [Action::DeleteService { uid: "s".to_owned() }]
        );
        assert_eq!(plan(&World::default()), []);
    }

    #[test]
    fn a_service_that_somebody_else_made_is_left_alone() {
        assert_eq!(plan(&World { service: service(false), slices: vec![] }), []);
    }

    #[test]
    fn instances_of_a_lost_node_go_and_the_last_of_them_takes_the_service_along() {
        let gone = Action::DeleteSlice { name: "a".to_owned(), uid: "uid-a".to_owned() };
        let one_left = World { service: service(true), slices: vec![slice("a", true), slice("b", false)] };
        assert_eq!(plan(&one_left), [gone]);
        let gone = Action::DeleteSlice { name: "a".to_owned(), uid: "uid-a".to_owned() };
        let none_left = World { service: service(true), slices: vec![slice("a", true)] };
        assert_eq!(plan(&none_left), [gone, Action::DeleteService { uid: "s".to_owned() }]);
    }
}
