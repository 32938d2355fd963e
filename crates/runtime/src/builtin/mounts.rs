//! Deleting directories without ever deleting what is mounted in them.

use std::{
    ffi::OsString,
    fs, io,
    os::unix::ffi::OsStringExt,
    path::{Path, PathBuf},
};

use nix::mount::{MntFlags, umount2};

/// Removes a directory tree, unless something is mounted in it: that is another's, whatever we think.
pub fn remove_tree(path: &Path) -> io::Result<()> {
    let mounted = below(path)?;
    if let Some(mounted) = mounted.first() {
        let text = format!("{} is mounted: not removing {}", mounted.display(), path.display());
        return Err(io::Error::new(io::ErrorKind::ResourceBusy, text));
    }
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Unmounts what is mounted at `path`, however often, and removes the directory.
pub fn unmount(path: &Path) -> io::Result<()> {
    while below(path)?.iter().any(|mounted| mounted == path) {
        umount2(path, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW)?;
    }
    match fs::remove_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// What is mounted at or below a path, innermost last.
pub fn below(path: &Path) -> io::Result<Vec<PathBuf>> {
    let path = match path.canonicalize() {
        Ok(path) => path,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let text = fs::read("/proc/self/mountinfo")?;
    let points = text.split(|byte| *byte == b'\n').filter_map(|line| line.split(|byte| *byte == b' ').nth(4));
    Ok(points.map(unescape).filter(|point| point.starts_with(&path)).collect())
}

/// Blanks and such are written as `\040`.
fn unescape(text: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, more)) = rest.split_first() {
        let digits = more.get(..3).filter(|_| *first == b'\\').and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &more[3..];
            }
            None => {
                bytes.push(*first);
                rest = more;
            }
        }
    }
    OsString::from_vec(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blanks_in_mount_points_are_understood() {
        assert_eq!(unescape(b"/a\\040b\\134c"), Path::new("/a b\\c"));
    }

    #[test]
    fn a_tree_without_mounts_is_removed_and_one_that_is_gone_is_no_error() {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("tree");
        fs::create_dir_all(tree.join("a/b")).unwrap();
        remove_tree(&tree).unwrap();
        assert!(!tree.exists());
        remove_tree(&tree).unwrap();
    }

    #[test]
    fn the_root_holds_mounts_and_is_refused() {
        assert!(!below(Path::new("/")).unwrap().is_empty());
        assert!(remove_tree(Path::new("/proc")).is_err());
    }
}
