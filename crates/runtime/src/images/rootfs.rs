//! Root filesystems of containers: an image's layers below, a directory of the container's own above.
//!
//! The image `host` has the machine's `/` below. Other filesystems mounted there (`/proc`, `/run`, often `/home` and
//! `/tmp`) are no part of it: their mount points are empty directories. So are `/run` and `/tmp` in any case, whose content
//! belongs to what runs on the machine, and the data directories of all Mainstay instances, which hold keys and Secrets. Nor is there what other
//! users of the machine may not read ([`super::closed_files`]). Which those are is found when a container is made: one that already runs sees
//! what is put elsewhere later.
//!
//! Layers are named to the kernel by open file descriptors (`/proc/self/fd/7`), because the names of a hundred layers would not
//! fit into the page that mount options may take, and because no character in them needs escaping then.
//!
//! In a pod with a user namespace the layers below are idmapped, and the container's own has the pod's ids on disk: an overlay as a
//! whole cannot be idmapped. A layer that cannot be is an error, not a root filesystem that belongs to nobody.

use std::{
    fs::{self, File},
    io,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd},
        unix::fs::{MetadataExt, PermissionsExt, chown},
    },
    path::{Path, PathBuf},
};

use mainstay_files::{
    Durability, PRIVATE_FILE, create_private_dir, disk_usage, mountinfo, remove_file_if_exists, remove_tree,
    write_atomic,
};
use rustix::{
    fs::{CWD, FileType, Mode, mknodat},
    io::Errno,
    mount::{MountFlags, MoveMountFlags, UnmountFlags, move_mount},
};

use super::{HOST_IMAGE, extract, files::Files};
use crate::{
    error::RuntimeError,
    idmap::{self, UserNamespace},
    port::Result,
};

/// Where layers are attached while they are idmapped.
const LOWER: &str = "lower";
/// Directories in which is tried whether overlayfs works.
const PROBE_PREFIX: &str = ".overlay-";
/// What the kernel takes as mount options.
const MAX_OPTIONS: usize = 4095;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rootfs {
    pub path: PathBuf,
}

/// The user namespace of a pod, for whose ids a root filesystem is made.
pub struct Owners<'a> {
    pub namespace: BorrowedFd<'a>,
    pub ids: UserNamespace,
}

/// Mounts it. `layers` are chain ids, lowest first, of `image_id`; `hidden` is not seen in the image `host`.
pub fn prepare(
    files: &Files,
    image_id: &str,
    layers: &[String],
    container_id: &str,
    hidden: &[PathBuf],
    owners: Option<&Owners<'_>>,
) -> Result<Rootfs> {
    let dir = directory(files, container_id)?;
    let failed = |e: io::Error| RuntimeError::failed(format!("prepare the root filesystem of {container_id}"), e);
    let merged = dir.join("merged");
    if dir.exists() {
        if mountinfo::at_or_below(&merged).map_err(failed)?.contains(&merged) {
            return Ok(Rootfs { path: merged });
        }
        release(files, container_id)?; // half made, or from before the machine was restarted
    }
    for private in [&dir, &dir.join(LOWER)] {
        create_private_dir(private).map_err(failed)?;
    }
    for part in ["upper", "work", "merged"] {
        fs::create_dir_all(dir.join(part)).map_err(failed)?;
    }
    write_atomic(&dir.join("image"), image_id.as_bytes(), PRIVATE_FILE, Durability::Volatile).map_err(failed)?;
    let lower = lower(files, image_id, layers)?;
    let first_id = owners.map_or(0, |owners| owners.ids.host_id);
    copy_ownership(&dir.join("upper"), &lower[0], first_id).map_err(failed)?;
    if image_id == HOST_IMAGE {
        let within = |path: &PathBuf| hidden.iter().any(|other| other != path && path.starts_with(other));
        for path in hidden.iter().filter(|path| !within(path)) {
            hide(&dir.join("upper"), path, first_id).map_err(failed)?;
        }
    }
    let mounted = match owners {
        None => mount(&dir, &lower),
        Some(owners) => mount_idmapped(&dir, &lower, owners),
    };
    match mounted {
        Ok(()) => Ok(Rootfs { path: merged }),
        Err(error) => {
            let _ = release(files, container_id);
            Err(error)
        }
    }
}

