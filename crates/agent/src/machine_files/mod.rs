//! Files of this machine that ConfigTemplates render: writes what MachineFiles ([`mainstay_api::machine_file`]) ask for, and reports.
//!
//! * [`settings`]: where files may be written: only below directories that the machine's own configuration file allows
//! * [`follow`]: which MachineFiles name this node, and what they say
//! * [`plan`]: what to do about a file (pure); [`replace`]: does it, without following links
//! * [`record`]: which files are ours; written before they are
//!
//! A file stays as it is while no server answers. It is removed once a server said that nobody asks for it any longer, unless somebody else changed it. Two that
//! want one path do not fight: the first keeps it, the other is refused. A file that an administrator made or changed is left alone, and reported as a conflict.
//! What is done on a change is a command of the machine's own configuration file, never one of the API's; if it fails the file stays, and whoever asked for it
//! takes the version back.

mod follow;
mod plan;
pub mod record;
mod replace;
mod settings;

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{ConfigMap, Secret},
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use mainstay_api::{
    config_template::{OutputKey, OutputKind},
    machine_file::{DEFAULT_MODE, MachineFile, MachineFileStatus, path_violation, reason},
};
use mainstay_errors::error_chain;
use mainstay_machines::steps::StepOutcome;
use serde_json::json;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub use self::settings::{AllowedDirectory, DEFAULT_ON_CHANGE_TIMEOUT};
use self::{
    plan::{Refusal, Verdict, WantedContent},
    record::{FileRecord, FileRecords, digest},
    replace::{Access, FileLocation, LocationState},
    settings::find_allowed,
};
use crate::{machine_steps::StepCommand, settings::Settings};

/// How often all files are looked at although nothing was heard: somebody may have changed or removed one.
const RECHECK: Duration = Duration::from_secs(60);
/// How soon what failed for want of a server or a disk is tried again.
const RETRY: Duration = Duration::from_secs(5);

/// MachineFiles of this node by `namespace/name`; nothing until a server said which there are.
type WantedFiles = Option<BTreeMap<String, Arc<MachineFile>>>;

pub struct MachineFiles {
    pub client: Client,
    pub settings: Arc<Settings>,
}

/// What became of one file.
enum Outcome {
    /// To be reported: nothing wrong, or why not.
    Report(Result<(), Refusal>),
    /// Nothing is known: it is tried again.
    Unknown,
}

/// Where a file is to be, and what is done there on a change.
struct Destination<'a> {
    allowed: &'a AllowedDirectory,
    below: &'a Path,
    path: &'a Path,
}

impl MachineFiles {
    /// Works until asked to stop. A command under way is killed then, and runs again at the next start.
    pub async fn run(self, stop: CancellationToken) {
        let (sender, mut wanted) = watch::channel(None);
        let follow = follow::follow(Api::all(self.client.clone()), &self.settings.node_name, &sender);
        let work = self.work(&mut wanted);
        stop.run_until_cancelled(async { tokio::join!(follow, work) }).await;
    }

    async fn work(&self, wanted: &mut watch::Receiver<WantedFiles>) {
        let path = record::path(&self.settings);
        loop {
            let files: WantedFiles = wanted.borrow_and_update().clone();
            let mut again = RECHECK;
            if let Some(files) = files {
                match record::read(&path) {
                    Ok(records) => {
                        let mut keeper = Keeper { files: self, path: &path, records };
                        if !keeper.reconcile(&files).await {
                            again = RETRY;
                        }
                    }
                    Err(error) => {
                        tracing::error!(%error, path = %path.display(), "cannot read which files of this machine are ours; none is touched");
                    }
                }
            }
            tokio::select! {
                changed = wanted.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(again) => {}
            }
        }
    }

