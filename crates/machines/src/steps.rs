//! The steps that a machine runs by itself: which comes next, and what is reported of them.
//!
//! Order: drain (if asked for) → update → static → dynamic → validate. A version counts as running once validation passed at it.
//! Everything is derived from the [`StepRecord`], which is on the machine's disk: what is wanted, as last heard of, and the last
//! result of each step. So a machine goes on while no server answers, and an agent that is killed in the middle of a step runs that
//! step again.
//!
//! * `static` that fails before it ever passed leaves a machine that nobody can rely on: it runs nothing more, and has to be
//!   provisioned anew.
//! * `dynamic` runs again whenever what it depends on changed, and whenever validation failed, also at the same version.
//! * What failed is tried again, later each time.
//! * The clock may be set back, as on a machine whose own clock was wrong until it heard the time: what is recorded for later than now counts as of now.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use mainstay_api::machine::{MachineState, MachineStatus, MachineVersion, StateValue};
use serde::{Deserialize, Serialize};

/// After a first failure; doubles with each further one.
const FIRST_RETRY: SignedDuration = SignedDuration::from_secs(10);
const LONGEST_RETRY: SignedDuration = SignedDuration::from_mins(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Step {
    Drain,
    Update,
    Static,
    Dynamic,
    Validate,
}

impl Step {
    pub fn name(self) -> &'static str {
        match self {
            Self::Drain => "drain",
            Self::Update => "update",
            Self::Static => "static",
            Self::Dynamic => "dynamic",
            Self::Validate => "validate",
        }
    }
}

/// What is wanted of the machine, as it last heard.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DesiredVersion {
    pub version: Option<String>,
    pub drain: bool,
}

/// Everything that the next step depends on, as kept on disk.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StepRecord {
    pub desired: DesiredVersion,
    /// The version at which validation last passed.
    pub running: Option<String>,
    pub running_since: Option<Timestamp>,
    /// Static configuration passed once.
    pub was_provisioned: bool,
    /// Static configuration failed before it ever passed.
    pub needs_provisioning: bool,
    pub drain: Option<StepResult>,
    pub update: Option<StepResult>,
    #[serde(rename = "static")]
    pub static_: Option<StepResult>,
    pub dynamic: Option<StepResult>,
    pub validate: Option<StepResult>,
}

/// The last run of a step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StepResult {
    /// The machine was on its way to this version, or stayed at it; empty if none is known.
    pub version: String,
    pub outcome: StepOutcome,
    /// When it ended; when it began if it runs.
    pub time: Timestamp,
    /// How often it failed in a row.
    pub failures: u32,
    /// What the step depends on looked like this when it began.
    #[serde(default)]
    pub inputs: u64,
    /// It runs again, and had passed before: that holds until it is known to fail.
    #[serde(default)]
    pub had_passed: bool,
}

