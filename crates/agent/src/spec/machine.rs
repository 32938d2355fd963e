//! Facts of the node that pods can learn through the downward API: name, addresses, allocatable resources.

use std::net::IpAddr;

use crate::settings::Settings;

#[derive(Clone, Debug, Default)]
pub struct NodeFacts {
    pub addresses: Vec<IpAddr>,
    pub hostname: String,
    pub memory: u64,
    pub allocatable: Allocatable,
}

/// What pods can have; a container without a limit may use all of it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Allocatable {
    pub cpu_millis: u64,
    pub memory: u64,
    pub ephemeral_storage: u64,
}

impl NodeFacts {
    pub fn this(settings: &Settings) -> Self {
        let memory = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| total(&text)).unwrap_or_default();
        let cpus = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
        let disk = nix::sys::statvfs::statvfs(&settings.directory)
            .or_else(|_| nix::sys::statvfs::statvfs("/"))
            .map_or(0, |disk| disk.blocks() * disk.fragment_size());
        let reserved = &settings.reserved;
        Self {
            addresses: settings.addresses.clone(),
            hostname: nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok()).unwrap_or_default(),
            memory,
            allocatable: Allocatable {
                cpu_millis: (cpus * 1000).saturating_sub(reserved.cpu_millis),
                memory: memory.saturating_sub(reserved.memory + settings.eviction.memory_available),
                ephemeral_storage: disk.saturating_sub(reserved.ephemeral_storage),
            },
        }
    }
}

/// `MemTotal` in bytes.
fn total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kb| kb * 1024)
}
