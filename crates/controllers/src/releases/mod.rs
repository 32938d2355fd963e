//! Releases: asks machines, wave by wave, to bring themselves to a version. [`mainstay_machines::release`] decides; what is here
//! finds what that depends on, and writes. A Machine is asked by a write of its `spec` that holds only while it is as it was judged.

mod gates;

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Node, ObjectReference},
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use mainstay_api::{
    machine::Machine,
    node::is_ready,
    release::{Release, ReleaseStatus},
    validation::labels::matches,
};
use mainstay_events::EventNote;
use mainstay_machines::release::{MachineView, Move, Overlap, ReleaseWorld, plan};
use mainstay_waves::Gate;
use serde_json::json;

use self::gates::{GateClient, SLOW_GATE};
use crate::runtime::{
    ApiError, Cache, Change, Context, Controller, Limits, ObjectKey, Outcomes, Plan, Runnable, WorkQueue,
    context::synced_machines, error,
};

const COMPONENT: &str = "release-controller";

pub struct ReleaseController {
    context: Arc<Context>,
    gates: GateClient,
}

pub struct World {
    release: Arc<Release>,
    /// In the order of their names; each with whether its node takes pods.
    machines: Vec<(Arc<Machine>, bool)>,
    overlap: Option<Overlap>,
    gates: Vec<Gate>,
}

/// Asks a machine to bring itself to a version, if it is still as it was judged.
#[derive(Debug)]
pub struct AskMachine {
    order: Move,
    version: String,
}

pub fn controller(context: &Arc<Context>) -> Runnable {
    let queue = context.queue::<ReleaseController>();
    let (machines, releases) = (&context.machine_caches.machines, &context.machine_caches.releases);
    releases.on_change({
        let (queue, all) = (queue.clone(), Arc::downgrade(releases));
        move |change: Change<'_, Release>| {
            queue.add(change.key.name.clone());
            let generation = |release: Option<&Release>| release.map(|release| release.metadata.generation);
            // Which Release has a machine depends on all of them.
            if generation(change.before) != generation(change.after) {
                let all = all.upgrade().map(|all| all.all()).unwrap_or_default();
                all.iter().for_each(|release| queue.add(release.name().to_owned()));
            }
        }
    });
    machines.on_change({
        let (queue, releases) = (queue.clone(), Arc::downgrade(releases));
        move |change: Change<'_, Machine>| {
            let Some(releases) = releases.upgrade() else { return };
            change.before.into_iter().chain(change.after).for_each(|machine| wake(&queue, &releases, machine));
        }
    });
    context.caches.nodes.on_change({
        let (queue, releases, machines) = (queue.clone(), Arc::downgrade(releases), Arc::downgrade(machines));
        move |change: Change<'_, Node>| {
            if change.before.map(takes_pods) == change.after.map(takes_pods) {
                return;
            }
            let (Some(releases), Some(machines)) = (releases.upgrade(), machines.upgrade()) else { return };
            if let Some(machine) = machines.get(change.key) {
                wake(&queue, &releases, &machine);
            }
        }
    });
    let controller = ReleaseController { context: context.clone(), gates: GateClient::new() };
    context.runnable(Arc::new(controller), queue, Limits::default()).after(synced_machines(context.clone()))
}

fn wake(queue: &WorkQueue<String>, releases: &Cache<Release>, machine: &Machine) {
    let selecting = releases.select(|release| selects(release, machine));
    selecting.iter().for_each(|release| queue.add(release.name().to_owned()));
}

fn selects(release: &Release, machine: &Machine) -> bool {
    match &machine.metadata.labels {
        Some(labels) => matches(&release.spec.selector, labels),
        None => matches(&release.spec.selector, &Default::default()),
    }
}

fn takes_pods(node: &Node) -> bool {
    is_ready(node) && node.spec.as_ref().is_none_or(|spec| spec.unschedulable != Some(true))
}

/// The older one of two Releases has the machines that both select.
fn age(release: &Release) -> (Option<Time>, &str) {
    (release.metadata.creation_timestamp.clone(), release.name())
}

impl World {
    fn with_plan<T>(&self, gates: &[Gate], use_plan: impl FnOnce(&ReleaseWorld<'_>) -> T) -> T {
        let machines = self.machines.iter();
        let machines: Vec<MachineView<'_>> =
            machines.map(|(machine, takes_pods)| MachineView { machine, takes_pods: *takes_pods }).collect();
        let (release, overlap) = (&*self.release, self.overlap.clone());
        use_plan(&ReleaseWorld { release, machines: &machines, overlap, gates })
    }
}

impl ReleaseController {
    fn overlap(&self, release: &Release, machines: &[(Arc<Machine>, bool)]) -> Option<Overlap> {
        let mut older = self
            .context
            .machine_caches
            .releases
            .select(|other| other.name() != release.name() && age(other) < age(release));
        older.sort_by(|one, other| age(one).cmp(&age(other)));
        older.iter().find_map(|other| {
            let (machine, _) = machines.iter().find(|(machine, _)| selects(other, machine))?;
            Some(Overlap { release: other.name().to_owned(), machine: machine.name().to_owned() })
        })
    }
}

impl Controller for ReleaseController {
    const NAME: &'static str = "release";
    const CONCURRENT_ACTIONS: usize = 16;
    type Key = String;
    type World = World;
    type Action = AskMachine;
    type Outcome = ();
    type Status = Box<ReleaseStatus>;

