//! Checks a container's bind mounts before the container is made: afterwards libcontainer only says that some
//! mount failed. Both paths and the error of the operating system are named.

use std::{io, path::Path};

use mainstay_errors::with_path;
use nix::errno::Errno;

use super::rootfs_files;
use crate::spec::Mount;

/// The first mount that cannot be made, in words.
pub fn verify(root: &Path, mounts: &[Mount]) -> Result<(), String> {
    mounts.iter().try_for_each(|mount| verify_one(root, mounts, mount).map_err(|why| why.to_string()))
}

fn verify_one(root: &Path, all: &[Mount], mount: &Mount) -> io::Result<()> {
    let doing = format!("mount {} to", mount.source.display());
    let failed = |error: &io::Error| with_path(&doing, &mount.target, error);
    let source = std::fs::metadata(&mount.source).map_err(|error| failed(&error))?;
    let Some(target) = kind_of_target(root, all, mount) else { return Ok(()) };
    let (errno, why) = match (source.is_dir(), target.is_dir) {
        (true, false) => (Errno::ENOTDIR, "a directory cannot be mounted on a file"),
        (false, true) => (Errno::EISDIR, "a file cannot be mounted on a directory"),
        (true, true) | (false, false) => return Ok(()),
    };
    let error = failed(&io::Error::from(errno));
    Err(io::Error::new(error.kind(), format!("{error}: {why}")))
}

struct Target {
    is_dir: bool,
}

/// Where other file systems than the image's are mounted in every container.
const COVERED: [&str; 3] = ["/dev", "/proc", "/sys"];

/// What lies at the target: in the volume that is mounted above it, or else in the image. Nothing if it will be made.
fn kind_of_target(root: &Path, all: &[Mount], mount: &Mount) -> Option<Target> {
    let above = all.iter().filter(|other| other.target != mount.target && mount.target.starts_with(&other.target));
    let above = above.max_by_key(|other| other.target.components().count());
    let (root, within) = match above {
        Some(above) => (above.source.as_path(), mount.target.strip_prefix(&above.target).ok()?),
        None if COVERED.iter().any(|covered| mount.target.starts_with(covered)) => return None,
        None => (root, mount.target.as_path()),
    };
    rootfs_files::is_dir(root, within).ok().map(|is_dir| Target { is_dir })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn mount(source: &Path, target: &str) -> Mount {
        Mount {
            source: source.into(),
            target: target.into(),
            read_only: false,
            recursive_read_only: Default::default(),
            propagation: Default::default(),
        }
    }

    #[test]
    fn a_directory_on_a_file_names_both_paths_and_the_error_once() {
        let dir = tempfile::tempdir().unwrap();
        let (root, volume) = (dir.path().join("root"), dir.path().join("volume"));
        fs::create_dir_all(root.join("etc")).unwrap();
        fs::create_dir_all(&volume).unwrap();
        fs::write(root.join("etc/passwd"), "").unwrap();
        let error = verify(&root, &[mount(&volume, "/etc/passwd")]).unwrap_err();
        let expected = format!(
            "mount {} to /etc/passwd: Not a directory (os error 20): a directory cannot be mounted on a file",
            volume.display()
        );
        assert_eq!(error, expected);
        verify(&root, &[mount(&volume, "/etc"), mount(&volume, "/new")]).unwrap();
        let error = verify(&root, &[mount(&root.join("etc/passwd"), "/etc")]).unwrap_err();
        assert!(error.contains("(os error 21): a file cannot be mounted on a directory"), "{error}");
    }

    #[test]
    fn what_a_volume_above_holds_counts_and_not_what_it_hides() {
        let dir = tempfile::tempdir().unwrap();
        let (root, volume) = (dir.path().join("root"), dir.path().join("volume"));
        fs::create_dir_all(root.join("data/key")).unwrap();
        fs::create_dir_all(&volume).unwrap();
        fs::write(volume.join("key"), "").unwrap();
        let key = mount(&volume.join("key"), "/data/key");
        verify(&root, &[mount(&volume, "/data"), key.clone()]).unwrap();
        verify(&root, &[key]).unwrap_err();
    }

    #[test]
    fn a_source_that_is_missing_is_named() {
        let error = verify(Path::new("/"), &[mount(Path::new("/no/such"), "/x")]).unwrap_err();
        assert_eq!(error, "mount /no/such to /x: No such file or directory (os error 2)");
    }
}
