//! User namespaces of pods and idmapped mounts: a block of 65536 host ids stands for 0-65535 inside the pod.
//!
//! Files keep the ids inside the pod on disk; an idmapped mount shows them as ids of the pod's block. So a volume survives
//! a change of the block, and two pods that share a volume see the same owners. A file system that cannot be idmapped is
//! an error that names it: the pod fails rather than run with another owner of its files than it asked for.

#![expect(unsafe_code, reason = "mount_setattr has no safe wrapper")]

use std::{
    fs, io,
    os::fd::{AsRawFd, BorrowedFd, OwnedFd},
    path::Path,
};

use mainstay_errors::with_path;
use nix::libc;
use rustix::mount::{OpenTreeFlags, open_tree};
use serde::{Deserialize, Serialize};

/// Ids in each pod's block, as upstream's kubelet has it.
pub const IDS_PER_POD: u32 = 65536;

const MOUNT_ATTR_IDMAP: u64 = 0x0010_0000;

/// The host's ids that 0 and those after it stand for inside a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserNamespace {
    pub host_id: u32,
    pub length: u32,
}

impl UserNamespace {
    /// As `/proc/<pid>/uid_map` takes it.
    pub fn map(self) -> String {
        format!("0 {} {}\n", self.host_id, self.length)
    }

    /// Whether this id exists inside the pod.
    pub fn contains(self, id: u32) -> bool {
        id < self.length
    }
}

/// The kernel's `struct mount_attr`.
#[repr(C)]
struct MountAttr {
    attr_set: u64,
    attr_clr: u64,
    propagation: u64,
    userns_fd: u64,
}

/// A detached copy of the mount at `source` whose owners are shown through the user namespace `users`. What is mounted below
/// it comes along, idmapped too where its file system allows that; where not, its files belong to nobody inside.
pub fn clone_mount(source: &Path, users: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
    let named = |error: io::Error| with_path("clone the mount of", source, &error);
    let tree = open_tree(rustix::fs::CWD, source, flags).map_err(|error| named(error.into()))?;
    if set_idmap(&tree, users, true).is_ok() {
        return Ok(tree);
    }
    // All or none of a tree is changed: after a refusal the topmost mount is as it was.
    set_idmap(&tree, users, false).map_err(|error| refused(source, &error))?;
    Ok(tree)
}

/// The same of one mount alone, for a layer of a root filesystem.
pub fn clone_layer(source: &Path, users: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let tree = open_tree(rustix::fs::CWD, source, flags)
        .map_err(|error| with_path("clone the mount of", source, &error.into()))?;
    set_idmap(&tree, users, false).map_err(|error| refused(source, &error))?;
    Ok(tree)
}

fn refused(source: &Path, error: &io::Error) -> io::Error {
    let text = format!(
        "idmap the mount of {}: {error} (does its file system, or this kernel, lack idmapped mounts?)",
        source.display()
    );
    io::Error::new(error.kind(), text)
}

fn set_idmap(tree: &OwnedFd, users: BorrowedFd<'_>, recursive: bool) -> io::Result<()> {
    let attr = MountAttr {
        attr_set: MOUNT_ATTR_IDMAP,
        attr_clr: 0,
        propagation: 0,
        userns_fd: u64::try_from(users.as_raw_fd()).map_err(io::Error::other)?,
    };
    let flags = libc::AT_EMPTY_PATH | if recursive { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: the path is a constant C string, and `attr` lives for the whole call and has the size that is named.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw const attr,
            std::mem::size_of::<MountAttr>(),
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The user namespace of a process, held open.
pub fn open_namespace(pid: i32) -> io::Result<OwnedFd> {
    let path = format!("/proc/{pid}/ns/user");
    let file = fs::File::open(&path).map_err(|error| with_path("open", Path::new(&path), &error))?;
    Ok(file.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_holds_its_ids_and_no_others() {
        let users = UserNamespace { host_id: 131_072, length: IDS_PER_POD };
        assert_eq!(users.map(), "0 131072 65536\n");
        assert!(users.contains(0) && users.contains(65_535) && !users.contains(65_536));
    }

    #[test]
    fn a_file_system_without_idmapped_mounts_is_named() {
        let users = open_namespace(std::process::id() as i32).unwrap();
        let error = clone_mount(Path::new("/proc"), std::os::fd::AsFd::as_fd(&users)).unwrap_err().to_string();
        assert!(error.starts_with("idmap the mount of /proc: "), "{error}");
    }
}
