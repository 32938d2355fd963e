//! Services of the machine itself: programs that are not pods join the catalogue of Services.
//!
//! Files of `<data-dir>/services.d` define instances in Consul's form ([`definition`], [`files`]). The agent runs their checks ([`checks`],
//! [`health`]) and publishes one EndpointSlice for each ([`slices`], [`publisher`]), so that they have names, SRV and PTR records and tags as
//! pods have. Programs that rather tell report to TTL checks ([`reports`]).
//!
//! What is known here is put into this machine's own catalogue at once, so that its DNS follows also while no server answers. An agent that
//! restarts begins with the health it knew before: a restart takes nobody out of a Service.

pub mod checks;
pub mod definition;
pub mod files;
pub mod health;
mod interfaces;
pub mod publisher;
pub mod reports;
mod slices;

use std::{
    collections::{BTreeMap, HashMap},
    net::{IpAddr, Ipv4Addr},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use futures::{StreamExt, stream::BoxStream};
use inotify::{Inotify, WatchMask};
use jiff::Timestamp;
use k8s_openapi::api::{core::v1::Node, discovery::v1::EndpointSlice};
use kube::Client;
use mainstay_errors::error_chain;
use mainstay_files::create_private_dir;
use tokio::{
    sync::{Semaphore, mpsc, watch},
    task::AbortHandle,
};
use tokio_util::sync::CancellationToken;

use self::{
    checks::{CheckOutcome, CheckTask},
    definition::{CheckStatus, ServiceDefinition},
    files::{Defined, ServiceFiles, definitions_directory, scan},
    health::{InstanceHealth, ttl, ttl_report},
    interfaces::interface_addresses,
    publisher::{DesiredSlices, Publisher},
    reports::{InstanceRecord, ReportLog, ServicesRecord, record_path, report_path, reports_directory},
    slices::{MachineFacts, endpoint_slice},
};
use crate::{
    bounded_command::clear_cgroup,
    events::{EventType, Events},
    services::LocalCatalogue,
    settings::Settings,
};

/// How often everything is looked at if the kernel tells of no change, as of files that another machine writes, or cannot tell.
const RESYNC: Duration = Duration::from_secs(2);
/// Files are written in several steps: one look for all of them.
const SETTLE: Duration = Duration::from_millis(100);
/// Programs of checks that run at the same time.
const CONCURRENT_CHECKS: usize = 64;

pub struct HostServices {
    pub client: Client,
    pub settings: Arc<Settings>,
    pub events: Events,
    /// What events are about.
    pub node: watch::Receiver<Option<Node>>,
    pub local: LocalCatalogue,
}

/// A check that runs.
struct RunningCheck {
    abort: AbortHandle,
    cgroup: Option<PathBuf>,
}

/// One instance: what it is, and how it fares.
struct Instance {
    file: String,
    definition: ServiceDefinition,
    /// Another for every definition, so that late results of an earlier one do not count.
    generation: u64,
    health: InstanceHealth,
    checks: Vec<RunningCheck>,
}

impl HostServices {
    pub async fn run(self, stop: CancellationToken) {
        let (desired, published) = watch::channel(None);
        let publisher = Publisher {
            client: self.client.clone(),
            node_name: self.settings.node_name.clone(),
            node: self.node.clone(),
        };
        let mut board = ServiceBoard::new(self, desired);
        let work = async { tokio::join!(board.work(), publisher.run(published)) };
        stop.run_until_cancelled(work).await;
        board.stop_checks().await;
    }
}

/// All instances of the machine.
struct ServiceBoard {
    parts: HostServices,
    files: ServiceFiles,
    problems: BTreeMap<String, String>,
    /// What is wrong with the directory itself.
    directory_problem: Option<String>,
    instances: BTreeMap<String, Instance>,
    reports: ReportLog,
    generations: u64,
    turns: Arc<Semaphore>,
    outcomes: mpsc::Sender<CheckOutcome>,
    received: mpsc::Receiver<CheckOutcome>,
    desired: watch::Sender<Option<DesiredSlices>>,
    /// What an earlier agent knew.
    before: HashMap<String, InstanceRecord>,
    written: ServicesRecord,
}

impl ServiceBoard {
    fn new(parts: HostServices, desired: watch::Sender<Option<DesiredSlices>>) -> Self {
        let (outcomes, received) = mpsc::channel(256);
        let before = ServicesRecord::read(&record_path(&parts.settings.directory)).unwrap_or_default();
        Self {
            parts,
            files: ServiceFiles::default(),
            problems: BTreeMap::new(),
            directory_problem: None,
            instances: BTreeMap::new(),
            reports: ReportLog::default(),
            generations: 0,
            turns: Arc::new(Semaphore::new(CONCURRENT_CHECKS)),
            outcomes,
            received,
            desired,
            written: before.clone(),
            before: before.services.into_iter().collect(),
        }
    }

    async fn work(&mut self) {
        let agent_directory = self.parts.settings.directory.clone();
        let directories = [definitions_directory(&agent_directory), reports_directory(&agent_directory)];
        for directory in &directories {
            if let Err(error) = create_private_dir(directory) {
                tracing::warn!(directory = %directory.display(), %error, "cannot make a directory of this machine's services");
            }
        }
        // Watched before they are read: nothing falls between.
        let mut changes = watch_directories(&directories);
        self.read_files().await;
        let mut resync = tokio::time::interval(RESYNC);
        resync.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let wake = self.follow_reports();
            self.publish().await;
            let wake = wake.and_then(|wake| Duration::try_from(wake.duration_since(Timestamp::now())).ok());
            tokio::select! {
                Some(outcome) = self.received.recv() => self.record(outcome),
                change = changes.next() => {
                    if change.is_none() {
                        changes = watch_directories(&directories);
                    }
                    tokio::time::sleep(SETTLE).await;
                    self.read_files().await;
                }
                _ = resync.tick() => self.read_files().await,
                () = sleep(wake) => {}
            }
        }
    }

    /// Takes in what the files say now.
    async fn read_files(&mut self) {
        let directory = definitions_directory(&self.parts.settings.directory);
        let problem = match scan(&directory) {
            Ok(scan) => {
                for (file, problem) in self.files.update(scan) {
                    let message = format!("{}: {problem}", directory.join(file).display());
                    self.event(EventType::Warning, "InvalidServiceFile", message);
                }
                None
            }
            Err(error) => Some(error.to_string()),
        };
        if let Some(problem) = problem.as_ref().filter(|_| problem != self.directory_problem) {
            self.event(EventType::Warning, "InvalidServiceFile", format!("{}: {problem}", directory.display()));
        }
        self.directory_problem = problem;
        let (definitions, problems) = self.files.definitions();
        self.problems = problems;
        if let Some(problem) = &self.directory_problem {
            self.problems.insert(".".to_owned(), problem.clone());
        }
        self.follow_definitions(definitions).await;
    }

    /// Starts and stops checks, so that they are those of the definitions.
    async fn follow_definitions(&mut self, definitions: BTreeMap<String, Defined>) {
        let gone: Vec<String> = self.instances.keys().filter(|id| !definitions.contains_key(*id)).cloned().collect();
        for id in gone {
            if let Some(instance) = self.instances.remove(&id) {
                stop_checks(instance.checks).await;
            }
        }
        for (id, (file, definition)) in definitions {
            let old = self.instances.remove(&id);
            let instance = match old {
                Some(instance) if instance.definition == definition => Instance { file, ..instance },
                Some(instance) => {
                    stop_checks(instance.checks).await;
                    self.start(file, definition, instance.health)
                }
                None => {
                    let before = self.before.remove(&id).filter(|before| before.definition == definition);
                    self.start(file, definition, before.map(|before| before.health).unwrap_or_default())
                }
            };
            self.instances.insert(id, instance);
        }
    }

    fn start(&mut self, file: String, definition: ServiceDefinition, mut health: InstanceHealth) -> Instance {
        self.generations += 1;
        health.follow(&definition, Timestamp::now());
        let settings = &self.parts.settings;
        let checks = definition.checks.iter().filter(|check| ttl(check).is_none()).map(|check| {
            let path = report_path(&settings.directory, &definition.id, &check.id);
            let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
            let cgroup = Path::new(&settings.instance).join(format!("host-check-{name}"));
            let task = CheckTask {
                service: definition.id.clone(),
                definition: check.clone(),
                generation: self.generations,
                node_name: settings.node_name.clone(),
                cgroup: cgroup.clone(),
                turns: self.turns.clone(),
                outcomes: self.outcomes.clone(),
            };
            let abort = tokio::spawn(task.run()).abort_handle();
            RunningCheck { abort, cgroup: check.kind.command().map(|_| cgroup) }
        });
        Instance { checks: checks.collect(), file, definition, generation: self.generations, health }
    }

    fn record(&mut self, outcome: CheckOutcome) {
        let CheckOutcome { service, check, generation, report } = outcome;
        let Some(instance) = self.instances.get_mut(&service).filter(|own| own.generation == generation) else {
            return;
        };
        let definition = instance.definition.checks.iter().find(|own| own.id == check);
        let (Some(definition), Some(health)) = (definition, instance.health.checks.get_mut(&check)) else { return };
        if health.record(definition, report) {
            let (status, name) = (health.status, definition.name.clone());
            self.record_check_event(&service, &name, status);
        }
    }

    /// Takes in what programs reported. Returns when the first report expires.
    fn follow_reports(&mut self) -> Option<Timestamp> {
        let now = Timestamp::now();
        let (mut wake, mut changes): (Option<Timestamp>, Vec<_>) = (None, Vec::new());
        for (id, instance) in &mut self.instances {
            for check in &instance.definition.checks {
                let Some(ttl) = ttl(check) else { continue };
                let path = report_path(&self.parts.settings.directory, id, &check.id);
                let last = self.reports.read(&path, now);
                let (report, expires) = ttl_report(ttl, last.as_ref(), now);
                wake = wake.into_iter().chain(expires).min();
                let (Some(report), Some(health)) = (report, instance.health.checks.get_mut(&check.id)) else {
                    continue;
                };
                if health.record(check, report) {
                    changes.push((id.clone(), check.name.clone(), health.status));
                }
            }
        }
        for (id, name, status) in changes {
            self.record_check_event(&id, &name, status);
        }
        wake
    }

    /// The output of a check stays on the machine: it may say anything.
    fn record_check_event(&self, service: &str, check: &str, status: CheckStatus) {
        let message = format!("service {service:?}: check {check:?} is {}", status.text());
        match status {
            CheckStatus::Passing => self.event(EventType::Normal, "HostServiceHealthy", message),
            CheckStatus::Warning => self.event(EventType::Warning, "HostServiceWarning", message),
            CheckStatus::Critical => self.event(EventType::Warning, "HostServiceUnhealthy", message),
        }
    }

    fn event(&self, event_type: EventType, reason: &'static str, message: String) {
        match &*self.parts.node.borrow() {
            Some(node) => self.parts.events.node(node, event_type, reason, message),
            None => tracing::warn!(reason, message, "a service of this machine, before its Node is known"),
        }
    }

    /// Makes known what is true now: to this machine's own catalogue, to the API, and to commands.
    async fn publish(&mut self) {
        let settings = &self.parts.settings;
        let facts = MachineFacts {
            node_name: settings.node_name.clone(),
            address: settings.addresses.iter().find_map(ipv4),
            interfaces: interface_addresses(&settings.instance),
        };
        let slices = self.instances.values().filter_map(|instance| {
            let slice = endpoint_slice(&instance.definition, instance.health.is_ready(), &facts)?;
            Some((slice.metadata.name.clone()?, slice))
        });
        let slices: DesiredSlices = slices.collect();
        let before: Vec<String> = match &*self.desired.borrow() {
            Some(before) => before.keys().filter(|name| !slices.contains_key(*name)).cloned().collect(),
            None => Vec::new(),
        };
        self.parts.local.follow(&slices.values().collect::<Vec<&EndpointSlice>>(), &before).await;
        self.desired.send_if_modified(|last| {
            let differs = last.as_ref() != Some(&slices);
            *last = Some(slices);
            differs
        });
        let services = self.instances.iter().map(|(id, instance)| {
            let (file, definition) = (instance.file.clone(), instance.definition.clone());
            let address = facts.address_of(&definition);
            (id.clone(), InstanceRecord { file, definition, health: instance.health.clone(), address })
        });
        let record = ServicesRecord { services: services.collect(), problems: self.problems.clone() };
        if record != self.written {
            let path = record_path(&settings.directory);
            match record.write(&path) {
                Ok(()) => self.written = record,
                Err(error) => {
                    tracing::warn!(path = %path.display(), error = error_chain(&error), "cannot write the record of this machine's services");
                }
            }
        }
    }

    /// Everything that checks started is killed.
    async fn stop_checks(&mut self) {
        for instance in std::mem::take(&mut self.instances).into_values() {
            stop_checks(instance.checks).await;
        }
    }
}

