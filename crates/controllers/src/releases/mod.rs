//! Releases: asks machines, wave by wave, to bring themselves to a version, and changes the templates of workloads.
//! [`mainstay_machines::release`] decides; what is here finds what that depends on, and writes. A Machine is asked by a write of its
//! `spec` that holds only while it is as it was judged; [`workloads`] are changed likewise.
//!
//! [`gates`] and [`checks`] say whether a wave may begin.

mod checks;
mod gates;
mod workloads;

use std::{collections::HashMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{
    api::{
        apps::v1::{DaemonSet, StatefulSet},
        core::v1::{Node, ObjectReference},
    },
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
use mainstay_machines::{
    release::{MachineView, Move, Overlap, Recall, ReleaseWorld, WorkloadProblem, plan},
    workloads::WorkloadView,
};
use mainstay_waves::Gate;
use serde_json::json;

use self::{
    checks::CheckClient,
    gates::SLOW_GATE,
    workloads::{SelectedWorkload, WorkloadWrite},
};
use crate::{
    config_rollout::workload::WorkloadKind,
    objects::deployment::Deployment,
    runtime::{
        ApiError, Cache, CachedObject, Change, Context, Controller, Limits, ObjectKey, Outcomes, Plan, Runnable,
        WorkQueue, context::synced_machines, error,
    },
};

const COMPONENT: &str = "release-controller";

pub struct ReleaseController {
    context: Arc<Context>,
    checks: CheckClient,
}

pub struct World {
    release: Arc<Release>,
    /// In the order in which they move; each with whether its node takes pods.
    machines: Vec<(Arc<Machine>, bool)>,
    workloads: Vec<SelectedWorkload>,
    overlap: Option<Overlap>,
    problem: Option<WorkloadProblem>,
    gates: Vec<Gate>,
}

/// What is done, if it is still about what was judged.
#[derive(Debug)]
pub enum Action {
    /// Asks a machine to bring itself to a version.
    AskMachine {
        order: Move,
        version: String,
    },
    /// Takes a request back that a silent machine has not heard of.
    RecallMachine {
        recall: Recall,
        version: String,
    },
    WriteWorkload(Box<WorkloadWrite>),
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
    wake_by_workloads::<Deployment>(&context.caches.deployments, WorkloadKind::Deployment, &queue, releases);
    wake_by_workloads::<StatefulSet>(&context.caches.stateful_sets, WorkloadKind::StatefulSet, &queue, releases);
    wake_by_workloads::<DaemonSet>(&context.caches.daemon_sets, WorkloadKind::DaemonSet, &queue, releases);
    let checks = CheckClient::new(context.client.clone(), context.caches.pods.clone());
    let controller = ReleaseController { context: context.clone(), checks };
    context.runnable(Arc::new(controller), queue, Limits::default()).after(synced_machines(context.clone()))
}

/// A change of a workload wakes the Releases that select it, or did.
fn wake_by_workloads<K: CachedObject>(
    cache: &Cache<K>,
    kind: WorkloadKind,
    queue: &Arc<WorkQueue<String>>,
    releases: &Arc<Cache<Release>>,
) {
    let (queue, releases) = (queue.clone(), Arc::downgrade(releases));
    cache.on_change(move |change: Change<'_, K>| {
        let Some(releases) = releases.upgrade() else { return };
        let objects: Vec<&K> = change.before.into_iter().chain(change.after).collect();
        let is_selected = |release: &Release| {
            !release.spec.workloads.is_empty()
                && objects.iter().any(|object| workloads::selects(release, kind, object.meta()))
        };
        releases.select(is_selected).iter().for_each(|release| queue.add(release.name().to_owned()));
    });
}

fn wake(queue: &WorkQueue<String>, releases: &Cache<Release>, machine: &Machine) {
    for release in releases.select(|release| selects(release, machine)) {
        queue.add_after(release.name().to_owned(), settle_time(&release));
    }
}

/// How long a change of a machine waits for others, so that one plan is made for all: none for few machines, a second for twenty thousand, whose plan
/// takes a part of that. One machine that reports without a pause keeps nobody busy.
fn settle_time(release: &Release) -> Duration {
    let machines = release.status.as_ref().and_then(|status| u64::try_from(status.machines).ok()).unwrap_or(0);
    Duration::from_millis((machines / 20).min(1000))
}

fn selects(release: &Release, machine: &Machine) -> bool {
    let Some(selector) = &release.spec.selector else { return false };
    match &machine.metadata.labels {
        Some(labels) => matches(selector, labels),
        None => matches(selector, &Default::default()),
    }
}

/// By what machines are ordered: the values of these labels, then the name. Those without a label come after all others.
fn place(order_by: &[String], machine: &Machine) -> (Vec<(bool, String)>, String) {
    let labels = machine.metadata.labels.as_ref();
    let values = order_by.iter().map(|key| match labels.and_then(|labels| labels.get(key)) {
        Some(value) => (false, value.clone()),
        None => (true, String::new()),
    });
    (values.collect(), machine.name().to_owned())
}

fn takes_pods(node: &Node) -> bool {
    is_ready(node) && node.spec.as_ref().is_none_or(|spec| spec.unschedulable != Some(true))
}

/// Which of two Releases came first and so has the machines that both select: the smaller one.
///
/// Creation times are whole seconds, by the clock of the server that took the request. So the order is that of the store, by the resource version at which
/// the controller first saw each; it is in the status before the Release moves anything, and stays whatever happens later.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Seniority<'a> {
    /// Its status is of an earlier program, which recorded no revision: before all others, by age.
    Unrecorded(Option<&'a Time>, &'a str),
    Revision(i64, &'a str),
}

fn seniority(release: &Release) -> Seniority<'_> {
    let (meta, name) = (&release.metadata, release.name());
    match &release.status {
        None => Seniority::Revision(revision(release), name),
        Some(status) => match status.first_revision {
            Some(revision) => Seniority::Revision(revision, name),
            None => Seniority::Unrecorded(meta.creation_timestamp.as_ref(), name),
        },
    }
}