    async fn observe(&self, name: &String) -> Result<Option<World>, ApiError> {
        let (caches, nodes) = (&self.context.machine_caches, &self.context.caches.nodes);
        let Some(release) = caches.releases.get(&ObjectKey::new("", name)) else { return Ok(None) };
        let mut selected = caches.machines.select(|machine| selects(&release, machine));
        selected.sort_by(|one, other| one.name().cmp(other.name()));
        let machines = selected.into_iter().map(|machine| {
            let node = nodes.get(&ObjectKey::new("", machine.name()));
            let takes_pods = node.is_some_and(|node| takes_pods(&node));
            (machine, takes_pods)
        });
        let machines: Vec<(Arc<Machine>, bool)> = machines.collect();
        let overlap = self.overlap(&release, &machines);
        let mut world = World { release, machines, overlap, gates: Vec::new() };
        let mut gates = gates::judge_all(&world.release, &self.context.caches.slices);
        // Others are asked only about the wave that waits for their answer.
        let now = self.context.clock.now();
        let gated = world.with_plan(&gates, |world| plan(world, now).status);
        if let Some(wave) = gated.wave.filter(|_| gated.phase == "Gated").and_then(|wave| usize::try_from(wave).ok())
            && gates.get(wave) == Some(&Gate::Closed { why: SLOW_GATE.to_owned() })
        {
            gates[wave] = self.gates.ask(&world.release.spec.waves[wave]).await;
        }
        world.gates = gates;
        Ok(Some(world))
    }

    fn plan(world: &World, now: Timestamp) -> Plan<AskMachine, Box<ReleaseStatus>> {
        let planned = world.with_plan(&world.gates, |world| plan(world, now));
        let version = |name: &str| {
            let machine = world.machines.binary_search_by(|(machine, _)| machine.name().cmp(name)).ok()?;
            world.machines[machine].0.metadata.resource_version.clone()
        };
        let actions = planned.moves.into_iter().map(|order| {
            let version = version(&order.machine).unwrap_or_default();
            AskMachine { order, version }
        });
        let status = Some(planned.status).filter(|status| world.release.status.as_ref() != Some(status));
        Plan { actions: actions.collect(), status: status.map(Box::new), requeue_at: planned.wake_at }
    }

    async fn apply(&self, release: &String, AskMachine { order, version }: AskMachine) -> Result<(), ApiError> {
        let machines: Api<Machine> = Api::all(self.context.client.clone());
        let patch = Patch::Merge(json!({
            "metadata": { "resourceVersion": version },
            "spec": {
                "version": order.version, "versionSince": Time(self.context.clock.now()), "release": release,
                "drain": order.drain,
            },
        }));
        match machines.patch(&order.machine, &PatchParams::default(), &patch).await {
            Ok(machine) => self.context.machine_caches.machines.wrote(machine),
            Err(error) if error::is_not_found(&error, &order.machine) => {}
            Err(error) => return Err(ApiError::new(format!("ask machine {} for a version", order.machine), error)),
        }
        Ok(())
    }

    async fn report(&self, name: &String, status: Box<ReleaseStatus>, _: &Outcomes<()>) -> Result<(), ApiError> {
        let releases = &self.context.machine_caches.releases;
        let Some(judged) = releases.get(&ObjectKey::new("", name)) else { return Ok(()) };
        let changed = Release { status: Some(*status), ..Release::clone(&judged) };
        let api: Api<Release> = Api::all(self.context.client.clone());
        match api.replace_status(name, &PostParams::default(), &changed).await {
            Ok(written) => {
                self.record_phase(&judged, &written);
                releases.wrote(written);
            }
            Err(error) if error::is_not_found(&error, name) => {}
            Err(error) => return Err(ApiError::new(format!("write the status of release {name}"), error)),
        }
        Ok(())
    }
}

impl ReleaseController {
    /// An event for every phase that somebody may want to know of.
    fn record_phase(&self, before: &Release, now: &Release) {
        let phase = |release: &Release| release.status.as_ref().map(|status| status.phase.clone()).unwrap_or_default();
        if phase(before) == phase(now) {
            return;
        }
        let message = now.status.as_ref().map(|status| status.message.clone()).unwrap_or_default();
        let message = format!("version {}: {message}", now.spec.version);
        let note = match phase(now).as_str() {
            "Stuck" => EventNote::warning("ReleaseStuck", message),
            "Refused" => EventNote::warning("ReleaseRefused", message),
            "RollingBack" => EventNote::warning("ReleaseRollingBack", message),
            "RolledBack" => EventNote::normal("ReleaseRolledBack", message),
            "Complete" => EventNote::normal("ReleaseComplete", message),
            "Gated" => EventNote::normal("ReleaseGated", message),
            _ => return,
        };
        let involved = ObjectReference {
            api_version: Some(now.api_version.clone()),
            kind: Some(now.kind.clone()),
            name: now.metadata.name.clone(),
            uid: now.metadata.uid.clone(),
            ..ObjectReference::default()
        };
        self.context.events.record_as(COMPONENT, involved, note);
    }
}
