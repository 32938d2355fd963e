//! The machine's own steps: brings it to the version that is wanted, configures and validates it, and reports.
//!
//! [`mainstay_machines::steps`] decides which step comes next, from a record on disk; this module runs it. Commands come from the
//! machine's own configuration file. What is wanted is in the record too, so that everything goes on while no server answers.
//! A failed step is a warning: an event and a state of the Machine. Pods run on.
//!
//! A machine whose file has no section `[machine]` runs none of this: whatever configures and updates it reports with
//! `mainstay machine update-own-status` and `update-own-info`.

mod checks;
mod desired;
pub mod record_file;
mod runner;
mod settings;

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use futures::future::BoxFuture;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client};
use mainstay_api::machine::MachineStatus;
use mainstay_machines::steps::{DesiredVersion, NextStep, Step, StepOutcome, StepRecord, report};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use xxhash_rust::xxh3::Xxh3;

pub use self::runner::StepCommand;
pub use self::settings::{CommandLine, DEFAULT_VERSION_FILE, MachineCommands};
use crate::{
    bounded_command::last_lines,
    events::{EventType, Events},
    settings::Settings,
};

/// How often the files that dynamic configuration depends on are looked at.
const INPUTS_INTERVAL: Duration = Duration::from_secs(2);

/// How long an agent that starts waits to hear what is wanted by now, before it goes on with an update that was wanted when it last ran.
const FIRST_WORD: Duration = Duration::from_secs(5);

/// Evicts the pods of this node within a time, honouring their budgets. An error says which are left.
pub type DrainOwnNode = dyn Fn(Duration) -> BoxFuture<'static, Result<(), String>> + Send + Sync;

pub struct MachineSteps {
    pub client: Client,
    pub settings: Arc<Settings>,
    pub commands: MachineCommands,
    pub events: Events,
    /// What events are about.
    pub node: watch::Receiver<Option<Node>>,
    pub drain: Arc<DrainOwnNode>,
    /// Whether the machine takes no new pods, since it evicts those it has.
    pub takes_no_pods: watch::Sender<bool>,
}

impl MachineSteps {
    /// Works until asked to stop. A step under way is killed then, and runs again at the next start.
    pub async fn run(self, stop: CancellationToken) {
        let machines: Api<mainstay_api::machine::Machine> = Api::all(self.client.clone());
        let (desired, mut wanted) = watch::channel(None);
        let (stored, shown) = watch::channel(None);
        let (reports, written) = watch::channel(None);
        let node_name = &self.settings.node_name;
        let follow = desired::follow(machines.clone(), node_name, &desired, &stored);
        let write = desired::write_reports(machines, node_name, written, shown);
        let work = self.work(&mut wanted, &reports);
        stop.run_until_cancelled(async { tokio::join!(follow, write, work) }).await;
    }

    async fn work(
        &self,
        wanted: &mut watch::Receiver<Option<DesiredVersion>>,
        reports: &watch::Sender<Option<MachineStatus>>,
    ) {
        let (commands, path) = (&self.commands, record_file::path(&self.settings));
        let step_settings = commands.step_settings();
        let mut record = record_file::read(&path);
        self.take_version_file(&mut record);
        let first = record.next_step(&step_settings, fingerprint(&commands.watch), Timestamp::now());
        if matches!(first, NextStep::Run { step: Step::Drain | Step::Update, .. }) {
            // It may have been away while something newer came to be wanted. If nobody answers it goes on.
            let _ = tokio::time::timeout(FIRST_WORD, wanted.wait_for(Option::is_some)).await;
        }
        loop {
            if let Some(desired) = wanted.borrow_and_update().clone() {
                record.desired = desired;
            }
            let (inputs, now) = (fingerprint(&commands.watch), Timestamp::now());
            record.correct_times(now);
            let next = record.next_step(&step_settings, inputs, now);
            if let NextStep::Run { step, version } = &next {
                record.begin(*step, version, inputs, now);
            }
            self.takes_no_pods.send_if_modified(|closed| std::mem::replace(closed, is_drained(&record)) != *closed);
            record_file::write(&path, &record);
            self.send_report(&record, reports);
            match next {
                NextStep::Run { step, version } => {
                    let outcome = self.run_step(step, &version, &record).await;
                    self.finish(&mut record, step, &version, outcome);
                }
                NextStep::Wait { until } => {
                    let until = until.and_then(|until| Duration::try_from(until.duration_since(now)).ok());
                    let poll = if commands.watch.is_empty() { None } else { Some(INPUTS_INTERVAL) };
                    tokio::select! {
                        changed = wanted.changed() => if changed.is_err() { return },
                        () = sleep(until.into_iter().chain(poll).min()) => {}
                    }
                }
            }
        }
    }

