//! The EndpointSlice controller: slices of Services that have a selector.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use jiff::Timestamp;
use k8s_openapi::{api::discovery::v1::EndpointSlice, apimachinery::pkg::apis::meta::v1::OwnerReference};
use kube::{
    Api, Client,
    api::{DeleteParams, PostParams, Preconditions},
};

use super::{
    ServiceContext,
    backend::{self, PodBackend},
    endpoint_node::EndpointNode,
    pack::{self, DesiredEndpoint, DesiredEndpoints, MOST, SlicePlan, SliceTemplate, Write},
    slice_index::{SERVICE_NAME, service_of},
};
use crate::{
    names,
    objects::{pod::Pod, service::Service},
    runtime::{ApiError, Cache, Controller, Limits, ObjectKey, Plan, Runnable, WorkQueue, error},
};

pub const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
pub const HEADLESS: &str = mainstay_api::wellknown::kubernetes::HEADLESS_SERVICE;
const CONTROLLER: &str = "endpointslice-controller.k8s.io";
/// Each mostly waits for the store.
pub const CONCURRENT_RECONCILES: usize = 32;

pub struct SliceController {
    client: Client,
    shared: Arc<ServiceContext>,
}

pub fn controller(client: Client, shared: &Arc<ServiceContext>) -> Runnable {
    let queue = shared.context.queue::<SliceController>();
    add_on_foreign_change(shared, &queue, CONTROLLER);
    shared.selected_pods.on_change({
        let queue = queue.clone();
        move |service, _| queue.add(service)
    });
    let limits = Limits { concurrent_reconciles: CONCURRENT_RECONCILES, ..Limits::default() };
    shared.context.runnable(Arc::new(SliceController { client, shared: shared.clone() }), queue, limits)
}

/// Adds a Service when others change slices of it that a controller manages. What we wrote ourselves is as it should be.
pub fn add_on_foreign_change(shared: &ServiceContext, queue: &Arc<WorkQueue<ObjectKey>>, controller: &'static str) {
    let queue = queue.clone();
    shared.caches().slices.on_change(move |change| {
        let retained =
            [change.before, change.after].into_iter().flatten().filter(|slice| is_managed(slice, controller));
        retained.filter(|_| !change.own).filter_map(service_of).for_each(|service| queue.add(service));
    });
}

fn is_managed(slice: &EndpointSlice, controller: &str) -> bool {
    slice.metadata.labels.as_ref().and_then(|labels| labels.get(MANAGED_BY)).is_some_and(|by| by == controller)
}

pub struct World {
    service: Arc<Service>,
    pods: Vec<Arc<Pod>>,
    nodes: HashMap<String, EndpointNode>,
    /// Those that are ours to keep.
    slices: Vec<Arc<EndpointSlice>>,
    names: Vec<String>,
}

/// The slices of a Service that a controller keeps.
pub fn managed_by(shared: &ServiceContext, service: &ObjectKey, controller: &str) -> Vec<Arc<EndpointSlice>> {
    let all = shared.slices.members(service).into_iter().filter_map(|key| shared.caches().slices.get(&key));
    all.filter(|slice| is_managed(slice, controller)).collect()
}

/// Free names for as many slices as one reconcile makes.
pub fn unused_names(shared: &ServiceContext, namespace: &str, owner: &str, uid: &str, count: usize) -> Vec<String> {
    let taken = |name: &str| shared.caches().slices.get(&ObjectKey::new(namespace, name)).is_some();
    names::unused(owner, uid, taken).take(count / MOST + 8).collect()
}

pub fn plan(world: &World) -> SlicePlan {
    let World { service, pods, nodes, slices, names } = world;
    let frame = frame(service, names.clone());
    if !service.selects() {
        return pack::pack(slices, DesiredEndpoints::new(), &SliceTemplate { placeholder: false, ..frame });
    }
    let mut wanted = DesiredEndpoints::new();
    for pod in pods {
        let node = nodes.get(&pod.spec.node_name);
        // Of a node that is gone it is not known that anything there still answers.
        if node.is_none() && !service.spec.publish_not_ready_addresses {
            continue;
        }
        let Some(PodBackend { address, ports, .. }) = backend::reached(service, pod, node) else { continue };
        let endpoint = backend::in_slice(service, pod, node, address);
        wanted.entry(("IPv4", ports)).or_default().push(DesiredEndpoint { endpoint, since: backend::since(pod) });
    }
    pack::pack(slices, wanted, &frame)
}

