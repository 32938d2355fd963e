//! Directories and files that only their owner may enter or read.
//!
//! Modes are set explicitly after creation, so the umask of whoever started the process does not matter. What an earlier
//! version left open is closed, and the caller gets its former mode for a warning.

use std::{
    fmt,
    fs::{self, DirBuilder, File, Metadata, OpenOptions, Permissions},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

const PRIVATE_DIRECTORY: u32 = 0o700;
/// The mode of files that only their owner reads and writes.
pub const PRIVATE_FILE: u32 = 0o600;
const OTHERS: u32 = 0o077;

/// A path that other users could use until now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestrictedPath {
    pub path: PathBuf,
    pub previous_mode: u32,
}

impl fmt::Display for RestrictedPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (mode {:04o})", self.path.display(), self.previous_mode)
    }
}

/// Makes sure that `path` is a directory with mode 0700, and answers its former mode if others could use it. Missing
/// parents are created just as private.
///
/// A symbolic link to a directory is followed: an administrator may have put the directory on another disk.
pub fn create_private_dir(path: &Path) -> io::Result<Option<RestrictedPath>> {
    DirBuilder::new().recursive(true).mode(PRIVATE_DIRECTORY).create(path).map_err(|error| {
        // `mkdir` says that something exists; what matters is that it is no directory.
        match error.kind() {
            io::ErrorKind::AlreadyExists => io::ErrorKind::NotADirectory.into(),
            _ => error,
        }
    })?;
    restrict(path, &fs::metadata(path)?, PRIVATE_DIRECTORY)
}

/// Opens `path` for reading and writing with mode 0600, creating it if it is missing; its content stays. A link is refused.
pub fn open_private(path: &Path) -> io::Result<File> {
    private(OpenOptions::new().read(true).write(true).create(true).truncate(false), path)
}

/// Opens `path` for appending with mode 0600, creating it if it is missing.
pub fn append_private(path: &Path) -> io::Result<File> {
    private(OpenOptions::new().append(true).create(true), path)
}

/// Creates `path` with mode 0600; it must not exist. So nobody else's file is ever filled, nor one behind a link.
pub fn create_private(path: &Path) -> io::Result<File> {
    private(OpenOptions::new().write(true).create_new(true), path)
}

fn private(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    let file = options.mode(PRIVATE_FILE).custom_flags(nix::libc::O_NOFOLLOW).open(path)?;
    // Devices such as /dev/full belong to everybody.
    if file.metadata()?.is_file() {
        file.set_permissions(Permissions::from_mode(PRIVATE_FILE))?;
    }
    Ok(file)
}

