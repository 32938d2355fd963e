//! Which machines and workloads of a Release move now, and what its status says. Nothing stores a step: everything follows from the Machines as
//! they are, and from the few facts in the status that cannot be seen in them: since when the target is one, the last version that
//! all machines ran, and whether it is rolled back.
//!
//! * A Release has one target at a time: its version, or the version that it is rolled back to. A machine is asked for one version
//!   at a time; when the target changes, machines that were not asked yet skip to the new one, and machines under way end the step
//!   they are in first (the machine itself sees to that).
//! * A machine that is silent when the target changes does not go through the old one on its return. If it never said that it knows of
//!   it, the request is taken back and it waits for its turn; if it did, it may be half way there and is asked for the new target at once.
//! * Workloads are members like machines, and come after them where no wave names them; [`crate::workloads`] says how far each is.
//! * Of two Releases that select the same machine or workload, the older one has it; the other one is refused as a whole, and says so.
//! * Nothing is started while it is paused, held, aborted, or outside of its windows; each can be ended at any time.

use std::collections::HashSet;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::{
    apis::meta::v1::{Condition, Time},
    util::intstr::IntOrString,
};
use mainstay_api::{
    machine::{Machine, MachineAxis, StateValue},
    release::{
        ACCEPTED, ACCEPTED_REASON, CHANGE_DOES_NOT_APPLY, COMPLETE, FAILURES_SHOWN, HISTORY_LIMIT, MachineFailure,
        OVERLAPS, ROLLBACK, Release, ReleaseRecord, ReleaseRollback, ReleaseStatus, ReleaseWave, SELECTS_NOTHING,
        STUCK, UNRELEASED, WaveProgress,
    },
};
use mainstay_waves::{Amount, Gate, Health, Member, Position, Rollout, State, Strategy, Wave};

use crate::{
    windows::{WindowState, window_state},
    workloads::{WorkloadCourse, WorkloadMove, WorkloadView},
};

/// How often gates are looked at while one is closed.
pub const GATE_INTERVAL: SignedDuration = SignedDuration::from_secs(5);

/// So many characters of the cause of a failure are shown.
const LONGEST_CAUSE: usize = 300;

/// Everything that a decision about a Release depends on.
pub struct ReleaseWorld<'a> {
    pub release: &'a Release,
    /// Those that it selects, in the order in which they move.
    pub machines: &'a [MachineView<'a>],
    /// Likewise; they come after the machines.
    pub workloads: &'a [WorkloadView],
    /// Another Release that has one of them already.
    pub overlap: Option<Overlap>,
    /// What is wrong with the changes of workloads.
    pub problem: Option<WorkloadProblem>,
    /// The gate before each wave, as found.
    pub gates: &'a [Gate],
}

/// A machine, and whether its node takes pods.
pub struct MachineView<'a> {
    pub machine: &'a Machine,
    /// Ready, and not cordoned.
    pub takes_pods: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overlap {
    pub release: String,
    /// A machine or workload of both, as people would call it.
    pub member: String,
}

/// Why workloads cannot be changed as the Release says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkloadProblem {
    /// This one of `spec.workloads` selects none.
    SelectsNothing {
        change: usize,
    },
    DoesNotApply {
        workload: String,
        why: String,
    },
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub struct ReleasePlan {
    pub moves: Vec<Move>,
    pub recalls: Vec<Recall>,
    pub workload_moves: Vec<WorkloadMove>,
    pub status: ReleaseStatus,
    pub wake_at: Option<Timestamp>,
}

/// Asks a machine to bring itself to a version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Move {
    pub machine: String,
    pub version: String,
    pub drain: bool,
}

/// Takes a request back that a silent machine has not heard of: it stays at what it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recall {
    pub machine: String,
    /// What it runs; nothing if no version is known.
    pub running: Option<String>,
}

/// Where machines are to go, and why not all of them at once.
struct Course {
    target: String,
    began: Timestamp,
    is_rollback: bool,
}

