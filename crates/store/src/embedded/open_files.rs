//! Detects that the store's files were removed or replaced while it runs.
//!
//! The kernel keeps a removed file for whoever has it open, so a store whose directory was deleted would go on acknowledging
//! writes that no later start can find. Before and after each commit the open files are compared with what their
//! paths name: the same file, with a name. Before: nothing is written, and the store recovers by itself if the directory was only
//! moved and comes back. After: what was just written may be lost, so the store refuses all writes until it is opened anew.
//! Reads go on, so that what is in memory can still be saved with a backup.

use std::{
    fs::{self, File},
    io,
    ops::Deref,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::paths;

/// The database and its write-ahead log, open beside SQLite's own descriptors for as long as the store is.
#[derive(Debug)]
pub(super) struct OpenFiles {
    pub(super) db: OpenFile,
    pub(super) log: OpenFile,
}

#[derive(Debug)]
pub(super) struct OpenFile {
    path: PathBuf,
    file: File,
    device: u64,
    inode: u64,
}

impl OpenFiles {
    /// Both exist: SQLite has them open.
    pub(super) fn open(dir: &Path) -> io::Result<OpenFiles> {
        Ok(OpenFiles { db: OpenFile::open(paths::db(dir))?, log: OpenFile::open(paths::wal(dir))? })
    }

    /// What is wrong, if the files are no longer at their paths.
    pub(super) fn missing(&self) -> Option<Arc<str>> {
        [&self.db, &self.log].into_iter().find_map(OpenFile::missing)
    }
}

impl OpenFile {
    fn open(path: PathBuf) -> io::Result<OpenFile> {
        let file = File::options().read(true).write(true).open(&path)?;
        let found = file.metadata()?;
        Ok(OpenFile { path, file, device: found.dev(), inode: found.ino() })
    }

    fn missing(&self) -> Option<Arc<str>> {
        let what = match fs::metadata(&self.path) {
            Ok(found) if (found.dev(), found.ino()) == (self.device, self.inode) => return None,
            Ok(_) => "replaced",
            Err(error) if error.kind() == io::ErrorKind::NotFound => "removed",
            // Not for us to judge: writing will tell.
            Err(_) => return None,
        };
        let dir = self.path.parent().unwrap_or(&self.path);
        Some(
            format!("the store's files at {} were {what} while it runs; put them back, or restart", dir.display())
                .into(),
        )
    }
}

impl Deref for OpenFile {
    type Target = File;
    fn deref(&self) -> &File {
        &self.file
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files() -> (tempfile::TempDir, OpenFiles) {
        let dir = tempfile::tempdir().unwrap();
        fs::write(paths::db(dir.path()), "db").unwrap();
        fs::write(paths::wal(dir.path()), "log").unwrap();
        let files = OpenFiles::open(dir.path()).unwrap();
        (dir, files)
    }

    #[test]
    fn files_in_their_place_are_not_missing() {
        let (_dir, files) = files();
        assert_eq!(files.missing(), None);
    }

    #[test]
    fn a_removed_or_replaced_file_is_noticed_and_one_that_comes_back_too() {
        let (dir, files) = files();
        let (log, aside) = (paths::wal(dir.path()), dir.path().join("aside"));
        fs::rename(&log, &aside).unwrap();
        assert!(
            files
                .missing()
                .is_some_and(|why| why.contains("were removed") && why.contains(dir.path().to_str().unwrap()))
        );
        fs::write(&log, "another").unwrap();
        assert!(files.missing().is_some_and(|why| why.contains("were replaced")));
        fs::rename(&aside, &log).unwrap();
        assert_eq!(files.missing(), None);
        fs::remove_dir_all(dir.path()).unwrap();
        assert!(files.missing().is_some_and(|why| why.contains("were removed")));
    }
}
