//! This machine as one that runs pods: what it lacks, its settings, its agent.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr},
    path::Path,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, anyhow};
use mainstay_agent::{
    agent::{Agent, AgentState, Config, ControlPlane, Engine},
    leftovers::{Instance, InstanceRecord},
    machine_steps::DrainOwnNode,
    node::{ended::DownNotice, measured_allocatable},
    servers::Servers,
    services::{NamesSettings, dns_address},
    settings::{Eviction, Network, Offering, Reserved, RestartBackoff, RouteCheck, Settings},
    tls::Identity,
};
use mainstay_api::{node_loss::Timing, pod::DEFAULT_TERMINATION_GRACE_SECONDS, roles::ReservationExceeds};
use mainstay_files::{Durability, PRIVATE_FILE, create_private_dir, write_atomic};
use mainstay_network::{Range, conntrack};
use mainstay_runtime::{cgroup, images::what_overlay_lacks};
use tokio_util::sync::CancellationToken;

use crate::{
    cli::{CommonOptions, MachineOptions, NetworkChoice, RouteCheckChoice, RuntimeChoice, is_root},
    cluster_settings::ClusterSettings,
    config_file, data_dir,
    drain::{
        on_stop::{drain_before_update, drain_own_node},
        shutdown_inhibitor,
    },
    exit::Exit,
    process, run,
    server::reachable,
};

/// Of static pods that do not state theirs, as upstream.
const TERMINATION_GRACE: Duration = Duration::from_secs(DEFAULT_TERMINATION_GRACE_SECONDS as u64);
const STATUS_INTERVAL: Duration = Duration::from_secs(300);

/// Capabilities that running containers takes, with their numbers.
const CAPABILITIES: [(&str, u32); 6] = [
    ("CAP_SYS_ADMIN", 21),
    ("CAP_NET_ADMIN", 12),
    ("CAP_MKNOD", 27),
    ("CAP_CHOWN", 0),
    ("CAP_SETUID", 7),
    ("CAP_KILL", 5),
];

pub struct LocalAgent {
    agent: Agent,
    drain_on_stop: Option<DrainOnStop>,
}

struct DrainOnStop {
    client: kube::Client,
    timeout: Duration,
}

impl LocalAgent {
    /// With a client of the API, and whom it calls.
    pub async fn build(
        options: &MachineOptions,
        settings: Settings,
        cluster: ClusterSettings,
        api: (kube::Client, Servers),
        identity: Identity,
    ) -> Result<Self, Exit> {
        Self::with(options, settings, cluster, Some(api), &identity).await
    }

    /// Without any server.
    pub async fn alone(options: &MachineOptions, settings: Settings, cluster: ClusterSettings) -> Result<Self, Exit> {
        let identity =
            mainstay_agent::standalone::identity(&settings.node_name).map_err(|e| Exit::Failed(anyhow!(e)))?;
        Self::with(options, settings, cluster, None, &identity).await
    }

    async fn with(
        options: &MachineOptions,
        mut settings: Settings,
        cluster: ClusterSettings,
        api: Option<(kube::Client, Servers)>,
        identity: &Identity,
    ) -> Result<Self, Exit> {
        // Without a server there are no Services, and nobody answers for names.
        if api.is_some() {
            settings.cluster_dns = vec![dns_address(cluster.service_range).into()];
        }
        let drain_on_stop = api
            .as_ref()
            .filter(|_| options.drain_on_stop)
            .map(|(client, _)| DrainOnStop { client: client.clone(), timeout: options.drain_on_stop_timeout });
        let drain = drain_own_pods(api.as_ref().map(|(client, _)| client.clone()), &settings.node_name);
        let server = |(client, servers)| ControlPlane::Server { client, servers };
        let config = Config {
            engine: engine(options)?,
            peers: api.is_some().then(|| identity.clone()),
            control_plane: api.map_or(ControlPlane::Standalone, server),
            tls: identity.server_config().map_err(|e| Exit::Failed(anyhow!(e)))?.into(),
            cluster_range: cluster.pod_range,
            service_range: cluster.service_range,
            names: NamesSettings {
                domain: cluster.cluster_domain,
                alias_domain: options.alias_domain.clone(),
                datacentre: options.datacentre.clone(),
                upstreams: options.dns_upstream.clone(),
            },
            settings,
            drain,
        };
        data_dir::restrict_run(&config.settings.run_directory());
        remember_engine(&config.settings, &config.engine)?;
        for warning in conntrack(options).apply() {
            tracing::warn!(
                warning,
                "--conntrack-max and --conntrack-tcp-timeout-established need the machine's own network"
            );
        }
        let agent = Agent::build(config).await.map_err(|e| Exit::Refused(anyhow!(e)))?;
        Ok(Self { agent, drain_on_stop })
    }