pub fn plan(world: &ReleaseWorld<'_>, now: Timestamp) -> ReleasePlan {
    let release = world.release;
    let before = release.status.clone().unwrap_or_default();
    let mut status = ReleaseStatus {
        observed_generation: release.metadata.generation,
        machines: count(world.machines.len()),
        workloads: count(world.workloads.len()),
        ..before.clone()
    };
    if let Some(refusal) = refusal(world) {
        let (reason, message) = refusal;
        status.phase = "Refused".to_owned();
        status.message.clone_from(&message);
        set_condition(&mut status, ACCEPTED, Some((false, reason, message)), now);
        let (moves, recalls, workload_moves) = (Vec::new(), Vec::new(), Vec::new());
        return ReleasePlan { moves, recalls, workload_moves, status, wake_at: None };
    }
    set_condition(&mut status, ACCEPTED, Some((true, ACCEPTED_REASON, String::new())), now);
    let course = set_course(release, &mut status, now);
    let machines = world.machines.iter().map(|own| member(own, &course, now));
    let to = course.of_workloads();
    let members: Vec<Member> = machines.chain(world.workloads.iter().map(|own| own.member(&to, now))).collect();
    let strategy = strategy(release, &course);
    let (pause, resume_at) = pause(release, now);
    let no_gates: &[Gate] = &[];
    let gates = if course.is_rollback || release.goes_back() { no_gates } else { world.gates };
    let rollout =
        Rollout { strategy: &strategy, members: &members, gates, paused: pause.as_deref(), began: course.began };
    let plan = mainstay_waves::plan(&rollout, now);

    let moves = moves(world, &course, &plan.start, pause.is_some());
    let recalls = recalls(world, &course);
    let workload_moves = workload_moves(world, &to, &plan.start, now);
    count_members(&mut status, &members, &strategy);
    let mut wake_at = [plan.wake_at, resume_at].into_iter().flatten().min();
    if matches!(plan.state, State::Gated { .. }) {
        wake_at = earlier(wake_at, now + GATE_INTERVAL);
    }
    status.message = plan.state.to_string();
    status.wave = match plan.state {
        State::Progressing { wave, .. } | State::Soaking { wave, .. } | State::Gated { wave, .. } => Some(count(wave)),
        State::Stuck { wave, .. } => Some(count(wave)),
        State::Paused { .. } => before.wave,
        State::Complete { .. } => None,
    };
    status.phase = phase(&plan.state, release, &course).to_owned();
    let is_stuck = matches!(plan.state, State::Stuck { .. });
    let is_complete = matches!(plan.state, State::Complete { .. });
    if is_complete {
        complete(&mut status, &course, now);
    }
    let only_workloads = world.machines.is_empty();
    if is_stuck && begin_rollback(release, &mut status, &course, only_workloads, now) {
        status.phase = "RollingBack".to_owned(); // nobody who follows it is to take this for the end
        wake_at = Some(now);
    }
    let message = status.message.clone();
    set_condition(&mut status, STUCK, is_stuck.then_some((true, "TooManyFailed", message)), now);
    let completion = match (is_complete, course.is_rollback) {
        (true, false) => Some((true, "Complete", String::new())),
        (true, true) => Some((false, "RolledBack", format!("all are back at {}", course.target))),
        (false, _) => Some((false, "InProgress", String::new())),
    };
    set_condition(&mut status, COMPLETE, completion, now);
    ReleasePlan { moves, recalls, workload_moves, status, wake_at }
}

/// Why nothing may be done at all.
fn refusal(world: &ReleaseWorld<'_>) -> Option<(&'static str, String)> {
    if let Some(Overlap { release, member }) = &world.overlap {
        let message = format!(
            "{member} is selected by the Release {release:?} too, which is older: nothing is moved. Change one of the selectors, \
             or the version of that Release"
        );
        return Some((OVERLAPS, message));
    }
    if world.machines.is_empty() && world.release.spec.selector.is_some() {
        return Some((SELECTS_NOTHING, "no Machine has the labels of the selector".to_owned()));
    }
    match world.problem.as_ref()? {
        WorkloadProblem::SelectsNothing { change } => {
            Some((SELECTS_NOTHING, format!("no workload is selected by spec.workloads[{change}]")))
        }
        WorkloadProblem::DoesNotApply { workload, why } => Some((CHANGE_DOES_NOT_APPLY, format!("{workload} {why}"))),
    }
}

