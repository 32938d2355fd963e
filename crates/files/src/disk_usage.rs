//! Disk usage of a directory: bytes and inodes. Whoever writes there cannot hide from it by the shape of the tree.

use std::{collections::HashSet, fs, io, os::unix::fs::MetadataExt, path::Path};

use nix::{
    errno::Errno,
    fcntl::AtFlags,
    sys::stat::{SFlag, fstatat},
};

use crate::walk::{WalkError, walk_tree};

/// What a tree counts as whose levels cannot be counted: more than anybody is given.
const BEYOND_MEASURE: u64 = 1 << 52;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskUsage {
    pub bytes: u64,
    pub inodes: u64,
}

/// Of everything below `directory` on its own filesystem; files with several names count once. What
/// disappears meanwhile is not counted.
pub fn disk_usage(directory: &Path) -> io::Result<DiskUsage> {
    let start = fs::metadata(directory)?;
    let mut usage = DiskUsage { bytes: start.blocks() * 512, inodes: 1 };
    let mut linked = HashSet::new();
    let walked = walk_tree(directory, &mut |parent, name| {
        let found = match fstatat(parent, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Err(Errno::ENOENT) => return Ok(false),
            found => found?,
        };
        let is_directory = SFlag::from_bits_truncate(found.st_mode) & SFlag::S_IFMT == SFlag::S_IFDIR;
        if found.st_dev != start.dev() || (found.st_nlink > 1 && !is_directory && !linked.insert(found.st_ino)) {
            return Ok(false);
        }
        usage.bytes += found.st_blocks.unsigned_abs() * 512;
        usage.inodes += 1;
        Ok(is_directory)
    });
    match walked {
        Err(WalkError::TooDeep(_)) => usage.bytes = BEYOND_MEASURE,
        walked => walked?,
    }
    Ok(usage)
}

#[cfg(test)]
mod tests {
    use mainstay_testing::deep_directories;

    use super::*;

    #[test]
    fn what_lies_too_deep_for_a_path_is_counted() {
        let dir = tempfile::tempdir().unwrap();
        let before = disk_usage(dir.path()).unwrap();
        deep_directories(dir.path(), 3000);
        let usage = disk_usage(dir.path()).unwrap();
        assert_eq!(usage.inodes, before.inodes + 3001);
        assert!(usage.bytes >= before.bytes + (64 << 10), "{usage:?}");
        crate::remove_tree(&dir.path().join("d")).unwrap();
        assert_eq!(disk_usage(dir.path()).unwrap().inodes, 1);
    }

    #[test]
    fn a_file_with_two_names_counts_once_and_a_missing_directory_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a"), vec![1; 1 << 20]).unwrap();
        fs::hard_link(dir.path().join("a"), dir.path().join("b")).unwrap();
        let usage = disk_usage(dir.path()).unwrap();
        assert_eq!(usage.inodes, 2);
        assert!((1 << 20..2 << 20).contains(&usage.bytes), "{usage:?}");
        let error = disk_usage(&dir.path().join("no")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
