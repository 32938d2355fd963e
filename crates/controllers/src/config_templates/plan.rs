//! What to do next about a template: a pure function of the template, what it renders to, its output and its consumers.
//!
//! A version is *good* once all consumers read it and are well; the output holds the last good one. A version that is rendered anew is the
//! *target*: it is validated, then reaches consumers in waves ([`mainstay_waves`]), each by a copy. If a wave fails the version is *rejected*, and every consumer that
//! reads it returns to the last good one at once. A rejected version is not tried again until something else is rendered.
//!
//! Machines get their first version in waves too, since a machine without the file has not been tried yet; they return like pods.

use std::{
    collections::{BTreeSet, HashSet},
    sync::Arc,
};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::{apis::meta::v1::Time, util::intstr::IntOrString};
use mainstay_api::{
    config_template::{
        ConfigTemplate, ConsumerCounts, MAX_UNAVAILABLE, PROGRESS_DEADLINE_SECONDS, TIMEOUT_SECONDS, TargetVersion,
    },
    config_versions::ConfigSource,
};
use mainstay_templates::{TemplateError, version};
use mainstay_waves::{self as waves, Amount, Health, Member, Position, State, Strategy, Wave};

use super::{
    consumers::{ConsumerChange, ConsumerView, FormerConsumer, LeftBehind, Step, output_source},
    inputs::{Inputs, last_manager},
    machines::{FileChange, FormerFile},
    notify::{Content, NotifyRequest, PodAction, ValidateRequest},
    renderer::TemplateRenderer,
    report::{Rejection, Report, Situation},
    versions::{Copy, NewCopy, OutputState, OutputTarget, TemplateOwner, VersionContent},
};
use crate::runtime::Plan;

/// How soon an eviction is tried again that a disruption budget forbade.
const RETRY_EVICTION: SignedDuration = SignedDuration::from_secs(5);

/// Everything about a template that decisions depend on.
pub struct World {
    pub template: Arc<ConfigTemplate>,
    /// The inputs changed a moment ago: nothing else was looked at.
    pub quiet_until: Option<Timestamp>,
    pub rendered: Option<Rendered>,
    pub output: OutputState,
    pub consumers: Vec<ConsumerView>,
    pub former: Vec<FormerConsumer>,
    pub former_files: Vec<FormerFile>,
    /// Copies of the output that pods and machines read.
    pub read_copies: BTreeSet<String>,
    /// The template is gone, and these pods still read what it gave them.
    pub left_behind: Vec<LeftBehind>,
}

impl World {
    pub fn wait_for_quiet(template: Arc<ConfigTemplate>, until: Timestamp) -> Self {
        Self {
            template,
            quiet_until: Some(until),
            rendered: None,
            output: OutputState::default(),
            consumers: Vec::new(),
            former: Vec::new(),
            former_files: Vec::new(),
            read_copies: BTreeSet::new(),
            left_behind: Vec::new(),
        }
    }

    /// Nothing if nothing is left to do.
    pub fn after_deletion(left_behind: Vec<LeftBehind>) -> Option<Self> {
        let world = Self::wait_for_quiet(Arc::default(), Timestamp::MIN);
        (!left_behind.is_empty()).then_some(Self { quiet_until: None, left_behind, ..world })
    }
}

