//! Everything that instances have on this machine, as the kernel shows it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    net::Ipv4Addr,
    path::{Path, PathBuf},
};

use mainstay_files::{Durability, Format, create_private_dir, mountinfo, write_atomic};
use serde::{Deserialize, Serialize};

use super::{
    LeftoversError,
    locks::{self, Holder},
    names::{Instance, data_dir_of_mount, instance_of_shm},
    processes::{self, PodProcess},
};

/// What one instance has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traces {
    /// The server or agent, if it runs.
    pub holder: Option<Holder>,
    /// As far as anything says so.
    pub data_dir: Option<PathBuf>,
    /// The data directory still has what `mainstay down` needs.
    pub has_data: bool,
    pub processes: Vec<PodProcess>,
    /// In the order in which they were mounted.
    pub mounts: Vec<PathBuf>,
    /// Interfaces, the bridge last.
    pub links: Vec<String>,
    pub addresses: Vec<Ipv4Addr>,
    /// Tables of packet rules.
    pub tables: Vec<String>,
    /// One per hierarchy.
    pub cgroups: Vec<PathBuf>,
    pub run_dir: Option<PathBuf>,
}

impl Traces {
    /// Whether there is anything but a process and a data directory.
    pub fn is_empty(&self) -> bool {
        self.processes.is_empty()
            && self.mounts.is_empty()
            && self.links.is_empty()
            && self.addresses.is_empty()
            && self.tables.is_empty()
            && self.cgroups.is_empty()
            && self.run_dir.is_none()
    }
}

/// Kept in the run directory, for the time when the data directory is gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InstanceRecord {
    pub data_dir: PathBuf,
    /// `builtin`, or `cri://` and a socket.
    pub runtime: String,
}

impl InstanceRecord {
    pub const FORMAT: Format = Format::new("the record of an instance", 1);

    fn path(instance: &Instance) -> PathBuf {
        instance.run_dir().join("instance.json")
    }

    pub fn read(instance: &Instance) -> Option<Self> {
        Self::FORMAT.decode(&fs::read(Self::path(instance)).ok()?).ok()
    }

    pub fn write(&self, instance: &Instance) -> io::Result<()> {
        create_private_dir(&instance.run_dir())?;
        write_atomic(&Self::path(instance), &Self::FORMAT.encode(self)?, 0o600, Durability::Volatile)
    }
}

/// The file that says which runtime holds the pods: without it a data directory is of no use to `mainstay down`.
pub fn runtime_file(data_dir: &Path) -> PathBuf {
    data_dir.join("agent/runtime")
}

pub async fn observe() -> Result<BTreeMap<Instance, Traces>, LeftoversError> {
    let list = |what| move |source| LeftoversError::List { what, source };
    let mut found: BTreeMap<Instance, Traces> = BTreeMap::new();
    for (instance, of_pods) in processes::find().map_err(list("processes"))? {
        let traces = found.entry(instance).or_default();
        traces.data_dir = of_pods.iter().find_map(|process| process.data_dir.clone());
        traces.processes = of_pods;
    }
    observe_network(&mut found).await?;
    let mounts = mountinfo::read().map_err(list("mounts"))?;
    for hierarchy in cgroup_roots(&mounts) {
        for (instance, path) in named_directories(&hierarchy).map_err(list("cgroups"))? {
            found.entry(instance).or_default().cgroups.push(path);
        }
    }
    for (instance, path) in named_directories(Path::new("/run")).map_err(list("/run"))? {
        let record = InstanceRecord::read(&instance);
        let traces = found.entry(instance).or_default();
        traces.data_dir = traces.data_dir.take().or(record.map(|record| record.data_dir));
        traces.run_dir = Some(path);
    }
    for mount in mounts {
        add_mount(&mut found, mount);
    }
    for holder in locks::find().map_err(list("processes"))? {
        let traces = found.entry(Instance::of_data_dir(&holder.data_dir)).or_default();
        traces.data_dir = Some(holder.data_dir.clone());
        traces.holder = Some(holder);
    }
    for traces in found.values_mut() {
        traces.has_data = traces.data_dir.as_deref().is_some_and(|data_dir| runtime_file(data_dir).exists());
    }
    Ok(found)
}

