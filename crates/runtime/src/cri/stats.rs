//! Resource usage of containers: as the runtime reports it, and from the cgroup what it leaves out.

use super::{
    Inner,
    call::{CallContext, QUERY_TIMEOUT, with_timeout},
    config, label, proto,
};
use crate::{cgroup::Cgroup, error::RuntimeError, observed::ContainerStats, port::Result};

impl Inner {
    pub(super) async fn stats(&self) -> Result<Vec<ContainerStats>> {
        let labels = label::selector(&self.settings.instance, None);
        let filter = proto::ContainerStatsFilter { label_selector: labels.clone() };
        let request = proto::ListContainerStatsRequest { filter: Some(filter) };
        let context = CallContext { doing: "ask for stats", what: "runtime", id: "" };
        let stats =
            match with_timeout(QUERY_TIMEOUT, context, self.client.runtime().list_container_stats(request)).await {
                // One container that goes meanwhile spoils containerd's answer for all: the cgroups have to do.
                Err(RuntimeError::NotFound { .. }) => Vec::new(),
                answer => answer?.stats,
            };
        let containers = self.client.containers(labels.clone()).await?;
        let specs: Vec<_> =
            self.client.sandboxes(labels).await?.iter().filter_map(|s| label::sandbox_spec(&s.annotations)).collect();
        let cgroup = |pod: &crate::observed::PodRef, id: &str| {
            let spec = specs.iter().find(|spec| spec.pod.uid == pod.uid)?;
            Some(Cgroup::new(format!("{}/{id}", config::cgroup(&self.settings.instance, spec))))
        };
        let running = containers.into_iter().filter(|c| c.state() == proto::ContainerState::ContainerRunning);
        let output = |id: &str| stats.iter().find(|s| s.attributes.as_ref().is_some_and(|a| a.id == id));
        Ok(running.map(|c| read(&c, output(&c.id).cloned().unwrap_or_default(), cgroup)).collect())
    }
}

fn read(
    container: &proto::Container,
    stats: proto::ContainerStats,
    cgroup: impl Fn(&crate::observed::PodRef, &str) -> Option<Cgroup<'static>>,
) -> ContainerStats {
    let pod = label::pod(&container.labels);
    let counted =
        pod.as_ref().and_then(|pod| cgroup(pod, &container.id)).map(|group| group.usage()).unwrap_or_default();
    let memory = stats.memory.unwrap_or_default();
    let or = |output: Option<proto::UInt64Value>, counted: u64| output.map_or(0, |v| v.value).max(counted);
    let disk = stats.writable_layer.and_then(|layer| layer.used_bytes).map_or(0, |v| v.value);
    ContainerStats {
        pod,
        name: container.metadata.clone().unwrap_or_default().name,
        cpu_nanos: or(stats.cpu.and_then(|cpu| cpu.usage_core_nano_seconds), counted.cpu_nanos),
        working_set: memory.working_set_bytes.map_or(counted.working_set, |v| v.value),
        memory_usage: or(memory.usage_bytes, counted.memory),
        rss: or(memory.rss_bytes, counted.rss),
        pids: counted.pids,
        rootfs_bytes: disk,
        ended: false,
    }
}