    /// The file is what people and scripts look at and may write; where there is none, the record counts.
    fn take_version_file(&self, record: &mut StepRecord) {
        match record_file::read_version(&self.commands.version_file) {
            Ok(Some(version)) if record.running.as_ref() != Some(&version) => {
                (record.running, record.running_since) = (Some(version), Some(Timestamp::now()));
            }
            Ok(_) => {}
            Err(error) => {
                let path = self.commands.version_file.display();
                tracing::warn!(%error, %path, "cannot read the version file; the version last recorded counts");
            }
        }
    }

    fn finish(&self, record: &mut StepRecord, step: Step, version: &str, outcome: StepOutcome) {
        match &outcome {
            StepOutcome::Failed { message, .. } => {
                self.event(
                    EventType::Warning,
                    "MachineStepFailed",
                    format!("{} failed: {message}", describe(step, version)),
                );
            }
            StepOutcome::Pending { message, .. } => {
                self.event(
                    EventType::Normal,
                    "MachineStepPending",
                    format!("{} waits: {message}", describe(step, version)),
                );
            }
            StepOutcome::Passed | StepOutcome::Running => {
                tracing::info!(step = step.name(), version, "a step of this machine passed");
            }
        }
        let before = record.running.clone();
        record.end(step, outcome, Timestamp::now());
        if let Some(running) = record.running.as_ref().filter(|_| record.running != before) {
            if let Err(error) = record_file::write_version(&self.commands.version_file, running) {
                let path = self.commands.version_file.display();
                tracing::warn!(%error, %path, "cannot write the version file");
            }
            self.event(EventType::Normal, "MachineVersionChanged", format!("this machine runs version {running:?}"));
        }
    }

    fn event(&self, event_type: EventType, reason: &'static str, message: String) {
        match &*self.node.borrow() {
            Some(node) => self.events.node(node, event_type, reason, message),
            None => tracing::warn!(reason, message, "a step of this machine, before its Node is known"),
        }
    }

    fn send_report(&self, record: &StepRecord, reports: &watch::Sender<Option<MachineStatus>>) {
        reports.send_if_modified(|last| {
            let before = last.clone().unwrap_or_default();
            let report = report(record, &self.commands.step_settings(), &before, Timestamp::now());
            last.replace(report.clone()).as_ref() != Some(&report)
        });
    }

    async fn run_step(&self, step: Step, version: &str, record: &StepRecord) -> StepOutcome {
        let commands = &self.commands;
        let (command, timeout) = match step {
            Step::Drain => return outcome((self.drain)(commands.drain_timeout).await),
            Step::Validate => return self.validate(version, record).await,
            Step::Update => (&commands.update, commands.update_timeout),
            Step::Static => (&commands.static_, commands.static_timeout),
            Step::Dynamic => (&commands.dynamic, commands.dynamic_timeout),
        };
        let Some(command) = command else {
            let message = "there is no command for it in the section [machine] of the file of --config".to_owned();
            return StepOutcome::Failed { message, output: String::new() };
        };
        self.run_command(step.name(), command, timeout, version, record).await
    }

