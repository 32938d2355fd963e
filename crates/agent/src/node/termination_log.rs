//! Bounds the files that containers write their termination messages to.
//!
//! Only the last 4 KiB of such a file are ever reported, but a container can write to it without end, onto the disk of the
//! data directory. A file that has grown is emptied from its beginning with `fallocate(FALLOC_FL_PUNCH_HOLE)`: its size and its end stay as
//! they are, so whoever is writing to it notices nothing, and the message that is reported is the same.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::Path,
};

use nix::{
    errno::Errno,
    fcntl::{FallocateFlags, OFlag, fallocate},
};

/// A file may take this much of the disk before it is cut.
const MOST: u64 = 64 << 10;
/// What stays of it: more than is reported.
const KEPT: u64 = 8 << 10;
const BLOCK: u64 = 4096;

/// Cuts the termination logs of all pods below this directory. Failures are logged: the next look tries again.
pub fn trim_all(pods: &Path) {
    let entries = |directory: &Path| fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    for pod in entries(pods) {
        for container in entries(&pod.join("containers")) {
            for file in entries(&container) {
                if let Err(error) = trim(&file) {
                    tracing::warn!(file = %file.display(), %error, "cannot cut a termination log");
                }
            }
        }
    }
}

fn trim(path: &Path) -> io::Result<()> {
    let found = fs::symlink_metadata(path)?;
    if !found.is_file() || found.blocks() * 512 <= MOST {
        return Ok(());
    }
    let file = OpenOptions::new().write(true).custom_flags(OFlag::O_NOFOLLOW.bits()).open(path)?;
    let cut = found.len().saturating_sub(KEPT) / BLOCK * BLOCK;
    punch(&file, cut)
}

fn punch(file: &File, until: u64) -> io::Result<()> {
    let mode = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    match fallocate(file, mode, 0, until.try_into().unwrap_or(i64::MAX)) {
        // Its beginning is better than nothing.
        Err(Errno::EOPNOTSUPP | Errno::ENOSYS) => file.set_len(KEPT),
        done => Ok(done?),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_large_termination_log_gives_its_space_back_and_keeps_its_end() {
        let pods = tempfile::tempdir().unwrap();
        let directory = pods.path().join("uid/containers/c");
        fs::create_dir_all(&directory).unwrap();
        let (large, small) = (directory.join("0.termination"), directory.join("1.termination"));
        let mut writer = OpenOptions::new().create(true).append(true).open(&large).unwrap();
        writer.write_all(&vec![b'x'; 4 << 20]).unwrap();
        writer.write_all(b"the end").unwrap();
        fs::write(&small, "short").unwrap();
        trim_all(pods.path());
        let found = fs::metadata(&large).unwrap();
        assert_eq!(found.len(), (4 << 20) + 7);
        assert!(found.blocks() * 512 <= MOST, "{} bytes", found.blocks() * 512);
        let end = fs::read(&large).unwrap();
        assert!(end.ends_with(b"xxthe end") && end[end.len() - 4096] == b'x');
        writer.write_all(b", again").unwrap();
        assert!(fs::read(&large).unwrap().ends_with(b"the end, again"));
        assert_eq!(fs::read_to_string(&small).unwrap(), "short");
    }
}
