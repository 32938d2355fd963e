//! `fsGroup`: a volume belongs to a group that all containers of the pod are in.
//!
//! Everything gets the group and is open to it; directories pass the group on to what is made in them
//! (setgid). Links are never followed and other mounts never entered.

use std::{
    fs, io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::{MetadataExt, PermissionsExt},
    },
    path::Path,
};

use k8s_openapi::api::core::v1::Pod;
use mainstay_files::walk_tree;
use nix::{
    errno::Errno,
    fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, openat2},
    sys::stat::{SFlag, fstat},
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    pub id: u32,
    /// `OnRootMismatch`: nothing is changed if the root of the volume is right.
    pub on_mismatch: bool,
}

pub fn wanted_group(pod: &Pod) -> Option<Group> {
    let context = pod.spec.as_ref()?.security_context.as_ref()?;
    let on_mismatch = context.fs_group_change_policy.as_deref() == Some("OnRootMismatch");
    Some(Group { id: u32::try_from(context.fs_group?).ok()?, on_mismatch })
}

/// The mode of something that its group can use.
pub fn with_group(mode: u32, directory: bool, read_only: bool) -> u32 {
    let group = if read_only { 0o440 } else { 0o660 };
    mode | group | if directory { 0o2110 } else { 0 }
}

/// Gives `path` and everything below it to the group.
pub fn set_group(path: &Path, group: &Group, read_only: bool) -> io::Result<()> {
    if group.on_mismatch {
        let meta = fs::metadata(path)?;
        let mode = meta.permissions().mode();
        if meta.gid() == group.id && with_group(mode, true, read_only) == mode {
            return Ok(());
        }
    }
    let how = OpenHow::new().flags(OFlag::O_PATH | OFlag::O_CLOEXEC);
    if !change(&openat2(AT_FDCWD, path, how)?, group, read_only)? {
        return Ok(());
    }
    walk_tree(path, &mut |directory, name| {
        let how = OpenHow::new()
            .flags(OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC)
            .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_XDEV);
        match openat2(directory, name, how) {
            Ok(entry) => change(&entry, group, read_only),
            Err(Errno::ENOENT | Errno::EXDEV) => Ok(false), // gone, or not ours
            Err(errno) => Err(errno.into()),
        }
    })?;
    Ok(())
}

/// Gives `path` alone to the group.
pub fn give_one(path: &Path, group: &Group, read_only: bool) -> io::Result<()> {
    let how = OpenHow::new().flags(OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC);
    change(&openat2(AT_FDCWD, path, how)?, group, read_only).map(drop)
}

/// Changes one thing, and says whether it is a directory.
fn change(opened: &OwnedFd, group: &Group, read_only: bool) -> io::Result<bool> {
    let stat = fstat(opened)?;
    let kind = SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT;
    let itself = format!("/proc/self/fd/{}", opened.as_raw_fd());
    if kind == SFlag::S_IFLNK {
        return Ok(false);
    }
    let directory = kind == SFlag::S_IFDIR;
    if stat.st_gid != group.id {
        std::os::unix::fs::chown(&itself, None, Some(group.id))?;
    }
    let mode = stat.st_mode & 0o7777;
    let wanted = with_group(mode, directory, read_only);
    if mode != wanted || stat.st_gid != group.id {
        fs::set_permissions(&itself, fs::Permissions::from_mode(wanted))?;
    }
    Ok(directory)
}

#[cfg(test)]
mod tests {
    use mainstay_testing::deep_directories;

    use super::*;

    #[test]
    fn directories_of_any_depth_get_the_group_and_what_links_lead_to_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let (volume, other) = (dir.path().join("volume"), dir.path().join("other"));
        fs::create_dir_all(volume.join("a/b")).unwrap();
        fs::write(&other, "").unwrap();
        std::os::unix::fs::symlink(&other, volume.join("a/link")).unwrap();
        deep_directories(&volume, 1000);
        set_group(&volume, &Group { id: 4242, on_mismatch: false }, false).unwrap();
        for path in ["", "a", "a/b", "d/d/d"] {
            let found = fs::metadata(volume.join(path)).unwrap();
            assert_eq!((found.gid(), found.mode() & 0o2070), (4242, 0o2070), "{path}");
        }
        assert_eq!(fs::metadata(&other).unwrap().gid(), 0);
        mainstay_files::remove_tree(&volume).unwrap();
    }
}
