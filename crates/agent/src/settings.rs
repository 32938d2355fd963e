//! Settings of an agent, from flags and the configuration file.

use std::{
    net::IpAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use mainstay_api::{
    node_loss::Timing,
    ports::{DEFAULT_AUTOMATIC_PORTS, DEFAULT_EXPLICIT_PORTS, PortRanges},
    roles::RoleReservation,
};
use mainstay_backoff::Backoff;

use crate::{machine_files::AllowedDirectory, machine_steps::MachineCommands};

#[derive(Clone, Debug)]
pub struct Settings {
    pub node_name: String,
    /// How others reach this machine; the first is `InternalIP`.
    pub addresses: Vec<IpAddr>,
    /// Where the agent serves logs, exec and the like.
    pub port: u16,
    /// `<data-dir>/agent`.
    pub directory: PathBuf,
    /// `<data-dir>/runtime`: images and containers of the built-in runtime.
    pub runtime_directory: PathBuf,
    /// `<data-dir>/logs`.
    pub log_directory: PathBuf,
    /// Where a server on this machine has its store, if not in the data directory: containers must not see it.
    pub store_directory: Option<PathBuf>,
    /// Names what belongs to this agent alone on a machine with several: `mainstay`, or
    /// `mainstay-<8 hex digits>` for a data directory that is not the stock one.
    pub instance: String,
    /// Manifests of pods that run with or without a server.
    pub static_pods: Option<PathBuf>,
    pub labels: Vec<(String, String)>,
    /// `key=value:Effect`.
    pub taints: Vec<String>,
    pub max_pods: u32,
    /// Kept back from pods: what the system and Mainstay itself need.
    pub reserved: Reserved,
    pub eviction: Eviction,
    pub offering: Offering,
    pub cluster_dns: Vec<IpAddr>,
    pub cluster_domain: String,
    /// Where pods have their addresses.
    pub network: Network,
    /// Longest time that a pod which ends may wait for machines to stop sending to it.
    pub drain_timeout: Duration,
    /// `terminationGracePeriodSeconds` of static pods that do not state it. Pods of the API always state it.
    pub termination_grace: Duration,
    /// How long a container that failed waits for its restart.
    pub restart_backoff: RestartBackoff,
    /// Heartbeats, and how soon without contact pods that must be unique stop; from the cluster's settings.
    pub timing: Timing,
    /// A pod that has started no container for so long is reported; zero for never.
    pub slow_start_limit: Duration,
    /// How the route to this machine's pods is measured.
    pub route_check: RouteCheck,
    /// How often an unchanged node status is written.
    pub status_interval: Duration,
    /// The machine's own steps; nothing if others configure and update it.
    pub machine: Option<MachineCommands>,
    /// Where the machine names its disks by what they are: `/dev/disk/by-id`.
    pub disks_by_id: PathBuf,
    /// Where ConfigTemplates may write files of this machine.
    pub machine_files: Vec<AllowedDirectory>,
}

impl Settings {
    /// How often the node's Lease is renewed so that its offer, which that renews as well, does not expire.
    pub fn heartbeat_period(&self) -> Duration {
        self.timing.heartbeat.min(Offering::renewal_period(self.offering.ttl))
    }

    /// What does not outlive the machine's next start: sockets of shims, pods' shared memory, Secrets for a restart.
    pub fn run_directory(&self) -> PathBuf {
        Path::new("/run").join(&self.instance)
    }
}

/// The delay before a failed container is restarted. The first restart is immediate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestartBackoff {
    /// Before the second restart in a row; doubles with each further one.
    pub first: Duration,
    pub longest: Duration,
    /// A container that ran this long was healthy: what ends it then is a first failure.
    pub reset_after: Duration,
}

impl RestartBackoff {
    /// After so many failures in a row; the first costs nothing.
    pub fn delay(&self, failures: u32) -> Duration {
        match failures {
            0 => Duration::ZERO,
            n => Backoff::new(self.first, self.longest, 0.0).ceiling(n),
        }
    }
}

impl Default for RestartBackoff {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self { first: seconds(1), longest: seconds(60), reset_after: seconds(600) }
    }
}

/// Where pods have their addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Network {
    /// Each has its own, on a bridge of the machine.
    #[default]
    Bridge,
    /// All have the machine's, and ports that were given to them; for networks that would not route theirs.
    Host,
}

/// How a node measures whether its pods can be reached through the router of a cloud.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RouteCheck {
    #[default]
    Off,
    /// By ICMP redirects of the router.
    Redirect,
    /// By echo requests to other nodes' bridges, where routers send no redirects.
    Peers,
}

/// How the machine offers what it has left.
#[derive(Clone, Debug)]
pub struct Offering {
    /// How long an offer is good for after it was written or renewed.
    pub ttl: Duration,
    /// Host ports for pods that ask for any.
    pub automatic: PortRanges,
    /// Where host ports that pods ask for by number may lie.
    pub explicit: PortRanges,
    /// Parts that are kept for pods which name the role.
    pub roles: Vec<RoleReservation>,
}

impl Offering {
    /// How often an offer that is good for `ttl` is renewed: often enough that one renewal may come late.
    pub fn renewal_period(ttl: Duration) -> Duration {
        ttl.mul_f64(0.6)
    }
}

impl Default for Offering {
    fn default() -> Self {
        let stock = |range| PortRanges::parse([range]).unwrap_or_default();
        Self {
            ttl: Duration::from_secs(5),
            automatic: stock(DEFAULT_AUTOMATIC_PORTS),
            explicit: stock(DEFAULT_EXPLICIT_PORTS),
            roles: vec![],
        }
    }
}

#[derive(Clone, Debug)]
pub struct Reserved {
    pub cpu_millis: u64,
    pub memory: u64,
    pub ephemeral_storage: u64,
}

/// A resource below this much is under pressure.
#[derive(Clone, Debug)]
pub struct Eviction {
    pub memory_available: u64,
    /// In percent of the filesystem.
    pub disk_available: u8,
    pub inodes_available: u8,
    pub pids_available: u8,
    /// Images are collected from this use of the disk on, in percent…
    pub image_gc_high: u8,
    /// …down to this.
    pub image_gc_low: u8,
}

impl Default for Eviction {
    fn default() -> Self {
        Self {
            memory_available: 100 << 20,
            disk_available: 10,
            inodes_available: 5,
            pids_available: 5,
            image_gc_high: 85,
            image_gc_low: 80,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restarts_back_off_from_the_first_delay_to_the_longest_and_the_first_restart_is_immediate() {
        let seconds = |backoff: RestartBackoff| (0..9).map(|n| backoff.delay(n).as_secs()).collect::<Vec<u64>>();
        assert_eq!(seconds(RestartBackoff::default()), [0, 1, 2, 4, 8, 16, 32, 60, 60]);
        let (first, longest) = (Duration::from_secs(10), Duration::from_secs(300));
        let slower = RestartBackoff { first, longest, ..RestartBackoff::default() };
        assert_eq!(seconds(slower), [0, 10, 20, 40, 80, 160, 300, 300, 300]);
        assert_eq!(slower.delay(u32::MAX), longest);
    }
}
