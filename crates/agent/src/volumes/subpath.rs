//! subPath mounts: binds a path within a volume, opened so that it cannot lead out of the volume.
//!
//! What lies in a volume is under the control of containers, and may change while we look: a directory may
//! become a link to `/etc` between a check and the mount. So the path is opened beneath the volume, by
//! the kernel's own rule, and what was opened is what gets bound. Links that stay within are followed.

use std::{
    io,
    os::fd::{AsRawFd, OwnedFd},
    path::{Component, Path, PathBuf},
};

use mainstay_files::{create_private, create_private_dir};
use nix::{
    errno::Errno,
    fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, openat2},
    mount::{MntFlags, MsFlags, mount, umount2},
    sys::stat::{Mode, SFlag, fstat, mkdirat, stat},
};

pub struct SubPath {
    pub volume: PathBuf,
    pub within: PathBuf,
    /// Nothing may be made in the volume.
    pub read_only: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum SubPathError {
    #[error("subPath {:?} leads out of the volume", .0.display())]
    Escapes(PathBuf),
    #[error("subPath {:?} does not exist, and the volume is read-only", .0.display())]
    Missing(PathBuf),
    #[error("subPath {:?}", .path.display())]
    Io { path: PathBuf, source: io::Error },
}

/// Makes the part exist (as a directory) if need be, and binds it to `target`.
pub fn bind(place: &SubPath, target: &Path) -> Result<(), SubPathError> {
    let failed = |errno: Errno| match errno {
        Errno::EXDEV | Errno::ELOOP => SubPathError::Escapes(place.within.clone()),
        errno => SubPathError::Io { path: place.within.clone(), source: errno.into() },
    };
    let io = |source: io::Error| SubPathError::Io { path: place.within.clone(), source };
    if !place.within.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir)) {
        return Err(SubPathError::Escapes(place.within.clone()));
    }
    let how = OpenHow::new().flags(OFlag::O_PATH | OFlag::O_CLOEXEC);
    let volume = openat2(AT_FDCWD, &place.volume, how).map_err(failed)?;
    let found = match beneath(&volume, &place.within) {
        Err(Errno::ENOENT) if place.read_only => return Err(SubPathError::Missing(place.within.clone())),
        Err(Errno::ENOENT) => make(&volume, &place.within).map_err(failed)?,
        found => found.map_err(failed)?,
    };
    let source = fstat(&found).map_err(failed)?;
    let is_directory = SFlag::from_bits_truncate(source.st_mode) & SFlag::S_IFMT == SFlag::S_IFDIR;
    match stat(target) {
        Ok(bound) if (bound.st_dev, bound.st_ino) == (source.st_dev, source.st_ino) => return Ok(()),
        Ok(_) => clear(target).map_err(io)?,
        Err(_) => {}
    }
    create_private_dir(target.parent().unwrap_or(target)).map_err(io)?;
    if is_directory {
        std::fs::create_dir(target).map_err(io)?;
    } else {
        create_private(target).map_err(io)?;
    }
    let opened = format!("/proc/self/fd/{}", found.as_raw_fd());
    mount(Some(opened.as_str()), target, None::<&str>, MsFlags::MS_BIND, None::<&str>).map_err(failed)
}

/// Takes away what an earlier container had here. Only an empty directory or an empty file is removed.
fn clear(target: &Path) -> io::Result<()> {
    match umount2(target, MntFlags::UMOUNT_NOFOLLOW | MntFlags::MNT_DETACH) {
        Ok(()) | Err(Errno::EINVAL) => {}
        Err(errno) => return Err(errno.into()),
    }
    if target.is_dir() { std::fs::remove_dir(target) } else { std::fs::remove_file(target) }
}

fn beneath(volume: &OwnedFd, path: &Path) -> nix::Result<OwnedFd> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    openat2(volume, path, how)
}

/// Makes the missing directories, with the permissions of the volume itself.
fn make(volume: &OwnedFd, path: &Path) -> nix::Result<OwnedFd> {
    // With its setgid bit, which fsGroup depends on.
    let mode = Mode::from_bits_truncate(fstat(volume)?.st_mode & 0o2777);
    let mut so_far = PathBuf::new();
    let mut directory = beneath(volume, &so_far)?;
    for part in path.components() {
        let Component::Normal(name) = part else { continue };
        so_far.push(name);
        match mkdirat(&directory, name, mode) {
            Ok(()) => {
                let made = beneath(volume, &so_far)?;
                let opened = format!("/proc/self/fd/{}", made.as_raw_fd());
                // What the process's umask took away.
                let permissions = std::os::unix::fs::PermissionsExt::from_mode(mode.bits());
                std::fs::set_permissions(opened, permissions).map_err(errno)?;
                directory = made;
            }
            Err(Errno::EEXIST) => directory = beneath(volume, &so_far)?,
            Err(errno) => return Err(errno),
        }
    }
    Ok(directory)
}

fn errno(error: io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}
