//! What goes wrong in a run: faults by the seed, each for some time, and the end of all of them.

use std::{sync::Arc, time::Duration};

use mainstay_store::Op;
use tokio::{
    sync::Notify,
    time::{Instant, sleep, timeout},
};

use super::{
    Simulation, agent,
    cluster_view::PodView,
    network::{Host, Weather},
    run, server_clock,
    store::{self, FreezeBeforeWrite},
    workload,
};

/// How long faults happen, in virtual time.
pub const FAULT_TIME: Duration = Duration::from_secs(60);
/// Unique pods of a silent machine are removed after 13 s, unless something else is wrong.
const REMOVED_WITHIN: Duration = Duration::from_secs(20);
/// Another server leads by then, and has taken away the taint of a machine that is back.
const LONGER_THAN_A_TERM: Duration = Duration::from_secs(8);

#[derive(Clone, Copy, Debug)]
enum Fault {
    /// The plug of a machine is pulled.
    PowerOff,
    AgentKilled,
    AgentFrozen,
    /// A machine hears nobody and nobody hears it.
    MachineCutOff,
    /// A machine is cut off from servers; its peers still answer.
    ServersUnreachable,
    /// What a machine sends arrives, and no answer comes back; or the other way round.
    OneWay,
    ServerKilled,
    ServerStopped,
    ServerFrozen,
    /// A machine is cut off for so long that its unique pods are to be replaced. The leader that has decided so is frozen right before
    /// it writes it, and the machine is back.
    LeaderFrozenBeforeWrite,
    StoreUnreachable,
    AllServersKilled,
    BadWeather,
    LostCommitAnswers,
    WallClockJumps,
    /// Somebody drains a machine.
    Drain,
    /// Somebody deletes a pod.
    PodDeleted,
    Rescaled,
}

const FAULTS: [Fault; 18] = [
    Fault::PowerOff,
    Fault::AgentKilled,
    Fault::AgentFrozen,
    Fault::MachineCutOff,
    Fault::ServersUnreachable,
    Fault::OneWay,
    Fault::ServerKilled,
    Fault::ServerStopped,
    Fault::ServerFrozen,
    Fault::LeaderFrozenBeforeWrite,
    Fault::StoreUnreachable,
    Fault::AllServersKilled,
    Fault::BadWeather,
    Fault::LostCommitAnswers,
    Fault::WallClockJumps,
    Fault::Drain,
    Fault::PodDeleted,
    Fault::Rescaled,
];

/// Lets faults happen, then ends all of them.
pub async fn run(simulation: &Arc<Simulation>) {
    let chance = &simulation.chance;
    for machine in &simulation.machines {
        machine.set_clock_rate(0.99 + 0.02 * (chance.below(1001) as f64 / 1000.0));
    }
    for server in 0..simulation.servers.lock().len() {
        server_clock::set_drift(server, chance.between(-10_000, 10_000));
    }
    let until = Instant::now() + FAULT_TIME;
    while Instant::now() < until && simulation.trace.violation().is_none() {
        sleep(Duration::from_millis(chance.between(200, 9000) as u64)).await;
        let fault = FAULTS[chance.below(FAULTS.len())];
        let lasts = Duration::from_millis(chance.between(300, 25_000) as u64);
        tokio::spawn(happen(simulation.clone(), fault, lasts));
    }
    end_all(simulation);
}

