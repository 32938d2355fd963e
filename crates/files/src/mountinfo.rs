//! The kernel's table of mounts, `/proc/self/mountinfo`, and removing directories without deleting what is mounted in them.

use std::{
    ffi::OsString,
    fs, io,
    os::unix::ffi::OsStringExt,
    path::{Path, PathBuf},
};

use nix::mount::{MntFlags, umount2};

use crate::remove;

/// One line of the table, as far as we look at it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// The part of the file system that is mounted, `/` for all of it.
    pub root: PathBuf,
    pub mount_point: PathBuf,
    /// Options of this mount: `rw`, `nosuid`…
    pub options: String,
    pub filesystem: String,
    pub source: PathBuf,
    /// Options of the file system; for cgroup v1 the names of its controllers.
    pub super_options: String,
}

/// All mounts of this process's mount namespace, in the order they were mounted.
pub fn read() -> io::Result<Vec<Mount>> {
    Ok(parse(&fs::read("/proc/self/mountinfo")?))
}

/// Lines that cannot be read are left out.
pub fn parse(table: &[u8]) -> Vec<Mount> {
    table.split(|byte| *byte == b'\n').filter_map(parse_line).collect()
}

fn parse_line(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|byte| *byte == b' ');
    let root = unescape(fields.nth(3)?);
    let mount_point = unescape(fields.next()?);
    let options = String::from_utf8_lossy(fields.next()?).into_owned();
    // Optional fields (propagation) end at a lone dash.
    fields.by_ref().find(|field| *field == b"-")?;
    Some(Mount {
        root,
        mount_point,
        options,
        filesystem: String::from_utf8_lossy(fields.next()?).into_owned(),
        source: unescape(fields.next()?),
        super_options: String::from_utf8_lossy(fields.next().unwrap_or_default()).into_owned(),
    })
}

/// Mount points at or below `path`, in the order they were mounted. A path that does not exist has none.
pub fn at_or_below(path: &Path) -> io::Result<Vec<PathBuf>> {
    let path = match path.canonicalize() {
        Ok(path) => path,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    Ok(read()?.into_iter().map(|mount| mount.mount_point).filter(|point| point.starts_with(&path)).collect())
}

/// Removes a directory tree, or nothing of it if something is mounted in it: that belongs to somebody else.
pub fn remove_tree(path: &Path) -> io::Result<()> {
    if let Some(mounted) = at_or_below(path)?.first() {
        let text = format!("{} is mounted: not removing {}", mounted.display(), path.display());
        return Err(io::Error::new(io::ErrorKind::ResourceBusy, text));
    }
    Ok(remove::remove_tree(path)?)
}

/// Unmounts what is mounted at `path`, however often, and removes the directory.
pub fn unmount_and_remove(path: &Path) -> io::Result<()> {
    let path = &match path.canonicalize() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        path => path?,
    };
    while at_or_below(path)?.contains(path) {
        umount2(path, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW)?;
    }
    match fs::remove_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// The kernel writes blanks, tabs, newlines and backslashes as three octal digits: `\040` is a space.
fn unescape(field: &[u8]) -> PathBuf {
    let mut path = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        if *first == b'\\'
            && let Some(octal) = tail.get(..3).and_then(|digits| std::str::from_utf8(digits).ok())
            && let Ok(byte) = u8::from_str_radix(octal, 8)
        {
            path.push(byte);
            rest = &tail[3..];
        } else {
            path.push(*first);
            rest = tail;
        }
    }
    OsString::from_vec(path).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_taken_apart_with_and_without_optional_fields() {
        let table =
            b"36 35 98:0 /part /mnt/a\\040b\\134c rw,noatime master:1 shared:2 - ext3 /dev/root rw,errors=continue\n\
            37 35 98:0 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n\
            not a line\n";
        let [ext3, cgroup] = <[Mount; 2]>::try_from(parse(table)).unwrap();
        assert_eq!(
            ext3,
            Mount {
                root: "/part".into(),
                mount_point: "/mnt/a b\\c".into(),
                options: "rw,noatime".to_owned(),
                filesystem: "ext3".to_owned(),
                source: "/dev/root".into(),
                super_options: "rw,errors=continue".to_owned(),
            }
        );
        assert_eq!((cgroup.filesystem.as_str(), cgroup.super_options.as_str()), ("cgroup", "rw,cpu,cpuacct"));
    }

    #[test]
    fn a_name_that_only_begins_alike_is_not_below() {
        let dir = tempfile::tempdir().unwrap();
        assert!(at_or_below(dir.path()).unwrap().is_empty());
        assert!(at_or_below(Path::new("/proc")).unwrap().contains(&PathBuf::from("/proc")));
        assert!(at_or_below(&dir.path().join("missing")).unwrap().is_empty());
    }

    #[test]
    fn a_tree_is_removed_once_and_missing_is_no_error() {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("tree");
        fs::create_dir_all(tree.join("a/b")).unwrap();
        remove_tree(&tree).unwrap();
        assert!(!tree.exists());
        remove_tree(&tree).unwrap();
    }

    #[test]
    fn a_tree_that_holds_mounts_is_refused() {
        assert_eq!(remove_tree(Path::new("/proc")).unwrap_err().kind(), io::ErrorKind::ResourceBusy);
    }
}
