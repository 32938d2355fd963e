//! Removes files that may be gone already, and directory trees of others.
//!
//! A tree is removed without crossing mounts or following links: every step down is taken from an open directory, and the kernel checks
//! it; a bind mount of the same filesystem counts as well. Trees of any width and depth are removed in bounded memory, with a bounded
//! stack and a bounded number of open files. `std::fs::remove_dir_all` calls itself for every level: ten thousand directories
//! within each other, which any container can make, end the process that removes them.

use std::{
    ffi::CString,
    fs, io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use nix::{
    dir::{Dir, Type},
    errno::Errno,
    fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, openat2, renameat},
    unistd::{UnlinkatFlags, unlinkat},
};

/// Entries read at once.
const BATCH: usize = 1024;
/// What lies deeper is first moved up.
const DEPTH: usize = 64;

#[derive(Debug, thiserror::Error)]
pub enum RemoveError {
    #[error("{} is a mount point, and nothing below it is removed", .0.display())]
    Mounted(PathBuf),
    #[error("cannot remove {}", .path.display())]
    Io { path: PathBuf, source: io::Error },
}

impl From<RemoveError> for io::Error {
    fn from(error: RemoveError) -> Self {
        match error {
            RemoveError::Mounted(_) => Self::new(io::ErrorKind::ResourceBusy, error.to_string()),
            RemoveError::Io { ref source, .. } => Self::new(source.kind(), format!("{error}: {source}")),
        }
    }
}

/// Removes the file or link at `path`, if there is one.
pub fn remove_file_if_exists(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Removes `path` and all below it; that it does not exist is as good.
pub fn remove_tree(path: &Path) -> Result<(), RemoveError> {
    let failed = |errno: Errno| RemoveError::Io { path: path.to_owned(), source: errno.into() };
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(failed(Errno::EINVAL));
    };
    let how = OpenHow::new().flags(OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC);
    let parent = match openat2(AT_FDCWD, parent, how) {
        Ok(parent) => parent,
        Err(Errno::ENOENT) => return Ok(()),
        Err(errno) => return Err(failed(errno)),
    };
    let name = CString::new(name.as_encoded_bytes()).map_err(|_| failed(Errno::EINVAL))?;
    let top = match enter(&parent, &name) {
        Ok(top) => top,
        Err(Errno::ENOENT) => return Ok(()),
        Err(Errno::EXDEV) => return Err(RemoveError::Mounted(path.to_owned())),
        Err(Errno::ENOTDIR | Errno::ELOOP) => {
            return unlinkat(&parent, name.as_c_str(), UnlinkatFlags::NoRemoveDir).map_err(failed);
        }
        Err(errno) => return Err(failed(errno)),
    };
    let mut emptying = Emptying { top: &top, moved: 0 };
    loop {
        let before = emptying.moved;
        emptying.empty(&top, path, 0)?;
        if emptying.moved == before {
            break;
        }
    }
    match unlinkat(&parent, name.as_c_str(), UnlinkatFlags::RemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(Errno::EBUSY) => Err(RemoveError::Mounted(path.to_owned())),
        Err(errno) => Err(failed(errno)),
    }
}

/// Opens a directory within another, unless it is something else or the root of a mount.
fn enter(directory: &OwnedFd, name: &CString) -> nix::Result<OwnedFd> {
    let how = OpenHow::new()
        .flags(OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_XDEV);
    openat2(directory, name.as_c_str(), how)
}

struct Emptying<'a> {
    top: &'a OwnedFd,
    moved: usize,
}

impl Emptying<'_> {
    fn empty(&mut self, directory: &OwnedFd, path: &Path, depth: usize) -> Result<(), RemoveError> {
        loop {
            let failed = |errno: Errno| RemoveError::Io { path: path.to_owned(), source: errno.into() };
            let entries = batch(directory).map_err(failed)?;
            if entries.is_empty() {
                return Ok(());
            }
            let moved = self.moved;
            for (name, kind) in entries {
                let path = path.join(Path::new(&name.to_string_lossy().into_owned()));
                self.remove(directory, &name, kind, &path, depth)?;
            }
            if depth == 0 && self.moved > moved {
                return Ok(()); // what was moved here comes next
            }
        }
    }

    fn remove(
        &mut self,
        directory: &OwnedFd,
        name: &CString,
        kind: Option<Type>,
        path: &Path,
        depth: usize,
    ) -> Result<(), RemoveError> {
        let failed = |errno: Errno| match errno {
            Errno::EXDEV | Errno::EBUSY => RemoveError::Mounted(path.to_owned()),
            errno => RemoveError::Io { path: path.to_owned(), source: errno.into() },
        };
        let mut how = UnlinkatFlags::NoRemoveDir;
        if matches!(kind, None | Some(Type::Directory)) {
            match enter(directory, name) {
                Ok(inner) if depth < DEPTH => {
                    how = UnlinkatFlags::RemoveDir;
                    self.empty(&inner, path, depth + 1)?;
                }
                Ok(_) => {
                    self.moved += 1;
                    let up = format!("..deep.{}.{}", std::process::id(), self.moved);
                    return renameat(directory, name.as_c_str(), self.top, up.as_str()).map_err(failed);
                }
                Err(Errno::ENOTDIR | Errno::ELOOP) => {}
                Err(Errno::ENOENT) => return Ok(()),
                Err(errno) => return Err(failed(errno)),
            }
        }
        match unlinkat(directory, name.as_c_str(), how) {
            Ok(()) | Err(Errno::ENOENT) => Ok(()),
            Err(errno) => Err(failed(errno)),
        }
    }
}

fn batch(directory: &OwnedFd) -> nix::Result<Vec<(CString, Option<Type>)>> {
    let how = OpenHow::new().flags(OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC);
    let mut entries = Dir::from_fd(openat2(directory, ".", how)?)?;
    let named =
        entries.iter().filter(|entry| !entry.as_ref().is_ok_and(|e| matches!(e.file_name().to_bytes(), b"." | b"..")));
    named.take(BATCH).map(|entry| entry.map(|entry| (entry.file_name().to_owned(), entry.file_type()))).collect()
}

#[cfg(test)]
mod tests {
    use mainstay_testing::deep_directories;

    use super::*;

    #[test]
    fn a_file_is_removed_once_and_what_cannot_be_removed_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "x").unwrap();
        remove_file_if_exists(&file).unwrap();
        assert!(!file.exists());
        remove_file_if_exists(&file).unwrap();
        remove_file_if_exists(dir.path()).unwrap_err();
        assert!(dir.path().exists());
    }

    #[test]
    fn a_tree_too_deep_for_paths_and_stacks_is_removed_and_links_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (tree, other) = (dir.path().join("tree"), dir.path().join("other"));
        fs::create_dir(&other).unwrap();
        fs::write(other.join("kept"), "").unwrap();
        fs::create_dir(&tree).unwrap();
        std::os::unix::fs::symlink(&other, tree.join("link")).unwrap();
        deep_directories(&tree, 10_000);
        remove_tree(&tree).unwrap();
        assert!(!tree.exists() && other.join("kept").exists());
        remove_tree(&tree).unwrap();
    }
}
