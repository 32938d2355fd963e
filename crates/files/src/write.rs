//! Replacing a file in one step: a reader sees the old content or the new one, never a part.

use std::{
    fs::{self, File, OpenOptions, Permissions},
    io::{self, Write},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

use crate::remove::remove_file_if_exists;

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
    let mut file = AtomicFile::create(path, mode)?;
    file.write_all(content)?;
    file.commit(durability).map(drop)
}

/// A file that takes its name only when it is complete, for content that comes in pieces. Dropped before that, it leaves
/// the old file as it was.
#[derive(Debug)]
pub struct AtomicFile {
    file: File,
    path: PathBuf,
    /// None once it has been renamed.
    temporary: Option<PathBuf>,
}

impl AtomicFile {
    pub fn create(path: &Path, mode: u32) -> io::Result<Self> {
        let temporary = temporary_beside(path);
        // One that an earlier process left may have another mode, or be a link.
        remove_file_if_exists(&temporary)?;
        let file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&temporary)?;
        let file = Self { file, path: path.to_owned(), temporary: Some(temporary) };
        file.file.set_permissions(Permissions::from_mode(mode))?;
        Ok(file)
    }

    /// Gives the file its name, and answers it for what is to be appended.
    pub fn commit(mut self, durability: Durability) -> io::Result<File> {
        // Or a power cut may leave an empty file under the name.
        if durability == Durability::Durable {
            self.file.sync_all()?;
        }
        if let Some(temporary) = &self.temporary {
            fs::rename(temporary, &self.path)?;
            self.temporary = None;
        }
        match (durability, self.path.parent()) {
            (Durability::Durable, Some(parent)) if !parent.as_os_str().is_empty() => File::open(parent)?.sync_all()?,
            _ => {}
        }
        self.file.try_clone()
    }
}

impl Write for AtomicFile {
    fn write(&mut self, content: &[u8]) -> io::Result<usize> {
        self.file.write(content)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for AtomicFile {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            let _ = fs::remove_file(temporary);
        }
    }
}

fn temporary_beside(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    path.with_file_name(name)
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

    #[test]
    fn a_file_that_comes_in_pieces_has_its_name_only_when_complete() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        fs::write(&path, "old").unwrap();
        let mut abandoned = AtomicFile::create(&path, 0o600).unwrap();
        abandoned.write_all(b"half").unwrap();
        drop(abandoned);
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        let mut complete = AtomicFile::create(&path, 0o600).unwrap();
        complete.write_all(b"new").unwrap();
        let mut file = complete.commit(Durability::Durable).unwrap();
        file.write_all(b" and more").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new and more");
    }
}