impl Course {
    fn of_workloads(&self) -> WorkloadCourse<'_> {
        WorkloadCourse { target: &self.target, began: self.began, is_rollback: self.is_rollback }
    }
}

/// What is done to workloads: those that the plan starts are changed, of others is noted how far they are.
fn workload_moves(
    world: &ReleaseWorld<'_>,
    to: &WorkloadCourse<'_>,
    start: &[String],
    now: Timestamp,
) -> Vec<WorkloadMove> {
    let start: HashSet<&str> = start.iter().map(String::as_str).collect();
    let moves = world.workloads.iter().filter_map(|own| match start.contains(own.name.as_str()) {
        true => Some(own.start(to)),
        false => own.note(to, now),
    });
    moves.collect()
}

/// Finds the target, and notes in the status when it is a new one.
fn set_course(release: &Release, status: &mut ReleaseStatus, now: Timestamp) -> Course {
    let version = &release.spec.version;
    let superseded = status.rollback.take_if(|rollback| rollback.from != *version);
    let target = status.rollback.as_ref().map_or(version, |rollback| &rollback.to).clone();
    if status.target != target {
        if !status.target.is_empty() && !was_complete(status) {
            let was_aborted = status.phase == "Aborted";
            let result = match (&status.rollback, was_aborted) {
                (Some(_), _) => "RolledBack",
                (None, true) => "Aborted",
                (None, false) => "Superseded",
            };
            // A rollback that is overtaken never was a release of its own.
            if superseded.is_none() {
                record(status, result, now);
            }
        }
        (status.target, status.start_time) = (target.clone(), Some(Time(now)));
    }
    let began = status.start_time.as_ref().map_or(now, |time| time.0);
    Course { target, began, is_rollback: status.rollback.is_some() }
}

fn record(status: &mut ReleaseStatus, result: &str, now: Timestamp) {
    status.history.push(ReleaseRecord {
        version: status.target.clone(),
        result: result.to_owned(),
        start_time: status.start_time.clone(),
        end_time: Time(now),
    });
    let surplus = status.history.len().saturating_sub(HISTORY_LIMIT);
    status.history.drain(..surplus);
}

/// Notes that all machines run the target, once.
fn complete(status: &mut ReleaseStatus, course: &Course, now: Timestamp) {
    if !course.is_rollback && !was_complete(status) {
        record(status, "Complete", now);
    }
    status.last_complete_version = Some(course.target.clone());
}

/// Whether all machines ran the target at some time since it is one.
fn was_complete(status: &ReleaseStatus) -> bool {
    status.history.last().is_some_and(|last| {
        last.result == "Complete" && last.version == status.target && last.start_time == status.start_time
    })
}

/// Turns back if the Release is to, and there is somewhere to go. Says whether it did. A machine that fails after all of them ran
/// the version is no reason to take it from the others.
fn begin_rollback(
    release: &Release,
    status: &mut ReleaseStatus,
    course: &Course,
    only_workloads: bool,
    now: Timestamp,
) -> bool {
    let rolls_back = release.spec.on_stuck.as_deref() == Some(ROLLBACK);
    let wants_to = rolls_back && !course.is_rollback && !was_complete(status);
    // Workloads remember what they were before the first release; machines do not.
    let unreleased = only_workloads.then(|| UNRELEASED.to_owned());
    let to = status.last_complete_version.clone().or(unreleased).filter(|to| wants_to && *to != course.target);
    match to {
        Some(to) => {
            let reason = status.message.clone();
            status.rollback = Some(ReleaseRollback { from: course.target.clone(), to, since: Time(now), reason });
            true
        }
        None => {
            if wants_to {
                status.message.push_str("; there is no version that all machines ran to roll back to");
            }
            false
        }
    }
}

fn phase(state: &State, release: &Release, course: &Course) -> &'static str {
    match state {
        State::Complete { .. } if course.is_rollback => "RolledBack",
        State::Complete { .. } => "Complete",
        State::Paused { .. } if is_aborted(release) => "Aborted",
        State::Paused { .. } => "Paused",
        State::Stuck { .. } => "Stuck",
        _ if course.is_rollback => "RollingBack",
        State::Progressing { .. } => "Progressing",
        State::Soaking { .. } => "Soaking",
        State::Gated { .. } => "Gated",
    }
}