    pub fn state(&self) -> AgentState {
        self.agent.state()
    }

    pub fn drains_on_stop(&self) -> bool {
        self.drain_on_stop.is_some()
    }

    pub fn node_name(&self) -> &str {
        &self.agent.settings().node_name
    }

    /// For people.
    pub fn describe(&self) -> String {
        let settings = self.agent.settings();
        let address = settings.addresses.first().map(IpAddr::to_string).unwrap_or_default();
        format!("{} at {address}", settings.node_name)
    }

    pub async fn run(self, stop: CancellationToken) {
        let Some(DrainOnStop { client, timeout }) = self.drain_on_stop else { return self.agent.run(stop).await };
        let (node, ended) = (self.agent.settings().node_name.clone(), CancellationToken::new());
        let stopped = CancellationToken::new();
        let drain = async {
            stop.cancelled().await;
            if !run::is_restarting() {
                drain_own_node(client, &node, timeout).await;
            }
            ended.cancel();
        };
        let agent = async {
            self.agent.run_with_drain(ended.clone(), stop.clone()).await;
            stopped.cancel();
        };
        tokio::join!(agent, drain, shutdown_inhibitor::hold_until(stopped.clone(), timeout));
    }
}

/// How the machine's own steps evict its pods.
fn drain_own_pods(client: Option<kube::Client>, node: &str) -> Arc<DrainOwnNode> {
    let node = node.to_owned();
    Arc::new(move |timeout| match client.clone() {
        Some(client) => Box::pin(drain_before_update(client, node.clone(), timeout)),
        None => Box::pin(std::future::ready(Ok(()))),
    })
}

pub fn engine(options: &MachineOptions) -> Result<Engine, Exit> {
    Ok(match &options.runtime {
        RuntimeChoice::Builtin => {
            let program = std::env::current_exe().context("find our own program")?;
            Engine::Builtin { shim: vec![program.into(), "shim".into()], insecure: options.insecure_registry.clone() }
        }
        RuntimeChoice::Cri(socket) => Engine::Cri { socket: socket.clone() },
    })
}

/// Zero leaves the machine's own setting alone.
fn conntrack(options: &MachineOptions) -> conntrack::Settings {
    let timeout = options.conntrack_tcp_timeout_established;
    conntrack::Settings {
        max: (options.conntrack_max > 0).then_some(options.conntrack_max),
        tcp_timeout_established: (!timeout.is_zero()).then_some(timeout),
    }
}

/// Which runtime holds this machine's pods, for the command that ends them all.
fn remember_engine(settings: &Settings, engine: &Engine) -> Result<(), Exit> {
    let text = match engine {
        Engine::Builtin { .. } => "builtin".to_owned(),
        Engine::Cri { socket } => format!("cri://{}", socket.display()),
    };
    let file = settings.directory.join("runtime");
    // A restart on a full disk must not fail for the sake of a file that is as it should be.
    if !fs::read_to_string(&file).is_ok_and(|written| written == text) {
        create_private_dir(&settings.directory)
            .and_then(|_| write_atomic(&file, text.as_bytes(), PRIVATE_FILE, Durability::Durable))
            .with_context(|| format!("write {}", file.display()))?;
    }
    if let (Ok(instance), Some(data_dir)) = (settings.instance.parse(), settings.directory.parent()) {
        DownNotice::clear(&instance);
        let record = InstanceRecord { data_dir: process::resolve(data_dir), runtime: text };
        // Only needed once the data directory is gone: no reason not to start.
        if let Err(error) = record.write(&instance) {
            let directory = instance.run_dir();
            tracing::warn!(%error, directory = %directory.display(), "cannot record where the data directory is");
        }
    }
    Ok(())
}

