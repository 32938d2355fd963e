//! Which Mainstay processes run on this machine, by the lock that each holds on the `mainstay.pid` of its data directory.
//!
//! The kernel shows the lock also when the file was removed, so that a process whose data directory is gone is found as well.
//! Processes of other users are found by root alone.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

pub const LOCK_FILE: &str = "mainstay.pid";
/// How the kernel marks the name of a removed file.
const DELETED: &str = " (deleted)";

/// A process that holds a data directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    pub pid: i32,
    pub data_dir: PathBuf,
    /// Leads to the locked file, even if that was removed.
    pub descriptor: PathBuf,
}

impl Holder {
    /// Opens the locked file anew, to ask whether it is still locked.
    pub fn open(&self) -> io::Result<File> {
        File::open(&self.descriptor)
    }
}

/// All that can be seen. A process that ends meanwhile is none.
pub fn find() -> io::Result<Vec<Holder>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
        found.extend(find_in_process(pid));
    }
    Ok(found)
}

/// The data directories that one process holds, as far as can be seen.
pub fn find_in_process(pid: i32) -> Vec<Holder> {
    let mut found = Vec::new();
    for descriptor in fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten() {
        let Some(data_dir) = fs::read_link(descriptor.path()).ok().and_then(|file| data_dir_of(&file)) else {
            continue;
        };
        let info = Path::new("/proc").join(pid.to_string()).join("fdinfo").join(descriptor.file_name());
        if has_lock(&fs::read_to_string(info).unwrap_or_default()) {
            found.push(Holder { pid, data_dir, descriptor: descriptor.path() });
        }
    }
    found
}

/// Of a lock file's name as the kernel shows it.
fn data_dir_of(file: &Path) -> Option<PathBuf> {
    let name = file.file_name()?.to_str()?;
    (name.strip_suffix(DELETED).unwrap_or(name) == LOCK_FILE).then(|| file.parent().map(Path::to_owned))?
}

/// From the text of `fdinfo`. Whoever only looks into the file, or asks for the lock, does not have it.
fn has_lock(info: &str) -> bool {
    info.lines().any(|line| line.starts_with("lock:") && line.contains("FLOCK") && line.contains("WRITE"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_files_are_known_by_their_name_removed_or_not() {
        assert_eq!(data_dir_of(Path::new("/d/mainstay.pid")), Some("/d".into()));
        assert_eq!(data_dir_of(Path::new("/d/mainstay.pid (deleted)")), Some("/d".into()));
        assert_eq!(data_dir_of(Path::new("/d/mainstay.pid.old")), None);
    }

    #[test]
    fn the_holder_of_a_lock_is_found_after_its_file_is_removed_and_a_reader_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let data_dir = dir.path().canonicalize().unwrap();
        let path = data_dir.join(LOCK_FILE);
        let here = || find().unwrap().into_iter().filter(|holder| holder.data_dir == data_dir).collect::<Vec<_>>();
        let lock = File::create(&path).unwrap();
        assert_eq!(here(), []);
        lock.lock().unwrap();
        let _reader = File::open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let [holder] = <[Holder; 1]>::try_from(here()).unwrap();
        assert_eq!(holder.pid, std::process::id() as i32);
        assert!(holder.open().unwrap().try_lock_shared().is_err());
        drop(lock);
        assert_eq!(here(), []);
    }
}