/// Layers are attached to be named to the overlay, which keeps copies of its own: kernels before 6.15 take no detached ones.
fn mount_idmapped(dir: &Path, lower: &[PathBuf], owners: &Owners<'_>) -> Result<()> {
    let failed = |e: io::Error| RuntimeError::failed(format!("mount {}", dir.join("merged").display()), e);
    let mut attached = Vec::new();
    let mut attach = |number: usize, layer: &PathBuf| -> io::Result<PathBuf> {
        let point = dir.join(LOWER).join(number.to_string());
        create_private_dir(&point)?;
        let tree = idmap::clone_layer(layer, owners.namespace)?;
        move_mount(tree.as_fd(), "", CWD, &point, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
        attached.push(point.clone());
        Ok(point)
    };
    let layers: io::Result<Vec<PathBuf>> = lower.iter().enumerate().map(|(n, layer)| attach(n, layer)).collect();
    let mounted = layers.map_err(failed).and_then(|layers| mount(dir, &layers));
    for point in attached {
        rustix::mount::unmount(&point, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW).map_err(|e| failed(e.into()))?;
    }
    mounted
}

/// Unmounts and deletes it; nothing if there is none. Whatever is still mounted in it afterwards keeps it from
/// being deleted.
pub fn release(files: &Files, container_id: &str) -> Result<()> {
    let dir = directory(files, container_id)?;
    let doing = || format!("remove the root filesystem of {container_id}");
    let failed = |e: io::Error| RuntimeError::failed(doing(), e);
    if !dir.exists() {
        return Ok(());
    }
    for layer in mountinfo::at_or_below(&dir.join(LOWER)).map_err(failed)? {
        // Left by an agent that ended while it mounted.
        rustix::mount::unmount(&layer, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW).map_err(|e| failed(e.into()))?;
    }
    for _ in 0..=mountinfo::at_or_below(&dir).map_err(failed)?.len() {
        match rustix::mount::unmount(dir.join("merged"), UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
            Ok(()) => {}
            Err(Errno::INVAL | Errno::NOENT) => break, // not, or no longer, mounted
            Err(e) => return Err(failed(e.into())),
        }
    }
    if let Some(mounted) = mountinfo::at_or_below(&dir).map_err(failed)?.pop() {
        return Err(RuntimeError::failed(doing(), format!("{} is still mounted", mounted.display())));
    }
    for part in ["upper", "work", LOWER] {
        remove_tree(&dir.join(part)).map_err(|error| failed(error.into()))?;
    }
    ignore_not_found(fs::remove_dir(dir.join("merged"))).map_err(failed)?; // fails rather than delete what it should not hold
    remove_file_if_exists(&dir.join("image")).map_err(failed)?;
    ignore_not_found(fs::remove_dir(&dir)).map_err(failed)
}

/// Why root filesystems cannot be made below `directory`; nothing if they can. Tries it: that the kernel knows overlayfs does not
/// mean that this directory's filesystem can carry one.
pub fn what_overlay_lacks(directory: &Path) -> Option<String> {
    let attempt = || -> std::result::Result<(), String> {
        let failed = |error: io::Error| format!("{}: {error}", directory.display());
        create_private_dir(directory).map_err(failed)?;
        remove_leftover_probes(directory).map_err(failed)?;
        let prefix = format!("{PROBE_PREFIX}{}-", std::process::id());
        let scratch = tempfile::Builder::new().prefix(&prefix).tempdir_in(directory).map_err(failed)?;
        for part in ["lower", "upper", "work", "merged"] {
            fs::create_dir(scratch.path().join(part)).map_err(failed)?;
        }
        mount(scratch.path(), &[scratch.path().join("lower")]).map_err(|error| error.to_string())?;
        rustix::mount::unmount(scratch.path().join("merged"), UnmountFlags::DETACH)
            .map_err(|error| failed(error.into()))
    };
    // A full disk says nothing of what the machine can do.
    let is_full = || rustix::fs::statvfs(directory).is_ok_and(|found| found.f_bavail == 0 || found.f_favail == 0);
    attempt().err().filter(|_| !is_full())
}

/// Unmounts and deletes what processes left that were killed while they probed. A probe is named after its process: one that
/// is still alive may be probing.
fn remove_leftover_probes(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        let Some(probe) = name.to_str().and_then(|name| name.strip_prefix(PROBE_PREFIX)) else { continue };
        let pid = probe.split_once('-').and_then(|(pid, _)| pid.parse::<u32>().ok());
        if pid.is_some_and(|pid| pid != std::process::id() && Path::new("/proc").join(pid.to_string()).exists()) {
            continue;
        }
        for mounted in mountinfo::at_or_below(&entry.path())? {
            rustix::mount::unmount(&mounted, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)?;
        }
        remove_tree(&entry.path())?;
    }
    Ok(())
}

