//! A Cinder volume as a disk of this machine: finds its device, makes its filesystem if it has none, checks, mounts and grows it.
//!
//! As upstream's kubelet and driver do it. A device is formatted only if `blkid` finds nothing on it: no filesystem, no partition table, no signature of anything.

use std::{
    fs, io,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
    process::{Command, Output},
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use mainstay_api::{cinder::volume_handle, quantity::Quantity};
use mainstay_files::create_private_dir;
use nix::mount::{MntFlags, umount2};

use super::{ClaimGrowth, growth};
use crate::volumes::{
    owner::{self, Group},
    table,
};

/// How long a device may take to appear after Nova attached it.
const DEVICE_PATIENCE: Duration = Duration::from_secs(10);
const DEVICE_POLL: Duration = Duration::from_millis(100);
const DEFAULT_FILESYSTEM: &str = "ext4";

/// The disk of a volume, and how it is to be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    pub handle: String,
    by_id: PathBuf,
    /// As Nova names it, which need not be right; empty if it does not.
    pub device_hint: String,
    mount_point: PathBuf,
    filesystem: String,
    options: Vec<String>,
    read_only: bool,
    /// Containers get the device itself.
    pub is_block: bool,
    /// In bytes, as the PersistentVolume says.
    capacity: u64,
    pub growth: Option<ClaimGrowth>,
}

/// What `blkid` finds on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceContent {
    Nothing,
    Filesystem(String),
    /// A partition table, or a signature that is no filesystem's.
    Other(String),
}

impl Disk {
    pub fn new(volume: &PersistentVolume, claim: &PersistentVolumeClaim, by_id: PathBuf, mount_point: PathBuf) -> Self {
        let spec = volume.spec.as_ref();
        let source = spec.and_then(|spec| spec.csi.as_ref());
        let filesystem = source.and_then(|source| source.fs_type.clone()).filter(|name| !name.is_empty());
        let capacity = spec.and_then(|spec| spec.capacity.as_ref()?.get("storage"));
        let capacity = capacity.and_then(|text| Quantity::parse(&text.0).ok()).map(|quantity| quantity.value());
        let read_only = source.is_some_and(|source| source.read_only == Some(true));
        Self {
            handle: volume_handle(volume).unwrap_or_default().to_owned(),
            by_id,
            device_hint: String::new(),
            mount_point,
            filesystem: filesystem.unwrap_or_else(|| DEFAULT_FILESYSTEM.to_owned()),
            options: spec.and_then(|spec| spec.mount_options.clone()).unwrap_or_default(),
            read_only,
            is_block: spec.is_some_and(|spec| spec.volume_mode.as_deref() == Some("Block")),
            capacity: capacity.and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or_default(),
            growth: growth(volume, claim).filter(|_| !read_only),
        }
    }

    /// Differs while the disk is to grow, by the size that it is to have.
    pub fn fingerprint(&self) -> u64 {
        if self.growth.is_some() { self.capacity.max(2) } else { 1 }
    }