fn is_aborted(release: &Release) -> bool {
    release.spec.aborted_version.as_ref() == Some(&release.spec.version)
}

/// Why no machine is started now, and when that ends by itself or begins.
fn pause(release: &Release, now: Timestamp) -> (Option<String>, Option<Timestamp>) {
    let spec = &release.spec;
    if is_aborted(release) {
        return (Some(format!("the release of {} was aborted", spec.version)), None);
    }
    if spec.paused {
        return (Some("mainstay release resume goes on".to_owned()), None);
    }
    if let Some(hold) = &spec.hold {
        let until = hold.until.as_ref().map(|until| until.0);
        match until {
            Some(until) if until <= now => {}
            Some(until) => return (Some(format!("held until {until}: {}", hold.reason)), Some(until)),
            None => return (Some(format!("held: {}", hold.reason)), None),
        }
    }
    match window_state(&spec.windows, now) {
        WindowState::Always => (None, None),
        WindowState::OpenUntil(until) => (None, Some(until)),
        WindowState::ClosedUntil(Some(from)) => (Some(format!("outside of its windows until {from}")), Some(from)),
        WindowState::ClosedUntil(None) => (Some("none of its windows ever opens".to_owned()), None),
    }
}

fn amount(share: &Option<IntOrString>, stock: Amount) -> Amount {
    match share {
        None => stock,
        Some(IntOrString::Int(number)) => Amount::Count(usize::try_from(*number).unwrap_or(0)),
        Some(IntOrString::String(text)) => {
            let percent = text.strip_suffix('%').and_then(|digits| digits.parse().ok()).unwrap_or(0);
            Amount::Percent(percent)
        }
    }
}

fn strategy(release: &Release, course: &Course) -> Strategy {
    let spec = &release.spec;
    let seconds = |seconds: Option<i32>| SignedDuration::from_secs(seconds.unwrap_or(0).into());
    let max_unavailable = amount(&spec.max_unavailable, Amount::ONE);
    let progress_deadline = spec.progress_deadline_seconds.map(|limit| seconds(Some(limit)));
    let max_failed = amount(&spec.max_failed, Amount::ZERO);
    if course.is_rollback || release.goes_back() {
        let max_unavailable = amount(&spec.rollback_max_unavailable, max_unavailable);
        let soak = seconds(spec.rollback_soak_seconds);
        let (waves, max_failed_of_waves) = (waves(&spec.rollback_waves), budgets(&spec.rollback_waves));
        return Strategy { waves, max_unavailable, soak, progress_deadline, max_failed, max_failed_of_waves };
    }
    Strategy {
        waves: waves(&spec.waves),
        max_failed_of_waves: budgets(&spec.waves),
        max_unavailable,
        soak: seconds(spec.soak_seconds),
        progress_deadline,
        max_failed,
    }
}

fn waves(own: &[ReleaseWave]) -> Vec<Wave> {
    let wave = |own: &ReleaseWave| match &own.up_to {
        Some(_) => Wave::UpTo(amount(&own.up_to, Amount::ZERO)),
        None => Wave::Named(own.machines.iter().chain(&own.workloads).cloned().collect()),
    };
    own.iter().map(wave).collect()
}

fn budgets(own: &[ReleaseWave]) -> Vec<Option<Amount>> {
    own.iter().map(|wave| wave.max_failed.as_ref().map(|_| amount(&wave.max_failed, Amount::ZERO))).collect()
}

