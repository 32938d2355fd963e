//! One run and many: a cluster is prepared once, and each seed goes on from there in a copy of the process.

use std::{collections::BTreeMap, io::Write, sync::Arc, time::Duration};

use nix::{
    sys::wait::{WaitStatus, waitpid},
    unistd::Pid,
};
use parking_lot::Mutex;
use tokio::{
    runtime::{Builder, Runtime},
    time::{Instant, sleep},
};

use super::{
    Broken, Simulation, agent, chance::Chance, cluster_view::ClusterView, faults, machine::Machine, network::Network,
    server::ServerProcess, store, trace::Trace, virtual_libc, workload,
};

pub const SERVERS: usize = 2;
pub const MACHINES: usize = 4;
/// After the faults have ended, everything that was asked for runs within this time.
const CONVERGES_WITHIN: Duration = Duration::from_secs(180);
/// And then nothing is written for so long but heartbeats and offers.
const RESTS_FOR: Duration = Duration::from_secs(15);

/// A cluster that has all it was asked for, before any fault.
pub struct Prepared {
    runtime: Runtime,
    simulation: Arc<Simulation>,
}

/// How a run ended.
pub struct Outcome {
    pub hash: u64,
    pub violation: Option<String>,
}

impl Prepared {
    /// # Errors
    /// The runtime cannot be made, or the cluster does not come up.
    pub fn new(broken: Broken) -> anyhow::Result<Self> {
        virtual_libc::without_address_randomization();
        virtual_libc::enter();
        virtual_libc::seed(0);
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build()?;
        let simulation = runtime.block_on(prepare(broken))?;
        Ok(Self { runtime, simulation })
    }

    /// Runs one seed from the prepared state; `printed` shows the trace as it happens. Only once per process.
    pub fn run(&self, seed: u64, printed: bool) -> Outcome {
        let simulation = &self.simulation;
        virtual_libc::seed(seed);
        simulation.chance.reseed(seed);
        self.runtime.block_on(async {
            simulation.trace.restart(printed);
            faults::run(simulation).await;
            if simulation.trace.violation().is_none() {
                settle(simulation).await;
            }
        });
        Outcome { hash: simulation.trace.hash(), violation: simulation.trace.violation() }
    }

    /// Runs seeds, `jobs` at a time, each in a copy of this process. Returns those that broke an invariant, at most `most`.
    ///
    /// # Errors
    /// No process can be made.
    pub fn run_all(&self, seeds: std::ops::Range<u64>, jobs: usize, most: usize) -> anyhow::Result<Vec<u64>> {
        let (mut running, mut failed) = (BTreeMap::<Pid, u64>::new(), Vec::new());
        let mut left = seeds;
        loop {
            while running.len() < jobs && failed.len() < most {
                let Some(seed) = left.next() else { break };
                let child = virtual_libc::fork(|| {
                    let Outcome { violation, .. } = self.run(seed, false);
                    let Some(violation) = violation else { return 0 };
                    println!("seed {seed}: {violation}");
                    let _ = std::io::stdout().flush();
                    1
                })?;
                running.insert(child, seed);
            }
            if running.is_empty() {
                failed.sort_unstable();
                return Ok(failed);
            }
            let (child, code) = match waitpid(None, None)? {
                WaitStatus::Exited(child, code) => (child, code),
                WaitStatus::Signaled(child, signal, _) => (child, 128 + signal as i32),
                _ => continue,
            };
            let Some(seed) = running.remove(&child) else { continue };
            if code != 0 {
                if code != 1 {
                    println!("seed {seed}: the run ended with code {code}");
                }
                failed.push(seed);
            }
        }
    }
}

/// Starts a server unless it runs.
pub fn start_server(simulation: &Arc<Simulation>, number: usize) {
    if simulation.server(number).is_some() {
        return;
    }
    simulation.trace.record(format_args!("server {number} starts"));
    let link = store::StoreLink::new(number, simulation.store.clone(), simulation.chance.clone());
    let process = Arc::new(ServerProcess::start(link, &format!("server-{number}"), !simulation.broken.lease_term));
    simulation.servers.lock()[number] = Some(process);
    simulation.view.lock().outage_since = None;
}

async fn prepare(broken: Broken) -> anyhow::Result<Arc<Simulation>> {
    let _ = std::time::Instant::now(); // from here on it follows the runtime's
    let chance = Chance::new(0);
    let trace = Arc::new(Trace::new());
    let view = Arc::new(Mutex::new(ClusterView::new(trace.clone())));
    let observer: store::Observer = {
        let view = view.clone();
        Arc::new(move |commit| view.lock().observe(&commit))
    };
    let simulation = Arc::new(Simulation {
        network: Network::new(chance.clone()),
        store: store::SharedStore { memory: Default::default(), observer },
        servers: Mutex::new(vec![None; SERVERS]),
        machines: (0..MACHINES).map(Machine::new).collect(),
        agents: Mutex::new(vec![None; MACHINES]),
        changed: Default::default(),
        chance,
        trace,
        view,
        broken,
    });
    (0..SERVERS).for_each(|number| start_server(&simulation, number));
    let Some(server) = simulation.server(0) else { anyhow::bail!("no server") };
    let client = server.client("user");
    for namespace in ["default", "kube-system", "kube-node-lease"] {
        mainstay_sim::load::create_namespace(&client, namespace).await?;
    }
    for machine in &simulation.machines {
        tokio::spawn(machine.clone().run_shims(simulation.clone()));
        agent::start(&simulation, machine.number);
    }
    workload::create(&client).await?;
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let unmet = workload::unmet(&simulation.view.lock().pods);
        let Some(unmet) = unmet else { break };
        anyhow::ensure!(Instant::now() < until, "the cluster does not come up: {unmet}");
        sleep(Duration::from_secs(1)).await;
    }
    sleep(Duration::from_secs(10)).await;
    Ok(simulation)
}

/// Faults have ended: everything comes back, and then nothing happens any more.
async fn settle(simulation: &Arc<Simulation>) {
    let until = Instant::now() + CONVERGES_WITHIN;
    let mut scaled = false;
    loop {
        sleep(Duration::from_secs(1)).await;
        if simulation.trace.violation().is_some() {
            return;
        }
        if !scaled && let Some(server) = simulation.server(0) {
            scaled = workload::scale_web(&server.client("user"), workload::WEB_REPLICAS).await.is_ok();
        }
        let (unmet, rested) = {
            let view = simulation.view.lock();
            (workload::unmet(&view.pods), view.last_change.elapsed())
        };
        if scaled && unmet.is_none() && rested >= RESTS_FOR {
            return simulation.trace.record("converged and at rest");
        }
        if Instant::now() > until {
            let why = unmet.unwrap_or_else(|| "something is still written".to_owned());
            return simulation.trace.violate(format_args!("{CONVERGES_WITHIN:?} after the last fault: {why}"));
        }
    }
}
