//! Services: EndpointSlices and Endpoints from selectors and pods, and drain acknowledgements for pods that go.
//!
//! * [`endpoint_node`]: nodes as far as endpoints depend on them
//! * [`selected_pods`]: the index of pods that a Service selects; [`slice_index`]: of the slices of a Service
//! * [`ports`]: on which port a pod is reached; [`backend`]: a pod as an endpoint
//! * [`pack`]: endpoints distributed over slices so that little is written
//! * [`slices`], [`endpoints`], [`mirror`]: the controllers of EndpointSlices, of Endpoints, and of slices that mirror
//!   Endpoints which people wrote
//! * [`host`]: the Services of programs that are not pods, whose slices agents publish
//! * [`service_cidrs`]: the ranges of which Services have addresses
//! * [`drain_acknowledgement`]: tells a pod that is being deleted that no node sends connections to it any more
//!
//! A change of a pod finds its Services by index and is acted on at once. One Service is reconciled once at a time, so
//! changes meanwhile share the next reconcile. Topology hints are not given.

mod backend;
pub mod drain_acknowledgement;
mod endpoint_node;
pub mod endpoints;
pub mod host;
pub mod mirror;
mod pack;
mod ports;
mod selected_pods;
pub mod service_cidrs;
pub mod slice_index;
pub mod slices;
mod subsets;
#[cfg(test)]
mod testing;

use std::{collections::HashMap, sync::Arc};

use crate::{
    objects::pod::Pod,
    runtime::{Caches, Context, ObjectKey, index::GroupIndex},
};
use endpoint_node::EndpointNode;
use selected_pods::SelectedPods;

/// What the controllers of Services share beyond the context: indexes over its caches. Handlers of cache changes hold it
/// weakly, since the caches are within it.
pub struct ServiceContext {
    pub context: Arc<Context>,
    pub selected_pods: SelectedPods,
    /// The slices of each Service, whoever manages them.
    pub slices: GroupIndex,
}

impl ServiceContext {
    /// Must be made before the controllers: changes that reach them later find the indexes up to date.
    pub fn new(context: &Arc<Context>) -> Arc<Self> {
        let (selected_pods, slices) = Default::default();
        let shared = Arc::new(Self { context: context.clone(), selected_pods, slices });
        slice_index::keep(&shared);
        selected_pods::keep(&shared);
        shared
    }

    fn caches(&self) -> &Caches {
        &self.context.caches
    }

    fn pods_of(&self, service: &ObjectKey) -> Vec<Arc<Pod>> {
        let names = self.selected_pods.pods_of(service);
        names.into_iter().filter_map(|name| self.caches().pods.get(&ObjectKey::new(&service.namespace, name))).collect()
    }

    /// The nodes that pods are on, each looked up once.
    fn nodes_of(&self, pods: &[Arc<Pod>]) -> HashMap<String, EndpointNode> {
        let mut nodes = HashMap::new();
        for pod in pods {
            let name = &pod.spec.node_name;
            if !nodes.contains_key(name)
                && let Some(node) = self.caches().nodes.get(&ObjectKey::new("", name))
            {
                nodes.insert(name.clone(), EndpointNode::from(&*node));
            }
        }
        nodes
    }
}