/// A machine as the planner of waves sees it.
fn member(view: &MachineView<'_>, course: &Course, now: Timestamp) -> Member {
    let machine = view.machine;
    let wants = |version: Option<&String>| version == Some(&course.target);
    let version = machine.status.as_ref().and_then(|status| status.version.as_ref());
    let is_asked = wants(machine.spec.version.as_ref());
    let knows = wants(version.and_then(|version| version.wanted.as_ref()));
    let asked_at = machine.spec.version_since.as_ref().map_or(course.began, |time| time.0);
    let validated = machine.state(MachineAxis::Validated);
    let value = validated.map_or(StateValue::Pending, |state| state.state);
    let has_arrived =
        wants(version.and_then(|version| version.running.as_ref())) && (knows || machine.spec.version.is_none());
    let position = if has_arrived && (is_asked || machine.spec.version.is_none()) && value != StateValue::Pending {
        let since = version.and_then(|version| version.running_since.as_ref());
        let since = since.map(|time| time.0).filter(|since| *since <= now);
        Position::AtTarget { since: since.unwrap_or(asked_at) }
    } else if is_asked && knows {
        Position::Moving { since: asked_at }
    } else if is_asked && !is_silent(machine) {
        // It may have been away for long: its time counts from its return.
        let seen = machine.state(MachineAxis::Seen).map_or(asked_at, |seen| seen.since.0);
        Position::Moving { since: asked_at.max(seen) }
    } else {
        Position::Old // a silent machine that never said that it knows of the version has not begun
    };
    let health = match health(view, is_asked && knows, course, now) {
        // By the machine's clock, which may be wrong; when it was asked is by the server's.
        Health::Healthy { since } if since < asked_at || since > now => Health::Healthy { since: asked_at },
        health => health,
    };
    Member { name: machine.name().to_owned(), position, health }
}

fn health(view: &MachineView<'_>, moves_here: bool, course: &Course, now: Timestamp) -> Health {
    let machine = view.machine;
    let state = |axis| machine.state(axis).filter(|state| state.state == StateValue::Failed);
    if is_silent(machine) {
        let since = machine.state(MachineAxis::Seen).map_or(course.began, |seen| seen.since.0);
        return Health::Unknown { since };
    }
    // Asked for another version, and it has not even heard of that: whatever it reports is about to change.
    let heard = machine.status.as_ref().and_then(|status| status.version.as_ref()?.wanted.as_ref());
    if machine.spec.version.is_some() && machine.spec.version.as_ref() != heard {
        return Health::Unhealthy { since: machine.spec.version_since.as_ref().map_or(course.began, |time| time.0) };
    }
    let provisioned = state(MachineAxis::Provisioned);
    let failed = provisioned.or_else(|| state(MachineAxis::Configured)).or_else(|| state(MachineAxis::Validated));
    if let Some(failed) = failed {
        let (since, why) = (failed.since.0, shorten(&failed.message));
        return if moves_here { Health::Failed { since, why } } else { Health::Unhealthy { since } };
    }
    match machine.state(MachineAxis::Validated) {
        Some(valid) if valid.state == StateValue::Success && view.takes_pods => {
            Health::Healthy { since: valid.since.0 }
        }
        // Cordoned, or not ready: unavailable, but no failure of this release however long it lasts.
        Some(valid) if valid.state == StateValue::Success => Health::Unhealthy { since: now },
        Some(other) => Health::Unhealthy { since: other.since.0 },
        // Nobody has asked anything of it yet, and it runs pods: moving it makes it unavailable.
        None if !moves_here && view.takes_pods && machine.running_version() != Some(course.target.as_str()) => {
            Health::Healthy { since: course.began }
        }
        None => Health::Unhealthy { since: course.began },
    }
}

/// Heartbeats do not arrive, or never did.
fn is_silent(machine: &Machine) -> bool {
    machine.state(MachineAxis::Seen).is_none_or(|seen| seen.state != StateValue::Success)
}

/// A silent machine was asked for a version that is the target no longer, and does not run it.
fn has_stale_request(machine: &Machine, course: &Course) -> bool {
    let asked = machine.spec.version.as_deref();
    let is_stale = asked.is_some_and(|asked| asked != course.target) && asked != machine.running_version();
    is_stale && is_silent(machine)
}

/// Whether the machine has said that it knows of the version that it is asked for.
fn knows_request(machine: &Machine) -> bool {
    let version = machine.status.as_ref().and_then(|status| status.version.as_ref());
    version.is_some_and(|version| version.wanted == machine.spec.version)
}

/// The beginning of a cause: a status names several, and the Machine has all of it.
fn shorten(cause: &str) -> String {
    match cause.char_indices().nth(LONGEST_CAUSE) {
        Some((end, _)) => format!("{}…", &cause[..end]),
        None => cause.to_owned(),
    }
}

