//! Disk usage of a directory: bytes and inodes.

use std::{
    collections::HashSet,
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

pub use super::Usage;

/// Of everything below `directory` on its own filesystem; files with several names count once. What
/// disappears while looking is not counted.
pub fn usage(directory: &Path) -> io::Result<Usage> {
    let start = fs::symlink_metadata(directory)?;
    let mut usage = Usage { bytes: start.blocks() * 512, inodes: 1 };
    let mut observed = HashSet::new();
    let mut pending: Vec<PathBuf> = vec![directory.into()];
    while let Some(next) = pending.pop() {
        let entries = match fs::read_dir(&next) {
            Ok(entries) => entries,
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            Err(e) => return Err(e),
        };
        for entry in entries {
            let entry = entry?;
            let found = match entry.metadata() {
                Ok(found) => found,
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                Err(e) => return Err(e),
            };
            if found.dev() != start.dev() || (found.nlink() > 1 && !found.is_dir() && !observed.insert(found.ino())) {
                continue;
            }
            usage.bytes += found.blocks() * 512;
            usage.inodes += 1;
            if found.is_dir() {
                pending.push(entry.path());
            }
        }
    }
    Ok(usage)
}