    /// The content that a MachineFile names; nothing if it cannot be had at present.
    async fn fetch(&self, file: &MachineFile) -> Option<Vec<u8>> {
        let (OutputKey { name, key }, kind) = file.spec.content.target()?;
        let namespace = file.namespace();
        let found = match kind {
            OutputKind::ConfigMap => {
                let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), namespace);
                let text = |map: ConfigMap| map.data.and_then(|mut data| data.remove(key)).map(String::into_bytes);
                maps.get_opt(name).await.map(|map| map.and_then(text))
            }
            OutputKind::Secret => {
                let secrets: Api<Secret> = Api::namespaced(self.client.clone(), namespace);
                let bytes = |secret: Secret| secret.data.and_then(|mut data| data.remove(key)).map(|value| value.0);
                secrets.get_opt(name).await.map(|secret| secret.and_then(bytes))
            }
        };
        match found {
            Ok(Some(content)) => Some(content),
            Ok(None) => {
                tracing::debug!(
                    namespace,
                    file = file.name(),
                    copy = name,
                    "the content of a machine file is not there yet"
                );
                None
            }
            Err(error) => {
                tracing::debug!(
                    namespace,
                    file = file.name(),
                    error = error_chain(&error),
                    "cannot read the content of a machine file; will retry"
                );
                None
            }
        }
    }

    /// Runs what the machine's own configuration says for a change below a directory.
    async fn announce(&self, destination: &Destination<'_>, file: &MachineFile) -> Result<(), String> {
        let Some(command) = &destination.allowed.on_change else { return Ok(()) };
        let name = destination.allowed.directory.to_string_lossy().replace('/', "-");
        let log = self.settings.directory.join("machine/logs").join(format!("on-change{name}.log"));
        let environment = vec![
            ("MAINSTAY_FILE", destination.path.display().to_string()),
            ("MAINSTAY_VERSION", file.spec.version.clone()),
            ("MAINSTAY_NODE_NAME", self.settings.node_name.clone()),
        ];
        let cgroup = Path::new(&self.settings.instance).join("machine-files");
        let timeout = destination.allowed.on_change_timeout;
        match (StepCommand { command, environment, timeout, cgroup, log: &log, reports_output: false }).run().await {
            StepOutcome::Passed | StepOutcome::Running => Ok(()),
            StepOutcome::Failed { message, .. } | StepOutcome::Pending { message, .. } => Err(message),
        }
    }

    /// Writes a status that differs from the one the API has. Says whether it has it now.
    async fn report(&self, file: &MachineFile, status: MachineFileStatus) -> bool {
        let is_same = file.status.as_ref().is_some_and(|old| {
            MachineFileStatus { time: None, ..old.clone() } == MachineFileStatus { time: None, ..status.clone() }
        });
        if is_same {
            return true;
        }
        if !status.reason.is_empty() {
            tracing::warn!(
                namespace = file.namespace(),
                file = file.name(),
                reason = status.reason,
                cause = status.message,
                "a file of this machine is not as wanted"
            );
        }
        let files: Api<MachineFile> = Api::namespaced(self.client.clone(), file.namespace());
        // All fields, so that what is no longer true is taken away.
        let fields = json!({
            "observedGeneration": status.observed_generation,
            "version": status.version,
            "reason": Some(&status.reason).filter(|text| !text.is_empty()),
            "message": Some(&status.message).filter(|text| !text.is_empty()),
            "time": status.time,
        });
        let change = Patch::Merge(json!({ "metadata": { "uid": file.uid() }, "status": fields }));
        match files.patch_status(file.name(), &PatchParams::default(), &change).await {
            Ok(_) => true,
            Err(error) => {
                tracing::debug!(
                    file = file.name(),
                    error = error_chain(&error),
                    "cannot report a machine file; will retry"
                );
                false
            }
        }
    }
}

/// One look at all files, with the record that it keeps up to date.
struct Keeper<'a> {
    files: &'a MachineFiles,
    path: &'a Path,
    records: FileRecords,
}