impl StepResult {
    fn holds(&self) -> bool {
        self.outcome == StepOutcome::Passed || (self.outcome == StepOutcome::Running && self.had_passed)
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum StepOutcome {
    Running,
    Passed,
    Failed {
        message: String,
        /// The last lines that it printed.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        output: String,
    },
    /// It cannot pass yet: others it depends on are not there.
    Pending {
        message: String,
        #[serde(default, skip_serializing_if = "String::is_empty")]
        output: String,
    },
}

/// Which steps the configuration of the machine has, and how often it is validated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepSettings {
    pub has_static: bool,
    pub has_dynamic: bool,
    pub validate_interval: SignedDuration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NextStep {
    Run {
        step: Step,
        version: String,
    },
    /// Nothing to do before then, unless something changes.
    Wait {
        until: Option<Timestamp>,
    },
}

impl StepRecord {
    /// The version that the machine is to be at; empty if none is known.
    pub fn goal(&self) -> &str {
        self.desired.version.as_deref().or(self.running.as_deref()).unwrap_or_default()
    }

    fn result(&self, step: Step) -> Option<&StepResult> {
        match step {
            Step::Drain => self.drain.as_ref(),
            Step::Update => self.update.as_ref(),
            Step::Static => self.static_.as_ref(),
            Step::Dynamic => self.dynamic.as_ref(),
            Step::Validate => self.validate.as_ref(),
        }
    }

    fn result_mut(&mut self, step: Step) -> &mut Option<StepResult> {
        match step {
            Step::Drain => &mut self.drain,
            Step::Update => &mut self.update,
            Step::Static => &mut self.static_,
            Step::Dynamic => &mut self.dynamic,
            Step::Validate => &mut self.validate,
        }
    }

    /// The result of the step on the way to the goal. What ran before the machine was last updated says nothing about it any more.
    fn result_at_goal(&self, step: Step) -> Option<&StepResult> {
        let updated = self.update.as_ref().filter(|_| step > Step::Update).map(|update| update.time);
        let is_fresh = |result: &&StepResult| updated.is_none_or(|updated| result.time >= updated);
        self.result(step).filter(|result| result.version == self.goal()).filter(is_fresh)
    }

    fn has_passed(&self, step: Step) -> bool {
        self.result_at_goal(step).is_some_and(|result| result.outcome == StepOutcome::Passed)
    }

    /// Whether the machine has yet to be brought to the goal. What was last tried counts, also if it failed: a machine that is
    /// half way to one version has to be updated to go back to the one before.
    pub fn needs_update(&self) -> bool {
        match (&self.desired.version, &self.update) {
            (None, _) => false,
            (Some(wanted), Some(last)) => last.version != *wanted || last.outcome != StepOutcome::Passed,
            (Some(wanted), None) => self.running.as_ref() != Some(wanted),
        }
    }

    /// Moves times that are yet to come to now: they were noted before the clock was set back. As they are, a step that ended then would
    /// count as newer than all that follow, and what failed then would not be tried again before that time.
    pub fn correct_times(&mut self, now: Timestamp) {
        let results = [&mut self.drain, &mut self.update, &mut self.static_, &mut self.dynamic, &mut self.validate];
        let times = results.into_iter().flatten().map(|result| &mut result.time);
        times.chain(&mut self.running_since).for_each(|time| *time = (*time).min(now));
    }

    /// Notes that a step begins, before it does.
    pub fn begin(&mut self, step: Step, version: &str, inputs: u64, now: Timestamp) {
        let before = self.result(step).filter(|before| before.version == version);
        let failures = before.map_or(0, |before| before.failures);
        let had_passed = self.result_at_goal(step).is_some_and(StepResult::holds);
        let (version, outcome) = (version.to_owned(), StepOutcome::Running);
        *self.result_mut(step) = Some(StepResult { version, outcome, time: now, failures, inputs, had_passed });
    }

    /// Notes how the step that began last ended.
    pub fn end(&mut self, step: Step, outcome: StepOutcome, now: Timestamp) {
        let Some(result) = self.result_mut(step) else { return };
        result.failures = match outcome {
            StepOutcome::Passed => 0,
            StepOutcome::Failed { .. } | StepOutcome::Pending { .. } => result.failures.saturating_add(1),
            StepOutcome::Running => result.failures,
        };
        (result.outcome, result.time) = (outcome.clone(), now);
        let version = result.version.clone();
        match (step, &outcome) {
            (Step::Static, StepOutcome::Passed) => self.was_provisioned = true,
            (Step::Static, StepOutcome::Failed { .. }) if !self.was_provisioned => self.needs_provisioning = true,
            (Step::Validate, StepOutcome::Passed) if !version.is_empty() && self.running.as_ref() != Some(&version) => {
                (self.running, self.running_since) = (Some(version), Some(now));
            }
            _ => {}
        }
    }

    /// Which step comes next. `inputs` is what the dynamic configuration depends on, as it looks now.
    pub fn next_step(&self, settings: &StepSettings, inputs: u64, now: Timestamp) -> NextStep {
        if self.needs_provisioning {
            return NextStep::Wait { until: None };
        }
        if self.needs_update() {
            if self.desired.drain && !self.has_passed(Step::Drain) {
                return self.run_or_retry(Step::Drain, now);
            }
            return self.run_or_retry(Step::Update, now);
        }
        if settings.has_static && !self.has_passed(Step::Static) {
            return self.run_or_retry(Step::Static, now);
        }
        if settings.has_dynamic && self.needs_dynamic(inputs) {
            return self.run_or_retry_with(Step::Dynamic, self.dynamic_retry(inputs), now);
        }
        self.next_validation(settings, now)
    }

    fn needs_dynamic(&self, inputs: u64) -> bool {
        let Some(last) = self.result_at_goal(Step::Dynamic) else { return true };
        let failed_since = self.validate.as_ref().is_some_and(|validate| {
            matches!(validate.outcome, StepOutcome::Failed { .. }) && validate.time >= last.time
        });
        !self.has_passed(Step::Dynamic) || last.inputs != inputs || failed_since
    }

    /// When dynamic configuration may run again: at once if what it depends on changed.
    fn dynamic_retry(&self, inputs: u64) -> Option<Timestamp> {
        let last = self.result_at_goal(Step::Dynamic).filter(|last| last.inputs == inputs)?;
        match last.outcome {
            StepOutcome::Passed => self.result_at_goal(Step::Validate).and_then(retry_time),
            _ => retry_time(last),
        }
    }

    fn next_validation(&self, settings: &StepSettings, now: Timestamp) -> NextStep {
        let last = self.result_at_goal(Step::Validate).filter(|last| {
            let newer = |step| self.result(step).is_some_and(|result| result.time > last.time);
            !newer(Step::Update) && !newer(Step::Static) && !newer(Step::Dynamic)
        });
        let due = last.and_then(|last| match last.outcome {
            StepOutcome::Passed => Some(add(last.time, settings.validate_interval)),
            _ => retry_time(last),
        });
        self.run_or_retry_with(Step::Validate, due, now)
    }

    fn run_or_retry(&self, step: Step, now: Timestamp) -> NextStep {
        self.run_or_retry_with(step, self.result_at_goal(step).and_then(retry_time), now)
    }

    fn run_or_retry_with(&self, step: Step, due: Option<Timestamp>, now: Timestamp) -> NextStep {
        match due {
            Some(due) if due > now => NextStep::Wait { until: Some(due) },
            _ => NextStep::Run { step, version: self.goal().to_owned() },
        }
    }
}

/// When a step that failed is tried again; at once if it was cut off.
fn retry_time(result: &StepResult) -> Option<Timestamp> {
    match result.outcome {
        StepOutcome::Failed { .. } | StepOutcome::Pending { .. } => {
            let doubled = 1_i32.checked_shl(result.failures.saturating_sub(1).min(16)).unwrap_or(i32::MAX);
            let wait = FIRST_RETRY.checked_mul(doubled).unwrap_or(LONGEST_RETRY).min(LONGEST_RETRY);
            Some(add(result.time, wait))
        }
        StepOutcome::Running | StepOutcome::Passed => None,
    }
}

fn add(time: Timestamp, span: SignedDuration) -> Timestamp {
    time.saturating_add(span).unwrap_or(Timestamp::MAX)
}

/// The part of the status of a Machine that its own agent writes. A state that stays keeps the time since when it holds.
pub fn report(record: &StepRecord, settings: &StepSettings, before: &MachineStatus, now: Timestamp) -> MachineStatus {
    let keep = |own: Judgement, before: &Option<MachineState>| {
        let since = before.as_ref().filter(|before| before.state == own.state);
        let since = since.map_or_else(|| Time(now), |before| before.since.clone());
        Some(MachineState { state: own.state, since, message: own.message, output: own.output })
    };
    let (provisioned, configured) = (provisioned(record, settings), configured(record, settings));
    let validated = validated(record, configured.state);
    MachineStatus {
        provisioned: keep(provisioned, &before.provisioned),
        configured: keep(configured, &before.configured),
        validated: keep(validated, &before.validated),
        version: Some(MachineVersion {
            running: record.running.clone(),
            running_since: record.running_since.map(Time),
            wanted: record.desired.version.clone(),
        }),
        ..MachineStatus::default()
    }
}

/// A state, why, and what the step that led to it printed last.
#[derive(Clone, Debug)]
struct Judgement {
    state: StateValue,
    message: String,
    output: String,
}

impl Judgement {
    fn new(state: StateValue) -> Self {
        Self { state, message: String::new(), output: String::new() }
    }
}

fn judge(result: Option<&StepResult>) -> Judgement {
    if result.is_some_and(StepResult::holds) {
        return Judgement::new(StateValue::Success);
    }
    let failed = |state, message: &String, output: &String| {
        let (message, output) = (message.clone(), output.clone());
        Judgement { state, message, output }
    };
    match result.map(|result| &result.outcome) {
        None => Judgement::new(StateValue::Pending),
        Some(StepOutcome::Running) => Judgement::new(StateValue::Running),
        Some(StepOutcome::Passed) => Judgement::new(StateValue::Success),
        Some(StepOutcome::Failed { message, output }) => failed(StateValue::Failed, message, output),
        Some(StepOutcome::Pending { message, output }) => failed(StateValue::Pending, message, output),
    }
}

fn provisioned(record: &StepRecord, settings: &StepSettings) -> Judgement {
    if record.needs_provisioning {
        let why = judge(record.static_.as_ref());
        let message = format!("static configuration failed the first time: provision it anew: {}", why.message);
        return Judgement { state: StateValue::Failed, message, output: why.output };
    }
    if record.was_provisioned || !settings.has_static {
        return Judgement::new(StateValue::Success);
    }
    judge(record.static_.as_ref())
}

/// Of the steps that the configuration has, the first that did not pass.
fn configured(record: &StepRecord, settings: &StepSettings) -> Judgement {
    let at_goal = |step| judge(record.result_at_goal(step));
    let mut steps = Vec::new();
    if record.needs_update() {
        let waits_for_drain = record.desired.drain && !record.has_passed(Step::Drain);
        let mut update = at_goal(if waits_for_drain { Step::Drain } else { Step::Update });
        if !update.message.is_empty() {
            // There may be no such version: it is named where people look for the cause.
            let doing = if waits_for_drain { "drain for" } else { "update to" };
            update.message = format!("{doing} version {:?}: {}", record.goal(), update.message);
        }
        steps.push(update);
    }
    steps.extend(settings.has_static.then(|| at_goal(Step::Static)));
    steps.extend(settings.has_dynamic.then(|| at_goal(Step::Dynamic)));
    let first = steps.into_iter().find(|own| own.state != StateValue::Success);
    first.unwrap_or_else(|| Judgement::new(StateValue::Success))
}

/// What was not configured is not valid either.
fn validated(record: &StepRecord, configured: StateValue) -> Judgement {
    if configured == StateValue::Failed {
        return Judgement { message: "configuration failed".to_owned(), ..Judgement::new(StateValue::Failed) };
    }
    if record.needs_update() {
        return Judgement::new(StateValue::Pending);
    }
    judge(record.result_at_goal(Step::Validate))
}

#[cfg(test)]
mod tests;