    /// Makes the disk usable, and returns where containers find it: its mount point, or its device. Harmless when repeated.
    pub fn set_up(&self, group: Option<&Group>) -> Result<PathBuf, String> {
        let text = |error: io::Error| error.to_string();
        let device = self.find_device()?;
        if self.is_block {
            self.check_growth(&device)?;
            return Ok(device);
        }
        create_private_dir(self.mount_point.parent().unwrap_or(&self.mount_point)).map_err(text)?;
        match fs::create_dir(&self.mount_point) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(text(error)),
            Ok(()) | Err(_) => {}
        }
        let mut is_mounted = table::is_mounted(&self.mount_point).map_err(text)?;
        if is_mounted && !is_mounted_from(&self.mount_point, &device) {
            // Of an attachment that was ended by force: nothing can be written there any more.
            umount2(&self.mount_point, MntFlags::UMOUNT_NOFOLLOW).map_err(|errno| {
                format!("an earlier attachment is still mounted at {}: {errno}", self.mount_point.display())
            })?;
            is_mounted = false;
        }
        if !is_mounted {
            self.format_and_mount(&device)?;
            if let (Some(group), false) = (group, self.read_only) {
                owner::set_group(&self.mount_point, group, false).map_err(text)?;
            }
        }
        if self.growth.is_some() {
            self.check_growth(&device)?;
            grow(&self.filesystem, &device, &self.mount_point)?;
        }
        Ok(self.mount_point.clone())
    }

    /// The device, once it is there.
    fn find_device(&self) -> Result<PathBuf, String> {
        let deadline = Instant::now() + DEVICE_PATIENCE;
        loop {
            if let Some(device) = self.present_device()? {
                return Ok(device);
            }
            if Instant::now() >= deadline {
                let names = device_names(&self.handle).join(", ");
                return Err(format!(
                    "the device of volume {} has not appeared: {} has none of {names}",
                    self.handle,
                    self.by_id.display()
                ));
            }
            std::thread::sleep(DEVICE_POLL);
        }
    }

    fn present_device(&self) -> Result<Option<PathBuf>, String> {
        let by_id = device_names(&self.handle).into_iter().map(|name| self.by_id.join(name));
        if let Some(device) = by_id.filter_map(|path| path.canonicalize().ok()).find(|path| is_block_device(path)) {
            return Ok(Some(device));
        }
        let hint = Path::new(&self.device_hint);
        if self.device_hint.is_empty() || !is_block_device(hint) {
            return Ok(None);
        }
        // The name is Nova's guess. A disk of another size is another disk.
        let size = device_size(hint)?;
        if size != self.capacity && self.growth.is_none() {
            return Err(format!(
                "{} has {size} bytes where volume {} has {}: it is another disk, and {} has no name for the volume",
                hint.display(),
                self.handle,
                self.capacity,
                self.by_id.display()
            ));
        }
        Ok(Some(hint.to_owned()))
    }

    fn format_and_mount(&self, device: &Path) -> Result<(), String> {
        match probe(device)? {
            DeviceContent::Nothing if self.read_only => {
                return Err(format!(
                    "cannot mount unformatted disk {} as we are manipulating it in read-only mode",
                    device.display()
                ));
            }
            DeviceContent::Nothing => {
                tracing::info!(volume = self.handle, device = %device.display(), filesystem = self.filesystem, "format disk");
                make_filesystem(&self.filesystem, device)?;
            }
            DeviceContent::Filesystem(found) if found == self.filesystem => {
                if !self.read_only {
                    check_filesystem(device)?;
                }
                if self.growth.is_some() && found != "xfs" {
                    // Without a mount it takes no privilege; xfs grows only with one.
                    self.check_growth(device)?;
                    grow_unmounted(device)?;
                }
            }
            DeviceContent::Filesystem(found) | DeviceContent::Other(found) => {
                return Err(format!("failed to mount the volume as {}; already contains {found}", self.filesystem));
            }
        }
        let mut options = vec!["nosuid", "nodev", if self.read_only { "ro" } else { "rw" }];
        options.extend(self.options.iter().map(String::as_str));
        let mut command = Command::new("mount");
        command.args(["-t", &self.filesystem, "-o", &options.join(",")]).arg(device).arg(&self.mount_point);
        succeed(command).map(drop)
    }

    /// Cinder has grown the volume; the machine learns of it later.
    fn check_growth(&self, device: &Path) -> Result<(), String> {
        let size = device_size(device)?;
        if self.growth.is_some() && size < self.capacity {
            return Err(format!(
                "{} has {size} bytes where volume {} has {} now: the machine has not been told yet",
                device.display(),
                self.handle,
                self.capacity
            ));
        }
        Ok(())
    }
}

/// Names below `/dev/disk/by-id` that hypervisors give to the disk of a volume.
fn device_names(handle: &str) -> Vec<String> {
    let short: String = handle.chars().take(20).collect();
    vec![
        format!("virtio-{short}"),
        format!("scsi-0QEMU_QEMU_HARDDISK_{short}"),
        format!("scsi-0QEMU_QEMU_HARDDISK_{handle}"),
        format!("wwn-0x{}", handle.replace('-', "")),
    ]
}

fn is_block_device(path: &Path) -> bool {
    path.metadata().is_ok_and(|meta| meta.file_type().is_block_device())
}

fn is_mounted_from(mount_point: &Path, device: &Path) -> bool {
    mount_point.metadata().ok().zip(device.metadata().ok()).is_some_and(|(on, device)| on.dev() == device.rdev())
}

/// In bytes.
fn device_size(device: &Path) -> Result<u64, String> {
    use std::io::{Seek, SeekFrom};
    let size = fs::File::open(device).and_then(|mut file| file.seek(SeekFrom::End(0)));
    size.map_err(|error| format!("{}: {error}", device.display()))
}