/// What a template makes of its inputs, without their values.
#[derive(Clone)]
pub struct Rendered {
    pub result: Result<RenderedVersion, RenderFailure>,
    pub digests: std::collections::BTreeMap<String, String>,
    pub managers: std::collections::BTreeMap<String, String>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct RenderedVersion {
    pub version: String,
    pub content: Content,
}

#[derive(Clone, Debug, PartialEq)]
pub enum RenderFailure {
    /// Inputs that do not exist.
    InputMissing(String),
    Template(TemplateError),
}

impl Rendered {
    pub async fn render(renderer: &dyn TemplateRenderer, template: &ConfigTemplate, inputs: Inputs) -> Self {
        let Inputs { values, digests, managers, missing } = inputs;
        let result = if missing.is_empty() {
            match renderer.render(template.spec.template.clone(), values).await {
                Ok(content) => Ok(RenderedVersion { version: version(&content), content: Content(content) }),
                Err(error) if template.spec.reads_secrets() => Err(RenderFailure::Template(error.without_detail())),
                Err(error) => Err(RenderFailure::Template(error)),
            }
        } else {
            Err(RenderFailure::InputMissing(missing.join("; ")))
        };
        Self { result, digests, managers }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    WriteOutput {
        output: OutputTarget,
        owner: TemplateOwner,
        content: VersionContent,
    },
    MakeCopy(NewCopy),
    DeleteCopy {
        kind: mainstay_api::config_template::OutputKind,
        name: String,
        uid: String,
    },
    Validate(ValidateRequest),
    /// Has a pod read a version, or records that it does.
    SetConsumer(ConsumerChange),
    Notify {
        change: ConsumerChange,
        how: NotifyRequest,
    },
    Evict {
        pod: String,
        uid: String,
    },
    Release {
        former: FormerConsumer,
        output: ConfigSource,
    },
    /// Has a pod read the output of a template that is gone itself.
    Forget(LeftBehind),
    /// Has a machine have a version as a file.
    SetFile(FileChange),
    DeleteFile(FormerFile),
}

/// What became of an action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Done,
    /// The output has the version.
    Written,
    /// Somebody else has the key of the output, or the API does not take it.
    Refused(String),
    Valid,
    Invalid(String),
    /// A disruption budget forbids an eviction for now.
    Blocked,
}

/// The version that consumers shall have.
struct Wanted<'w> {
    version: &'w str,
    /// Its content, if that is not in a copy alone.
    content: Option<&'w Content>,
    changed: Vec<String>,
    manager: Option<String>,
    is_pinned: bool,
}

pub fn plan(world: &World, now: Timestamp) -> Plan<Action, Report> {
    if !world.left_behind.is_empty() {
        return Plan::act(world.left_behind.iter().cloned().map(Action::Forget));
    }
    if let Some(at) = world.quiet_until {
        return Plan { requeue_at: Some(at), ..Plan::default() };
    }
    let (Some((key, kind)), Some(source)) = (world.template.spec.output.target(), output_source(&world.template))
    else {
        return Plan::default();
    };
    let owner = TemplateOwner { name: world.template.name().to_owned(), uid: world.template.uid().to_owned() };
    let output = OutputTarget { kind, key: key.clone() };
    let mut planner = Planner {
        world,
        now,
        output,
        owner,
        source,
        report: Report::begin(world),
        actions: Vec::new(),
        requeue_at: None,
    };
    planner.decide();
    planner.release_former_consumers();
    planner.delete_old_copies();
    let Planner { report, actions, requeue_at, .. } = planner;
    Plan { actions, status: Some(report), requeue_at }
}

struct Planner<'w> {
    world: &'w World,
    now: Timestamp,
    output: OutputTarget,
    owner: TemplateOwner,
    source: ConfigSource,
    report: Report,
    actions: Vec<Action>,
    requeue_at: Option<Timestamp>,
}

impl<'w> Planner<'w> {
    fn decide(&mut self) {
        let good = self.report.status.version.clone();
        let Some(wanted) = self.wanted() else {
            self.settle(good.as_deref());
            return;
        };
        let rejected = self.report.status.rejected.as_ref().is_some_and(|own| own.version == wanted.version);
        if good.as_deref() == Some(wanted.version) {
            self.report.abandon_target();
            self.settle(good.as_deref());
        } else if rejected {
            self.report.abandon_target();
            self.report.situation = Situation::Rejected;
            self.settle(good.as_deref());
        } else {
            self.advance(&wanted, good);
        }
    }

