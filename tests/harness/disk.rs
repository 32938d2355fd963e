//! A small file system for a test to fill.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::Command,
};

use nix::sys::statvfs::statvfs;

/// A tmpfs mounted on a directory that is there already; unmounted when dropped.
pub struct SmallDisk(PathBuf);

impl SmallDisk {
    #[track_caller]
    pub fn mount(on: &Path, size: &str) -> Self {
        let size = format!("size={size}");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(on).status();
        assert!(mounted.is_ok_and(|s| s.success()), "this test mounts a small file system and must run as root");
        Self(on.to_owned())
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Bytes that are free.
    #[track_caller]
    pub fn available(&self) -> u64 {
        let found = statvfs(&self.0).expect("the file system is mounted");
        found.blocks_available() * found.fragment_size()
    }

    /// Takes all the room that is left.
    pub fn fill(&self) {
        let mut file = fs::File::options().append(true).create(true).open(self.filler()).expect("a file");
        for size in [1 << 20, 4096, 1] {
            while file.write_all(&vec![0; size]).is_ok() {}
        }
    }

    fn filler(&self) -> PathBuf {
        self.0.join("filler")
    }

    pub fn free(&self) {
        fs::remove_file(self.filler()).expect("remove the filler");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}
