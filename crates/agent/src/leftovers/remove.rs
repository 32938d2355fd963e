//! Does what a plan says. A step that fails does not keep later ones from being tried; the next observation shows what is left.

use std::{
    fs, io,
    path::Path,
    time::{Duration, Instant},
};

use mainstay_files::mountinfo;
use nix::mount::{MntFlags, umount2};
use rustix::process::Signal;

use super::{
    Instance, LeftoversError, PodProcess, Role, Step,
    processes::{self, signal},
};

/// Between looks at processes that are to end.
const LOOK: Duration = Duration::from_millis(20);
/// For the kernel to end what was killed.
const KILLED: Duration = Duration::from_secs(10);
/// For the kernel to notice that a cgroup is empty.
const CGROUP_EMPTY: Duration = Duration::from_secs(2);

/// Carries out all steps and returns what failed.
pub async fn remove(instance: &Instance, steps: &[Step], grace: Duration) -> Vec<LeftoversError> {
    let mut failures = Vec::new();
    for step in steps {
        let done = match step {
            Step::StopContainers(_) => stop_containers(instance, grace, |_| true).await,
            Step::KillProcesses => kill_processes(instance, |_| true).await,
            Step::RemoveNetwork { .. } => {
                let removed = mainstay_network::leftovers::remove(instance.name()).await;
                removed.map_err(|error| LeftoversError::Network(error.chain()))
            }
            Step::Unmount(point) => unmount(point).map_err(failed(step)),
            Step::RemoveCgroup(path) => remove_cgroup(path).map_err(failed(step)),
            Step::RemoveEmpty { from, up_to } => remove_empty(from, up_to).map_err(failed(step)),
            Step::RemoveRunDirectory(path) => mountinfo::remove_tree(path).map_err(failed(step)),
        };
        failures.extend(done.err());
    }
    failures
}

fn failed(step: &Step) -> impl FnOnce(io::Error) -> LeftoversError {
    let doing = match step {
        Step::Unmount(path) => format!("unmount {}", path.display()),
        Step::RemoveCgroup(path) => format!("remove cgroup {}", path.display()),
        Step::RemoveEmpty { from, .. } => format!("remove {}", from.display()),
        Step::RemoveRunDirectory(path) => format!("remove {}", path.display()),
        Step::StopContainers(_) | Step::KillProcesses | Step::RemoveNetwork { .. } => "remove".to_owned(),
    };
    move |source| LeftoversError::Remove { doing, source }
}

fn of_sandboxes(instance: &Instance, sandbox: impl Fn(&str) -> bool) -> Result<Vec<PodProcess>, LeftoversError> {
    let found = processes::find().map_err(|source| LeftoversError::List { what: "processes", source })?;
    let own = found.into_iter().filter(|(of, _)| of == instance).flat_map(|(_, processes)| processes);
    Ok(own.filter(|process| sandbox(&process.sandbox)).collect())
}

/// Asks containers to end, and waits until they have or `grace` is over.
pub(super) async fn stop_containers(
    instance: &Instance,
    grace: Duration,
    sandbox: impl Fn(&str) -> bool,
) -> Result<(), LeftoversError> {
    let deadline = Instant::now() + grace;
    for process in of_sandboxes(instance, &sandbox)?.iter().filter(|process| process.role == Role::ContainerInit) {
        if let Err(error) = signal(process, Signal::TERM) {
            tracing::warn!(%error, pid = process.pid, "cannot ask a container to end");
        }
    }
    while Instant::now() < deadline {
        if of_sandboxes(instance, &sandbox)?.iter().all(|process| process.role == Role::Shim) {
            return Ok(());
        }
        tokio::time::sleep(LOOK).await;
    }
    Ok(())
}

/// Kills containers, whatever they fork meanwhile, and then the shims that would have reported it.
pub(super) async fn kill_processes(instance: &Instance, sandbox: impl Fn(&str) -> bool) -> Result<(), LeftoversError> {
    let deadline = Instant::now() + KILLED;
    loop {
        let left = of_sandboxes(instance, &sandbox)?;
        let Some(last) = left.last() else { return Ok(()) };
        if Instant::now() > deadline {
            let what = format!("process {} ({})", last.pid, last.command);
            return Err(LeftoversError::StillRuns { what, seconds: KILLED.as_secs() });
        }
        let only_shims = left.iter().all(|process| process.role == Role::Shim);
        for process in left.iter().filter(|process| only_shims || process.role != Role::Shim) {
            if let Err(error) = signal(process, Signal::KILL) {
                tracing::warn!(%error, pid = process.pid, "cannot kill a process of a pod");
            }
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Only this mount: what is mounted elsewhere from the same place stays, and no file is touched.
pub(super) fn unmount(point: &Path) -> io::Result<()> {
    match umount2(point, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW) {
        Ok(()) => Ok(()),
        // Not, or no longer, mounted.
        Err(nix::errno::Errno::EINVAL | nix::errno::Errno::ENOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// With all below. The kernel keeps those that have processes.
pub(super) fn remove_cgroup(path: &Path) -> io::Result<()> {
    let children = match fs::read_dir(path) {
        Ok(children) => children,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    for child in children.flatten().filter(|child| child.file_type().is_ok_and(|kind| kind.is_dir())) {
        remove_cgroup(&child.path())?;
    }
    let deadline = Instant::now() + CGROUP_EMPTY;
    loop {
        match fs::remove_dir(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy && Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(2));
            }
            result => return result,
        }
    }
}

/// A directory with something in it, or with something mounted on it, ends the way up.
fn remove_empty(from: &Path, up_to: &Path) -> io::Result<()> {
    for directory in from.ancestors().take_while(|directory| directory.starts_with(up_to)) {
        match fs::remove_dir(directory) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) if matches!(error.kind(), io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::ResourceBusy) => {
                break;
            }
            // A bind of a file needs a file to be mounted on.
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
                if fs::metadata(directory).is_ok_and(|file| file.len() == 0) {
                    fs::remove_file(directory)?;
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_directories_go_up_to_the_data_directory_and_no_file_does() {
        let dir = tempfile::tempdir().unwrap();
        let data_dir = dir.path().join("d");
        let from = data_dir.join("a/b/merged");
        fs::create_dir_all(&from).unwrap();
        fs::write(data_dir.join("a/file"), "stays").unwrap();
        remove_empty(&from, &data_dir).unwrap();
        assert!(!data_dir.join("a/b").exists() && data_dir.join("a/file").exists());
        fs::remove_file(data_dir.join("a/file")).unwrap();
        remove_empty(&from, &data_dir).unwrap();
        assert!(!data_dir.exists() && dir.path().exists());
    }
}
