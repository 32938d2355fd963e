//! With real disks: files behind loop devices.

use std::os::unix::fs::{PermissionsExt, symlink};

use serde_json::json;

use super::*;

pub(crate) const HANDLE: &str = "1f5f4c1a-8a0f-4f43-a1d1-6c8f3f3b1c11";

/// A file as a disk, with the name that a hypervisor gives it.
pub(crate) struct LoopDisk {
    directory: tempfile::TempDir,
    device: PathBuf,
}

impl LoopDisk {
    pub(crate) fn attach(bytes: u64) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("disk");
        fs::File::create(&file).unwrap().set_len(bytes).unwrap();
        let mut command = Command::new("losetup");
        command.args(["--find", "--show"]).arg(&file);
        let device = String::from_utf8(succeed(command).unwrap().stdout).unwrap();
        let device = PathBuf::from(device.trim());
        let by_id = directory.path().join("by-id");
        fs::create_dir(&by_id).unwrap();
        symlink(&device, by_id.join("virtio-1f5f4c1a-8a0f-4f43-a")).unwrap();
        Self { directory, device }
    }

    pub(crate) fn grow(&self, bytes: u64) {
        let file = fs::File::options().write(true).open(self.directory.path().join("disk")).unwrap();
        file.set_len(bytes).unwrap();
        let mut command = Command::new("losetup");
        command.arg("--set-capacity").arg(&self.device);
        succeed(command).unwrap();
    }

    fn disk(&self, spec: serde_json::Value, claimed: &str) -> Disk {
        let mut volume = json!({"metadata": {"name": "pv"}, "spec": {"capacity": {"storage": "64Mi"},
            "csi": {"driver": "cinder.csi.openstack.org", "volumeHandle": HANDLE}}});
        for (key, value) in spec.as_object().unwrap() {
            volume["spec"][key] = value.clone();
        }
        let claim =
            json!({"metadata": {"namespace": "ns", "name": "data"}, "status": {"capacity": {"storage": claimed}}});
        let (volume, claim) = (serde_json::from_value(volume).unwrap(), serde_json::from_value(claim).unwrap());
        Disk::new(&volume, &claim, self.directory.path().join("by-id"), self.mount_point())
    }

    pub(crate) fn by_id(&self) -> PathBuf {
        self.directory.path().join("by-id")
    }

    fn mount_point(&self) -> PathBuf {
        self.directory.path().join("attached").join("mount")
    }
}

impl Drop for LoopDisk {
    fn drop(&mut self) {
        let _ = umount2(&self.mount_point(), MntFlags::MNT_DETACH);
        let _ = Command::new("losetup").arg("--detach").arg(&self.device).output();
    }
}

fn mount_options(mount_point: &Path) -> String {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let line = mounts.lines().find(|line| line.contains(mount_point.to_str().unwrap())).expect("it is mounted");
    line.split(' ').nth(3).unwrap().to_owned()
}

#[test]
fn an_empty_disk_is_formatted_once_and_keeps_its_files() {
    let disk = LoopDisk::attach(64 << 20);
    let plan = disk.disk(json!({}), "64Mi");
    assert_eq!(probe(&disk.device), Ok(DeviceContent::Nothing));
    let group = Group { id: 4321, on_mismatch: false };
    assert_eq!(plan.set_up(Some(&group)).unwrap(), disk.mount_point());
    assert_eq!(probe(&disk.device), Ok(DeviceContent::Filesystem("ext4".into())));
    let options = mount_options(&disk.mount_point());
    assert!(options.contains("nosuid") && options.contains("nodev"), "{options}");
    let root = disk.mount_point().metadata().unwrap();
    assert_eq!((root.gid(), root.permissions().mode() & 0o2070), (4321, 0o2070));
    fs::write(disk.mount_point().join("file"), "kept").unwrap();
    plan.set_up(Some(&group)).unwrap();
    umount2(&disk.mount_point(), MntFlags::empty()).unwrap();
    plan.set_up(None).unwrap();
    assert_eq!(fs::read_to_string(disk.mount_point().join("file")).unwrap(), "kept");
}

