//! EndpointSlice mirroring: slices that repeat Endpoints which people wrote, for Services without a selector.

use std::{net::IpAddr, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::{
    api::{
        core::v1::{EndpointAddress, Endpoints},
        discovery::v1::{Endpoint, EndpointConditions, EndpointSlice},
    },
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use kube::Client;

use super::{
    ServiceContext,
    endpoints::is_lock,
    pack::{self, DesiredEndpoint, DesiredEndpoints, SlicePlan, SliceTemplate, Write},
    ports::Port,
    slice_index::SERVICE_NAME,
    slices::{self, MANAGED_BY},
};
use crate::{
    objects::service::Service,
    runtime::{ApiError, Controller, Limits, ObjectKey, Plan, Runnable},
};

const CONTROLLER: &str = "endpointslicemirroring-controller.k8s.io";
const SKIP: &str = mainstay_api::wellknown::kubernetes::SKIP_MIRROR;
const LAST_APPLIED: &str = mainstay_api::wellknown::kubernetes::LAST_APPLIED;
/// As many addresses of one subset as are repeated.
const MOST: usize = 1000;

pub struct MirrorController {
    client: Client,
    shared: Arc<ServiceContext>,
}

pub fn controller(client: Client, shared: &Arc<ServiceContext>) -> Runnable {
    let (queue, caches) = (shared.context.queue::<MirrorController>(), shared.caches());
    caches.endpoints.on_change({
        let queue = queue.clone();
        move |change| {
            if !change.own {
                queue.add(change.key.clone());
            }
        }
    });
    caches.services.on_change({
        let (queue, shared) = (queue.clone(), Arc::downgrade(shared));
        move |change| {
            let Some(shared) = shared.upgrade() else { return };
            if shared.caches().endpoints.get(change.key).is_some() {
                queue.add(change.key.clone());
            }
        }
    });
    slices::add_on_foreign_change(shared, &queue, CONTROLLER);
    let mirror = MirrorController { client, shared: shared.clone() };
    shared.context.runnable(Arc::new(mirror), queue, Limits::default())
}

pub struct World {
    service: Option<Arc<Service>>,
    endpoints: Arc<Endpoints>,
    slices: Vec<Arc<EndpointSlice>>,
    names: Vec<String>,
}

pub fn plan(world: &World) -> SlicePlan {
    let frame = frame(&world.endpoints, world.names.clone());
    let mirrors = world.service.as_ref().is_some_and(|service| !service.selects() && !service.is_alias());
    let wanted =
        if mirrors && !skips(&world.endpoints) { desired_endpoints(&world.endpoints) } else { DesiredEndpoints::new() };
    pack::pack(&world.slices, wanted, &frame)
}

fn skips(endpoints: &Endpoints) -> bool {
    let labels = endpoints.metadata.labels.as_ref();
    labels.and_then(|labels| labels.get(SKIP)).is_some_and(|skip| skip == "true") || is_lock(endpoints)
}

fn desired_endpoints(endpoints: &Endpoints) -> DesiredEndpoints {
    let mut wanted = DesiredEndpoints::new();
    for subset in endpoints.subsets.iter().flatten() {
        let mut ports: Vec<Port> = subset.ports.iter().flatten().map(Port::from).collect();
        ports.sort();
        let ready = subset.addresses.iter().flatten().map(|address| (address, true));
        let all = ready.chain(subset.not_ready_addresses.iter().flatten().map(|address| (address, false)));
        for (address, ready) in all.take(MOST) {
            let kind = match address.ip.parse() {
                Ok(IpAddr::V4(_)) => "IPv4",
                Ok(IpAddr::V6(_)) => "IPv6",
                Err(_) => continue,
            };
            let placed = wanted.entry((kind, ports.clone())).or_default();
            if !placed.iter().any(|other: &DesiredEndpoint| same(&other.endpoint, address)) {
                placed.push(DesiredEndpoint { endpoint: endpoint(address, ready), since: None });
            }
        }
    }
    wanted
}

fn same(endpoint: &Endpoint, address: &EndpointAddress) -> bool {
    endpoint.addresses.first() == Some(&address.ip) && endpoint.target_ref == address.target_ref
}

fn endpoint(address: &EndpointAddress, ready: bool) -> Endpoint {
    Endpoint {
        addresses: vec![address.ip.clone()],
        conditions: Some(EndpointConditions { ready: Some(ready), ..EndpointConditions::default() }),
        hostname: address.hostname.clone().filter(|name| !name.is_empty()),
        node_name: address.node_name.clone(),
        target_ref: address.target_ref.clone(),
        ..Endpoint::default()
    }
}

fn frame(endpoints: &Endpoints, names: Vec<String>) -> SliceTemplate {
    let meta = &endpoints.metadata;
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    let mut labels = meta.labels.clone().unwrap_or_default();
    labels.insert(SERVICE_NAME.to_owned(), text(&meta.name));
    labels.insert(MANAGED_BY.to_owned(), CONTROLLER.to_owned());
    let mut annotations = meta.annotations.clone().unwrap_or_default();
    annotations.remove(LAST_APPLIED);
    SliceTemplate {
        namespace: text(&meta.namespace),
        owner: OwnerReference {
            api_version: "v1".to_owned(),
            kind: "Endpoints".to_owned(),
            name: text(&meta.name),
            uid: text(&meta.uid),
            controller: Some(true),
            block_owner_deletion: Some(true),
        },
        labels,
        annotations: Some(annotations),
        names,
        placeholder: false,
    }
}

impl Controller for MirrorController {
    const NAME: &'static str = "endpoint_slice_mirroring";
    const CONCURRENT_ACTIONS: usize = 8;
    type Key = ObjectKey;
    type World = World;
    type Action = Write;
    type Outcome = ();
    type Status = ();

    async fn observe(&self, key: &ObjectKey) -> Result<Option<World>, ApiError> {
        let (shared, caches) = (&self.shared, self.shared.caches());
        let endpoints = caches.endpoints.get(key).filter(|own| own.metadata.deletion_timestamp.is_none());
        let Some(endpoints) = endpoints else { return Ok(None) }; // what it owned is garbage collected
        let slices = slices::managed_by(shared, key, CONTROLLER);
        let uid = endpoints.metadata.uid.clone().unwrap_or_default();
        let names = slices::unused_names(shared, &key.namespace, &key.name, &uid, 0);
        Ok(Some(World { service: caches.services.get(key), endpoints, slices, names }))
    }

    fn plan(world: &World, now: Timestamp) -> Plan<Write, ()> {
        slices::into_plan(plan(world), now)
    }

    async fn apply(&self, key: &ObjectKey, write: Write) -> Result<(), ApiError> {
        slices::apply(&self.client, &self.shared.caches().slices, &key.namespace, write).await
    }
}

#[cfg(test)]
mod tests;
