//! Who stands behind a Service, and when a pod that goes is sent nothing any more.
//!
//! * [`object`]: Services as far as this looks at them; [`machine`]: the same for Nodes
//! * [`members`]: which pods a Service selects, kept as they change; [`group`]: which slices are a Service's
//! * [`ports`]: on which port a pod is reached; [`backend`]: a pod as an endpoint
//! * [`pack`]: endpoints spread over slices so that little is written
//! * [`slices`], [`endpoints`], [`mirror`]: the controllers of EndpointSlices, of Endpoints, and of slices that repeat
//!   Endpoints people wrote
//! * [`drained`]: says of a pod that is being deleted that no machine sends to it
//!
//! A change of a pod finds its Services by index and is acted on at once. One Service has one turn at a time, so what
//! happens meanwhile shares the next one. Hints about topology are not given.

mod backend;
pub mod drained;
mod endpoints;
mod group;
mod machine;
mod members;
mod mirror;
pub mod object;
mod pack;
mod ports;
mod slices;
mod subsets;
#[cfg(test)]
mod testing;

use std::{collections::HashMap, sync::Arc};

use crate::{
    cache::Key,
    workloads::{Caches, Turns, Workloads, pod::Pod},
};
use group::Groups;
use machine::Machine;
use members::Members;

/// What the controllers of Services share beyond the caches. Who listens to a cache holds it weakly: the caches are
/// within it.
pub struct Shared {
    pub workloads: Arc<Workloads>,
    pub members: Members,
    /// The slices of each Service, whoever keeps them.
    pub slices: Groups,
}

impl Shared {
    fn caches(&self) -> &Caches {
        &self.workloads.caches
    }

    fn pods_of(&self, service: &Key) -> Vec<Arc<Pod>> {
        let names = self.members.pods_of(service);
        names.into_iter().filter_map(|name| self.caches().pods.get(&Key::new(&service.namespace, name))).collect()
    }

    /// The machines that pods are on, each looked up once.
    fn machines_of(&self, pods: &[Arc<Pod>]) -> HashMap<String, Machine> {
        let mut machines = HashMap::new();
        for pod in pods {
            let name = &pod.spec.node_name;
            if !machines.contains_key(name)
                && let Some(node) = self.caches().nodes.get(&Key::new("", name))
            {
                machines.insert(name.clone(), Machine::of(&node));
            }
        }
        machines
    }
}

/// Each begins to listen. Indexes come first: who is woken later finds them as they should be.
pub fn listen(workloads: &Arc<Workloads>) -> Vec<Turns> {
    let shared =
        Arc::new(Shared { workloads: workloads.clone(), members: Members::default(), slices: Groups::default() });
    group::listen(&shared);
    let (slices, wake_slices) = slices::listen(&shared);
    let (endpoints, wake_endpoints) = endpoints::listen(&shared);
    members::listen(&shared, [wake_slices, wake_endpoints]);
    vec![slices, endpoints, mirror::listen(&shared), drained::listen(&shared)]
}

/// Wakes a Service, given how many pods it has.
pub type Waker = Box<dyn Fn(Key, usize) + Send + Sync>;