async fn happen(simulation: Arc<Simulation>, fault: Fault, lasts: Duration) {
    let (chance, network) = (&simulation.chance, &simulation.network);
    let machine = simulation.machines[chance.below(simulation.machines.len())].clone();
    let server = chance.below(simulation.servers.lock().len());
    let (name, seconds) = (&machine.name, lasts.as_secs_f64());
    let say = |what: std::fmt::Arguments<'_>| simulation.trace.record(format_args!("FAULT: {what}"));
    let here = Host::Machine(machine.number);
    let servers: Vec<Host> = (0..simulation.servers.lock().len()).map(Host::Server).collect();
    let others: Vec<Host> = simulation.machines.iter().map(|other| Host::Machine(other.number)).collect();
    let on_machine = matches!(
        fault,
        Fault::PowerOff
            | Fault::AgentKilled
            | Fault::AgentFrozen
            | Fault::MachineCutOff
            | Fault::ServersUnreachable
            | Fault::OneWay
            | Fault::LeaderFrozenBeforeWrite
    );
    if on_machine {
        machine.disturb();
    }
    match fault {
        Fault::PowerOff => {
            say(format_args!("{name} loses power for {seconds:.1} s"));
            machine.power_off();
            sleep(lasts).await;
            machine.power_on();
            if !machine.has_agent() {
                agent::start(&simulation, machine.number);
            }
        }
        Fault::AgentKilled => {
            say(format_args!("agent of {name} is killed for {seconds:.1} s"));
            machine.set_agent(None);
            sleep(lasts).await;
            if !machine.is_off() && !machine.has_agent() {
                agent::start(&simulation, machine.number);
            }
        }
        Fault::AgentFrozen => {
            say(format_args!("agent of {name} is frozen for {seconds:.1} s"));
            machine.frozen.send_replace(true);
            sleep(lasts).await;
            say(format_args!("agent of {name} goes on"));
            machine.frozen.send_replace(false);
        }
        Fault::MachineCutOff | Fault::ServersUnreachable | Fault::OneWay => {
            say(format_args!("{name}: {fault:?} for {seconds:.1} s"));
            let hears = !matches!(fault, Fault::OneWay) || chance.per_mille(500);
            let is_heard = !matches!(fault, Fault::OneWay) || !hears;
            let mut hosts = servers;
            if !matches!(fault, Fault::ServersUnreachable) {
                hosts.extend(others);
            }
            let pairs = || {
                hosts
                    .iter()
                    .map(|other| (*other, here))
                    .filter(|_| hears)
                    .chain(hosts.iter().map(|other| (here, *other)).filter(|_| is_heard))
            };
            pairs().for_each(|(from, to)| network.cut(from, to));
            sleep(lasts).await;
            say(format_args!("{name} is connected again"));
            pairs().for_each(|(from, to)| network.mend(from, to));
        }
        Fault::ServerKilled | Fault::ServerStopped => {
            say(format_args!("server {server}: {fault:?} for {seconds:.1} s"));
            let process = simulation.servers.lock()[server].take();
            match (process, fault) {
                (Some(process), Fault::ServerStopped) => process.stop(),
                (Some(process), _) => process.kill(),
                (None, _) => {}
            }
            note_outage(&simulation);
            sleep(lasts).await;
            run::start_server(&simulation, server);
        }
        Fault::AllServersKilled => {
            say(format_args!("all servers are killed for {seconds:.1} s"));
            let all: Vec<_> = simulation.servers.lock().iter_mut().filter_map(Option::take).collect();
            all.iter().for_each(|process| process.kill());
            note_outage(&simulation);
            sleep(lasts).await;
            (0..servers.len()).for_each(|number| run::start_server(&simulation, number));
        }
        Fault::ServerFrozen | Fault::StoreUnreachable => {
            say(format_args!("server {server}: {fault:?} for {seconds:.1} s"));
            let Some(process) = simulation.server(server) else { return };
            let frozen = matches!(fault, Fault::ServerFrozen);
            process.link.set(if frozen { store::LinkState::Frozen } else { store::LinkState::Cut });
            sleep(lasts).await;
            say(format_args!("server {server} goes on"));
            process.link.set(store::LinkState::Up);
        }
        Fault::LeaderFrozenBeforeWrite => {
            say(format_args!("{name} is cut off from servers until a leader is about to remove its unique pods"));
            let pairs = || servers.iter().flat_map(|server| [(*server, here), (here, *server)]);
            pairs().for_each(|(from, to)| network.cut(from, to));
            let leader = freeze_before_removal(&simulation, name).await;
            say(format_args!("{name} is connected again"));
            pairs().for_each(|(from, to)| network.mend(from, to));
            if let Some(leader) = leader {
                let lasts = lasts.max(LONGER_THAN_A_TERM);
                let (server, seconds) = (leader.server, lasts.as_secs_f64());
                say(format_args!("server {server} is frozen before it writes, for {seconds:.1} s"));
                sleep(lasts).await;
                say(format_args!("server {server} goes on"));
                leader.set(store::LinkState::Up);
            }
        }
        Fault::BadWeather => {
            let latency = Duration::from_millis(chance.between(5, 800) as u64);
            let (lost, repeated) = (chance.between(0, 300) as u32, chance.between(0, 200) as u32);
            say(format_args!(
                "{lost} of 1000 messages lost, {repeated} repeated, up to {latency:?} late, {seconds:.1} s"
            ));
            network.set_weather(Weather { latency, lost, repeated });
            sleep(lasts).await;
            network.set_weather(Weather::FAIR);
        }
        Fault::LostCommitAnswers => {
            say(format_args!("server {server} loses answers of commits for {seconds:.1} s"));
            let Some(process) = simulation.server(server) else { return };
            let latency = Duration::from_millis(chance.between(0, 40) as u64);
            process.link.set_quality(store::Quality { latency, lost_answers: 100 });
            sleep(lasts).await;
            process.link.set_quality(store::Quality::FAIR);
        }
        Fault::WallClockJumps => {
            let jump = chance.between(-3700, 3700);
            say(format_args!("the wall clock of server {server} jumps by {jump} s"));
            server_clock::jump(server, jump);
        }
        Fault::Drain => {
            say(format_args!("somebody drains {name}"));
            drain(&simulation, name, lasts).await;
        }
        Fault::PodDeleted => {
            let pods: Vec<String> = simulation.view.lock().pods.keys().cloned().collect();
            let pod = chance.pick(&pods).and_then(|name| name.split_once('/')).map(|(_, name)| name.to_owned());
            if let (Some(pod), Some(server)) = (pod, simulation.server(server)) {
                say(format_args!("somebody deletes pod {pod}"));
                workload::delete(&server.client("user"), &pod).await;
            }
        }
        Fault::Rescaled => {
            let replicas = chance.between(1, 6) as usize;
            let Some(server) = simulation.server(server) else { return };
            say(format_args!("somebody scales web to {replicas}"));
            let _ = workload::scale_web(&server.client("user"), replicas).await;
        }
    }
    if on_machine {
        machine.disturb();
    }
}