/// Everything that keeps this machine from running pods, each with what to do about it; empty if nothing does.
pub fn missing_requirements(options: &MachineOptions, data_dir: &Path) -> Vec<String> {
    let mut missing = Vec::new();
    if !is_root() {
        missing.push("root: namespaces, mounts and cgroups of containers take it; run it with sudo".to_owned());
        return missing;
    }
    let effective = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = effective.lines().find_map(|line| line.strip_prefix("CapEff:")).map(str::trim);
    let effective = effective.and_then(|hex| u64::from_str_radix(hex, 16).ok()).unwrap_or(u64::MAX);
    for (name, bit) in CAPABILITIES {
        if effective & (1 << bit) == 0 {
            missing.push(format!("the capability {name}, which this process does not have"));
        }
    }
    match &options.runtime {
        RuntimeChoice::Builtin => {
            missing.extend(cgroup::what_is_missing());
            let images = directory_settings(data_dir).runtime_directory.join("images");
            if let Some(why) = what_overlay_lacks(&images) {
                missing.push(format!("overlayfs: {why} (is the kernel's module there? modprobe overlay)"));
            }
            if let Err(error) = mainstay_network::check_nftables() {
                missing.push(format!(
                    "nftables: the kernel refuses it over netlink: {error} (is its module there? modprobe nf_tables)"
                ));
            }
        }
        RuntimeChoice::Cri(socket) if !socket.exists() => {
            missing.push(format!("a container runtime at {} (--runtime)", socket.display()));
        }
        RuntimeChoice::Cri(_) => {}
    }
    missing
}

/// For ending pods, where no address is given any more.
pub fn any_range() -> anyhow::Result<Range> {
    "10.244.0.0/16".parse().context("read a range")
}

/// Names what belongs to the agent of this data directory on a machine with several.
pub fn instance(data_dir: &Path) -> Instance {
    Instance::of_data_dir(&process::resolve(data_dir))
}

fn addresses(options: &MachineOptions) -> Vec<IpAddr> {
    match &options.node_ip[..] {
        [] => vec![reachable(Ipv4Addr::UNSPECIFIED.into())],
        named => named.to_vec(),
    }
}

/// An address of this machine that its pods reach; none if it has only its loopback interface.
pub fn address(options: &MachineOptions) -> Option<IpAddr> {
    addresses(options).into_iter().find(|address| !address.is_loopback())
}

pub fn settings(options: &MachineOptions, common: &CommonOptions, data_dir: &Path) -> Result<Settings, Exit> {
    let settings = Settings {
        node_name: node_name(options)?,
        addresses: addresses(options),
        port: options.agent_port,
        static_pods: options.static_pods.clone(),
        labels: options.node_label.clone(),
        taints: options.node_taint.clone(),
        max_pods: options.max_pods,
        reserved: Reserved {
            cpu_millis: options.reserve_cpu.0,
            memory: options.reserve_memory,
            ephemeral_storage: options.reserve_storage,
        },
        eviction: Eviction {
            memory_available: options.evict_memory,
            disk_available: options.evict_disk,
            image_gc_high: options.image_gc,
            image_gc_low: options.image_gc.saturating_sub(5),
            ..Eviction::default()
        },
        offering: Offering {
            ttl: common.offer_ttl.unwrap_or(Offering::default().ttl),
            automatic: options.host_ports.clone(),
            explicit: options.explicit_host_ports.clone(),
            roles: options.role.clone(),
        },
        cluster_domain: common.cluster_domain.clone(),
        network: match options.network {
            NetworkChoice::Bridge => Network::Bridge,
            NetworkChoice::Host => Network::Host,
        },
        drain_timeout: options.drain_timeout,
        disks_by_id: options.disks_by_id.clone(),
        slow_start_limit: options.slow_start_limit,
        route_check: match options.route_check {
            RouteCheckChoice::Off => RouteCheck::Off,
            RouteCheckChoice::Redirect => RouteCheck::Redirect,
            RouteCheckChoice::Peers => RouteCheck::Peers,
        },
        termination_grace: options.termination_grace,
        restart_backoff: RestartBackoff {
            first: options.restart_backoff,
            longest: options.restart_backoff_max,
            reset_after: options.restart_backoff_reset,
        },
        machine: common.config.as_deref().map(config_file::machine_commands).transpose()?.flatten(),
        machine_files: common.config.as_deref().map(config_file::machine_files).transpose()?.unwrap_or_default(),
        ..directory_settings(data_dir)
    };
    check_roles(&settings)?;
    Ok(settings)
}