async fn observe_network(found: &mut BTreeMap<Instance, Traces>) -> Result<(), LeftoversError> {
    let network = mainstay_network::leftovers::find().await;
    let network = network.map_err(|error| LeftoversError::Network(error.chain()))?;
    for (bridge, ports) in network.bridges {
        if let Some(instance) = Instance::of_bridge(&bridge) {
            found.entry(instance).or_default().links.extend(ports.into_iter().chain([bridge]));
        }
    }
    for (label, address) in network.labels {
        if let Some(instance) = Instance::of_label(&label) {
            found.entry(instance).or_default().addresses.push(address);
        }
    }
    for table in network.tables {
        if let Some(instance) = Instance::of_table(&table) {
            found.entry(instance).or_default().tables.push(table);
        }
    }
    Ok(())
}

/// A container's root says by itself whose it is. A volume counts only for an instance of which there are other traces: a path that
/// looks alike may be anybody's.
fn add_mount(found: &mut BTreeMap<Instance, Traces>, mount: mountinfo::Mount) {
    let point = mount.mount_point;
    if let Some(instance) = instance_of_shm(&point) {
        found.entry(instance).or_default().mounts.push(point);
        return;
    }
    let Some(data_dir) = data_dir_of_mount(&point) else { return };
    let instance = Instance::of_data_dir(&data_dir);
    if mount.filesystem == "overlay" || found.contains_key(&instance) {
        let traces = found.entry(instance).or_default();
        traces.data_dir.get_or_insert(data_dir);
        traces.mounts.push(point);
    }
}

/// Mount points of all hierarchies, of version 1 and 2.
pub(super) fn cgroup_roots(mounts: &[mountinfo::Mount]) -> BTreeSet<PathBuf> {
    let hierarchies = mounts.iter().filter(|mount| matches!(mount.filesystem.as_str(), "cgroup" | "cgroup2"));
    hierarchies.map(|mount| mount.mount_point.clone()).collect()
}

pub(super) fn named_directories(parent: &Path) -> io::Result<Vec<(Instance, PathBuf)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(parent)? {
        let entry = entry?;
        let instance = entry.file_name().to_str().and_then(|name| name.parse().ok());
        let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
        found.extend(instance.filter(|_| is_directory).map(|instance| (instance, entry.path())));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(point: &str, filesystem: &str) -> mountinfo::Mount {
        mountinfo::Mount {
            root: "/".into(),
            mount_point: point.into(),
            options: String::new(),
            filesystem: filesystem.to_owned(),
            source: PathBuf::new(),
            super_options: String::new(),
        }
    }

    #[test]
    fn a_volume_counts_only_beside_other_traces_of_its_instance() {
        let mut found = BTreeMap::new();
        add_mount(&mut found, mount("/d/agent/pods/u/volumes/v", "tmpfs"));
        assert!(found.is_empty(), "it may be anybody's");
        add_mount(&mut found, mount("/d/runtime/images/rootfs/0123456789abcdef0123456789abcdef/merged", "overlay"));
        add_mount(&mut found, mount("/d/agent/pods/u/volumes/v", "tmpfs"));
        add_mount(&mut found, mount("/d", "ext4"));
        let traces = &found[&Instance::of_data_dir(Path::new("/d"))];
        assert_eq!((traces.mounts.len(), traces.data_dir.as_deref()), (2, Some(Path::new("/d"))));
    }

    #[test]
    fn hierarchies_of_both_versions_are_looked_at() {
        let mounts =
            [mount("/sys/fs/cgroup/cpu", "cgroup"), mount("/sys/fs/cgroup/unified", "cgroup2"), mount("/", "ext4")];
        assert_eq!(cgroup_roots(&mounts).len(), 2);
    }
}