/// As large as can be if there is none: it comes last.
fn revision(release: &Release) -> i64 {
    release.metadata.resource_version.as_ref().and_then(|version| version.parse().ok()).unwrap_or(i64::MAX)
}

impl World {
    fn with_plan<T>(&self, gates: &[Gate], use_plan: impl FnOnce(&ReleaseWorld<'_>) -> T) -> T {
        let machines = self.machines.iter();
        let machines: Vec<MachineView<'_>> =
            machines.map(|(machine, takes_pods)| MachineView { machine, takes_pods: *takes_pods }).collect();
        let workloads: Vec<WorkloadView> = self.workloads.iter().map(|own| own.view.clone()).collect();
        let (release, overlap, problem) = (&*self.release, self.overlap.clone(), self.problem.clone());
        use_plan(&ReleaseWorld { release, machines: &machines, workloads: &workloads, overlap, problem, gates })
    }
}

impl ReleaseController {
    fn overlap(&self, release: &Release, machines: &[(Arc<Machine>, bool)]) -> Option<Overlap> {
        let mut older = self
            .context
            .machine_caches
            .releases
            .select(|other| other.name() != release.name() && seniority(other) < seniority(release));
        older.sort_by(|one, other| seniority(one).cmp(&seniority(other)));
        older.iter().find_map(|other| {
            let machine = machines.iter().find(|(machine, _)| selects(other, machine)).map(|(machine, _)| Overlap {
                release: other.name().to_owned(),
                member: format!("machine {:?}", machine.name()),
            });
            machine.or_else(|| workloads::overlap(&self.context.caches, release, other))
        })
    }
}

impl Controller for ReleaseController {
    const NAME: &'static str = "release";
    const CONCURRENT_ACTIONS: usize = 16;
    type Key = String;
    type World = World;
    type Action = Action;
    type Outcome = ();
    type Status = Box<ReleaseStatus>;

