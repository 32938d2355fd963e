//! `fsGroup`: a volume belongs to a group that all containers of the pod are in.
//!
//! Everything gets the group and is open to it; directories pass the group on to what is made in them
//! (setgid). Links are never followed and other mounts never entered.

use std::{
    ffi::CString,
    fs, io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::{MetadataExt, PermissionsExt},
    },
    path::Path,
};

use k8s_openapi::api::core::v1::Pod;
use nix::{
    dir::Dir,
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
    let top = openat2(AT_FDCWD, path, how)?;
    each(&top, group, read_only)
}

/// Gives `path` alone to the group.
pub fn give_one(path: &Path, group: &Group, read_only: bool) -> io::Result<()> {
    let how = OpenHow::new().flags(OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC);
    change(&openat2(AT_FDCWD, path, how)?, group, read_only).map(drop)
}

fn each(opened: &OwnedFd, group: &Group, read_only: bool) -> io::Result<()> {
    if !change(opened, group, read_only)? {
        return Ok(());
    }
    let how = OpenHow::new().flags(OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC);
    let mut entries = Dir::from_fd(openat2(opened, ".", how)?)?;
    let names: Vec<CString> =
        entries.iter().map(|entry| entry.map(|e| e.file_name().to_owned())).collect::<Result<_, _>>()?;
    drop(entries);
    for name in names {
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let how = OpenHow::new()
            .flags(OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC)
            .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_XDEV);
        match openat2(opened, name.as_c_str(), how) {
            Ok(inner) => each(&inner, group, read_only)?,
            Err(Errno::ENOENT | Errno::EXDEV) => {} // gone, or not ours
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
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
