//! EndpointSlices of Services that select their pods.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use jiff::Timestamp;
use k8s_openapi::{api::discovery::v1::EndpointSlice, apimachinery::pkg::apis::meta::v1::OwnerReference};
use kube::{
    Api,
    api::{DeleteParams, PostParams, Preconditions},
};

use super::{
    Shared, Waker,
    backend::{self, Reached},
    group::{SERVICE_NAME, service_of},
    machine::Machine,
    object::Service,
    pack::{self, Frame, MOST, Packed, Placed, Wanted, Write},
};
use crate::{
    cache::Key,
    failure::{self, Failure},
    runner::{Limits, Queue},
    shell::{Controller, Plan},
    workloads::{Turns, Workloads, pod::Pod, template, turns},
};

pub const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
pub const HEADLESS: &str = "service.kubernetes.io/headless";
const CONTROLLER: &str = "endpointslice-controller.k8s.io";
/// Turns of different Services at once: each mostly waits for the store.
pub const WIDTH: usize = 32;

pub struct Slices {
    shared: Arc<Shared>,
}

/// Begins to listen.
pub fn listen(shared: &Arc<Shared>) -> (Turns, Waker) {
    let queue = Queue::new();
    wake(shared, &queue, CONTROLLER);
    let limits = Limits { width: WIDTH, ..Limits::default() };
    let waker = Box::new({
        let queue = queue.clone();
        move |service, _| queue.wake(service)
    });
    (turns(Arc::new(Slices { shared: shared.clone() }), queue, limits), waker)
}

/// Wakes a Service when others change slices of it that a controller keeps. What we wrote ourselves is as it should be.
pub fn wake(shared: &Shared, queue: &Arc<Queue<Key>>, controller: &'static str) {
    let queue = queue.clone();
    shared.caches().slices.on_change(move |change| {
        let kept = [change.before, change.after].into_iter().flatten().filter(|slice| is_managed(slice, controller));
        kept.filter(|_| !change.own).filter_map(service_of).for_each(|service| queue.wake(service));
    });
}

fn is_managed(slice: &EndpointSlice, controller: &str) -> bool {
    slice.metadata.labels.as_ref().and_then(|labels| labels.get(MANAGED_BY)).is_some_and(|by| by == controller)
}

pub struct World {
    service: Arc<Service>,
    pods: Vec<Arc<Pod>>,
    machines: HashMap<String, Machine>,
    /// Those that are ours to keep.
    slices: Vec<Arc<EndpointSlice>>,
    names: Vec<String>,
}

/// The slices of a Service that a controller keeps.
pub fn kept_by(shared: &Shared, service: &Key, controller: &str) -> Vec<Arc<EndpointSlice>> {
    let all = shared.slices.of(service).into_iter().filter_map(|key| shared.caches().slices.get(&key));
    all.filter(|slice| is_managed(slice, controller)).collect()
}

/// Free names for as many slices as one turn makes.
pub fn names(shared: &Shared, namespace: &str, owner: &str, uid: &str, count: usize) -> Vec<String> {
    let taken = |name: &str| shared.caches().slices.get(&Key::new(namespace, name)).is_some();
    template::vacant(owner, uid, taken).take(count / MOST + 8).collect()
}

pub fn plan(world: &World) -> Packed {
    let World { service, pods, machines, slices, names } = world;
    let frame = frame(service, names.clone());
    if !service.selects() {
        return pack::pack(slices, Wanted::new(), &Frame { placeholder: false, ..frame });
    }
    let mut wanted = Wanted::new();
    for pod in pods {
        let machine = machines.get(&pod.spec.node_name);
        // Of a machine that is gone it is not known that anything there still answers.
        if machine.is_none() && !service.spec.publish_not_ready_addresses {
            continue;
        }
        let Some(Reached { address, ports, .. }) = backend::reached(service, pod, machine) else { continue };
        let endpoint = backend::in_slice(service, pod, machine, address);
        wanted.entry(("IPv4", ports)).or_default().push(Placed { endpoint, since: backend::since(pod) });
    }
    pack::pack(slices, wanted, &frame)
}

fn frame(service: &Service, names: Vec<String>) -> Frame {
    Frame {
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

impl Controller for Slices {
    const NAME: &'static str = "endpoint-slices";
    const ABREAST: usize = 8;
    type Key = Key;
    type World = World;
    type Action = Write;
    type Status = ();

    async fn observe(&self, key: &Key) -> Result<Option<World>, Failure> {
        let shared = &self.shared;
        let service = shared.caches().services.get(key).filter(|service| !service.is_leaving());
        let Some(service) = service else { return Ok(None) }; // what it owned is garbage
        let slices = kept_by(shared, key, CONTROLLER);
        let pods = shared.pods_of(key);
        let names = names(shared, &key.namespace, &key.name, service.uid(), pods.len());
        Ok(Some(World { machines: shared.machines_of(&pods), service, pods, slices, names }))
    }

    fn plan(world: &World, now: Timestamp) -> Plan<Write, ()> {
        again(plan(world), now)
    }

    async fn apply(&self, key: &Key, write: Write) -> Result<(), Failure> {
        apply(&self.shared.workloads, &key.namespace, write).await
    }
}

/// As a plan; what did not fit into this turn has the next one.
pub fn again(packed: Packed, now: Timestamp) -> Plan<Write, ()> {
    Plan { wake_at: (!packed.complete).then_some(now), ..Plan::act(packed.writes) }
}

pub async fn apply(workloads: &Workloads, namespace: &str, write: Write) -> Result<(), Failure> {
    let slices: Api<EndpointSlice> = Api::namespaced(workloads.client.clone(), namespace);
    let cache = &workloads.caches.slices;
    let params = PostParams::default();
    let name = |slice: &EndpointSlice| slice.metadata.name.clone().unwrap_or_default();
    match write {
        Write::Create(slice) => match slices.create(&params, &slice).await {
            Ok(written) => cache.wrote(written),
            Err(error) if failure::namespace_goes(&error) => {}
            Err(error) => {
                return Err(Failure::new(format!("create endpoint slice {namespace}/{}", name(&slice)), error));
            }
        },
        Write::Replace(slice) => match slices.replace(&name(&slice), &params, &slice).await {
            Ok(written) => cache.wrote(written),
            Err(error) if failure::no_such_object(&error, &name(&slice)) => {} // that news wakes us
            Err(error) => {
                return Err(Failure::new(format!("change endpoint slice {namespace}/{}", name(&slice)), error));
            }
        },
        // The cache hears of it from the API, which says at what version it happened.
        Write::Delete { name, uid, version } => {
            let preconditions = Some(Preconditions { uid: Some(uid), resource_version: Some(version) });
            match slices.delete(&name, &DeleteParams { preconditions, ..DeleteParams::background() }).await {
                Ok(_) => {}
                Err(error) if failure::no_such_object(&error, &name) => {}
                Err(error) => return Err(Failure::new(format!("delete endpoint slice {namespace}/{name}"), error)),
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
