//! A cluster under virtual time on one thread: the real API, controllers, scheduler and leader election over a store in memory,
//! and agents on simulated machines, with faults by a seed and invariants that are checked at every step.
//!
//! * [`virtual_libc`]: clocks and randomness of the process; [`server_clock`]: wall clocks of servers
//! * [`chance`]: the random numbers of a run
//! * [`mvcc_store`], [`store`]: the shared store and the servers' links to it; [`server`]: one server process
//! * [`machine`]: what runs on a machine; [`agent`], [`heartbeat`], [`fence`], [`service_table`]: its agent
//! * [`network`]: between agents and servers
//! * [`cluster_view`]: what is in the store, and what must hold of it; [`workload`]: what the cluster is asked for
//! * [`faults`]: what goes wrong in a run; [`trace`]: what happened; [`run`]: one run, and many
//!
//! One seed is one run: the clocks, every random number and the order of all hash maps follow from it, there is one thread, and
//! timers fire in the order of virtual time. What takes real threads or a disk is modelled instead (see [`agent`]).

mod agent;
mod broken;
mod chance;
mod cluster_view;
mod faults;
mod fence;
mod heartbeat;
mod machine;
mod mvcc_store;
mod network;
pub mod run;
mod server;
mod server_clock;
mod service_table;
mod store;
mod trace;
mod virtual_libc;
mod workload;

use std::{collections::BTreeMap, sync::Arc};

use mainstay_api::node_loss::FencePromise;
use parking_lot::Mutex;
use tokio::sync::Notify;

use agent::Agent;
use chance::Chance;
use cluster_view::ClusterView;
use machine::{ContainerPhase, Machine, StopReason};
use network::Network;
use server::ServerProcess;
use store::SharedStore;
use trace::Trace;

pub use broken::{Broken, Safeguard};

pub struct Simulation {
    pub chance: Chance,
    pub trace: Arc<Trace>,
    pub network: Network,
    pub store: SharedStore,
    pub view: Arc<Mutex<ClusterView>>,
    pub servers: Mutex<Vec<Option<Arc<ServerProcess>>>>,
    pub machines: Vec<Arc<Machine>>,
    pub agents: Mutex<Vec<Option<Arc<Agent>>>>,
    pub broken: Broken,
    /// A container has ended.
    pub changed: Notify,
}

impl Simulation {
    pub fn server(&self, number: usize) -> Option<Arc<ServerProcess>> {
        self.servers.lock().get(number).cloned().flatten()
    }

    /// What must hold of all that runs, at every moment.
    pub fn check_containers(&self) {
        let mut unique: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        let mut addresses: BTreeMap<String, String> = BTreeMap::new();
        for machine in self.machines.iter().filter(|machine| !machine.is_off()) {
            let mut cpu = 0;
            let mut ports = BTreeMap::new();
            for container in machine.containers().into_values() {
                if container.phase == ContainerPhase::Ended {
                    continue;
                }
                cpu += container.demand.requests.get("cpu").copied().unwrap_or(0);
                for port in &container.demand.host_ports {
                    let port = (port.host_port.port, port.host_port.protocol.to_string());
                    if let Some(other) = ports.insert(port.clone(), container.pod.clone()) {
                        let name = &machine.name;
                        self.trace.violate(format_args!(
                            "port {} of {name} is given to {other} and to {}",
                            port.0, container.pod
                        ));
                    }
                }
                if let Some(other) = addresses.insert(container.address.clone(), container.pod.clone()) {
                    let address = &container.address;
                    self.trace.violate(format_args!("{address} is given to {other} and to {}", container.pod));
                }
                if container.is_unique {
                    unique.entry(container.pod).or_default().push(&machine.name);
                }
            }
            if cpu > machine::CPU {
                self.trace.violate(format_args!("{} is over-committed: {cpu}m cpu", machine.name));
            }
        }
        for (pod, machines) in unique.iter().filter(|(_, machines)| machines.len() > 1) {
            self.trace.violate(format_args!("unique pod {pod} runs on {}", machines.join(" and ")));
        }
    }

    /// What must hold when a pod is stopped because it counts as drained: nobody who has been in contact for a while sends to it.
    pub fn check_drained(&self, machine: &Machine, uid: &str) {
        let Some(address) = machine.containers().get(uid).map(|container| container.address.clone()) else { return };
        for other in &self.machines {
            let sends = other.endpoints.lock().values().any(|addresses| addresses.contains(&address));
            if sends && !other.is_off() && self.view.lock().is_well(&other.name) {
                let (here, there) = (&machine.name, &other.name);
                self.trace.violate(format_args!("{here} stops {address} as drained, {there} still sends to it"));
            }
        }
    }

    /// What must hold when a container is asked to stop.
    pub fn check_stop(&self, machine: &Machine, why: StopReason) {
        let any_server = self.servers.lock().iter().any(Option::is_some);
        if why != StopReason::Fenced || any_server {
            return;
        }
        // All servers are down. Whoever is cut off from its peers too cannot know, and stops.
        let is_clear = machine.is_undisturbed() && self.network.is_fair() && self.view.lock().outage_is_settled();
        let reaches = |other: &&Arc<Machine>| {
            let (here, there) = (network::Host::Machine(machine.number), network::Host::Machine(other.number));
            other.has_agent()
                && other.is_undisturbed()
                && !*other.frozen.borrow()
                && !self.network.is_cut(here, there)
                && !self.network.is_cut(there, here)
        };
        let others = self.machines.iter().filter(|other| other.number != machine.number);
        let peers: Vec<&Arc<Machine>> = others.filter(reaches).collect();
        let agents = self.agents.lock();
        let have_none = |peer: &&&Arc<Machine>| {
            let agent = agents[peer.number].as_ref();
            agent.is_some_and(|agent| agent.silent_for() > mainstay_api::node_loss::Timing::default().stops_within())
        };
        // Whom it may ask is in what it has promised; of several groups the strictest counts.
        let groups = machine.promises();
        let most_have_none = |group: &FencePromise| {
            let in_group = peers.iter().filter(|peer| group.witnesses.contains(&peer.name));
            let without_contact = 1 + in_group.filter(have_none).count();
            without_contact * 2 > group.witnesses.len() + 1
        };
        let is_known = !groups.is_empty() && groups.iter().all(most_have_none);
        let is_frozen = *machine.frozen.borrow() || !machine.has_agent();
        if is_clear && !is_frozen && is_known {
            self.trace.violate(format_args!("{} stops unique pods although all servers are down", machine.name));
        }
    }
}
