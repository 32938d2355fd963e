//! What running containers use.

use std::{fs, path::PathBuf, sync::Arc};

use super::{Inner, cgroup::Cgroup, sandboxes::blocking};
use crate::{
    observed::{ContainerId, ContainerStats},
    port::Result,
};

impl Inner {
    pub async fn stats(self: &Arc<Self>) -> Result<Vec<ContainerStats>> {
        let inner = Arc::clone(self);
        blocking(move || inner.world.running().into_iter().map(|running| inner.measure(running)).collect()).await
    }

    fn measure(&self, running: Running) -> ContainerStats {
        let usage = running.group.usage();
        let written = self.images.rootfs_bytes(&running.id.0).unwrap_or(0);
        ContainerStats {
            cpu_nanos: usage.cpu_nanos,
            working_set: usage.working_set,
            memory_usage: usage.memory,
            rss: usage.rss,
            pids: usage.pids,
            rootfs_bytes: written + fs::metadata(&running.log).map_or(0, |meta| meta.len()),
            ..running.stats
        }
    }
}

/// Where to look for what a container uses.
pub struct Running {
    pub id: ContainerId,
    pub group: Cgroup<'static>,
    pub stats: ContainerStats,
    pub log: PathBuf,
}