/// What is on the device, as upstream asks for it.
pub fn probe(device: &Path) -> Result<DeviceContent, String> {
    let mut command = Command::new("blkid");
    command.args(["-p", "-s", "TYPE", "-s", "PTTYPE", "-o", "export"]).arg(device);
    let done =
        command.output().map_err(|error| format!("cannot run blkid, without which no disk is touched: {error}"))?;
    content_of(done.status.code(), &String::from_utf8_lossy(&done.stdout))
        .ok_or_else(|| format!("blkid {}: {}", device.display(), command_output(&done)))
}

/// What `blkid` says; nothing if that is not certain.
fn content_of(code: Option<i32>, output: &str) -> Option<DeviceContent> {
    let value =
        |key: &str| output.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('=')).map(str::to_owned);
    match code {
        // Nothing was found; only then.
        Some(2) => Some(DeviceContent::Nothing),
        Some(0) => match (value("TYPE"), value("PTTYPE")) {
            (_, Some(table)) => Some(DeviceContent::Other(format!("unknown data, probably partitions ({table})"))),
            (Some(filesystem), None) => Some(DeviceContent::Filesystem(filesystem)),
            // A signature without a type.
            (None, None) => Some(DeviceContent::Other("unknown data".to_owned())),
        },
        Some(_) | None => None,
    }
}

fn make_filesystem(filesystem: &str, device: &Path) -> Result<(), String> {
    let mut command = Command::new(format!("mkfs.{filesystem}"));
    match filesystem {
        "ext3" | "ext4" => command.args(["-F", "-m0"]),
        "xfs" => command.arg("-f"),
        _ => return Err(format!("filesystem {filesystem:?} is not supported; supported are ext3, ext4 and xfs")),
    };
    command.arg(device);
    succeed(command).map(drop)
}

/// Repairs what can be repaired safely; what cannot is an error.
fn check_filesystem(device: &Path) -> Result<(), String> {
    let done = match Command::new("fsck").arg("-a").arg(device).output() {
        Ok(done) => done,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            tracing::warn!(device = %device.display(), "fsck is not installed; the disk is mounted without a check");
            return Ok(());
        }
        Err(error) => return Err(format!("fsck: {error}")),
    };
    match done.status.code() {
        Some(0) => Ok(()),
        Some(1) => {
            tracing::info!(device = %device.display(), "fsck corrected errors");
            Ok(())
        }
        Some(4) => Err(format!(
            "fsck found errors on device {} but could not correct them: {}",
            device.display(),
            command_output(&done)
        )),
        // As upstream: mounting says whether it is usable.
        Some(_) | None => {
            tracing::warn!(device = %device.display(), output = command_output(&done), "fsck failed");
            Ok(())
        }
    }
}

/// Grows an ext filesystem that is not mounted, which has to be checked as a whole before.
fn grow_unmounted(device: &Path) -> Result<(), String> {
    let checked = Command::new("e2fsck").args(["-f", "-p"]).arg(device).output();
    let checked = checked.map_err(|error| format!("cannot run e2fsck: {error}"))?;
    if !matches!(checked.status.code(), Some(0 | 1)) {
        return Err(format!("e2fsck failed: {}", command_output(&checked)));
    }
    let mut command = Command::new("resize2fs");
    command.arg(device);
    succeed(command).map(drop)
}

/// Grows a mounted filesystem to the size of its device; one that has it already stays.
fn grow(filesystem: &str, device: &Path, mount_point: &Path) -> Result<(), String> {
    let mut command = match filesystem {
        "xfs" => Command::new("xfs_growfs"),
        _ => Command::new("resize2fs"),
    };
    command.arg(if filesystem == "xfs" { mount_point } else { device });
    succeed(command).map(drop)
}

fn succeed(mut command: Command) -> Result<Output, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let done = command.output().map_err(|error| format!("cannot run {program}: {error}"))?;
    if done.status.success() { Ok(done) } else { Err(format!("{program} failed: {}", command_output(&done))) }
}

/// What a command printed, for people.
fn command_output(done: &Output) -> String {
    let printed = [&done.stdout[..], &done.stderr[..]].concat();
    let text = crate::bounded_command::last_lines(&printed, 1000);
    format!("{} ({})", text.replace('\n', "; "), done.status)
}

#[cfg(test)]
pub(crate) mod tests;