/// Those that the plan starts, those that run the target already and need only be told that they stay there, and silent ones that may be half
/// way to another version.
fn moves(world: &ReleaseWorld<'_>, course: &Course, start: &[String], is_paused: bool) -> Vec<Move> {
    let start: HashSet<&str> = start.iter().map(String::as_str).collect();
    let is_adopted =
        |machine: &Machine| machine.spec.version.is_none() && machine.running_version() == Some(&course.target);
    let machines = world.machines.iter().map(|own| own.machine);
    let is_redirected = |machine: &Machine| !is_paused && has_stale_request(machine, course) && knows_request(machine);
    let chosen =
        machines.filter(|machine| start.contains(machine.name()) || is_adopted(machine) || is_redirected(machine));
    let drain = world.release.spec.drain;
    chosen.map(|machine| Move { machine: machine.name().to_owned(), version: course.target.clone(), drain }).collect()
}

/// Also while nothing is started.
fn recalls(world: &ReleaseWorld<'_>, course: &Course) -> Vec<Recall> {
    let machines = world.machines.iter().map(|own| own.machine);
    let recalled = machines.filter(|machine| has_stale_request(machine, course) && !knows_request(machine));
    let recall = |machine: &Machine| Recall {
        machine: machine.name().to_owned(),
        running: machine.running_version().map(str::to_owned),
    };
    recalled.map(recall).collect()
}

fn count(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

fn earlier(wake_at: Option<Timestamp>, other: Timestamp) -> Option<Timestamp> {
    Some(wake_at.map_or(other, |at| at.min(other)))
}

fn is_healthy(member: &Member) -> bool {
    matches!(member.health, Health::Healthy { .. })
}

fn is_updated(member: &Member) -> bool {
    matches!(member.position, Position::AtTarget { .. }) && is_healthy(member)
}

fn count_members(status: &mut ReleaseStatus, members: &[Member], strategy: &Strategy) {
    let is_moving = |member: &&Member| matches!(member.position, Position::Moving { .. });
    status.updated = count(members.iter().filter(|own| is_updated(own)).count());
    status.moving = count(members.iter().filter(is_moving).count());
    status.unavailable = count(members.iter().filter(|own| is_moving(own) || !is_healthy(own)).count());
    let failures = members.iter().filter_map(|member| match &member.health {
        Health::Failed { why, .. } => Some(MachineFailure { machine: member.name.clone(), message: why.clone() }),
        Health::Healthy { .. } | Health::Unhealthy { .. } | Health::Unknown { .. } => None,
    });
    let failures: Vec<MachineFailure> = failures.collect();
    status.failed = count(failures.len());
    status.failures = failures.into_iter().take(FAILURES_SHOWN).collect();
    status.waves = wave_progress(members, strategy);
}

/// How many members are at the target once each wave has ended, and how many of these are now.
fn wave_progress(members: &[Member], strategy: &Strategy) -> Vec<WaveProgress> {
    let mut waves = mainstay_waves::assign(&strategy.waves, members);
    if waves.len() > 1 && waves.last().is_some_and(Vec::is_empty) {
        waves.pop(); // every member is in a wave that is named
    }
    let (mut all, mut updated) = (0, 0);
    let progress = waves.iter().map(|wave| {
        all += wave.len();
        updated += wave.iter().filter(|&&index| is_updated(&members[index])).count();
        WaveProgress { machines: count(all), updated: count(updated) }
    });
    progress.collect()
}

/// Sets a condition, or takes it away; its time is that of the last change of its status.
fn set_condition(status: &mut ReleaseStatus, kind: &str, state: Option<(bool, &str, String)>, now: Timestamp) {
    let before = status.conditions.iter().position(|condition| condition.type_ == kind);
    let before = before.map(|index| status.conditions.remove(index));
    let Some((holds, reason, message)) = state else { return };
    let value = if holds { "True" } else { "False" };
    let since = before.filter(|before| before.status == value).map(|before| before.last_transition_time);
    status.conditions.push(Condition {
        type_: kind.to_owned(),
        status: value.to_owned(),
        reason: reason.to_owned(),
        message,
        last_transition_time: since.unwrap_or(Time(now)),
        observed_generation: None,
    });
    status.conditions.sort_by(|one, other| one.type_.cmp(&other.type_));
}

#[cfg(test)]
mod tests;