/// What the container itself wrote.
pub fn upper_bytes(files: &Files, container_id: &str) -> Result<u64> {
    let upper = directory(files, container_id)?.join("upper");
    match disk_usage(&upper) {
        Ok(usage) => Ok(usage.bytes),
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            Err(RuntimeError::NotFound { what: "root filesystem", id: container_id.to_owned() })
        }
        Err(e) => Err(RuntimeError::failed(format!("measure {}", upper.display()), e)),
    }
}

/// All that were prepared and not released: container and image.
pub fn list_prepared(files: &Files) -> io::Result<Vec<(String, String)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(files.rootfs())? {
        let entry = entry?;
        let image = match fs::read_to_string(entry.path().join("image")) {
            Ok(image) => image,
            Err(e) if e.kind() == io::ErrorKind::NotFound => String::new(),
            Err(e) => return Err(e),
        };
        found.push((entry.file_name().to_string_lossy().into_owned(), image));
    }
    Ok(found)
}

fn directory(files: &Files, container_id: &str) -> Result<PathBuf> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if container_id.is_empty() || container_id.starts_with('.') || !container_id.chars().all(plain) {
        return Err(RuntimeError::Invalid { why: format!("{container_id:?} cannot be a container's id") });
    }
    Ok(files.rootfs().join(container_id))
}

/// Directories to look through, topmost first.
fn lower(files: &Files, image_id: &str, layers: &[String]) -> Result<Vec<PathBuf>> {
    if image_id == HOST_IMAGE {
        return Ok(vec!["/".into()]);
    }
    if layers.is_empty() {
        return Ok(vec![files.empty()]);
    }
    let missing = || RuntimeError::ImageMissing { image: image_id.to_owned() };
    layers.iter().rev().map(|id| Ok(files.layer(id).ok_or_else(missing)?.join("fs"))).collect()
}

fn mount(dir: &Path, lower: &[PathBuf]) -> Result<()> {
    let refused = |e: io::Error| RuntimeError::failed(format!("mount {}", dir.join("merged").display()), e);
    let open = |path: &PathBuf| File::open(path).map_err(refused);
    let lower: Vec<File> = lower.iter().map(open).collect::<Result<_>>()?;
    let (upper, work) = (open(&dir.join("upper"))?, open(&dir.join("work"))?);
    let by_descriptor = |file: &File| format!("/proc/self/fd/{}", file.as_raw_fd());
    let below: Vec<String> = lower.iter().map(by_descriptor).collect();
    let options =
        format!("lowerdir={},upperdir={},workdir={}", below.join(":"), by_descriptor(&upper), by_descriptor(&work));
    if options.len() > MAX_OPTIONS - ",volatile".len() {
        return Err(RuntimeError::Invalid { why: format!("the image has {} layers: too many", lower.len()) });
    }
    let mount = |options: &str| {
        let options = std::ffi::CString::new(options).map_err(|_| Errno::INVAL)?;
        rustix::mount::mount("overlay", dir.join("merged"), "overlay", MountFlags::empty(), options.as_c_str())
    };
    // A container's own layer need not survive a loss of power: a restart is always a fresh container. Without this, ending one
    // would wait until all of the disk is written. Kernels before 5.10 do not know it.
    match mount(&format!("{options},volatile")).or_else(|_| mount(&options)) {
        Ok(()) => Ok(()),
        Err(e) => {
            Err(RuntimeError::failed(format!("mount {}", dir.join("merged").display()), explain_mount_error(e, dir)))
        }
    }
}