    /// The version that consumers shall have: the pinned one, what is rendered, or if that fails what they are moving to.
    fn wanted(&mut self) -> Option<Wanted<'w>> {
        let (world, spec) = (self.world, &self.world.template.spec);
        let rendered = world.rendered.as_ref();
        let fresh = rendered.and_then(|rendered| rendered.result.as_ref().ok());
        if let Some(pinned) = &spec.pinned_version {
            let is_known = world.output.copy(pinned).is_some() || self.report.status.version.as_ref() == Some(pinned);
            if !is_known {
                self.report.situation = Situation::PinnedUnknown(pinned.clone());
                return None;
            }
            let content = fresh.filter(|fresh| fresh.version == *pinned).map(|fresh| &fresh.content);
            let manager = last_manager(&world.template.metadata);
            return Some(Wanted {
                version: pinned,
                content,
                changed: vec!["pinnedVersion".to_owned()],
                manager,
                is_pinned: true,
            });
        }
        let Some(fresh) = fresh else {
            let status = world.template.status.as_ref();
            let target = status.and_then(|status| status.target.as_ref()).map(|target| target.version.as_str());
            let version = target.or_else(|| status.and_then(|status| status.version.as_deref()))?;
            return Some(Wanted { version, content: None, changed: Vec::new(), manager: None, is_pinned: false });
        };
        let (changed, manager) = self.report.changes(world);
        Some(Wanted { version: &fresh.version, content: Some(&fresh.content), changed, manager, is_pinned: false })
    }

    /// Nothing new is on its way: the output holds the last good version, and whoever reads another one returns.
    fn settle(&mut self, good: Option<&str>) {
        let Some(good) = good else { return };
        let copy = self.world.output.copy(good).map(str::to_owned);
        let fresh = self.world.rendered.as_ref().and_then(|rendered| rendered.result.as_ref().ok());
        let content = fresh.filter(|fresh| fresh.version == good).map(|fresh| fresh.content.clone());
        if self.world.output.version.as_deref() != Some(good) {
            let from = content.clone().map(VersionContent::Rendered).or_else(|| copy.clone().map(VersionContent::Copy));
            self.actions.extend(from.map(|content| self.write_output(content)));
        }
        if let (None, Some(content), true) = (&copy, content, self.world.output.exists) {
            self.make_copy(good, content);
        }
        let mut counts = ConsumerCounts::default();
        for consumer in self.world.consumers.iter().filter(|consumer| !consumer.deleting) {
            counts.total += 1;
            counts.healthy += i32::from(matches!(consumer.health, Health::Healthy { .. }));
            match &consumer.state {
                None if consumer.machine.is_some() => {} // placed below
                Some(state) if state.version == good && consumer.machine.is_some() => {
                    counts.updated += i32::from(state.step == Step::Notified);
                }
                None => counts.updated += 1, // it reads the output itself
                Some(state) if state.version == good => {
                    counts.updated += i32::from(state.step != Step::Assigned);
                    if state.step == Step::Assigned {
                        self.finish_move(consumer, copy.as_deref(), good);
                    }
                }
                Some(_) => self.start_move(consumer, copy.as_deref(), good),
            }
        }
        self.report.status.consumers = (!self.world.template.spec.consumers.is_empty()).then_some(counts);
        self.place_files(copy.as_deref(), good);
    }

    /// Machines that do not have the file yet get it in waves; if too many fail the others are spared. Until all have it the template is not
    /// current, whatever keeps them from it.
    fn place_files(&mut self, copy: Option<&str>, good: &str) {
        let machines: Vec<&ConsumerView> = self.world.consumers.iter().filter(|own| own.machine.is_some()).collect();
        let mut members: Vec<Member> = machines.iter().map(|own| placed_member(own, good, self.now)).collect();
        members.sort_by_key(|member| member.position == Position::Old);
        if members.is_empty() {
            return;
        }
        let has_file = |own: &ConsumerView| {
            own.state.as_ref().is_some_and(|state| state.version == good && state.step == Step::Notified)
        };
        let lacking = machines.iter().filter(|own| !own.deleting && !has_file(own));
        let lacking: Vec<&str> = lacking.map(|own| own.name.as_str()).collect();
        if self.world.template.spec.paused {
            return self.settle_unless(lacking.is_empty(), Situation::Paused);
        }
        let Some(copy) = copy else {
            if self.actions.iter().any(|action| matches!(action, Action::MakeCopy(_))) {
                self.wake(Some(self.now)); // nobody tells when it is made
            }
            let message = format!("no file yet: {}", waves::list_names(&lacking));
            return self.settle_unless(lacking.is_empty(), Situation::Placing(message));
        };
        let strategy = strategy(&self.world.template);
        let began = Timestamp::UNIX_EPOCH;
        let rollout = waves::Rollout { strategy: &strategy, members: &members, gates: &[], paused: None, began };
        let waves::Plan { start, state, wake_at } = waves::plan(&rollout, self.now);
        self.wake(wake_at);
        let start: HashSet<&str> = start.iter().map(String::as_str).collect();
        let is_new = |own: &&&ConsumerView| own.state.is_none() && start.contains(own.name.as_str());
        machines.iter().filter(is_new).for_each(|own| self.start_move(own, Some(copy), good));
        match &state {
            State::Stuck { .. } => self.settle_unless(false, Situation::MachinesFailed(state.to_string())),
            State::Complete { .. } => {}
            State::Progressing { .. } | State::Soaking { .. } | State::Gated { .. } | State::Paused { .. } => {
                self.settle_unless(false, Situation::Placing(state.to_string()));
            }
        }
    }

    /// The situation of the machines, unless they all have their file or something more important is known.
    fn settle_unless(&mut self, all_have_it: bool, situation: Situation) {
        if !all_have_it && self.report.situation == Situation::Settled {
            self.report.situation = situation;
        }
    }

    /// To be looked at again then, or earlier.
    fn wake(&mut self, at: Option<Timestamp>) {
        self.requeue_at = [self.requeue_at, at].into_iter().flatten().min();
    }

    /// Brings a version one step closer to being the good one.
    fn advance(&mut self, wanted: &Wanted<'w>, good: Option<String>) {
        let spec = &self.world.template.spec;
        if self.report.status.target.as_ref().is_none_or(|target| target.version != wanted.version) {
            let target = TargetVersion {
                version: wanted.version.to_owned(),
                began: Time(self.now),
                previous: good.clone(),
                validated: spec.validate.is_none() || wanted.is_pinned,
            };
            self.report.begin_target(target, wanted.changed.clone(), wanted.manager.clone(), self.now);
        }
        if spec.paused {
            self.report.situation = Situation::Paused;
            return self.count_target(wanted.version);
        }
        let copy = self.world.output.copy(wanted.version).map(str::to_owned);
        let good_copy = good.as_deref().and_then(|good| self.world.output.copy(good)).map(str::to_owned);
        if let (false, Some(good_copy)) = (self.world.output.exists, good_copy) {
            // Somebody deleted it: pods that start need it.
            self.actions.push(self.write_output(VersionContent::Copy(good_copy)));
            return self.count_target(wanted.version);
        }
        if let (true, None, Some(content)) = (good.is_some() && self.world.output.exists, &copy, wanted.content) {
            // Consumers read it by its copy.
            self.make_copy(wanted.version, content.clone());
            self.requeue_at = Some(self.now);
            self.report.is_interim = true;
            return self.count_target(wanted.version);
        }
        let from =
            wanted.content.cloned().map(VersionContent::Rendered).or_else(|| copy.clone().map(VersionContent::Copy));
        let Some(from) = from else { return };
        let validated = self.report.status.target.as_ref().is_some_and(|target| target.validated);
        if !validated && let Some(message) = self.missing_judge() {
            let rejection = Rejection { version: wanted.version.to_owned(), reason: "ValidationFailed", message };
            return self.report.reject(rejection, self.now);
        }
        if !validated && let Some(request) = self.validation(wanted) {
            self.report.situation = Situation::Validating;
            self.actions.push(Action::Validate(request));
            return self.count_target(wanted.version);
        }
        match (good, copy) {
            (Some(_), Some(copy)) if !self.world.consumers.is_empty() => self.roll_out(wanted.version, &copy, from),
            _ => self.accept(wanted.version, from, "complete"),
        }
    }

    /// What is wrong if the container that is to judge versions is in no consumer.
    fn missing_judge(&self) -> Option<String> {
        let container = self.world.template.spec.validate.as_ref()?.container.as_deref()?;
        let mut pods = self.world.consumers.iter().filter(|consumer| consumer.machine.is_none()).peekable();
        pods.peek()?;
        let is_missing = pods.all(|consumer| consumer.container(Some(container)).is_none());
        is_missing.then(|| format!("spec.validate.container: no consumer has a container {container:?}"))
    }

    /// The first consumer that can judge the version: one that is well, or at least runs.
    fn validation(&self, wanted: &Wanted) -> Option<ValidateRequest> {
        let spec = &self.world.template.spec;
        let (validate, content) = (spec.validate.as_ref()?, wanted.content?);
        let judge_of = |consumer: &'w ConsumerView| {
            let container = consumer.container(validate.container.as_deref())?;
            (container.is_running && !consumer.deleting).then_some((consumer, container))
        };
        let mut judges = self.world.consumers.iter().filter_map(judge_of);
        let is_well = |consumer: &ConsumerView| matches!(consumer.health, Health::Healthy { .. });
        let (consumer, container) = judges.clone().find(|(consumer, _)| is_well(consumer)).or_else(|| judges.next())?;
        Some(ValidateRequest {
            pod: consumer.name.clone(),
            container: container.name.clone(),
            command: validate.command.clone(),
            timeout: validate.timeout_seconds.unwrap_or(TIMEOUT_SECONDS).unsigned_abs(),
            content: content.clone(),
            show_output: !spec.reads_secrets(),
        })
    }

    fn roll_out(&mut self, version: &str, copy: &str, content: VersionContent) {
        let began = self.report.status.target.as_ref().map_or(self.now, |target| target.began.0);
        let consumers = in_order(&self.world.consumers, version);
        let members: Vec<Member> = consumers.iter().map(|consumer| member(consumer, version, self.now)).collect();
        let strategy = strategy(&self.world.template);
        let rollout = waves::Rollout { strategy: &strategy, members: &members, gates: &[], paused: None, began };
        let waves::Plan { start, state, wake_at } = waves::plan(&rollout, self.now);
        self.wake(wake_at);
        self.count_target(version);
        match &state {
            State::Complete { .. } => return self.accept(version, content, &state.to_string()),
            State::Stuck { .. } => {
                let message = state.to_string();
                return self
                    .report
                    .reject(Rejection { version: version.to_owned(), reason: "RolledBack", message }, self.now);
            }
            State::Progressing { .. } | State::Soaking { .. } | State::Gated { .. } | State::Paused { .. } => {
                self.report.situation = Situation::Progressing(state.to_string());
            }
        }
        let start: HashSet<&str> = start.iter().map(String::as_str).collect();
        for consumer in consumers {
            let is_assigned =
                consumer.state.as_ref().is_some_and(|own| own.version == version && own.step == Step::Assigned);
            if start.contains(consumer.name.as_str()) {
                self.start_move(consumer, Some(copy), version);
            } else if is_assigned && !consumer.deleting {
                self.finish_move(consumer, Some(copy), version);
            }
        }
    }

    /// Has a consumer read a version. One whose containers have not started yet does so from its start and needs no notification; one
    /// that is to be restarted is evicted, and the pod that takes its place gets the version.
    fn start_move(&mut self, consumer: &ConsumerView, copy: Option<&str>, version: &str) {
        if let Some(machine) = &consumer.machine {
            let Some(copy) = copy.map(str::to_owned) else { return };
            self.actions.push(Action::SetFile(FileChange {
                machine: machine.clone(),
                owner: self.owner.clone(),
                version: version.to_owned(),
                output: self.output.clone(),
                copy,
                assigned: self.now,
            }));
            return;
        }
        // Whether one that is to be restarted begins with the version is known only when it has begun.
        let is_restarted = consumer.action == PodAction::Restart;
        let step = if consumer.started || is_restarted { Step::Assigned } else { Step::Notified };
        if is_restarted && consumer.started {
            self.evict(consumer);
        } else {
            let change = consumer.change(&self.source, copy, version, step, self.now);
            self.actions.push(Action::SetConsumer(change));
        }
    }

    fn evict(&mut self, consumer: &ConsumerView) {
        self.actions.push(Action::Evict { pod: consumer.name.clone(), uid: consumer.uid.clone() });
        self.wake(Some(self.now + RETRY_EVICTION));
    }

    /// Notifies a consumer whose files are of the version. One that does not run reads it when it starts. A machine notifies itself.
    fn finish_move(&mut self, consumer: &ConsumerView, copy: Option<&str>, version: &str) {
        if consumer.machine.is_some() {
            return;
        }
        if let (PodAction::Restart, Some(copy)) = (&consumer.action, copy) {
            if !consumer.started || consumer.files.as_deref() != Some(copy) {
                return; // its environment is not made yet, or its node has not seen the version
            }
            if consumer.begun_with.as_deref().is_some_and(|begun_with| begun_with != copy) {
                return self.evict(consumer); // it began before it was given the version
            }
        }
        if consumer.running && copy.is_some() && consumer.files.as_deref() != copy {
            return;
        }
        if let Some(missing) = consumer.action.container().filter(|own| consumer.container(Some(own)).is_none()) {
            let mut change = consumer.change(&self.source, copy, version, Step::Failed, self.now);
            change.state.message = format!("onChange: the pod has no container {missing:?}");
            return self.actions.push(Action::SetConsumer(change));
        }
        let change = consumer.change(&self.source, copy, version, Step::Notified, self.now);
        let how = consumer.notification(!self.world.template.spec.reads_secrets());
        let is_silent = matches!(consumer.action, PodAction::Nothing | PodAction::Restart);
        self.actions.push(if is_silent || !consumer.running {
            Action::SetConsumer(change)
        } else {
            Action::Notify { change, how }
        });
    }

    fn accept(&mut self, version: &str, content: VersionContent, message: &str) {
        self.actions.push(self.write_output(content));
        let has_it = |own: &ConsumerView| own.state.as_ref().is_some_and(|state| state.version == version);
        self.report.is_placing = self.world.consumers.iter().any(|own| own.machine.is_some() && !has_it(own));
        self.report.accept = Some((version.to_owned(), message.to_owned()));
    }

    fn write_output(&self, content: VersionContent) -> Action {
        Action::WriteOutput { output: self.output.clone(), owner: self.owner.clone(), content }
    }

    fn make_copy(&mut self, version: &str, content: Content) {
        let (output, owner) = (self.output.clone(), self.owner.clone());
        self.actions.push(Action::MakeCopy(NewCopy { output, owner, version: version.to_owned(), content }));
    }

    fn count_target(&mut self, version: &str) {
        let mut counts = ConsumerCounts::default();
        for consumer in self.world.consumers.iter().filter(|consumer| !consumer.deleting) {
            counts.total += 1;
            counts.healthy += i32::from(matches!(consumer.health, Health::Healthy { .. }));
            let updated =
                consumer.state.as_ref().is_some_and(|own| own.version == version && own.step == Step::Notified);
            counts.updated += i32::from(updated);
        }
        self.report.status.consumers = (!self.world.template.spec.consumers.is_empty()).then_some(counts);
    }

    fn release_former_consumers(&mut self) {
        let former = self.world.former.iter().cloned();
        self.actions.extend(former.map(|former| Action::Release { former, output: self.source.clone() }));
        self.actions.extend(self.world.former_files.iter().cloned().map(Action::DeleteFile));
    }

    /// Copies that neither a pod reads nor the history has.
    fn delete_old_copies(&mut self) {
        let status = &self.report.status;
        let mut kept: BTreeSet<&str> = status.history.iter().map(|entry| entry.version.as_str()).collect();
        kept.extend(status.version.as_deref());
        kept.extend(
            status
                .target
                .iter()
                .flat_map(|target| [Some(target.version.as_str()), target.previous.as_deref()])
                .flatten(),
        );
        kept.extend(self.world.template.spec.pinned_version.as_deref());
        kept.extend(
            self.world.consumers.iter().filter_map(|own| own.state.as_ref()).map(|state| state.version.as_str()),
        );
        let kind = self.output.kind;
        let is_old = |copy: &&Copy| {
            !copy.is_shared && !kept.contains(copy.version.as_str()) && !self.world.read_copies.contains(&copy.name)
        };
        let old = self.world.output.copies.iter().filter(is_old);
        let deletes: Vec<Action> =
            old.map(|copy| Action::DeleteCopy { kind, name: copy.name.clone(), uid: copy.uid.clone() }).collect();
        self.actions.extend(deletes);
    }
}