/// Takes everybody's access to an existing file or socket but its owner's, and setuid. A missing one is nothing to do.
pub fn restrict_file(path: &Path) -> io::Result<Option<RestrictedPath>> {
    match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_symlink() => Ok(None),
        Ok(metadata) => {
            // Whether its owner may run a file is the owner's affair.
            let run = if metadata.is_file() { metadata.mode() & 0o100 } else { 0 };
            restrict(path, &metadata, PRIVATE_FILE | run)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Closes `root` and everything below it, and answers what was open, the outermost first.
///
/// Links are not followed, and what `is_shared` (with its path below `root`) is neither changed nor entered: its modes
/// belong to somebody else. A directory is closed before its entries are read, so that others cannot exchange an entry
/// between the look at it and the change.
pub fn restrict_tree(root: &Path, is_shared: &dyn Fn(&Path) -> bool) -> io::Result<Vec<RestrictedPath>> {
    let mut restricted = Vec::new();
    let mut directories = vec![PathBuf::new()];
    while let Some(below) = directories.pop() {
        let directory = if below.as_os_str().is_empty() { root.to_owned() } else { root.join(&below) };
        let entries = match close_directory(&directory, &mut restricted) {
            // What still runs from an earlier start may remove what it is done with.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            let path = below.join(entry.file_name());
            match entry.file_type()? {
                _ if is_shared(&path) => {}
                kind if kind.is_dir() => directories.push(path),
                _ => restricted.extend(restrict_file(&root.join(&path))?),
            }
        }
    }
    Ok(restricted)
}

fn close_directory(directory: &Path, restricted: &mut Vec<RestrictedPath>) -> io::Result<fs::ReadDir> {
    restricted.extend(restrict(directory, &fs::metadata(directory)?, PRIVATE_DIRECTORY)?);
    fs::read_dir(directory)
}

fn restrict(path: &Path, metadata: &Metadata, wanted: u32) -> io::Result<Option<RestrictedPath>> {
    let mode = metadata.mode() & 0o7777;
    // Its owner may have to get in, too: created under a strange umask.
    if mode & OTHERS != 0 || mode & wanted != wanted {
        fs::set_permissions(path, Permissions::from_mode(wanted))?;
    }
    // Those in root's own group are no others: container runtimes write logs that they can read.
    let open = mode & 0o007 != 0 || (mode & 0o070 != 0 && metadata.gid() != 0);
    Ok(open.then(|| RestrictedPath { path: path.to_owned(), previous_mode: mode }))
}

#[cfg(test)]
mod tests {
    use std::os::unix::{fs::symlink, net::UnixListener};

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_new_directory_is_private_and_so_are_the_parents_it_needed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b");
        assert_eq!(create_private_dir(&path).unwrap(), None);
        assert_eq!((mode(&path), mode(&dir.path().join("a"))), (0o700, 0o700));
        assert_eq!(create_private_dir(&path).unwrap(), None);
    }

    #[test]
    fn an_open_directory_is_closed_and_its_former_mode_answered() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("open");
        fs::create_dir(&path).unwrap();
        set_mode(&path, 0o755);
        let restricted = create_private_dir(&path).unwrap().unwrap();
        assert_eq!(restricted.to_string(), format!("{} (mode 0755)", path.display()));
        assert_eq!(mode(&path), 0o700);
    }

    #[test]
    fn a_link_to_a_directory_is_followed() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("disk")).unwrap();
        set_mode(&dir.path().join("disk"), 0o755);
        symlink("disk", dir.path().join("data")).unwrap();
        assert!(create_private_dir(&dir.path().join("data")).unwrap().is_some());
        assert_eq!(mode(&dir.path().join("disk")), 0o700);
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
        assert!(restrict_file(&path).unwrap().is_none());
        fs::write(&path, "content").unwrap();
        set_mode(&path, 0o644);
        assert_eq!(restrict_file(&path).unwrap().unwrap().previous_mode, 0o644);
        assert!(restrict_file(&path).unwrap().is_none());
        set_mode(&path, 0o644);
        drop(open_private(&path).unwrap());
        assert_eq!((mode(&path), fs::read_to_string(&path).unwrap()), (0o600, "content".to_owned()));
        set_mode(&path, 0o666);
        drop(append_private(&path).unwrap());
        assert_eq!(mode(&path), 0o600);
        assert_eq!(create_private(&path).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        symlink(&path, dir.path().join("link")).unwrap();
        assert!(open_private(&dir.path().join("link")).is_err());
    }

    #[test]
    fn a_device_keeps_its_mode() {
        let before = mode(Path::new("/dev/null"));
        drop(append_private(Path::new("/dev/null")).unwrap());
        assert_eq!(mode(Path::new("/dev/null")), before);
    }

    #[test]
    fn a_tree_is_closed_but_for_what_is_shared_and_what_links_lead_to() {
        let dir = tempfile::tempdir().unwrap();
        let (root, outside) = (dir.path().join("data"), dir.path().join("outside"));
        fs::create_dir_all(root.join("store")).unwrap();
        fs::create_dir_all(root.join("volumes/web")).unwrap();
        for file in [root.join("store/db"), root.join("volumes/web/setuid"), outside.clone()] {
            fs::write(&file, "").unwrap();
            set_mode(&file, 0o4755);
        }
        let _socket = UnixListener::bind(root.join("socket")).unwrap();
        symlink(&outside, root.join("link")).unwrap();
        for open in [&root, &root.join("store"), &root.join("volumes"), &root.join("volumes/web")] {
            set_mode(open, 0o777);
        }
        let closed = restrict_tree(&root, &|path| path == Path::new("volumes/web")).unwrap();
        assert_eq!(closed[0], RestrictedPath { path: root.clone(), previous_mode: 0o777 });
        let mut paths: Vec<_> = closed.iter().map(|closed| closed.path.strip_prefix(&root).unwrap()).collect();
        paths.sort();
        assert_eq!(paths, ["", "socket", "store", "store/db", "volumes"].map(Path::new));
        assert_eq!((mode(&root.join("store/db")), mode(&root.join("store"))), (0o700, 0o700));
        assert_eq!(mode(&root.join("socket")), 0o600);
        assert_eq!((mode(&root.join("volumes/web/setuid")), mode(&outside)), (0o4755, 0o4755));
        assert!(restrict_tree(&root, &|path| path == Path::new("volumes/web")).unwrap().is_empty());
    }
}