/// The kernel's answer in words.
fn explain_mount_error(error: Errno, dir: &Path) -> String {
    const OVERLAY_MAGIC: u64 = 0x794c_7630;
    let on_overlay = rustix::fs::statfs(dir).is_ok_and(|found| u64::try_from(found.f_type) == Ok(OVERLAY_MAGIC));
    match error {
        Errno::PERM | Errno::ACCESS => "mounting needs the capability CAP_SYS_ADMIN".to_owned(),
        Errno::NODEV => "this kernel has no overlayfs".to_owned(),
        Errno::INVAL if on_overlay => {
            format!("{} lies on an overlay, which cannot hold another: put the data directory elsewhere", dir.display())
        }
        other => io::Error::from(other).to_string(),
    }
}

/// Gives a directory the owner and mode of another; `first_id` is what 0 stands for.
fn copy_ownership(directory: &Path, model: &Path, first_id: u32) -> io::Result<()> {
    let model = fs::symlink_metadata(model)?;
    let owned = |id: u32| if first_id == 0 { id } else { first_id + id % idmap::IDS_PER_POD };
    chown(directory, Some(owned(model.uid())), Some(owned(model.gid())))?;
    fs::set_permissions(directory, fs::Permissions::from_mode(model.mode() & 0o7777))
}

/// Hides what lies at `path` of the machine: a directory is empty instead, and a file is not there.
fn hide(upper: &Path, path: &Path, first_id: u32) -> io::Result<()> {
    let mut real = PathBuf::from("/");
    let mut shown = upper.to_owned();
    for component in path.components().skip(1) {
        real.push(component);
        shown.push(component);
        if !real.is_dir() {
            return if real == path && real.exists() { whiteout(&shown) } else { Ok(()) };
        }
        if let Err(e) = fs::create_dir(&shown)
            && e.kind() != io::ErrorKind::AlreadyExists
        {
            return Err(e);
        }
        copy_ownership(&shown, &real, first_id)?;
    }
    extract::opaque(File::open(&shown)?, &shown).map_err(io::Error::other)
}

/// What overlayfs takes for a file that was removed.
fn whiteout(path: &Path) -> io::Result<()> {
    Ok(mknodat(CWD, path, FileType::CharacterDevice, Mode::empty(), 0)?)
}

fn ignore_not_found(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_of_killed_processes_are_unmounted_and_removed_and_those_of_living_ones_stay() {
        let directory = tempfile::tempdir().unwrap();
        let make = |name: &str| {
            let path = directory.path().join(name);
            fs::create_dir_all(path.join("merged")).unwrap();
            path
        };
        // No process has a number above the kernel's largest, 2^22.
        let killed = make(&format!("{PROBE_PREFIX}4194305-abc"));
        let unnamed = make(&format!("{PROBE_PREFIX}Xy12ab"));
        let alive = make(&format!("{PROBE_PREFIX}1-abc"));
        let other = make("layers");
        if rustix::process::geteuid().is_root() {
            let point = killed.join("merged");
            rustix::mount::mount("none", &point, "tmpfs", MountFlags::empty(), c"").unwrap();
            fs::write(point.join("file"), "").unwrap();
        }
        remove_leftover_probes(directory.path()).unwrap();
        assert!(!killed.exists() && !unnamed.exists(), "leftovers are removed");
        assert!(alive.exists() && other.exists(), "nothing else is");
        assert_eq!(mountinfo::at_or_below(directory.path()).unwrap(), Vec::<PathBuf>::new());
    }
}
