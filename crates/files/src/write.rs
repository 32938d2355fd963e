//! Replacing a file in one step: a reader sees the old content or the new one, never a part.

use std::{
    fs::{self, File, OpenOptions, Permissions},
    io::{self, Write},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

/// What a write survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// A power cut: content and name are on disk before the call returns.
    Durable,
    /// The end of the process. After a power cut the file may be missing, old or empty: only for what can be made again.
    Volatile,
}

/// Replaces `path` with `content` and `mode` (whatever the umask), by way of a temporary file beside it.
///
/// On failure the old file is untouched and the temporary one is removed. Two writers of one path at a time are not
/// supported: they share the temporary name.
pub fn write_atomic(path: &Path, content: &[u8], mode: u32, durability: Durability) -> io::Result<()> {
    let temporary = temporary_beside(path);
    let written = write_temporary(&temporary, content, mode, durability).and_then(|()| fs::rename(&temporary, path));
    if let Err(error) = written {
        let _ = fs::remove_file(&temporary);
        return Err(error);
    }
    match (durability, path.parent()) {
        (Durability::Durable, Some(parent)) if !parent.as_os_str().is_empty() => File::open(parent)?.sync_all(),
        _ => Ok(()),
    }
}

fn temporary_beside(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    path.with_file_name(name)
}

fn write_temporary(temporary: &Path, content: &[u8], mode: u32, durability: Durability) -> io::Result<()> {
    // One that an earlier process left may have another mode, or be a link.
    match fs::remove_file(temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(temporary)?;
    file.set_permissions(Permissions::from_mode(mode))?;
    file.write_all(content)?;
    match durability {
        Durability::Durable => file.sync_all(),
        Durability::Volatile => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_with_its_mode_and_nothing_stays_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "old").unwrap();
        fs::write(temporary_beside(&path), "left by a crash").unwrap();
        for durability in [Durability::Durable, Durability::Volatile] {
            write_atomic(&path, b"new", 0o600, durability).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), "new");
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        }
    }

    #[test]
    fn a_write_that_fails_leaves_the_old_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("directory");
        fs::create_dir_all(path.join("inside")).unwrap();
        assert!(write_atomic(&path, b"new", 0o600, Durability::Volatile).is_err());
        assert!(path.join("inside").is_dir() && !temporary_beside(&path).exists());
    }
}
