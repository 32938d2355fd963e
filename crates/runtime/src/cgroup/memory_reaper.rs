//! Removes memory cgroups of version 1 in the background, after emptying them.
//!
//! A removed memory cgroup lives on in the kernel for as long as pages are charged to it: the page cache of what its
//! processes read and wrote. Thousands of such dead groups, which `/proc/cgroups` still counts, make every later pod slower
//! to start. `memory.force_empty` makes the kernel give these pages up first. That can take long where pages are dirty, so
//! one thread does it for all, one group after the other, and no pod waits for it.
//!
//! A group gets another name before, so that it is gone for everybody else and can be made anew. Whatever is left over when the
//! process ends is found by the next one (`Cgroup::remove_leftover_memory`).

use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    thread,
};

use super::{children, remove_tree};

/// How names of groups begin that are about to be removed.
const REMOVED: &str = "removed-";

/// Removes a group and all below it, none of which holds a process. It has lost its name when this returns.
pub(super) fn remove(dir: &Path) -> io::Result<()> {
    static NAMES: AtomicU64 = AtomicU64::new(0);
    let name = format!("{REMOVED}{}-{}", std::process::id(), NAMES.fetch_add(1, Ordering::Relaxed));
    let renamed = dir.with_file_name(name);
    match fs::rename(dir, &renamed) {
        Ok(()) => remove_later(renamed),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(_) => remove_tree(dir)?,
    }
    Ok(())
}

/// The same of a group in which nothing is left but groups that are about to be removed.
pub(super) fn remove_if_empty(dir: &Path) {
    let is_removed =
        |child: &Path| child.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(REMOVED.as_bytes()));
    if children(dir).iter().all(|child| is_removed(child)) {
        let _ = remove(dir);
    }
}

/// Removes a group that has a name by which nobody knows it.
pub(super) fn remove_later(dir: PathBuf) {
    static GROUPS: OnceLock<Option<mpsc::Sender<PathBuf>>> = OnceLock::new();
    let start = || {
        let (sender, groups) = mpsc::channel::<PathBuf>();
        let run = move || groups.into_iter().for_each(|dir| empty_and_remove(&dir));
        thread::Builder::new().name("memory-cgroups".into()).spawn(run).ok().map(|_| sender)
    };
    match GROUPS.get_or_init(start) {
        Some(groups) => drop(groups.send(dir)),
        None => empty_and_remove(&dir), // no thread to be had: somebody has to wait then
    }
}

/// One that was renamed with the group above it meanwhile goes with that.
fn empty_and_remove(dir: &Path) {
    empty_tree(dir);
    if let Err(error) = remove_tree(dir) {
        tracing::warn!(dir = %dir.display(), %error, "cannot remove a memory cgroup");
    }
}

/// Makes the kernel give up pages that are charged to these groups. What it cannot give up stays charged.
pub(super) fn empty_tree(dir: &Path) {
    for child in children(dir) {
        empty_tree(&child);
    }
    let force_empty = fs::File::options().write(true).open(dir.join("memory.force_empty"));
    let _ = force_empty.and_then(|mut file| file.write_all(b"0"));
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    fn until(what: &str, mut holds: impl FnMut() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !holds() {
            assert!(Instant::now() < deadline, "{what}");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Directories stand in for cgroups.
    #[test]
    fn a_group_loses_its_name_at_once_and_goes_with_all_below_it() {
        let root = tempfile::tempdir().unwrap();
        let (pod, other) = (root.path().join("pod"), root.path().join("other"));
        for dir in [pod.join("sandbox/container"), other.join("old"), other.join("new")] {
            fs::create_dir_all(dir).unwrap();
        }
        remove(&pod.join("sandbox")).unwrap();
        assert!(!pod.join("sandbox").exists());
        remove_if_empty(&pod);
        assert!(!pod.exists());
        fs::create_dir(&pod).unwrap(); // made anew, and not taken for the old one
        remove(&other.join("old")).unwrap();
        remove_if_empty(&other);
        remove(&root.path().join("missing")).unwrap();
        let names = || {
            let mut names: Vec<_> = children(root.path()).into_iter().chain(children(&other)).collect();
            names.sort();
            names
        };
        until("the rest goes", || names() == [other.clone(), other.join("new"), pod.clone()]);
    }
}