/// Those that have come furthest first, then those that have not started: they cost nothing. Waves are counted in this order, so that a pod
/// that takes the place of another takes its place in the wave.
fn in_order<'w>(consumers: &'w [ConsumerView], version: &str) -> Vec<&'w ConsumerView> {
    let mut ordered: Vec<&ConsumerView> = consumers.iter().collect();
    let rank = |consumer: &ConsumerView| match &consumer.state {
        Some(state) if state.version == version => 0,
        _ if consumer.deleting => 1,
        _ if !consumer.started => 2,
        _ => 3,
    };
    ordered.sort_by(|a, b| (rank(a), &a.name).cmp(&(rank(b), &b.name)));
    ordered
}

fn member(consumer: &ConsumerView, version: &str, now: Timestamp) -> Member {
    let own = consumer.state.as_ref().filter(|state| state.version == version);
    // Waiting for what it needs is not failing: deadlines run from when it has that.
    let not_waiting_since = |since: Timestamp| match consumer.waits {
        true => now,
        false => consumer.needs_met.map_or(since, |met| met.max(since)),
    };
    let position = match own {
        _ if consumer.deleting => Position::Moving { since: now },
        None => Position::Old,
        Some(state) if state.step == Step::Assigned => Position::Moving { since: not_waiting_since(state.time.0) },
        Some(state) => Position::AtTarget { since: state.time.0 },
    };
    let failed = own.and_then(|state| match (&consumer.crash, state.step) {
        (_, Step::Failed) => Some((state.time.0, state.message.clone())),
        (Some(crash), _) if consumer.restarts > state.restarts => Some((state.time.0, crash.clone())),
        _ => None,
    });
    let health = match failed {
        Some((since, why)) => Health::Failed { since, why },
        None => match consumer.health {
            Health::Unhealthy { since } => Health::Unhealthy { since: not_waiting_since(since) },
            ref other => other.clone(),
        },
    };
    Member { name: consumer.name.clone(), position, health }
}