/// Refuses to reserve more for roles than this machine has.
fn check_roles(settings: &Settings) -> Result<(), Exit> {
    let Offering { automatic, explicit, roles, .. } = &settings.offering;
    if roles.is_empty() {
        return Ok(());
    }
    match ReservationExceeds::find(&measured_allocatable(settings), (automatic, explicit), roles) {
        Some(error) => Err(Exit::Refused(anyhow!("--role {error}"))),
        None => Ok(()),
    }
}

/// Where everything lies below a data directory, and otherwise nothing.
pub fn directory_settings(data_dir: &Path) -> Settings {
    Settings {
        node_name: String::new(),
        addresses: vec![],
        port: 0,
        directory: data_dir.join("agent"),
        runtime_directory: data_dir.join("runtime"),
        log_directory: data_dir.join("logs"),
        instance: instance(data_dir).to_string(),
        store_directory: fs::canonicalize(data_dir.join("store")).ok(),
        static_pods: None,
        labels: vec![],
        taints: vec![],
        max_pods: 0,
        reserved: Reserved { cpu_millis: 0, memory: 0, ephemeral_storage: 0 },
        eviction: Eviction::default(),
        offering: Offering::default(),
        cluster_dns: vec![],
        cluster_domain: String::new(),
        network: Network::Bridge,
        drain_timeout: Duration::ZERO,
        termination_grace: TERMINATION_GRACE,
        restart_backoff: RestartBackoff::default(),
        timing: Timing::default(),
        disks_by_id: Default::default(),
        slow_start_limit: Duration::ZERO,
        route_check: RouteCheck::Off,
        status_interval: STATUS_INTERVAL,
        machine: None,
        machine_files: Vec::new(),
    }
}

fn node_name(options: &MachineOptions) -> Result<String, Exit> {
    let name = match &options.node_name {
        Some(name) => name.clone(),
        None => {
            let host =
                nix::unistd::gethostname().context("ask for the host name; or name the machine with --node-name")?;
            host.to_string_lossy().to_lowercase()
        }
    };
    let part = |part: &str| {
        let inside = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        !part.is_empty() && part.chars().all(inside) && !part.starts_with('-') && !part.ends_with('-')
    };
    if name.len() > 253 || !name.split('.').all(part) {
        return Err(Exit::Refused(anyhow!(
            "--node-name {name:?}: must be lower case letters, digits, '-' and '.', beginning and ending with a letter or digit"
        )));
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_is_named_alike_before_and_after_its_data_directory_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let (data_dir, link) = (dir.path().join("data"), dir.path().join("link"));
        fs::create_dir(&data_dir).unwrap();
        std::os::unix::fs::symlink("data", &link).unwrap();
        let there = instance(&data_dir);
        assert_eq!(instance(&link), there);
        fs::remove_dir(&data_dir).unwrap();
        assert_eq!((instance(&data_dir), instance(&link)), (there.clone(), there));
        assert_eq!(instance(Path::new("/var/lib/mainstay")).name(), "mainstay");
    }
}