#[test]
fn a_disk_with_a_signature_is_never_formatted() {
    let disk = LoopDisk::attach(64 << 20);
    let mut command = Command::new("mkswap");
    command.arg(&disk.device);
    succeed(command).unwrap();
    let why = disk.disk(json!({}), "64Mi").set_up(None).unwrap_err();
    assert_eq!(why, "failed to mount the volume as ext4; already contains swap");
    assert_eq!(probe(&disk.device), Ok(DeviceContent::Filesystem("swap".into())));
}

#[test]
fn a_read_only_disk_is_neither_formatted_nor_written() {
    let disk = LoopDisk::attach(64 << 20);
    let csi = json!({"driver": "cinder.csi.openstack.org", "volumeHandle": HANDLE, "readOnly": true});
    let plan = disk.disk(json!({"csi": csi}), "64Mi");
    assert!(plan.set_up(None).unwrap_err().contains("read-only mode"));
    assert_eq!(probe(&disk.device), Ok(DeviceContent::Nothing));
    make_filesystem("ext4", &disk.device).unwrap();
    plan.set_up(None).unwrap();
    fs::write(disk.mount_point().join("file"), "x").unwrap_err();
}

/// Whether this process may grow a filesystem that is mounted: the kernel asks for CAP_SYS_RESOURCE.
pub(crate) fn can_grow_mounted() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap().trim();
    u64::from_str_radix(effective, 16).unwrap() & (1 << 24) != 0
}

#[test]
fn a_filesystem_grows_when_its_device_has() {
    let disk = LoopDisk::attach(64 << 20);
    disk.disk(json!({}), "64Mi").set_up(None).unwrap();
    let size =
        || nix::sys::statvfs::statvfs(&disk.mount_point()).map(|stat| stat.blocks() * stat.fragment_size()).unwrap();
    let before = size();
    fs::write(disk.mount_point().join("file"), "kept").unwrap();
    let grown = disk.disk(json!({"capacity": {"storage": "128Mi"}}), "64Mi");
    let why = grown.set_up(None).unwrap_err();
    assert!(why.contains("has not been told yet"), "{why}");
    disk.grow(128 << 20);
    if !can_grow_mounted() {
        let why = grown.set_up(None).unwrap_err();
        assert!(why.contains("resize2fs failed") && why.contains("Permission denied"), "{why}");
        umount2(&disk.mount_point(), MntFlags::empty()).unwrap();
    }
    grown.set_up(None).unwrap();
    assert!(size() > before + (32 << 20), "{before} {}", size());
    assert_eq!(fs::read_to_string(disk.mount_point().join("file")).unwrap(), "kept");
}

#[test]
fn a_block_volume_is_its_device() {
    let disk = LoopDisk::attach(64 << 20);
    assert_eq!(disk.disk(json!({"volumeMode": "Block"}), "64Mi").set_up(None).unwrap(), disk.device);
    assert_eq!(probe(&disk.device), Ok(DeviceContent::Nothing), "nobody formats it");
}

#[test]
fn the_name_that_nova_guesses_counts_only_for_a_disk_of_the_same_size() {
    let disk = LoopDisk::attach(64 << 20);
    fs::remove_dir_all(disk.directory.path().join("by-id")).unwrap();
    let hinted = |capacity: &str| {
        let device_hint = disk.device.display().to_string();
        Disk { device_hint, ..disk.disk(json!({"capacity": {"storage": capacity}}), capacity) }
    };
    assert_eq!(hinted("64Mi").present_device(), Ok(Some(disk.device.clone())));
    assert!(hinted("32Mi").present_device().unwrap_err().contains("it is another disk"));
}

#[test]
fn only_a_device_on_which_blkid_finds_nothing_is_empty() {
    assert_eq!(content_of(Some(2), ""), Some(DeviceContent::Nothing));
    assert_eq!(content_of(Some(0), "DEVNAME=/dev/vdb\nTYPE=xfs\n"), Some(DeviceContent::Filesystem("xfs".into())));
    assert!(matches!(content_of(Some(0), "PTTYPE=gpt\n"), Some(DeviceContent::Other(_))));
    assert!(matches!(content_of(Some(0), ""), Some(DeviceContent::Other(_))));
    assert_eq!(content_of(Some(8), ""), None, "ambivalent");
    assert_eq!(content_of(None, ""), None);
}
