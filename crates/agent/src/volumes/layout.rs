//! The directories of a pod on disk, all below `<agent's directory>/pods/<uid>`.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use mainstay_runtime::PodUid;

#[derive(Clone, Debug)]
pub struct Layout {
    pods: PathBuf,
}

impl Layout {
    pub fn new(directory: &Path) -> Self {
        Self { pods: directory.join("pods") }
    }

    pub fn pod(&self, pod: &PodUid) -> PathBuf {
        self.pods.join(part(&pod.0))
    }

    /// A directory; or a link, for what belongs to the machine and not to the pod.
    pub fn volume(&self, pod: &PodUid, volume: &str) -> PathBuf {
        self.pod(pod).join("volumes").join(part(volume))
    }

    /// Exists once the volume has been made, so that what containers did to it is not undone.
    pub(super) fn made(&self, pod: &PodUid, volume: &str) -> PathBuf {
        self.pod(pod).join("made").join(part(volume))
    }

    /// Where a part of a volume is bound for a container.
    pub(super) fn sub_path(&self, pod: &PodUid, container: &str, index: usize) -> PathBuf {
        self.pod(pod).join("subpaths").join(part(container)).join(index.to_string())
    }

    /// `hosts`, `hostname`, `resolv.conf`.
    pub fn etc(&self, pod: &PodUid) -> PathBuf {
        self.pod(pod).join("etc")
    }

    pub fn termination_log(&self, pod: &PodUid, container: &str, attempt: u32) -> PathBuf {
        self.pod(pod).join("containers").join(part(container)).join(format!("{attempt}.termination"))
    }

    pub fn pods_on_disk(&self) -> BTreeSet<PodUid> {
        let entries = std::fs::read_dir(&self.pods).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().into_string().ok().map(PodUid)).collect()
    }
}

/// Names of the API hold no slash, but nothing here may depend on that.
fn part(name: &str) -> String {
    match name {
        "" | "." | ".." => format!("_{name}"),
        name => name.replace('/', "_"),
    }
}
