//! Records of disks in use: a directory for each volume, with its mount point and a file for each pod that uses it.
//!
//! They are on disk, so that an agent that is started anew knows what its predecessor mounted and for whom.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use mainstay_files::{create_private_dir, mountinfo, open_private, remove_file_if_exists};
use mainstay_runtime::PodUid;
use parking_lot::Mutex;

use crate::volumes::table;

const MOUNT: &str = "mount";
const PODS: &str = "pods";

#[derive(Clone)]
pub struct DiskRecords {
    directory: PathBuf,
    /// One at a time works on a volume.
    locks: Arc<Mutex<BTreeMap<String, Arc<Mutex<()>>>>>,
}

impl DiskRecords {
    pub fn within(agent_directory: &Path) -> Self {
        Self { directory: agent_directory.join("attached"), locks: Arc::default() }
    }

    fn volume(&self, handle: &str) -> PathBuf {
        self.directory.join(handle.replace('/', "_"))
    }

    pub fn mount_point(&self, handle: &str) -> PathBuf {
        self.volume(handle).join(MOUNT)
    }

    /// Held while something is mounted or unmounted.
    pub fn lock(&self, handle: &str) -> Arc<Mutex<()>> {
        self.locks.lock().entry(handle.to_owned()).or_default().clone()
    }

    /// Volumes that some pod uses, or is about to.
    pub fn volumes(&self) -> Vec<String> {
        names(&self.directory)
    }

    /// Pods that use some volume.
    pub fn pods(&self) -> Vec<PodUid> {
        self.volumes().iter().flat_map(|handle| names(&self.volume(handle).join(PODS))).map(PodUid).collect()
    }

    /// The pod uses the volume from now on.
    pub fn add(&self, handle: &str, pod: &PodUid) -> io::Result<()> {
        let lock = self.lock(handle);
        let _held = lock.lock();
        create_private_dir(&self.directory)?;
        create_private_dir(&self.volume(handle))?;
        let pods = self.volume(handle).join(PODS);
        create_private_dir(&pods)?;
        open_private(&pods.join(&pod.0)).map(drop)
    }

    /// Whether the pod is one of those that use the volume, which is mounted unless containers get its device.
    pub fn is_used_by(&self, handle: &str, pod: &PodUid, is_block: bool) -> bool {
        let is_mounted = || table::is_mounted(&self.mount_point(handle)).unwrap_or_default();
        self.volume(handle).join(PODS).join(&pod.0).exists() && (is_block || is_mounted())
    }

    /// The pod does not use the volume after all.
    pub fn remove(&self, handle: &str, pod: &PodUid) -> io::Result<()> {
        let lock = self.lock(handle);
        let _held = lock.lock();
        remove_file_if_exists(&self.volume(handle).join(PODS).join(&pod.0))?;
        self.remove_unused(handle)
    }

    /// The pod is gone: what only it used is unmounted. Says whether anything was.
    pub fn release(&self, pod: &PodUid) -> io::Result<bool> {
        let mut is_changed = false;
        for handle in self.volumes() {
            let lock = self.lock(&handle);
            let _held = lock.lock();
            let own = self.volume(&handle).join(PODS).join(&pod.0);
            if own.exists() {
                is_changed = true;
                remove_file_if_exists(&own)?;
            }
            self.remove_unused(&handle)?;
        }
        Ok(is_changed)
    }

    /// Unmounts a volume that no pod uses, and forgets it then.
    fn remove_unused(&self, handle: &str) -> io::Result<()> {
        let directory = self.volume(handle);
        if !names(&directory.join(PODS)).is_empty() {
            return Ok(());
        }
        let directory = match directory.canonicalize() {
            Ok(directory) => directory,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        if !mountinfo::at_or_below(&directory)?.is_empty() {
            table::unmount_below(&directory).map_err(|stuck| {
                io::Error::other(format!("{} is still mounted: {}", stuck.path.display(), stuck.why))
            })?;
        }
        // Only what is empty goes: nothing is ever deleted in a volume.
        for path in [directory.join(MOUNT), directory.join(PODS), directory] {
            match fs::remove_dir(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                Ok(()) | Err(_) => {}
            }
        }
        Ok(())
    }
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_is_in_use_until_its_last_pod_is_released() {
        let directory = tempfile::tempdir().unwrap();
        let records = DiskRecords::within(directory.path());
        let (a, b) = (PodUid("a".into()), PodUid("b".into()));
        assert_eq!(records.volumes(), [] as [&str; 0]);
        records.add("v1", &a).unwrap();
        records.add("v1", &b).unwrap();
        records.add("v2", &b).unwrap();
        assert_eq!(records.volumes(), ["v1", "v2"]);
        assert!(records.release(&a).unwrap());
        assert_eq!(records.volumes(), ["v1", "v2"], "the other pod uses it");
        assert!(records.release(&b).unwrap() && !records.release(&b).unwrap());
        assert_eq!((records.volumes().len(), records.pods().len()), (0, 0));
    }

    #[test]
    fn nothing_in_a_volume_is_deleted() {
        let directory = tempfile::tempdir().unwrap();
        let records = DiskRecords::within(directory.path());
        let pod = PodUid("a".into());
        records.add("v1", &pod).unwrap();
        fs::create_dir(records.mount_point("v1")).unwrap();
        fs::write(records.mount_point("v1").join("data"), "x").unwrap();
        records.release(&pod).unwrap_err();
        assert!(records.mount_point("v1").join("data").exists());
    }
}
