//! Directories and files that only their owner may enter or read.
//!
//! Modes are set explicitly after creation, so the umask of whoever started the process does not matter. What an earlier
//! version left open is closed, and the caller is told, so that it can say so once.

use std::{
    fs::{self, DirBuilder, File, OpenOptions, Permissions},
    io,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt},
    path::Path,
};

const PRIVATE_DIRECTORY: u32 = 0o700;
const PRIVATE_FILE: u32 = 0o600;

/// How a directory was found by [`create_private_dir`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirectoryMode {
    /// It was created, or was private already.
    Private,
    /// Others could enter or read it until now; this was its mode.
    Restricted { previous: u32 },
}

/// Makes sure that `path` is a directory with mode 0700. Missing parents are created with the umask's mode.
///
/// A symbolic link to a directory is followed: an administrator may have put the directory on another disk.
pub fn create_private_dir(path: &Path) -> io::Result<DirectoryMode> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    match DirBuilder::new().mode(PRIVATE_DIRECTORY).create(path) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error),
    }
    let metadata = fs::metadata(path)?;
    if !metadata.is_dir() {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    let previous = metadata.permissions().mode() & 0o7777;
    if previous == PRIVATE_DIRECTORY {
        return Ok(DirectoryMode::Private);
    }
    fs::set_permissions(path, Permissions::from_mode(PRIVATE_DIRECTORY))?;
    match previous & 0o077 {
        0 => Ok(DirectoryMode::Private), // created under a strange umask
        _ => Ok(DirectoryMode::Restricted { previous }),
    }
}

/// Opens `path` for reading and writing with mode 0600, creating it if it is missing; its content stays.
pub fn open_private(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(PRIVATE_FILE).open(path)?;
    file.set_permissions(Permissions::from_mode(PRIVATE_FILE))?;
    Ok(file)
}

/// Takes everybody's access to an existing file but its owner's. `true` if others had some; a missing file is nothing to do.
pub fn restrict_file(path: &Path) -> io::Result<bool> {
    let mode = match fs::metadata(path) {
        Ok(metadata) => metadata.permissions().mode() & 0o7777,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    if mode & 0o077 == 0 {
        return Ok(false);
    }
    fs::set_permissions(path, Permissions::from_mode(PRIVATE_FILE))?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn a_new_directory_is_private_and_its_parents_are_ordinary() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b");
        assert_eq!(create_private_dir(&path).unwrap(), DirectoryMode::Private);
        assert_eq!(mode(&path), 0o700);
        assert_eq!(create_private_dir(&path).unwrap(), DirectoryMode::Private);
    }

    #[test]
    fn an_open_directory_is_closed_and_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("open");
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        assert_eq!(create_private_dir(&path).unwrap(), DirectoryMode::Restricted { previous: 0o755 });
        assert_eq!(mode(&path), 0o700);
    }

    #[test]
    fn a_file_in_the_place_of_a_directory_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "").unwrap();
        assert_eq!(create_private_dir(&path).unwrap_err().kind(), io::ErrorKind::NotADirectory);
    }

    #[test]
    fn files_are_opened_and_restricted_to_their_owner() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        assert!(!restrict_file(&path).unwrap());
        fs::write(&path, "content").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        assert!(restrict_file(&path).unwrap());
        assert!(!restrict_file(&path).unwrap());
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        drop(open_private(&path).unwrap());
        assert_eq!((mode(&path), fs::read_to_string(&path).unwrap()), (0o600, "content".to_owned()));
    }
}
