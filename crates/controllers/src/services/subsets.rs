//! The subsets of an Endpoints object from the pods of a Service. Pure.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
    sync::Arc,
};

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{EndpointAddress, EndpointSubset, Endpoints},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use super::{
    backend::{self, PodBackend},
    endpoint_node::EndpointNode,
    pack::TRIGGERED,
    ports::Port,
    slices::HEADLESS,
};
use crate::objects::{pod::Pod, service::Service};

pub const MANAGED_BY: &str = "endpoints.kubernetes.io/managed-by";
pub const CONTROLLER: &str = "endpoint-controller";
const OVER_CAPACITY: &str = "endpoints.kubernetes.io/over-capacity";
/// The container's port behind a host port.
const CONTAINER_PORT: &str = "k8s.mesosphere.io/containerPort_";
/// As many addresses as one object holds.
const MOST: usize = 1000;

#[derive(Default)]
struct Subset {
    ready: Vec<EndpointAddress>,
    not_ready: Vec<EndpointAddress>,
}

/// The object as it should be, if that is not what it is.
pub fn plan(
    service: &Service,
    pods: &[Arc<Pod>],
    nodes: &HashMap<String, EndpointNode>,
    current: Option<&Endpoints>,
) -> Option<Endpoints> {
    let known: BTreeSet<(String, bool)> = current.map(reported_addresses).unwrap_or_default();
    let (mut subsets, mut since): (BTreeMap<Vec<Port>, Subset>, Option<Timestamp>) = (BTreeMap::new(), None);
    let mut behind = BTreeMap::new();
    for pod in pods {
        let node = nodes.get(&pod.spec.node_name);
        let reached = backend::reached(service, pod, node);
        let Some(PodBackend { address, ports, behind: host_ports }) = reached else { continue };
        if ports.is_empty() && (!service.spec.ports.is_empty() || service.spec.cluster_ip != "None") {
            continue;
        }
        let Some((found, ready)) = backend::in_subset(service, pod, node, address) else { continue };
        for (port, own) in host_ports {
            let key = format!("{CONTAINER_PORT}{}_{address}_{}", port.protocol, port.port);
            behind.insert(key, own.to_string());
        }
        if !known.contains(&(pod.uid().to_owned(), ready)) {
            since = since.into_iter().chain(backend::since(pod)).min();
        }
        let subset = subsets.entry(ports).or_default();
        if ready { &mut subset.ready } else { &mut subset.not_ready }.push(found);
    }
    for subset in subsets.values_mut() {
        subset.ready.sort_by_cached_key(order);
        subset.not_ready.sort_by_cached_key(order);
    }
    let truncated = truncate(&mut subsets);
    let subsets: Vec<EndpointSubset> = subsets.into_iter().map(|(ports, subset)| written(&ports, subset)).collect();
    let old = current.map(|current| &current.metadata);
    let mut annotations = old.and_then(|old| old.annotations.clone()).unwrap_or_default();
    annotations.retain(|key, _| !key.starts_with(CONTAINER_PORT) && key != OVER_CAPACITY);
    annotations.extend(behind);
    if truncated {
        annotations.insert(OVER_CAPACITY.to_owned(), "truncated".to_owned());
    }
    let labels = labels(service);
    if let Some(current) = current {
        let same_subsets = current.subsets.as_deref().unwrap_or_default() == subsets;
        let own = &current.metadata;
        if same_subsets
            && own.labels.as_ref() == Some(&labels)
            && own.annotations.clone().unwrap_or_default() == annotations
        {
            return None;
        }
    }
    match since {
        Some(since) => drop(annotations.insert(TRIGGERED.to_owned(), since.to_string())),
        None => drop(annotations.remove(TRIGGERED)),
    }
    let metadata = ObjectMeta {
        name: service.metadata.name.clone(),
        namespace: service.metadata.namespace.clone(),
        labels: Some(labels),
        annotations: Some(annotations).filter(|all| !all.is_empty()),
        managed_fields: None,
        ..old.cloned().unwrap_or_default()
    };
    Some(Endpoints { metadata, subsets: Some(subsets).filter(|all| !all.is_empty()) })
}

/// Which pods an object names, and as what.
fn reported_addresses(endpoints: &Endpoints) -> BTreeSet<(String, bool)> {
    let subsets = endpoints.subsets.iter().flatten();
    let addresses = subsets.flat_map(|subset| {
        let ready = subset.addresses.iter().flatten().map(|address| (address, true));
        ready.chain(subset.not_ready_addresses.iter().flatten().map(|address| (address, false)))
    });
    addresses.filter_map(|(address, ready)| Some((address.target_ref.as_ref()?.uid.clone()?, ready))).collect()
}

fn labels(service: &Service) -> BTreeMap<String, String> {
    let mut labels = service.labels();
    labels.remove(HEADLESS);
    if service.is_headless() {
        labels.insert(HEADLESS.to_owned(), String::new());
    }
    labels.insert(MANAGED_BY.to_owned(), CONTROLLER.to_owned());
    labels
}

fn order(address: &EndpointAddress) -> (Option<IpAddr>, String) {
    let uid = address.target_ref.as_ref().and_then(|pod| pod.uid.clone());
    (address.ip.parse().ok(), uid.unwrap_or_default())
}

/// Takes away what is too much, from all subsets alike: first of what is not ready.
fn truncate(subsets: &mut BTreeMap<Vec<Port>, Subset>) -> bool {
    let ready: usize = subsets.values().map(|subset| subset.ready.len()).sum();
    let not_ready: usize = subsets.values().map(|subset| subset.not_ready.len()).sum();
    if ready + not_ready <= MOST {
        return false;
    }
    let (may_ready, may_not_ready) = (ready.min(MOST), MOST - ready.min(MOST));
    shrink(subsets.values_mut().map(|subset| &mut subset.ready).collect(), ready, may_ready);
    shrink(subsets.values_mut().map(|subset| &mut subset.not_ready).collect(), not_ready, may_not_ready);
    subsets.retain(|_, subset| !subset.ready.is_empty() || !subset.not_ready.is_empty());
    true
}

fn shrink(mut lists: Vec<&mut Vec<EndpointAddress>>, total: usize, most: usize) {
    if total <= most {
        return;
    }
    let mut spare = most;
    let shares: Vec<usize> = lists.iter().map(|list| list.len() * most / total).collect();
    spare -= shares.iter().sum::<usize>();
    for (list, share) in lists.iter_mut().zip(shares) {
        let more = spare.min(list.len() - share);
        spare -= more;
        list.truncate(share + more);
    }
}

fn written(ports: &[Port], subset: Subset) -> EndpointSubset {
    EndpointSubset {
        addresses: Some(subset.ready).filter(|all| !all.is_empty()),
        not_ready_addresses: Some(subset.not_ready).filter(|all| !all.is_empty()),
        ports: Some(ports.iter().map(Port::in_subset).collect::<Vec<_>>()).filter(|all| !all.is_empty()),
    }
}

#[cfg(test)]
mod tests;