    /// Runs all checks, so that all that fail are known.
    async fn validate(&self, version: &str, record: &StepRecord) -> StepOutcome {
        let commands = &self.commands;
        let Some(directory) = &commands.validate else { return StepOutcome::Passed };
        let checks = match checks::list_checks(directory) {
            Ok(checks) => checks,
            Err(error) => {
                let message = format!("cannot list the checks of {}: {error}", directory.display());
                return StepOutcome::Failed { message, output: String::new() };
            }
        };
        let (mut failed, mut outputs) = (Vec::new(), Vec::new());
        for program in checks {
            let name = program.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
            let command = CommandLine { program, arguments: Vec::new() };
            let log = format!("validate-{name}");
            match self.run_command(&log, &command, commands.validate_timeout, version, record).await {
                StepOutcome::Passed | StepOutcome::Running => {}
                StepOutcome::Failed { message, output } | StepOutcome::Pending { message, output } => {
                    failed.push(format!("check {name}: {message}"));
                    outputs.push(format!("check {name}:\n{output}"));
                }
            }
        }
        if failed.is_empty() {
            return StepOutcome::Passed;
        }
        let output = last_lines(outputs.join("\n").as_bytes(), runner::LINES_REPORTED);
        StepOutcome::Failed { message: bounded(failed.join("; ")), output }
    }

    async fn run_command(
        &self,
        name: &str,
        command: &CommandLine,
        timeout: Duration,
        version: &str,
        record: &StepRecord,
    ) -> StepOutcome {
        let log = record_file::directory(&self.settings).join("logs").join(format!("{name}.log"));
        let running = record.running.clone().unwrap_or_default();
        let environment = vec![
            ("MAINSTAY_VERSION", version.to_owned()),
            ("MAINSTAY_RUNNING_VERSION", running),
            ("MAINSTAY_NODE_NAME", self.settings.node_name.clone()),
        ];
        let cgroup = Path::new(&self.settings.instance).join("machine-steps");
        let reports_output = self.commands.report_output;
        StepCommand { command, environment, timeout, cgroup, log: &log, reports_output }.run().await
    }
}

/// A cause as long as the status of a Machine takes it.
fn bounded(mut message: String) -> String {
    const LONGEST: usize = 2048;
    if message.len() > LONGEST {
        let end = (0..=LONGEST).rev().find(|end| message.is_char_boundary(*end)).unwrap_or(0);
        message.truncate(end);
        message.push('…');
    }
    message
}

fn outcome(result: Result<(), String>) -> StepOutcome {
    match result {
        Ok(()) => StepOutcome::Passed,
        Err(message) => StepOutcome::Failed { message: bounded(message), output: String::new() },
    }
}

fn describe(step: Step, version: &str) -> String {
    match version {
        "" => format!("the step {:?}", step.name()),
        _ => format!("the step {:?} for version {version:?}", step.name()),
    }
}

/// Whether pods were evicted for a version that does not run yet.
fn is_drained(record: &StepRecord) -> bool {
    let (desired, drain) = (&record.desired, &record.drain);
    desired.drain
        && desired.version.is_some()
        && desired.version != record.running
        && drain.as_ref().is_some_and(|drain| Some(&drain.version) == desired.version.as_ref())
}

/// What the files look like: which they are, how long, and when they changed.
fn fingerprint(files: &[PathBuf]) -> u64 {
    let mut hash = Xxh3::new();
    for file in files {
        let facts = fs::metadata(file).map(|meta| (meta.ino(), meta.len(), meta.mtime(), meta.mtime_nsec()));
        hash.update(format!("{} {:?}\n", file.display(), facts.ok()).as_bytes());
    }
    hash.digest()
}

async fn sleep(time: Option<Duration>) {
    match time {
        Some(time) => tokio::time::sleep(time).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
