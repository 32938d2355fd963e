//! emptyDir volumes: on disk, in memory, or of huge pages.

use std::{
    fs, io,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::Path,
};

use k8s_openapi::api::core::v1::{EmptyDirVolumeSource, Pod};
use mainstay_api::validation::resources as rules;
use mainstay_files::{create_private_dir, open_private};
use nix::mount::{MsFlags, mount};

use super::owner::{self, Group};
use crate::spec::{machine::NodeFacts, resources};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Medium {
    Disk,
    Memory {
        bytes: u64,
    },
    /// Of this size each, if the medium names one.
    HugePages {
        page: Option<String>,
    },
}

/// In memory, a volume is no larger than its limit, than what the pod may use, or than the machine.
pub fn medium(source: &EmptyDirVolumeSource, pod: &Pod, machine: &NodeFacts) -> Result<Medium, String> {
    let medium = source.medium.as_deref().unwrap_or_default();
    match medium {
        "" => Ok(Medium::Disk),
        "Memory" => {
            let limit =
                source.size_limit.as_ref().map(rules::amount).and_then(|limit| u64::try_from(limit.value()).ok());
            let of_pod = resources::pod(pod).memory_limit.and_then(|limit| u64::try_from(limit).ok());
            let sizes = [limit, of_pod, Some(machine.allocatable.memory)];
            let bytes = sizes.into_iter().flatten().filter(|bytes| *bytes > 0).min().unwrap_or_default();
            Ok(Medium::Memory { bytes })
        }
        "HugePages" => Ok(Medium::HugePages { page: None }),
        _ => match medium.strip_prefix("HugePages-") {
            Some(page) => Ok(Medium::HugePages { page: Some(page.to_owned()) }),
            None => Err(format!("unknown storage medium {medium:?}")),
        },
    }
}

pub fn make(directory: &Path, made: &Path, medium: &Medium, group: Option<&Group>) -> io::Result<()> {
    create_within_private(directory)?;
    let mounted = is_mounted(directory)?;
    match medium {
        Medium::Disk if made.exists() => return Ok(()),
        Medium::Disk => {}
        Medium::Memory { .. } | Medium::HugePages { .. } if mounted && made.exists() => return Ok(()),
        Medium::Memory { bytes } if !mounted => {
            let options = if *bytes > 0 { format!("size={bytes}") } else { String::new() };
            mount(Some("tmpfs"), directory, Some("tmpfs"), safe(), Some(options.as_str()))?;
        }
        Medium::HugePages { page } if !mounted => {
            // `2Mi` is `2M` to the kernel.
            let page = page.as_ref().map(|page| format!("pagesize={}", page.trim_end_matches('i')));
            let options = page.unwrap_or_default();
            mount(Some("nodev"), directory, Some("hugetlbfs"), safe(), Some(options.as_str()))?;
        }
        Medium::Memory { .. } | Medium::HugePages { .. } => {}
    }
    fs::set_permissions(directory, fs::Permissions::from_mode(0o777))?;
    if let Some(group) = group {
        owner::give_one(directory, group, false)?;
    }
    create_private_dir(made.parent().unwrap_or(made))?;
    open_private(made).map(drop)
}

/// A directory for files of ours, which containers read and nobody but us writes; what is secret stays in memory.
pub fn prepare(directory: &Path, in_memory: bool) -> io::Result<()> {
    create_within_private(directory)?;
    if in_memory && !is_mounted(directory)? {
        mount(Some("tmpfs"), directory, Some("tmpfs"), safe(), Some("mode=0755"))?;
    }
    let mode = fs::metadata(directory)?.permissions().mode() & 0o7777;
    // An earlier version made them open to all. What `fsGroup` added, the group and its bit, stays.
    let wanted = (mode | 0o755) & !0o1022;
    if mode != wanted {
        fs::set_permissions(directory, fs::Permissions::from_mode(wanted))?;
    }
    Ok(())
}

/// The directory's own mode is for containers, which see it as a mount; on this machine its parent keeps others out.
fn create_within_private(directory: &Path) -> io::Result<()> {
    create_private_dir(directory.parent().unwrap_or(directory))?;
    match fs::create_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        created => created,
    }
}

/// Volumes carry data: no device in them works, and no program in them gets another user's rights.
fn safe() -> MsFlags {
    MsFlags::MS_NOSUID | MsFlags::MS_NODEV
}

/// A filesystem of its own.
fn is_mounted(directory: &Path) -> io::Result<bool> {
    let above = fs::metadata(directory.parent().unwrap_or(directory))?;
    Ok(fs::metadata(directory)?.dev() != above.dev())
}
