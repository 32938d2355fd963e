//! Sandboxes of an instance of which there is no record: the data directory was removed while pods ran.
//!
//! Nobody could ever find them again, so every start removes them before it makes new ones: containers, shims, the pod's shared
//! memory, sockets and cgroups. Interfaces and root filesystems without a record are removed by their own parts.

use std::{collections::BTreeSet, fs, io, path::Path, time::Duration};

use mainstay_files::{mountinfo, remove_file_if_exists};

use super::{
    Instance, LeftoversError,
    names::is_id,
    observe::cgroup_roots,
    processes,
    remove::{kill_processes, remove_cgroup, stop_containers},
};

/// How long orphans may take to end. Their own grace went with their record.
const GRACE: Duration = Duration::from_secs(10);

/// Returns how many there were.
pub async fn remove_orphans(instance: &Instance, runtime_directory: &Path) -> Result<usize, LeftoversError> {
    let recorded = recorded(&runtime_directory.join("sandboxes"));
    let is_orphan = |sandbox: &str| !recorded.contains(sandbox);
    let list = |what| move |source| LeftoversError::List { what, source };
    let mut found: BTreeSet<String> = BTreeSet::new();
    let running = processes::find().map_err(list("processes"))?.remove(instance).unwrap_or_default();
    found.extend(running.into_iter().map(|process| process.sandbox));
    let run_dir = instance.run_dir();
    for directory in ["s", "shm"] {
        found.extend(ids_in(&run_dir.join(directory)).map_err(list("the run directory"))?);
    }
    let mounts = mountinfo::read().map_err(list("mounts"))?;
    let mut cgroups = Vec::new();
    for root in cgroup_roots(&mounts) {
        find_sandboxes(&root.join(instance.name()), &mut cgroups);
    }
    cgroups.retain(|(sandbox, _)| is_orphan(sandbox));
    found.extend(cgroups.iter().map(|(sandbox, _)| sandbox.clone()));
    found.retain(|sandbox| is_orphan(sandbox));
    if found.is_empty() {
        return Ok(0);
    }
    tracing::warn!(%instance, sandboxes = found.len(), "removing pods of which the data directory has no record");
    stop_containers(instance, GRACE, is_orphan).await?;
    kill_processes(instance, is_orphan).await?;
    let removed = |doing: String| move |source| LeftoversError::Remove { doing, source };
    for sandbox in &found {
        let shm = run_dir.join("shm").join(sandbox);
        mountinfo::unmount_and_remove(&shm).map_err(removed(format!("remove {}", shm.display())))?;
        let socket = run_dir.join("s").join(sandbox);
        remove_file_if_exists(&socket).map_err(removed(format!("remove {}", socket.display())))?;
    }
    for (_, path) in &cgroups {
        remove_cgroup(path).map_err(removed(format!("remove cgroup {}", path.display())))?;
        // The pod's own, unless a sandbox that has a record is in it.
        let _ = path.parent().map(fs::remove_dir);
    }
    Ok(found.len())
}

fn recorded(sandboxes: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(sandboxes).into_iter().flatten().flatten();
    let complete = entries.filter(|entry| entry.path().join("sandbox.json").exists());
    complete.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

fn ids_in(directory: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    Ok(entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).filter(|name| is_id(name)).collect())
}

/// Groups of sandboxes below an instance's; nothing below a sandbox's is looked at.
fn find_sandboxes(group: &Path, found: &mut Vec<(String, std::path::PathBuf)>) {
    for entry in fs::read_dir(group).into_iter().flatten().flatten() {
        if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        match entry.file_name().into_string() {
            Ok(name) if is_id(&name) => found.push((name, entry.path())),
            _ => find_sandboxes(&entry.path(), found),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sandbox_is_recorded_once_its_record_is_there() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("a")).unwrap();
        fs::create_dir_all(dir.path().join("b")).unwrap();
        fs::write(dir.path().join("b/sandbox.json"), "{}").unwrap();
        assert_eq!(recorded(dir.path()), BTreeSet::from(["b".to_owned()]));
        assert!(recorded(&dir.path().join("missing")).is_empty());
    }

    #[test]
    fn groups_are_found_at_any_depth_and_not_within_a_sandbox() {
        let dir = tempfile::tempdir().unwrap();
        let [a, b] = ["a", "b"].map(|digit| digit.repeat(32));
        fs::create_dir_all(dir.path().join("podx").join(&a).join(&b)).unwrap();
        fs::create_dir_all(dir.path().join("burstable/pody").join(&b)).unwrap();
        let mut found = Vec::new();
        find_sandboxes(dir.path(), &mut found);
        let found: BTreeSet<String> = found.into_iter().map(|(sandbox, _)| sandbox).collect();
        assert_eq!(found, BTreeSet::from([a, b]));
    }
}
