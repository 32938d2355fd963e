//! Plans the bind mounts of a container in a user namespace: all sources are placed below one directory that its user can reach.
//!
//! libcontainer joins the user namespace first and mounts afterwards, so it can neither reach the data directory nor idmap
//! anything. Therefore all that it mounts is first placed below one directory that everybody can reach, in the mount
//! namespace of the container alone: [`stage`] says what goes where (pure), `shim::launch` does it. libcontainer 0.7
//! refuses idmapped mounts in a configuration, which is why these are made outside it.

use std::{
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

use super::record::{ProcessIdentity, StagedMount, Staging};

/// Directories of every machine that nothing needs while a container is made.
const CANDIDATES: [&str; 6] = ["/mnt", "/media", "/srv", "/opt", "/home", "/var/tmp"];

/// The root filesystem's name in the directory.
pub const ROOT: &str = "rootfs";

/// One that everybody can reach and that none of `needed` lies in.
pub fn directory(needed: &[&Path]) -> Result<PathBuf, String> {
    let suitable = |candidate: &&str| {
        let path = Path::new(candidate);
        let reachable = path.ancestors().all(|above| {
            std::fs::symlink_metadata(above).is_ok_and(|meta| meta.is_dir() && meta.permissions().mode() & 0o001 != 0)
        });
        reachable && !needed.iter().any(|needed| needed.starts_with(path))
    };
    CANDIDATES.into_iter().find(suitable).map(PathBuf::from).ok_or_else(|| {
        format!("hostUsers: false needs one of the directories {} to be free for mounts", CANDIDATES.join(", "))
    })
}

/// Turns a configuration into one of a container in the user namespace of `holder`: every source of a mount is replaced by
/// its place in the directory.
pub fn stage(config: &mut Value, holder: ProcessIdentity, directory: &Path) -> Staging {
    let mut mounts = Vec::new();
    let mut place = |source: &mut Value, name: String, idmapped: bool| {
        let from = source.as_str().unwrap_or_default().to_owned();
        *source = json!(directory.join(&name));
        mounts.push(StagedMount { source: from.into(), name, idmapped });
    };
    // An overlay cannot be idmapped; its layers are.
    place(&mut config["root"]["path"], ROOT.to_owned(), false);
    for (number, mount) in config["mounts"].as_array_mut().into_iter().flatten().enumerate() {
        if mount["type"] == "bind" {
            let is_cgroup = mount["destination"].as_str().is_some_and(|path| path.starts_with("/sys/fs/cgroup"));
            place(&mut mount["source"], format!("mount-{number}"), !is_cgroup);
        }
    }
    for namespace in config["linux"]["namespaces"].as_array_mut().into_iter().flatten() {
        if namespace["type"] == "pid" && namespace["path"].is_string() {
            place(&mut namespace["path"], "pid-namespace".to_owned(), false);
        }
    }
    if let Some(namespaces) = config["linux"]["namespaces"].as_array_mut() {
        namespaces.push(json!({"type": "user", "path": format!("/proc/{}/ns/user", holder.pid)}));
    }
    Staging { holder, directory: directory.to_owned(), mounts }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_sources_are_replaced_and_cgroups_are_not_idmapped() {
        let mut config = json!({
            "root": {"path": "/data/merged"},
            "mounts": [
                {"type": "proc", "source": "proc", "destination": "/proc"},
                {"type": "bind", "source": "/sys/fs/cgroup/pids/x", "destination": "/sys/fs/cgroup/pids"},
                {"type": "bind", "source": "/data/volume", "destination": "/volume"},
            ],
            "linux": {"namespaces": [{"type": "mount"}, {"type": "pid", "path": "/proc/7/ns/pid"}]},
        });
        let staging = stage(&mut config, ProcessIdentity { pid: 42, begun: 1 }, Path::new("/mnt"));
        assert_eq!(config["root"]["path"], "/mnt/rootfs");
        assert_eq!(config["mounts"][0]["source"], "proc");
        assert_eq!(config["mounts"][2]["source"], "/mnt/mount-2");
        assert_eq!(
            config["linux"]["namespaces"],
            json!([
                {"type": "mount"},
                {"type": "pid", "path": "/mnt/pid-namespace"},
                {"type": "user", "path": "/proc/42/ns/user"},
            ])
        );
        let idmapped: Vec<_> = staging.mounts.iter().filter(|mount| mount.idmapped).map(|m| &m.source).collect();
        assert_eq!(idmapped, [Path::new("/data/volume")]);
        assert_eq!(staging.mounts.len(), 4);
    }

    #[test]
    fn a_directory_that_is_needed_is_not_covered() {
        let chosen = directory(&[]).unwrap();
        assert_ne!(directory(&[&chosen.join("data")]).unwrap(), chosen);
        assert!(directory(&CANDIDATES.map(Path::new)).unwrap_err().contains("/mnt"));
    }
}
