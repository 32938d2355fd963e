//! Closes a data directory and the run directory beside it to other users of the machine.
//!
//! Directories of ours are 0700 and files 0600 when they are made. What an earlier version left open is closed at the start, with one
//! warning that names the outermost path and its former mode. What containers look at (volumes, root filesystems, layers of
//! images) keeps its modes: nobody else gets there, because a directory above is closed.
//!
//! A mode does not bind the owner: a directory that belongs to another user, who may have made it in `/tmp` before us, is refused.

use std::{fs, io, os::unix::fs::MetadataExt, path::Path};

use mainstay_files::{RestrictedPath, create_private_dir, restrict_tree};

/// What lies in a data directory. Whatever else somebody has put beside it is left alone.
const OURS: [&str; 13] = [
    "mainstay.pid",
    "process.json",
    "upgrade.lock",
    "formats.json",
    "admin.kubeconfig",
    "encryption-config.yaml",
    "audit",
    "pki",
    "store",
    "agent",
    "runtime",
    "logs",
    "volumes",
];

/// Directories in it that we make and nobody else writes to.
const OUR_DIRECTORIES: [&str; 5] = ["audit", "pki", "store", "agent", "runtime"];

/// Makes the data directory, or closes it, before anything in it is opened. One that is another user's is left as it is.
pub fn create(data_dir: &Path) -> io::Result<Vec<RestrictedPath>> {
    check_owner(data_dir)?;
    let restricted = create_private_dir(data_dir)?;
    check_owner(data_dir)?; // it may have been made by somebody else just now
    OUR_DIRECTORIES.iter().try_for_each(|name| check_owner(&data_dir.join(name)))?;
    Ok(restricted.into_iter().collect())
}

/// What is missing will be ours.
fn check_owner(directory: &Path) -> io::Result<()> {
    let owner = match fs::metadata(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        found => found?.uid(),
    };
    let own = nix::unistd::geteuid().as_raw();
    if owner == own {
        return Ok(());
    }
    let path = directory.display();
    Err(io::Error::new(
        io::ErrorKind::PermissionDenied,
        format!(
            "{path} belongs to user {owner}, who could read and replace what is in it: name another directory, or make it ours with `chown -R {own} {path}`"
        ),
    ))
}

/// Closes what an earlier version left open below the data directory.
pub fn restrict_data(data_dir: &Path) -> io::Result<Vec<RestrictedPath>> {
    restrict_tree(data_dir, &|path| has_modes_of_its_own(&parts(path)))
}

/// Likewise, of `/run/<instance>`, which need not exist.
pub fn restrict_run(run_dir: &Path) {
    let restricted = restrict_tree(run_dir, &|path| matches!(parts(path)[..], ["shm", _]));
    match restricted {
        Ok(restricted) => warn(&restricted),
        Err(error) => {
            tracing::warn!(path = %run_dir.display(), %error, "cannot close the run directory to other users")
        }
    }
}

/// One line for all of them.
pub fn warn(restricted: &[RestrictedPath]) {
    if let Some(first) = restricted.first() {
        let (path, mode, more) = (first.path.display(), format!("{:04o}", first.previous_mode), restricted.len() - 1);
        tracing::warn!(%path, mode, more, "was open to other users of this machine, and is closed to them now");
    }
}

fn parts(path: &Path) -> Vec<&str> {
    path.iter().map(|part| part.to_str().unwrap_or_default()).collect()
}

/// What has modes that others chose, by its path below the data directory: for containers, mostly.
fn has_modes_of_its_own(path: &[&str]) -> bool {
    match path {
        [first] => !OURS.contains(first),
        ["volumes", _] => true,
        ["agent", "pods", _, "volumes" | "etc", _] => true,
        // Filesystems of volumes that a cloud attached.
        ["agent", "attached", _, "mount"] => true,
        ["agent", "pods", _, "subpaths" | "containers", _, _] => true,
        // Records of the library that makes containers.
        ["runtime", "sandboxes", _, "containers", _, "oci", _] => true,
        ["runtime", "images", "empty"] | ["runtime", "images", "scratch", _] => true,
        ["runtime", "images", "layers", _, "fs"] => true,
        ["runtime", "images", "rootfs", _, "upper" | "work" | "merged"] => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs::{self, Permissions},
        os::unix::fs::PermissionsExt,
    };

    use super::*;

    #[test]
    fn what_containers_see_keeps_its_mode_and_all_else_is_closed() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        let shared = [
            "volumes/pv/file",
            "agent/pods/u/volumes/v/file",
            "agent/pods/u/etc/hosts",
            "agent/attached/v/mount/file",
            "agent/pods/u/containers/c/0.termination",
            "runtime/images/layers/h/fs/bin",
            "runtime/images/rootfs/c/upper/bin",
            "runtime/sandboxes/s/containers/c/oci/c/state.json",
            "notes-of-the-administrator",
        ];
        let ours = [
            "mainstay.pid",
            "store/store.db-wal",
            "agent/checkpoints/u.json",
            "agent/pods/u/heal.json",
            "logs/ns_pod_u/c/0.log",
            "runtime/sandboxes/s/containers/c/config.json",
            "runtime/images/layers/h/layer.json",
        ];
        for file in shared.iter().chain(&ours) {
            fs::create_dir_all(data.join(file).parent().unwrap()).unwrap();
            fs::write(data.join(file), "").unwrap();
            fs::set_permissions(data.join(file), Permissions::from_mode(0o644)).unwrap();
        }
        fs::set_permissions(&data, Permissions::from_mode(0o755)).unwrap();
        let found = create(&data).unwrap();
        assert_eq!(found, [RestrictedPath { path: data.clone(), previous_mode: 0o755 }]);
        assert!(restrict_data(&data).unwrap().len() > ours.len());
        let mode = |path: &str| data.join(path).metadata().unwrap().permissions().mode() & 0o7777;
        assert_eq!(shared.map(mode), [0o644; 9]);
        assert_eq!(ours.map(mode), [0o600; 7]);
        assert!(create(&data).unwrap().is_empty() && restrict_data(&data).unwrap().is_empty());
    }
}
