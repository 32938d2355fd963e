//! Files of the machine that the image `host` does not show: those that other users of the machine may not read either.
//!
//! Who is root in a container of that image would read them, and so would who has there the id of their owner. Examined are the entries
//! of the directories in which systems and services have such files; what is closed within any other directory is shown.

use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// Directories of the machine whose entries are examined.
const EXAMINED: &[&str] = &[
    "",
    "etc",
    "etc/ssh",
    "etc/ssl",
    "home",
    "media",
    "mnt",
    "opt",
    "srv",
    "usr/local/etc",
    "var",
    "var/cache",
    "var/lib",
    "var/log",
    "var/spool",
];

/// What is closed to other users below `root`, in the directories that are examined.
pub fn closed_paths(root: &Path) -> io::Result<Vec<PathBuf>> {
    let mut closed = Vec::new();
    for directory in EXAMINED {
        let entries = match fs::read_dir(root.join(directory)) {
            Ok(entries) => entries,
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => continue,
            Err(error) => return Err(error),
        };
        for entry in entries {
            let entry = entry?;
            match entry.metadata() {
                Ok(found) if is_closed(&found) => closed.push(entry.path()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {} // removed meanwhile
                Err(error) => return Err(error),
            }
        }
    }
    Ok(closed)
}

/// Whether others may not enter the directory, or not read the file.
fn is_closed(found: &fs::Metadata) -> bool {
    let needed = if found.is_dir() { 0o001 } else { 0o004 };
    !found.is_symlink() && found.mode() & needed == 0
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn what_others_may_not_read_is_closed_and_the_rest_is_not() {
        let root = tempfile::tempdir().unwrap();
        let make = |path: &str, mode: u32| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            if path.extension().is_some() {
                fs::write(&path, "").unwrap()
            } else {
                fs::create_dir(&path).unwrap()
            }
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        };
        for (path, mode) in [
            ("root", 0o700),
            ("etc/shadow.", 0o640),
            ("etc/passwd.", 0o644),
            ("home/ann", 0o750),
            ("home/public", 0o755),
            ("var/lib/database", 0o700),
            ("var/lib/listed-by-owner", 0o711),
            ("usr/share/deep.", 0o600),
        ] {
            make(path, mode);
        }
        symlink("/nowhere", root.path().join("etc/link")).unwrap();
        let mut found = closed_paths(root.path()).unwrap();
        found.sort();
        let expected = ["etc/shadow.", "home/ann", "root", "var/lib/database"].map(|path| root.path().join(path));
        assert_eq!(found, expected);
    }
}