    async fn observe(&self, name: &String) -> Result<Option<World>, ApiError> {
        let (caches, nodes) = (&self.context.machine_caches, &self.context.caches.nodes);
        let Some(release) = caches.releases.get(&ObjectKey::new("", name)) else { return Ok(None) };
        let mut selected = caches.machines.select(|machine| selects(&release, machine));
        selected.sort_by_cached_key(|machine| place(&release.spec.order_by, machine));
        let machines = selected.into_iter().map(|machine| {
            let node = nodes.get(&ObjectKey::new("", machine.name()));
            let takes_pods = node.is_some_and(|node| takes_pods(&node));
            (machine, takes_pods)
        });
        let machines: Vec<(Arc<Machine>, bool)> = machines.collect();
        let overlap = self.overlap(&release, &machines);
        let (workloads, problem) = workloads::select(&self.context.caches, &release);
        let mut world = World { release, machines, workloads, overlap, problem, gates: Vec::new() };
        let mut gates = gates::judge_all(&world.release, &self.context.caches.slices);
        // Others are asked only about the wave that waits for their answer.
        let now = self.context.clock.now();
        let gated = match world.release.status {
            Some(_) => world.with_plan(&gates, |world| plan(world, now).status),
            None => ReleaseStatus::default(), // nothing is decided yet
        };
        if let Some(wave) = gated.wave.filter(|_| gated.phase == "Gated").and_then(|wave| usize::try_from(wave).ok())
            && gates.get(wave) == Some(&Gate::Closed { why: SLOW_GATE.to_owned() })
        {
            gates[wave] = self.checks.ask(&world.release.spec.waves[wave]).await;
        }
        world.gates = gates;
        Ok(Some(world))
    }

    fn plan(world: &World, now: Timestamp) -> Plan<Action, Box<ReleaseStatus>> {
        if world.release.status.is_none() {
            // Nothing moves before its place among the Releases is written down.
            let first_revision = Some(revision(&world.release));
            let status = ReleaseStatus { first_revision, ..ReleaseStatus::default() };
            return Plan { actions: Vec::new(), status: Some(Box::new(status)), requeue_at: Some(now) };
        }
        let planned = world.with_plan(&world.gates, |world| plan(world, now));
        let judged = world.machines.iter().map(|(machine, _)| (machine.name(), &machine.metadata.resource_version));
        let judged: HashMap<&str, &Option<String>> = judged.collect();
        let version = |name: &str| judged.get(name).and_then(|version| (*version).clone());
        let recalls = planned.recalls.into_iter().map(|recall| {
            let version = version(&recall.machine).unwrap_or_default();
            Action::RecallMachine { recall, version }
        });
        let moves = planned.moves.into_iter().map(|order| {
            let version = version(&order.machine).unwrap_or_default();
            Action::AskMachine { order, version }
        });
        let actions = recalls.chain(moves);
        let writes = planned.workload_moves.into_iter();
        let writes = writes.filter_map(|action| WorkloadWrite::new(&world.workloads, action));
        let actions = actions.chain(writes.map(|write| Action::WriteWorkload(Box::new(write))));
        let status = Some(planned.status).filter(|status| world.release.status.as_ref() != Some(status));
        Plan { actions: actions.collect(), status: status.map(Box::new), requeue_at: planned.wake_at }
    }

    async fn apply(&self, release: &String, action: Action) -> Result<(), ApiError> {
        let since = Time(self.context.clock.now());
        match action {
            Action::AskMachine { order: Move { machine, version: wanted, drain }, version } => {
                let spec = json!({"version": wanted, "versionSince": since, "release": release, "drain": drain});
                self.change_machine(&machine, &version, spec).await
            }
            Action::RecallMachine { recall: Recall { machine, running }, version } => {
                let spec = json!({"version": running, "versionSince": since, "release": release});
                self.change_machine(&machine, &version, spec).await
            }
            Action::WriteWorkload(write) => write.apply(&self.context, release).await,
        }
    }

