//! Reads and makes files in a container's root filesystem, whose symbolic links are not trusted: none leads out of it.

use std::{
    io::{self, Read},
    os::fd::OwnedFd,
    path::{Component, Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, CWD, Gid, Mode, OFlags, ResolveFlags, Uid, chownat, mkdirat, openat, openat2},
    io::Errno,
};

/// Longer files are not read: they are the image's, and could be anything.
const MOST: u64 = 1 << 20;

fn open(root: &OwnedFd, path: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    openat2(root, path, flags | OFlags::CLOEXEC, Mode::empty(), ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS)
}

fn open_root(root: &Path) -> rustix::io::Result<OwnedFd> {
    openat(CWD, root, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

pub fn read(root: &Path, path: &str) -> io::Result<String> {
    let file = open(&open_root(root)?, Path::new(path), OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY)?;
    let file = std::fs::File::from(file);
    if !file.metadata()?.is_file() {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = Vec::new();
    file.take(MOST).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Whether what lies there is a directory.
pub fn is_dir(root: &Path, path: &Path) -> io::Result<bool> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let found = open(&open_root(root)?, path, OFlags::PATH)?;
    Ok(std::fs::File::from(found).metadata()?.is_dir())
}

/// Makes a directory and what lies above it, where it is missing. What is made belongs to `owner`.
pub fn create_dirs(root: &Path, path: &Path, owner: u32) -> io::Result<()> {
    let root = open_root(root)?;
    let mut sofar = PathBuf::new();
    for part in path.components() {
        let Component::Normal(part) = part else { continue };
        let parent = if sofar.as_os_str().is_empty() { Path::new(".") } else { &sofar };
        let dir = open(&root, parent, OFlags::PATH | OFlags::DIRECTORY)?;
        match mkdirat(&dir, part, Mode::from_raw_mode(0o755)) {
            Ok(()) => {
                let id = (Uid::from_raw(owner), Gid::from_raw(owner));
                chownat(&dir, part, Some(id.0), Some(id.1), AtFlags::SYMLINK_NOFOLLOW)?;
            }
            Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        sofar.push(part);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    #[test]
    fn links_do_not_lead_out() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("etc")).unwrap();
        symlink("/etc/passwd", dir.path().join("etc/passwd")).unwrap();
        assert!(read(dir.path(), "etc/passwd").is_err());
        symlink("/real", dir.path().join("etc/group")).unwrap();
        fs::write(dir.path().join("real"), "root:x:0:\n").unwrap();
        assert_eq!(read(dir.path(), "etc/group").unwrap(), "root:x:0:\n");
    }

    #[test]
    fn directories_are_made_inside_whatever_links_say() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("srv")).unwrap();
        symlink("/srv", dir.path().join("data")).unwrap();
        create_dirs(dir.path(), Path::new("/data/a/b"), 70_000).unwrap();
        assert_eq!(std::os::unix::fs::MetadataExt::uid(&fs::metadata(dir.path().join("srv/a/b")).unwrap()), 70_000);
        assert!(dir.path().join("srv/a/b").is_dir());
        create_dirs(dir.path(), Path::new("/data/a/b"), 0).unwrap();
    }
}