impl Keeper<'_> {
    /// Says whether everything is known and reported, so that there is nothing to try again soon.
    async fn reconcile(&mut self, wanted: &BTreeMap<String, Arc<MachineFile>>) -> bool {
        let gone: Vec<String> = self.records.files.keys().filter(|key| !wanted.contains_key(*key)).cloned().collect();
        let mut is_settled = true;
        for key in gone {
            is_settled &= self.remove(&key);
        }
        for (key, file) in wanted {
            let outcome = self.bring_about(key, file).await;
            let Outcome::Report(result) = outcome else {
                is_settled = false;
                continue;
            };
            let version = self.records.files.get(key).map(|own| own.version.clone()).filter(|own| !own.is_empty());
            let (reason, message) =
                result.err().map_or_else(Default::default, |own| (own.reason.to_owned(), own.message));
            let status = MachineFileStatus {
                observed_generation: file.metadata.generation.unwrap_or_default(),
                version,
                reason,
                message,
                time: Some(Time(Timestamp::now())),
            };
            is_settled &= self.files.report(file, status).await;
        }
        is_settled
    }

    async fn bring_about(&mut self, key: &str, file: &MachineFile) -> Outcome {
        let refuse = |reason: &'static str, message: String| Outcome::Report(Err(Refusal { reason, message }));
        let path = PathBuf::from(&file.spec.file.path);
        // The server has checked it too; here it is what keeps strangers' paths out.
        let directories = &self.files.settings.machine_files;
        let allowed = match path_violation(&file.spec.file.path) {
            None => find_allowed(directories, file.namespace(), &path),
            Some(_) => None,
        };
        let Some((allowed, below)) = allowed else {
            let words = "is not below a directory that [[machine-files]] in this machine's configuration file allows";
            return refuse(
                reason::NOT_ALLOWED,
                format!("{} {words} for namespace {}", path.display(), file.namespace()),
            );
        };
        if let Some(rival) = plan::rival(&self.records, key, &path) {
            return refuse(reason::CONFLICT, format!("{} is the file of MachineFile {rival}", path.display()));
        }
        let failed =
            |error: &dyn std::fmt::Display| refuse(reason::WRITE_FAILED, format!("{}: {error}", path.display()));
        let access = match Access::new(&file.spec.file, DEFAULT_MODE) {
            Ok(access) => access,
            Err(error) => return failed(&error),
        };
        let destination = Destination { allowed, below, path: &path };
        let location = match FileLocation::open(&destination.allowed.directory, destination.below) {
            Ok(location) => location,
            Err(error) => return failed(&error),
        };
        let found = match location.read() {
            Ok(found) => found,
            Err(error) => return failed(&error),
        };
        if self.is_done(key, file, &found, access) {
            return Outcome::Report(self.failure(key));
        }
        let Some(content) = self.files.fetch(file).await else { return Outcome::Unknown };
        let wanted = WantedContent { path: &path, content: &content, access };
        let before = self.records.files.get(key).cloned();
        let verdict = plan::judge(&wanted, before.as_ref(), &found);
        if let (false, Some(before)) = (matches!(verdict, Verdict::Refuse(_)), &before)
            && before.path != path
        {
            self.remove_file(before); // the record will know the new path alone
        }
        match verdict {
            Verdict::Refuse(refusal) => return Outcome::Report(Err(refusal)),
            Verdict::Current => {}
            Verdict::Announce => {
                if let Err(error) = self.begin(key, file, &path, &[&content]) {
                    return failed(&error);
                }
            }
            Verdict::Write => {
                let mut contents: Vec<&[u8]> = Vec::new();
                if let LocationState::File { content: old, .. } = &found {
                    contents.push(old);
                }
                contents.push(&content);
                let written = self
                    .begin(key, file, &path, &contents)
                    .and_then(|()| location.replace(&content, access))
                    .and_then(|()| self.begin(key, file, &path, &[&content]));
                if let Err(error) = written {
                    return failed(&error);
                }
                tracing::info!(path = %path.display(), version = file.spec.version, "wrote a file of this machine");
            }
        }
        let is_announced = self.records.files.get(key).is_some_and(|own| own.announced);
        let failure = if is_announced { None } else { self.files.announce(&destination, file).await.err() };
        self.finish(key, file, failure)
    }

    /// Whether the file has been brought about already, and is still there as it was written.
    fn is_done(&self, key: &str, file: &MachineFile, found: &LocationState, access: Access) -> bool {
        let is_ours = |record: &&FileRecord| {
            record.uid == file.uid() && record.done == file.metadata.generation && record.announced
        };
        let Some(record) = self.records.files.get(key).filter(is_ours) else { return false };
        matches!(found, LocationState::File { content, access: own } if record.has_written(content) && *own == access)
    }

    fn failure(&self, key: &str) -> Result<(), Refusal> {
        match self.records.files.get(key).and_then(|own| own.failure.clone()) {
            Some(message) => Err(Refusal { reason: reason::COMMAND_FAILED, message }),
            None => Ok(()),
        }
    }

    /// Records what the file may have in it from now on.
    fn begin(&mut self, key: &str, file: &MachineFile, path: &Path, contents: &[&[u8]]) -> io::Result<()> {
        let record = FileRecord {
            uid: file.uid().to_owned(),
            path: path.to_owned(),
            digests: contents.iter().map(|content| digest(content)).collect(),
            version: file.spec.version.clone(),
            done: None,
            announced: false,
            failure: None,
        };
        self.records.files.insert(key.to_owned(), record);
        record::write(self.path, &self.records)
    }

    fn finish(&mut self, key: &str, file: &MachineFile, failure: Option<String>) -> Outcome {
        if let Some(record) = self.records.files.get_mut(key) {
            let version = file.spec.version.clone();
            (record.uid, record.done) = (file.uid().to_owned(), file.metadata.generation);
            (record.announced, record.failure, record.version) = (true, failure, version);
        }
        match record::write(self.path, &self.records) {
            Ok(()) => Outcome::Report(self.failure(key)),
            Err(error) => {
                tracing::warn!(%error, path = %self.path.display(), "cannot record a file of this machine; will retry");
                Outcome::Unknown
            }
        }
    }

    /// Removes a file that nobody asks for any longer, and forgets it. Says whether that is done.
    fn remove(&mut self, key: &str) -> bool {
        let Some(record) = self.records.files.get(key).cloned() else { return true };
        if !self.remove_file(&record) {
            return false;
        }
        self.records.files.remove(key);
        record::write(self.path, &self.records).is_ok()
    }

    /// Says whether there is nothing left to remove. What is not ours any longer, or not allowed any longer, stays.
    fn remove_file(&self, record: &FileRecord) -> bool {
        let path = &record.path;
        let directories = &self.files.settings.machine_files;
        let within = directories.iter().filter_map(|own| Some((own, path.strip_prefix(&own.directory).ok()?)));
        let Some((allowed, below)) = within.max_by_key(|(own, _)| own.directory.components().count()) else {
            tracing::warn!(path = %path.display(), "a file that no template asks for any longer stays: its directory is not allowed any longer");
            return true;
        };
        let location = match FileLocation::open(&allowed.directory, below) {
            Ok(location) => location,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return true,
            Err(error) => {
                tracing::warn!(%error, path = %path.display(), "cannot remove a file that no template asks for any longer; it stays");
                return true;
            }
        };
        let removed = match location.read() {
            Ok(found) if plan::may_remove(record, &found) => location.remove(),
            Ok(LocationState::Nothing) => Ok(()),
            Ok(LocationState::File { .. } | LocationState::Other) => {
                tracing::warn!(path = %path.display(), "a file that no template asks for any longer was changed by somebody else; it stays");
                Ok(())
            }
            Err(error) => Err(error),
        };
        match removed {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!(%error, path = %path.display(), "cannot remove a file that no template asks for any longer; will retry");
                false
            }
        }
    }
}

#[cfg(test)]
mod tests;
