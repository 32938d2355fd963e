//! Unmounts everything below a directory.

use std::path::{Path, PathBuf};

use mainstay_files::mountinfo;
use nix::mount::{MntFlags, umount2};

#[derive(Debug)]
pub struct Stuck {
    pub path: PathBuf,
    pub why: String,
}

/// Whether something is mounted at this very path.
pub fn is_mounted(path: &Path) -> std::io::Result<bool> {
    let path = path.canonicalize()?;
    Ok(mountinfo::at_or_below(&path)?.contains(&path))
}

/// Unmounts everything at or below `directory`, what was mounted last first. A mount that stays does not keep
/// the others from going.
pub fn unmount_below(directory: &Path) -> Result<(), Stuck> {
    let mut stuck = None;
    // Mounts may lie on each other, and more may come to light.
    for _ in 0..8 {
        let mounted = mountinfo::at_or_below(directory)
            .map_err(|error| Stuck { path: directory.to_owned(), why: error.to_string() })?;
        if mounted.is_empty() {
            return Ok(());
        }
        stuck = None;
        for path in mounted.into_iter().rev() {
            match umount2(&path, MntFlags::UMOUNT_NOFOLLOW) {
                Ok(()) | Err(nix::Error::EINVAL | nix::Error::ENOENT) => {} // gone by itself
                Err(error) => _ = stuck.get_or_insert(Stuck { path, why: error.desc().to_owned() }),
            }
        }
        if stuck.is_some() {
            break;
        }
    }
    Err(stuck.unwrap_or(Stuck { path: directory.to_owned(), why: "mounts keep appearing".to_owned() }))
}