    async fn report(&self, name: &String, status: Box<ReleaseStatus>, _: &Outcomes<()>) -> Result<(), ApiError> {
        let releases = &self.context.machine_caches.releases;
        let Some(judged) = releases.get(&ObjectKey::new("", name)) else { return Ok(()) };
        let mut status = *status;
        if judged.status.is_none() {
            // The write holds only for this revision: what is recorded is what others have seen.
            status.first_revision = Some(revision(&judged));
        }
        let changed = Release { status: Some(status), ..Release::clone(&judged) };
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
    /// Changes the spec of a machine, if it is still as it was judged.
    async fn change_machine(&self, name: &str, judged: &str, spec: serde_json::Value) -> Result<(), ApiError> {
        let machines: Api<Machine> = Api::all(self.context.client.clone());
        let patch = Patch::Merge(json!({"metadata": {"resourceVersion": judged}, "spec": spec}));
        match machines.patch(name, &PatchParams::default(), &patch).await {
            Ok(machine) => self.context.machine_caches.machines.wrote(machine),
            Err(error) if error::is_not_found(&error, name) => {}
            Err(error) => return Err(ApiError::new(format!("ask machine {name} for a version"), error)),
        }
        Ok(())
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    fn release(name: &str, resource_version: &str, status: serde_json::Value) -> Release {
        let meta =
            json!({"name": name, "resourceVersion": resource_version, "creationTimestamp": "2026-01-01T00:00:00Z"});
        serde_json::from_value(json!({"metadata": meta, "status": status})).unwrap()
    }

    #[test]
    fn of_two_releases_of_one_second_the_one_that_was_stored_first_is_older_whatever_its_name() {
        let (first, second) = (release("z", "9", json!(null)), release("a", "10", json!(null)));
        assert!(seniority(&first) < seniority(&second), "numbers, not texts");
        // The first one was written since.
        let changed = release("z", "12", json!({"firstRevision": 9}));
        assert!(seniority(&changed) < seniority(&second));
        let before = release("y", "4000", json!({"phase": "Progressing"}));
        assert!(seniority(&before) < seniority(&changed), "one that an earlier program looked at comes first");
    }

    #[test]
    fn the_more_machines_a_release_has_the_longer_changes_wait_for_each_other() {
        let settle = |machines: i32| settle_time(&release("all", "1", json!({"machines": machines}))).as_millis();
        assert_eq!([0, 6, 100, 10_000, 1_000_000].map(settle), [0, 0, 5, 500, 1000]);
        assert_eq!(settle_time(&release("new", "1", json!(null))), Duration::ZERO);
    }

    #[test]
    fn machines_are_ordered_by_labels_and_then_by_name() {
        let machine = |name: &str, rack: Option<&str>| {
            let mut machine = Machine::new(name, Default::default());
            machine.metadata.labels = rack.map(|rack| [("rack".to_owned(), rack.to_owned())].into());
            machine
        };
        let mut machines =
            [machine("a", None), machine("b", Some("2")), machine("c", Some("1")), machine("d", Some("2"))];
        let order = ["rack".to_owned()];
        machines.sort_by_cached_key(|own| place(&order, own));
        assert_eq!(machines.each_ref().map(|own| own.name().to_owned()), ["c", "b", "d", "a"]);
        machines.sort_by_cached_key(|own| place(&[], own));
        assert_eq!(machines.each_ref().map(|own| own.name().to_owned()), ["a", "b", "c", "d"]);
    }

    #[test]
    fn nothing_moves_before_the_place_of_a_release_is_recorded() {
        let release = Arc::new(release("z", "9", json!(null)));
        let machines = vec![(Arc::new(Machine::new("m", Default::default())), true)];
        let (workloads, gates) = (Vec::new(), Vec::new());
        let world = World { release, machines, workloads, overlap: None, problem: None, gates };
        let now = Timestamp::UNIX_EPOCH;
        let plan = ReleaseController::plan(&world, now);
        assert_eq!((plan.actions.len(), plan.requeue_at), (0, Some(now)));
        let recorded = ReleaseStatus { first_revision: Some(9), ..ReleaseStatus::default() };
        assert_eq!(plan.status, Some(Box::new(recorded)));
    }
}
