//! Visits every entry of a directory tree, however deep it is and whoever changes it meanwhile.
//!
//! Directories are opened relative to one that is open already. A walk by whole paths ends where these have 4096 bytes, so whoever may make
//! directories could hide from it; a walk that calls itself ends the process when its stack is full. Links are not followed and
//! other mounts not entered, which the kernel checks; what disappears meanwhile is passed over. Few directories are open at a time:
//! one for every hundred levels.

use std::{
    ffi::{CStr, CString},
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    rc::Rc,
};

use nix::{
    dir::Dir,
    errno::Errno,
    fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, openat2},
};

/// Paths below an open directory are hardly longer than this: the kernel follows them anew for each directory that is opened.
const LONGEST_PATH: usize = 256;
/// Open directories above one that is visited. Nobody has a use for sixty thousand levels.
const MOST_ANCHORS: usize = 512;

#[derive(Debug, thiserror::Error)]
pub enum WalkError {
    #[error("{} has too many levels of directories", .0.display())]
    TooDeep(PathBuf),
    #[error("cannot read {}", .path.display())]
    Io { path: PathBuf, source: io::Error },
}

impl From<WalkError> for io::Error {
    fn from(error: WalkError) -> Self {
        match error {
            WalkError::TooDeep(_) => Self::new(io::ErrorKind::InvalidFilename, error.to_string()),
            WalkError::Io { ref source, .. } => Self::new(source.kind(), format!("{error}: {source}")),
        }
    }
}

/// A directory that stays open for those far below it.
struct Anchor {
    directory: OwnedFd,
    /// How many there are above it.
    above: usize,
}

/// A visited directory: where it is opened anew for those in it.
struct Visited {
    anchor: Rc<Anchor>,
    /// Below the anchor.
    path: Vec<u8>,
}

impl Visited {
    fn join(&self, name: &CStr) -> Vec<u8> {
        let mut path = self.path.clone();
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name.to_bytes());
        path
    }
}

/// Calls `visit` with every entry below `top`: the directory that it is in, and its name. It answers whether to go into the entry,
/// which has to be a directory then.
pub fn walk_tree(top: &Path, visit: &mut dyn FnMut(&OwnedFd, &CStr) -> io::Result<bool>) -> Result<(), WalkError> {
    let failed = |source: io::Error| WalkError::Io { path: top.to_owned(), source };
    let how = OpenHow::new().flags(OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC);
    let directory = openat2(AT_FDCWD, top, how).map_err(|errno| failed(errno.into()))?;
    let root = Rc::new(Anchor { directory, above: 0 });
    let mut pending: Vec<(Rc<Visited>, CString)> = Vec::new();
    let mut visit_directory = |directory: &OwnedFd, visited: Visited, pending: &mut Vec<_>| -> io::Result<()> {
        let visited = Rc::new(visited);
        for name in names(directory)? {
            if visit(directory, &name)? {
                pending.push((visited.clone(), name));
            }
        }
        Ok(())
    };
    visit_directory(&root.directory, Visited { anchor: root.clone(), path: Vec::new() }, &mut pending)
        .map_err(failed)?;
    while let Some((parent, name)) = pending.pop() {
        let path = parent.join(&name);
        let directory = match enter(&parent.anchor.directory, &path) {
            Ok(directory) => directory,
            // Gone, something else by now, or not ours.
            Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP | Errno::EXDEV) => continue,
            Err(errno) => return Err(failed(errno.into())),
        };
        let entered = if path.len() < LONGEST_PATH {
            visit_directory(&directory, Visited { anchor: parent.anchor.clone(), path }, &mut pending)
        } else if parent.anchor.above < MOST_ANCHORS {
            let anchor = Rc::new(Anchor { directory, above: parent.anchor.above + 1 });
            visit_directory(&anchor.directory, Visited { anchor: anchor.clone(), path: Vec::new() }, &mut pending)
        } else {
            return Err(WalkError::TooDeep(top.to_owned()));
        };
        entered.map_err(failed)?;
    }
    Ok(())
}

fn enter(anchor: &OwnedFd, path: &[u8]) -> nix::Result<OwnedFd> {
    let how = OpenHow::new()
        .flags(OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_XDEV);
    openat2(anchor, path, how)
}

fn names(directory: &OwnedFd) -> nix::Result<Vec<CString>> {
    let how = OpenHow::new().flags(OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC);
    let mut entries = Dir::from_fd(openat2(directory, ".", how)?)?;
    let named = entries.iter().map(|entry| entry.map(|entry| entry.file_name().to_owned()));
    named.filter(|name| !name.as_ref().is_ok_and(|name| matches!(name.to_bytes(), b"." | b".."))).collect()
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use mainstay_testing::deep_directories;

    use super::*;

    #[test]
    fn every_entry_is_visited_once_and_links_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        for path in ["a/b/c", "a/d", "e"] {
            fs::create_dir_all(dir.path().join(path)).unwrap();
        }
        fs::write(dir.path().join("a/b/file"), "").unwrap();
        symlink("/etc", dir.path().join("a/link")).unwrap();
        let mut visited = Vec::new();
        walk_tree(dir.path(), &mut |_, name| {
            visited.push(name.to_string_lossy().into_owned());
            Ok(true) // also of what is no directory: it is passed over
        })
        .unwrap();
        visited.sort();
        assert_eq!(visited, ["a", "b", "c", "d", "e", "file", "link"]);
        assert!(walk_tree(&dir.path().join("no"), &mut |_, _| Ok(true)).is_err());
    }

    #[test]
    fn a_tree_of_very_many_levels_is_visited_with_few_files_open() {
        let dir = tempfile::tempdir().unwrap();
        deep_directories(dir.path(), 5000);
        let (mut levels, mut most_open) = (0_u32, 0);
        walk_tree(dir.path(), &mut |_, name| {
            levels += 1;
            if levels.is_multiple_of(1000) {
                most_open = most_open.max(fs::read_dir("/proc/self/fd")?.count());
            }
            Ok(name == c"d")
        })
        .unwrap();
        assert_eq!(levels, 5001);
        assert!(most_open < 100, "{most_open}");
        crate::remove_tree(dir.path()).unwrap();
    }
}