fn frame(service: &Service, names: Vec<String>) -> SliceTemplate {
    SliceTemplate {
        namespace: service.namespace().to_owned(),
        owner: OwnerReference {
            api_version: "v1".to_owned(),
            kind: "Service".to_owned(),
            name: service.name().to_owned(),
            uid: service.uid().to_owned(),
            controller: Some(true),
            block_owner_deletion: Some(true),
        },
        labels: labels(service),
        annotations: None,
        names,
        placeholder: true,
    }
}

/// The Service's own, and what says whose slice this is.
fn labels(service: &Service) -> BTreeMap<String, String> {
    let mut labels = service.labels();
    labels.remove(HEADLESS);
    if service.is_headless() {
        labels.insert(HEADLESS.to_owned(), String::new());
    }
    labels.insert(SERVICE_NAME.to_owned(), service.name().to_owned());
    labels.insert(MANAGED_BY.to_owned(), CONTROLLER.to_owned());
    labels
}

impl Controller for SliceController {
    const NAME: &'static str = "endpoint_slice";
    const CONCURRENT_ACTIONS: usize = 8;
    type Key = ObjectKey;
    type World = World;
    type Action = Write;
    type Outcome = ();
    type Status = ();

    async fn observe(&self, key: &ObjectKey) -> Result<Option<World>, ApiError> {
        let shared = &self.shared;
        let service = shared.caches().services.get(key).filter(|service| !service.is_being_deleted());
        let Some(service) = service else { return Ok(None) }; // what it owned is garbage collected
        let slices = managed_by(shared, key, CONTROLLER);
        let pods = shared.pods_of(key);
        let names = unused_names(shared, &key.namespace, &key.name, service.uid(), pods.len());
        Ok(Some(World { nodes: shared.nodes_of(&pods), service, pods, slices, names }))
    }

    fn plan(world: &World, now: Timestamp) -> Plan<Write, ()> {
        into_plan(plan(world), now)
    }

    async fn apply(&self, key: &ObjectKey, write: Write) -> Result<(), ApiError> {
        apply(&self.client, &self.shared.caches().slices, &key.namespace, write).await
    }
}

/// What did not fit into this reconcile has the next one.
pub fn into_plan(packed: SlicePlan, now: Timestamp) -> Plan<Write, ()> {
    Plan { requeue_at: (!packed.complete).then_some(now), ..Plan::act(packed.writes) }
}

pub async fn apply(
    client: &Client,
    cache: &Cache<EndpointSlice>,
    namespace: &str,
    write: Write,
) -> Result<(), ApiError> {
    let slices: Api<EndpointSlice> = Api::namespaced(client.clone(), namespace);
    let params = PostParams::default();
    let name = |slice: &EndpointSlice| slice.metadata.name.clone().unwrap_or_default();
    match write {
        Write::Create(slice) => match slices.create(&params, &slice).await {
            Ok(written) => cache.wrote(written),
            Err(error) if error::is_namespace_terminating(&error) => {}
            Err(error) => {
                return Err(ApiError::new(format!("create endpoint slice {namespace}/{}", name(&slice)), error));
            }
        },
        Write::Replace(slice) => match slices.replace(&name(&slice), &params, &slice).await {
            Ok(written) => cache.wrote(written),
            Err(error) if error::is_not_found(&error, &name(&slice)) => {} // its deletion adds us
            Err(error) => {
                return Err(ApiError::new(format!("change endpoint slice {namespace}/{}", name(&slice)), error));
            }
        },
        // The cache learns of it from the watch, which says at what version it happened.
        Write::Delete { name, uid, version } => {
            let preconditions = Some(Preconditions { uid: Some(uid), resource_version: Some(version) });
            match slices.delete(&name, &DeleteParams { preconditions, ..DeleteParams::background() }).await {
                Ok(_) => {}
                Err(error) if error::is_not_found(&error, &name) => {}
                Err(error) => return Err(ApiError::new(format!("delete endpoint slice {namespace}/{name}"), error)),
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
