//! A simulated machine: what runs on it, whatever its agent does, and the shims that end unique pods in time.
//!
//! Containers outlive the agent, as they do with the real shim. Unique pods have a time until which they may run, by the machine's
//! boot clock; the agent extends it, and if nobody does their shims end them. All invariants about what runs are checked here,
//! at every start.

use std::{collections::BTreeMap, net::Ipv4Addr, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use mainstay_agent::{fence::fence_core::FenceLimit, offers::PodDemand};
use mainstay_api::node_loss::{FencePromise, STOP_TIME, is_unique};
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

use super::{Simulation, service_table::Endpoints};

/// What pods may ask for, all of them together.
pub const CPU: i64 = 2000;

pub struct Machine {
    pub number: usize,
    pub name: String,
    clock: Mutex<BootClock>,
    state: Mutex<MachineState>,
    changed: Notify,
    /// Where it sends what comes for Services.
    pub endpoints: Mutex<Endpoints>,
    /// When a fault of its own last began or ended.
    disturbed: Mutex<Instant>,
    /// Whether its agent is stopped by a signal.
    pub frozen: watch::Sender<bool>,
}

/// CLOCK_BOOTTIME of a machine: it starts anywhere and runs at a speed of its own.
#[derive(Clone, Copy, Debug)]
struct BootClock {
    since: Instant,
    shown: Duration,
    rate: f64,
}

#[derive(Default)]
struct MachineState {
    is_off: bool,
    agent: Option<CancellationToken>,
    containers: BTreeMap<String, Container>,
    addresses: u8,
    /// Of pods that ran here: one that is started anew has the same, as its sandbox is still there.
    given: BTreeMap<String, String>,
    /// The file that shims of unique pods obey. Lost with power.
    limit: Option<FenceLimit>,
    /// What was promised in its Lease, on disk.
    promises: Vec<FencePromise>,
}

/// The one container of a pod, by the pod's uid.
#[derive(Clone, Debug)]
pub struct Container {
    /// `namespace/name`.
    pub pod: String,
    pub is_unique: bool,
    pub demand: PodDemand,
    pub address: String,
    pub phase: ContainerPhase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContainerPhase {
    Running,
    /// It has got SIGTERM.
    Stopping,
    /// Ended, by its shim or by SIGTERM.
    Ended,
}

/// Why a container is asked to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    PodDeleted,
    Unwanted,
    /// Its machine has no contact, and others have.
    Fenced,
}

impl Machine {
    pub fn new(number: usize) -> Arc<Self> {
        let shown = Duration::from_secs(1000 * (number as u64 + 1));
        Arc::new(Self {
            number,
            name: format!("m{number}"),
            clock: Mutex::new(BootClock { since: Instant::now(), shown, rate: 1.0 }),
            state: Mutex::default(),
            changed: Notify::new(),
            endpoints: Mutex::default(),
            disturbed: Mutex::new(Instant::now()),
            frozen: watch::Sender::new(false),
        })
    }

    /// CLOCK_BOOTTIME as this machine has it.
    pub fn boot_time(&self) -> Duration {
        let BootClock { since, shown, rate } = *self.clock.lock();
        shown + since.elapsed().mul_f64(rate)
    }

    /// A monotonic clock as a timestamp, for decisions of the agent that take one.
    pub fn monotonic(&self) -> Timestamp {
        Timestamp::UNIX_EPOCH + self.boot_time()
    }

    /// From now on its clock runs at this speed; 1.0 is as fast as it should.
    pub fn set_clock_rate(&self, rate: f64) {
        let shown = self.boot_time();
        *self.clock.lock() = BootClock { since: Instant::now(), shown, rate };
    }

    /// Sleeps so long by the machine's own clock.
    pub async fn sleep(&self, time: Duration) {
        let rate = self.clock.lock().rate;
        sleep(time.div_f64(rate)).await;
    }

    pub fn disturb(&self) {
        *self.disturbed.lock() = Instant::now();
    }

    /// Whether nothing has been wrong with it for so long that its agent knows how things are.
    pub fn is_undisturbed(&self) -> bool {
        self.disturbed.lock().elapsed() > Duration::from_secs(15)
    }

    pub fn is_off(&self) -> bool {
        self.state.lock().is_off
    }

    pub fn has_agent(&self) -> bool {
        self.state.lock().agent.is_some()
    }

    pub fn set_agent(&self, agent: Option<CancellationToken>) {
        let before = std::mem::replace(&mut self.state.lock().agent, agent);
        if let Some(before) = before {
            before.cancel();
        }
    }

    /// The plug is pulled: everything on it ends at once.
    pub fn power_off(&self) {
        self.set_agent(None);
        let mut state = self.state.lock();
        state.is_off = true;
        state.containers.clear();
        state.limit = None;
        drop(state);
        self.endpoints.lock().clear();
    }

    /// Its boot clock starts from zero.
    pub fn power_on(&self) {
        if std::mem::replace(&mut self.state.lock().is_off, false) {
            let mut clock = self.clock.lock();
            *clock = BootClock { since: Instant::now(), shown: Duration::ZERO, rate: clock.rate };
        }
    }

    pub fn containers(&self) -> BTreeMap<String, Container> {
        self.state.lock().containers.clone()
    }

    /// Starts the pod's container.
    pub fn start(&self, simulation: &Simulation, pod: &Pod) {
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let name = full_name(pod);
        let mut state = self.state.lock();
        let address = match state.given.get(&uid) {
            Some(address) => address.clone(),
            None => {
                state.addresses = state.addresses.wrapping_add(1).max(2);
                Ipv4Addr::new(10, 244, self.number as u8, state.addresses).to_string()
            }
        };
        state.given.insert(uid.clone(), address.clone());
        let container = Container {
            pod: name.clone(),
            is_unique: is_unique(pod, |_| None),
            demand: PodDemand::from_pod(pod),
            address: address.clone(),
            phase: ContainerPhase::Running,
        };
        state.containers.insert(uid, container);
        drop(state);
        simulation.trace.record(format_args!("{}: container of {name} runs, {address}", self.name));
        simulation.check_containers();
        self.changed.notify_one();
    }

    /// Sends SIGTERM; the container ends within `grace`.
    pub fn stop(self: &Arc<Self>, simulation: &Arc<Simulation>, uid: &str, grace: Duration, why: StopReason) {
        {
            let mut state = self.state.lock();
            let Some(container) = state.containers.get_mut(uid) else { return };
            if container.phase != ContainerPhase::Running {
                return;
            }
            container.phase = ContainerPhase::Stopping;
            simulation.trace.record(format_args!("{}: stop {}: {why:?}", self.name, container.pod));
        }
        simulation.check_stop(self, why);
        let (machine, simulation, uid) = (self.clone(), simulation.clone(), uid.to_owned());
        let takes = simulation.chance.up_to(grace.min(Duration::from_secs(3)));
        tokio::spawn(async move {
            machine.sleep(takes).await;
            let mut state = machine.state.lock();
            if let Some(container) = state.containers.get_mut(&uid) {
                container.phase = ContainerPhase::Ended;
                simulation.trace.record(format_args!("{}: {} has ended", machine.name, container.pod));
            }
            drop(state);
            simulation.changed.notify_waiters();
        });
    }

    /// Nothing of the pod is left.
    pub fn remove(&self, uid: &str) {
        self.state.lock().containers.remove(uid);
    }

    pub fn limit(&self) -> Option<FenceLimit> {
        self.state.lock().limit
    }

    pub fn write_limit(&self, limit: FenceLimit) {
        self.state.lock().limit = Some(limit);
        self.changed.notify_one();
    }

    pub fn promises(&self) -> Vec<FencePromise> {
        self.state.lock().promises.clone()
    }

    pub fn write_promises(&self, promises: Vec<FencePromise>) {
        self.state.lock().promises = promises;
    }

    /// The shims of unique pods.
    pub async fn run_shims(self: Arc<Self>, simulation: Arc<Simulation>) {
        loop {
            let now = self.boot_time();
            let (due, next): (Vec<String>, _) = {
                let state = self.state.lock();
                let unique = |container: &Container| container.is_unique && container.phase == ContainerPhase::Running;
                let fenced = || state.containers.iter().filter(|(_, container)| unique(container));
                match state.limit {
                    // A file that is not there permits nothing.
                    None => (fenced().map(|(uid, _)| uid.clone()).collect(), None),
                    Some(FenceLimit::None) => (Vec::new(), None),
                    Some(FenceLimit::Until(until)) if until <= now => {
                        (fenced().map(|(uid, _)| uid.clone()).collect(), None)
                    }
                    Some(FenceLimit::Until(until)) => (Vec::new(), fenced().next().map(|_| until)),
                }
            };
            if !simulation.broken.fencing {
                for uid in due {
                    self.stop(&simulation, &uid, STOP_TIME, StopReason::Fenced);
                }
            }
            let wake = async {
                match next {
                    Some(until) => self.sleep(until - now + Duration::from_millis(1)).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = self.changed.notified() => {}
                () = wake => {}
            }
        }
    }
}

pub fn full_name(pod: &Pod) -> String {
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    format!("{}/{}", text(&pod.metadata.namespace), text(&pod.metadata.name))
}