/// Waits until a server is about to write that pods of the StatefulSet on a lost node have failed, and freezes it right there. Returns it,
/// or nothing if it does not come to that in time.
async fn freeze_before_removal(simulation: &Simulation, node: &str) -> Option<Arc<store::StoreLink>> {
    let links: Vec<_> = simulation.servers.lock().iter().flatten().map(|server| server.link.clone()).collect();
    let frozen = Arc::new(Notify::new());
    for link in &links {
        let node = format!("Node {node} which was running pod {}-", workload::DB);
        let is_meant = move |op: &Op| match op {
            Op::Put { key, value } => key.starts_with("/registry/pods/") && contains(value, node.as_bytes()),
            Op::Delete { .. } => false,
        };
        link.freeze_before(Some(FreezeBeforeWrite { is_meant: Box::new(is_meant), frozen: frozen.clone() }));
    }
    let is_frozen = timeout(REMOVED_WITHIN, frozen.notified()).await.is_ok();
    links.iter().for_each(|link| link.freeze_before(None));
    links.into_iter().find(|link| is_frozen && *link.subscribe().borrow() == store::LinkState::Frozen)
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

/// As `kubectl drain`, for so long: asks for the eviction of each pod again and again until it is granted.
async fn drain(simulation: &Arc<Simulation>, node: &str, lasts: Duration) {
    let until = Instant::now() + lasts;
    while Instant::now() < until {
        let here: Vec<(String, PodView)> = {
            let view = simulation.view.lock();
            let here = view.pods.iter().filter(|(_, pod)| pod.node == node && !pod.is_terminating);
            here.filter_map(|(name, pod)| Some((name.split_once('/')?.1.to_owned(), pod.clone()))).collect()
        };
        for (pod, PodView { uid, is_ready, app, .. }) in here {
            let number = simulation.chance.below(simulation.servers.lock().len());
            let Some(server) = simulation.server(number) else { continue };
            let client = server.client("user");
            let granted = match simulation.broken.budget {
                true => workload::delete(&client, &pod).await,
                false => workload::evict(&client, &pod, &uid).await,
            };
            if granted {
                simulation.trace.record(format_args!("eviction of {pod} granted"));
                // An eviction is seen in the pod itself; whoever serves nobody is no loss.
                if simulation.broken.budget && is_ready && app == workload::WEB {
                    simulation.view.lock().record_disruption();
                }
            }
        }
        sleep(Duration::from_secs(2)).await;
    }
}

fn note_outage(simulation: &Simulation) {
    if simulation.servers.lock().iter().all(Option::is_none) {
        simulation.view.lock().outage_since = Some(Instant::now());
    }
}

/// From now on everything works.
fn end_all(simulation: &Arc<Simulation>) {
    simulation.trace.record("all faults end");
    simulation.network.mend_all();
    for machine in &simulation.machines {
        machine.power_on();
        machine.frozen.send_replace(false);
        if !machine.has_agent() {
            agent::start(simulation, machine.number);
        }
    }
    let servers = simulation.servers.lock().len();
    for number in 0..servers {
        if let Some(server) = simulation.server(number) {
            server.link.set(store::LinkState::Up);
            server.link.set_quality(store::Quality::FAIR);
        }
        run::start_server(simulation, number);
    }
}