/// A machine that is to have its first file. One that has it has it whatever becomes of its node; one that is silent is neither waited for nor has it failed.
fn placed_member(consumer: &ConsumerView, version: &str, now: Timestamp) -> Member {
    let member = member(consumer, version, now);
    let state = consumer.state.as_ref().filter(|state| state.version == version);
    match (state.map(|state| (state.step, state.time.0)), &member.health) {
        (Some((Step::Notified, since)), _) => Member { health: Health::Healthy { since }, ..member },
        (Some((Step::Assigned, _)), Health::Unknown { .. }) => Member { position: Position::Old, ..member },
        _ => member,
    }
}

fn strategy(template: &ConfigTemplate) -> Strategy {
    let rollout = template.spec.rollout.clone().unwrap_or_default();
    let max_unavailable = rollout.max_unavailable.unwrap_or_else(|| IntOrString::String(MAX_UNAVAILABLE.to_owned()));
    let deadline = rollout.progress_deadline_seconds.unwrap_or(PROGRESS_DEADLINE_SECONDS);
    Strategy {
        waves: rollout.waves.iter().map(|wave| Wave::UpTo(amount(wave))).collect(),
        max_unavailable: amount(&max_unavailable),
        soak: SignedDuration::from_secs(rollout.soak_seconds.unwrap_or_default().into()),
        progress_deadline: Some(SignedDuration::from_secs(deadline.into())),
        max_failed: rollout.max_failed.as_ref().map_or(Amount::ZERO, amount),
        max_failed_of_waves: Vec::new(),
    }
}

fn amount(value: &IntOrString) -> Amount {
    match value {
        IntOrString::Int(count) => Amount::Count(usize::try_from(*count).unwrap_or_default()),
        IntOrString::String(text) => {
            let percent = text.strip_suffix('%').and_then(|digits| digits.parse::<u8>().ok());
            Amount::Percent(percent.unwrap_or_default())
        }
    }
}

#[cfg(test)]
mod tests;
