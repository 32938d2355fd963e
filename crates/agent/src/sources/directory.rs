//! Static pods from a watched directory of manifests.
//!
//! The kernel tells when something changes; the directory is then read as a whole, and slowly in any case. A file
//! with a mistake keeps the pods it had before the mistake, so that saving half a file stops nothing, and
//! no other file is concerned.

use std::{
    collections::BTreeMap,
    io::Read as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use futures::StreamExt;
use inotify::{Inotify, WatchMask};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::manifest::{self, ManifestError, Origin};
use crate::pods::{Pods, Source};

/// How often the directory is read if inotify reports nothing.
const SLOWLY: Duration = Duration::from_secs(20);
/// How often it is looked for while it is not there.
const MISSING: Duration = Duration::from_secs(1);
/// Files are written in several steps: one look for all of them.
const SETTLE: Duration = Duration::from_millis(100);
const LARGEST: u64 = 10 << 20;

pub struct Directory {
    path: PathBuf,
    node: String,
    termination_grace: Duration,
    /// How often the directory is read if nothing changes in it.
    interval: Duration,
    pods: Arc<Pods>,
    /// Notified when the set of static pods has changed.
    changed: Arc<Notify>,
    /// By file name: its last valid pods, and the complaint about it.
    files: BTreeMap<String, File>,
}

#[derive(Default)]
struct File {
    pods: Vec<Pod>,
    complaint: Option<String>,
}

/// What was found in the directory: by file name.
type ManifestScan = BTreeMap<String, Result<manifest::ParsedManifest, ManifestError>>;

impl Directory {
    pub fn new(
        path: PathBuf,
        node: String,
        termination_grace: Duration,
        pods: Arc<Pods>,
        changed: Arc<Notify>,
    ) -> Self {
        Self { path, node, termination_grace, interval: SLOWLY, pods, changed, files: BTreeMap::new() }
    }

    pub async fn run(mut self, stop: CancellationToken) {
        stop.run_until_cancelled(self.follow()).await;
    }

    async fn follow(&mut self) {
        let mut published = false;
        loop {
            // Watched before it is read: nothing falls between.
            let changes = watch(&self.path);
            match scan(&self.path, &self.node, self.termination_grace) {
                Ok(found) => {
                    let news = self.apply_scan(found);
                    if news || !published {
                        self.publish();
                        published = true;
                    }
                }
                Err(error) => tracing::warn!(directory = ?self.path, %error, "cannot read the static pods"),
            }
            match changes {
                Some(mut changes) => {
                    let _ = tokio::time::timeout(self.interval, changes.next()).await;
                    tokio::time::sleep(SETTLE).await;
                }
                None => tokio::time::sleep(MISSING).await,
            }
        }
    }

    /// `true` if the pods are others than before.
    fn apply_scan(&mut self, found: ManifestScan) -> bool {
        let before = uids(&self.files);
        self.files.retain(|name, _| found.contains_key(name));
        for (name, read) in found {
            let file = self.files.entry(name.clone()).or_default();
            let complaint = match read {
                Ok(read) => {
                    file.pods = read.pods;
                    (!read.advice.is_empty()).then(|| read.advice.join(", "))
                }
                Err(unusable) if file.pods.is_empty() => Some(unusable.0),
                Err(unusable) => Some(format!("{unusable} (what it said before still holds)")),
            };
            if complaint != file.complaint
                && let Some(complaint) = &complaint
            {
                tracing::warn!(file = ?self.path.join(&name), "static pod: {complaint}");
            }
            file.complaint = complaint;
        }
        uids(&self.files) != before
    }

    fn publish(&self) {
        let mut all = BTreeMap::<_, (&str, &Pod)>::new();
        for (file, pod) in self.files.iter().flat_map(|(name, file)| file.pods.iter().map(move |pod| (name, pod))) {
            let key = (&pod.metadata.namespace, &pod.metadata.name);
            match all.get(&key) {
                None => {
                    all.insert(key, (file, pod));
                }
                Some((first, _)) => {
                    let name = pod.metadata.name.as_deref().unwrap_or_default();
                    let file = self.path.join(file);
                    tracing::warn!(?file, "static pod: metadata.name: {name:?} is already that of a pod in {first}");
                }
            }
        }
        self.pods.replace(Source::File, all.into_values().map(|(_, pod)| pod.clone()).collect());
        self.changed.notify_one();
    }
}

fn uids(files: &BTreeMap<String, File>) -> Vec<Option<String>> {
    files.values().flat_map(|file| file.pods.iter().map(|pod| pod.metadata.uid.clone())).collect()
}

fn watch(path: &Path) -> Option<inotify::EventStream<Vec<u8>>> {
    let mask = WatchMask::CREATE
        | WatchMask::CLOSE_WRITE
        | WatchMask::MODIFY
        | WatchMask::ATTRIB
        | WatchMask::MOVE
        | WatchMask::DELETE
        | WatchMask::DELETE_SELF
        | WatchMask::MOVE_SELF;
    let inotify = Inotify::init().ok()?;
    inotify.watches().add(path, mask).ok()?;
    inotify.into_event_stream(vec![0; 4096]).ok()
}

/// Every file of the directory. One that does not exist holds none; one that cannot be read is not known.
fn scan(directory: &Path, node: &str, termination_grace: Duration) -> std::io::Result<ManifestScan> {
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(ManifestScan::new()),
        Err(error) => return Err(error),
    };
    let mut found = ManifestScan::new();
    for entry in entries {
        let Ok(name) = entry?.file_name().into_string() else { continue };
        if name.starts_with('.') || name.ends_with('~') {
            continue; // editors' own
        }
        if let Some(read) = read(&directory.join(&name), &name, node, termination_grace) {
            found.insert(name, read);
        }
    }
    Ok(found)
}

/// Nothing if it is no file, or not any more.
fn read(
    path: &Path,
    name: &str,
    node: &str,
    termination_grace: Duration,
) -> Option<Result<manifest::ParsedManifest, ManifestError>> {
    let unusable = |error: std::io::Error| ManifestError(error.to_string());
    let about = match std::fs::metadata(path) {
        Ok(about) if about.is_file() => about,
        Ok(_) => return None,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
        Err(error) => return Some(Err(unusable(error))),
    };
    if about.len() > LARGEST {
        return Some(Err(ManifestError(format!("{} bytes are more than a manifest may have", about.len()))));
    }
    let mut text = Vec::new();
    let opened = std::fs::File::open(path).and_then(|file| file.take(LARGEST).read_to_end(&mut text));
    if let Err(error) = opened {
        return Some(Err(unusable(error)));
    }
    let changed = about.modified().ok().and_then(|time| Timestamp::try_from(time).ok()).unwrap_or_default();
    Some(manifest::read(&text, &Origin { node, file: name, changed, termination_grace }))
}

#[cfg(test)]
mod tests;