async fn stop_checks(checks: Vec<RunningCheck>) {
    for check in &checks {
        check.abort.abort();
    }
    for cgroup in checks.into_iter().filter_map(|check| check.cgroup) {
        if let Err(error) = clear_cgroup(&cgroup).await {
            tracing::warn!(cgroup = %cgroup.display(), %error, "cannot end what a check of a service started");
        }
    }
}

fn ipv4(address: &IpAddr) -> Option<Ipv4Addr> {
    match address {
        IpAddr::V4(address) => Some(*address),
        IpAddr::V6(_) => None,
    }
}

/// Yields whenever something in one of the directories changes, and ends if one of them is gone. Without inotify it yields once, after a
/// while.
fn watch_directories(directories: &[PathBuf]) -> BoxStream<'static, ()> {
    let mask = WatchMask::CREATE
        | WatchMask::CLOSE_WRITE
        | WatchMask::ATTRIB
        | WatchMask::MOVE
        | WatchMask::DELETE
        | WatchMask::DELETE_SELF
        | WatchMask::MOVE_SELF;
    let watch = || {
        let inotify = Inotify::init()?;
        for directory in directories {
            inotify.watches().add(directory, mask)?;
        }
        inotify.into_event_stream(vec![0; 4096])
    };
    match watch() {
        Ok(events) => events
            .take_while(|event| {
                let is_there = event.as_ref().is_ok_and(|event| !event.mask.contains(inotify::EventMask::IGNORED));
                std::future::ready(is_there)
            })
            .map(drop)
            .boxed(),
        Err(error) => {
            tracing::debug!(%error, "cannot watch the directories of this machine's services; they are read every 2 s");
            futures::stream::once(tokio::time::sleep(RESYNC)).boxed()
        }
    }
}

async fn sleep(time: Option<Duration>) {
    match time {
        Some(time) => tokio::time::sleep(time).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
