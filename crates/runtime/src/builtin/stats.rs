//! Resource usage of containers: CPU, memory and processes while they run, disk until they are removed.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{Inner, cgroup::Cgroup, sandboxes::blocking};
use crate::{
    observed::{ContainerId, ContainerStats},
    port::Result,
};

impl Inner {
    pub async fn stats(self: &Arc<Self>) -> Result<Vec<ContainerStats>> {
        let inner = Arc::clone(self);
        blocking(move || inner.state.measurable().into_iter().map(|container| inner.measure(container)).collect()).await
    }

    fn measure(&self, container: MeasuredContainer) -> ContainerStats {
        let written = self.images.rootfs_bytes(&container.id.0).unwrap_or(0);
        let rootfs_bytes = written + log_bytes(&container.log);
        if container.stats.ended {
            return ContainerStats { rootfs_bytes, ..container.stats };
        }
        let usage = container.group.usage();
        ContainerStats {
            cpu_nanos: usage.cpu_nanos,
            working_set: usage.working_set,
            memory_usage: usage.memory,
            rss: usage.rss,
            pids: usage.pids,
            rootfs_bytes,
            ..container.stats
        }
    }
}

/// A log with the parts of it that were set aside, which have its name and a time.
fn log_bytes(log: &Path) -> u64 {
    let (Some(directory), Some(name)) = (log.parent(), log.file_name()) else { return 0 };
    let files = fs::read_dir(directory).into_iter().flatten().flatten();
    let own = files.filter(|file| file.file_name().as_encoded_bytes().starts_with(name.as_encoded_bytes()));
    own.filter_map(|file| file.metadata().ok()).filter(|found| found.is_file()).map(|found| found.len()).sum()
}

/// Where to look for what a container uses.
pub struct MeasuredContainer {
    pub id: ContainerId,
    pub group: Cgroup<'static>,
    pub stats: ContainerStats,
    pub log: PathBuf,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_files_that_were_set_aside_count() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("0.log"), [0; 10]).unwrap();
        fs::write(dir.path().join("0.log.20260101-000000"), [0; 100]).unwrap();
        fs::write(dir.path().join("1.log"), [0; 1000]).unwrap();
        assert_eq!(log_bytes(&dir.path().join("0.log")), 110);
        assert_eq!(log_bytes(&dir.path().join("missing/0.log")), 0);
    }
}
