//! What is mounted, as the kernel tells.

use std::{
    ffi::OsString,
    io,
    os::unix::ffi::OsStringExt,
    path::{Path, PathBuf},
};

use nix::mount::{MntFlags, umount2};

#[derive(Debug)]
pub struct Stuck {
    pub path: PathBuf,
    pub why: String,
}

/// Unmounts everything at or below `directory`, what was mounted last first. A mount that stays does not keep
/// the others from going.
pub fn unmount_below(directory: &Path) -> Result<(), Stuck> {
    let mut stuck = None;
    // Mounts may lie on each other, and more may come to light.
    for _ in 0..8 {
        let mounted = below(directory).map_err(|error| Stuck { path: directory.to_owned(), why: error.to_string() })?;
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

/// Mount points at or below a directory, in the order they were mounted.
fn below(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let table = std::fs::read("/proc/self/mountinfo")?;
    Ok(points(&table).filter(|point| point.starts_with(directory)).collect())
}

/// The fifth word of each line, with `\040` and its like undone.
fn points(table: &[u8]) -> impl Iterator<Item = PathBuf> {
    table.split(|byte| *byte == b'\n').filter_map(|line| {
        let word = line.split(|byte| *byte == b' ').nth(4)?;
        let mut path = Vec::with_capacity(word.len());
        let mut rest = word;
        while let [first, after @ ..] = rest {
            let code = after
                .get(..3)
                .filter(|_| *first == b'\\')
                .and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
            path.push(code.unwrap_or(*first));
            rest = if code.is_some() { &after[3..] } else { after };
        }
        Some(PathBuf::from(OsString::from_vec(path)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_are_read_with_their_spaces() {
        let table = b"36 35 98:0 /x /mnt\\040a/b\\134c rw,noatime master:1 - ext3 /dev/root rw\n\
                      37 35 0:5 / /run rw - tmpfs tmpfs rw\n";
        let expected = [PathBuf::from("/mnt a/b\\c"), PathBuf::from("/run")];
        assert_eq!(points(table).collect::<Vec<_>>(), expected);
    }
}
