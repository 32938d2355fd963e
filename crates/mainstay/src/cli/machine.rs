//! Flags of a machine that runs pods.

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    str::FromStr,
};

use clap::{Args, ValueEnum};
use mainstay_api::{
    ports::{DEFAULT_AUTOMATIC_PORTS, DEFAULT_EXPLICIT_PORTS, PortRanges},
    quantity::Quantity,
    roles::RoleReservation,
    validation::names,
};

#[derive(Debug, Args)]
#[command(next_help_heading = "This machine")]
pub struct MachineOptions {
    /// Name of this machine [default: its host name]
    #[arg(long, env = "MAINSTAY_NODE_NAME", value_name = "NAME")]
    pub node_name: Option<String>,

    /// Addresses at which others reach this machine [default: the one it would use itself]
    #[arg(long, env = "MAINSTAY_NODE_IP", value_name = "ADDRESS", value_delimiter = ',')]
    pub node_ip: Vec<IpAddr>,

    /// Port for logs, exec and the like, taken by servers only; 0 takes any
    #[arg(long, env = "MAINSTAY_AGENT_PORT", value_name = "PORT", default_value_t = 10250)]
    pub agent_port: u16,

    /// What runs containers: `builtin`, or `cri:///run/containerd/containerd.sock`
    #[arg(long, env = "MAINSTAY_RUNTIME", default_value = "builtin", value_parser = RuntimeChoice::from_str)]
    pub runtime: RuntimeChoice,

    /// Directory of pods that this machine runs by itself
    #[arg(long, env = "MAINSTAY_STATIC_PODS", value_name = "DIR")]
    pub static_pods: Option<PathBuf>,

    /// Labels of this machine
    #[arg(long, env = "MAINSTAY_NODE_LABEL", value_name = "KEY=VALUE", value_delimiter = ',', value_parser = label)]
    pub node_label: Vec<(String, String)>,

    /// Taints of this machine, when it first joins
    #[arg(long, env = "MAINSTAY_NODE_TAINT", value_name = "KEY=VALUE:EFFECT", value_delimiter = ',')]
    pub node_taint: Vec<String>,

    /// Where this machine names its disks by what they are; volumes of a cloud are found there
    #[arg(long, env = "MAINSTAY_DISKS_BY_ID", value_name = "DIR", default_value = "/dev/disk/by-id")]
    pub disks_by_id: PathBuf,

    /// Report a pod that has started no container for so long, with the step it hangs in; 0s for never
    #[arg(long, env = "MAINSTAY_SLOW_START_LIMIT", value_name = "TIME", default_value = "2m", value_parser = super::duration)]
    pub slow_start_limit: std::time::Duration,

    /// How to measure whether the router of a cloud routes to this machine's pods: by the router's ICMP `redirect`s, by echo requests to `peers`, or not
    #[arg(long, env = "MAINSTAY_ROUTE_CHECK", value_enum, default_value_t = RouteCheckChoice::Off)]
    pub route_check: RouteCheckChoice,

    /// Evict the pods of this machine before it stops, as far as their budgets allow
    #[arg(long, env = "MAINSTAY_DRAIN_ON_STOP")]
    pub drain_on_stop: bool,

    /// How long that may take; what is left then runs on
    #[arg(long, env = "MAINSTAY_DRAIN_ON_STOP_TIMEOUT", value_name = "TIME", default_value = "5m", value_parser = super::duration)]
    pub drain_on_stop_timeout: std::time::Duration,

    /// Most pods at the same time
    #[arg(long, env = "MAINSTAY_MAX_PODS", value_name = "N", default_value_t = 250, value_parser = clap::value_parser!(u32).range(1..))]
    pub max_pods: u32,

    /// CPU kept back from pods
    #[arg(long, env = "MAINSTAY_RESERVE_CPU", value_name = "QUANTITY", default_value = "100m", value_parser = millis)]
    pub reserve_cpu: Millis,

    /// Memory kept back from pods
    #[arg(long, env = "MAINSTAY_RESERVE_MEMORY", value_name = "QUANTITY", default_value = "256Mi", value_parser = bytes)]
    pub reserve_memory: u64,

    /// Disk space kept back from pods
    #[arg(long, env = "MAINSTAY_RESERVE_STORAGE", value_name = "QUANTITY", default_value = "1Gi", value_parser = bytes)]
    pub reserve_storage: u64,

    /// Pods are evicted when less memory than this is available
    #[arg(long, env = "MAINSTAY_EVICT_MEMORY", value_name = "QUANTITY", default_value = "100Mi", value_parser = bytes)]
    pub evict_memory: u64,

    /// Pods are evicted when less of the disk than this is free, in percent
    #[arg(long, env = "MAINSTAY_EVICT_DISK", value_name = "PERCENT", default_value_t = 10, value_parser = clap::value_parser!(u8).range(0..=99))]
    pub evict_disk: u8,

    /// Unused images are removed when more of the disk than this is used, in percent
    #[arg(long, env = "MAINSTAY_IMAGE_GC", value_name = "PERCENT", default_value_t = 85, value_parser = clap::value_parser!(u8).range(1..=100))]
    pub image_gc: u8,

    /// Host ports for pods that ask for any; `none` for none
    #[arg(long, env = "MAINSTAY_HOST_PORTS", value_name = "RANGES", default_value = DEFAULT_AUTOMATIC_PORTS, value_parser = ports)]
    pub host_ports: PortRanges,

    /// Host ports that pods may ask for by number; `none` for none
    #[arg(long, env = "MAINSTAY_EXPLICIT_HOST_PORTS", value_name = "RANGES", default_value = DEFAULT_EXPLICIT_PORTS, value_parser = ports)]
    pub explicit_host_ports: PortRanges,

    /// Part of this machine that is kept for pods which name the role; may be given several times, in the environment separated by
    /// semicolons. What no role has is the role `*`
    #[arg(long, env = "MAINSTAY_ROLE", value_name = "ROLE=RESOURCE:AMOUNT,…", value_delimiter = ';', value_parser = RoleReservation::from_str)]
    pub role: Vec<RoleReservation>,

    /// Where pods have their addresses: `bridge`, or `host` where those would not be routed
    #[arg(long, env = "MAINSTAY_NETWORK", value_enum, default_value_t = NetworkChoice::Bridge)]
    pub network: NetworkChoice,

    /// Longest time that a pod which is deleted waits for other machines to stop sending to it, before it is asked to stop; 0 does not wait
    #[arg(long, env = "MAINSTAY_DRAIN_TIMEOUT", value_name = "TIME", default_value = "5s", value_parser = super::duration)]
    pub drain_timeout: std::time::Duration,

    /// Time that static pods which do not state their terminationGracePeriodSeconds have to stop; pods of the API have 30s then
    #[arg(long, env = "MAINSTAY_TERMINATION_GRACE", value_name = "TIME", default_value = "30s", value_parser = super::whole_seconds)]
    pub termination_grace: std::time::Duration,

    /// Delay before the second restart in a row of a container that fails; doubles with each further one. The first restart is immediate
    #[arg(long, env = "MAINSTAY_RESTART_BACKOFF", value_name = "TIME", default_value = "1s", value_parser = super::duration)]
    pub restart_backoff: std::time::Duration,

    /// Longest delay before a container that fails is restarted
    #[arg(long, env = "MAINSTAY_RESTART_BACKOFF_MAX", value_name = "TIME", default_value = "1m", value_parser = super::duration)]
    pub restart_backoff_max: std::time::Duration,

    /// A container that ran this long was healthy: its next failure counts as the first
    #[arg(long, env = "MAINSTAY_RESTART_BACKOFF_RESET", value_name = "TIME", default_value = "10m", value_parser = super::duration)]
    pub restart_backoff_reset: std::time::Duration,

    /// Domain of the names in Consul's style, such as `web.service.consul`
    #[arg(long, env = "MAINSTAY_ALIAS_DOMAIN", value_name = "DOMAIN", default_value = "consul")]
    pub alias_domain: String,

    /// Name of this data centre, in names such as `web.service.dc1.consul`
    #[arg(long, env = "MAINSTAY_DATACENTRE", value_name = "NAME", default_value = "dc1", visible_alias = "datacenter")]
    pub datacentre: String,

    /// Who is asked for all other names [default: those whom this machine asks]
    #[arg(long, env = "MAINSTAY_DNS_UPSTREAM", value_name = "ADDRESS[:PORT]", value_delimiter = ',', value_parser = upstream)]
    pub dns_upstream: Vec<SocketAddr>,

    /// Most connections that the kernel keeps track of; 0 leaves its setting alone
    #[arg(long, env = "MAINSTAY_CONNTRACK_MAX", value_name = "N", default_value_t = 0)]
    pub conntrack_max: u32,

    /// How long the kernel remembers an idle TCP connection; 0 leaves its setting alone
    #[arg(long, env = "MAINSTAY_CONNTRACK_TCP_TIMEOUT_ESTABLISHED", value_name = "TIME", default_value = "0", value_parser = super::duration)]
    pub conntrack_tcp_timeout_established: std::time::Duration,

    /// Registries that are spoken to without TLS
    #[arg(long, env = "MAINSTAY_INSECURE_REGISTRY", value_name = "HOST:PORT", value_delimiter = ',')]
    pub insecure_registry: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RouteCheckChoice {
    Off,
    Redirect,
    Peers,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum NetworkChoice {
    Bridge,
    Host,
}

/// An address, with the usual port of DNS unless it names one.
fn upstream(text: &str) -> Result<SocketAddr, String> {
    let bare = text.parse::<IpAddr>().map(|ip| SocketAddr::new(ip, 53));
    bare.or_else(|_| text.parse()).map_err(|_| "must be an address such as 192.0.2.1 or 192.0.2.1:5353".to_owned())
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuntimeChoice {
    Builtin,
    /// The path of its socket.
    Cri(PathBuf),
}

impl FromStr for RuntimeChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.strip_prefix("cri://")) {
            ("builtin", _) => Ok(Self::Builtin),
            (_, Some(path)) if path.starts_with('/') => Ok(Self::Cri(path.into())),
            _ => Err("must be `builtin` or `cri:///PATH` of a socket".into()),
        }
    }
}

/// Thousandths of a cpu.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Millis(pub u64);

pub fn label(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("must be KEY=VALUE")?;
    let describe = |part: &str, violations: names::Violations| match violations.is_empty() {
        true => Ok(()),
        false => Err(format!("the {part} is not one of a label: {}", violations.join("; "))),
    };
    describe("key", names::qualified_name(key))?;
    describe("value", names::label_value(value))?;
    Ok((key.to_owned(), value.to_owned()))
}

/// `31000-31999,33000`.
fn ports(text: &str) -> Result<PortRanges, String> {
    if text == "none" {
        return Ok(PortRanges::NONE);
    }
    let ranges = text.split(',').map(str::trim);
    let read = |range: &str| PortRanges::parse([range]).map_err(|error| format!("{range:?} {error}"));
    ranges.clone().try_for_each(|range| read(range).map(drop))?;
    PortRanges::parse(ranges).map_err(|error| error.to_string())
}

fn bytes(text: &str) -> Result<u64, String> {
    let quantity = Quantity::parse(text).map_err(|_| "must be a quantity such as 256Mi or 2Gi")?;
    u64::try_from(quantity.value()).map_err(|_| "must not be negative".to_owned())
}

fn millis(text: &str) -> Result<Millis, String> {
    let quantity = Quantity::parse(text).map_err(|_| "must be a quantity such as 100m or 2")?;
    u64::try_from(quantity.as_milli()).map(Millis).map_err(|_| "must not be negative".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runtimes_quantities_and_labels_are_read_or_refused() {
        assert_eq!("builtin".parse(), Ok(RuntimeChoice::Builtin));
        assert_eq!("cri:///run/c.sock".parse(), Ok(RuntimeChoice::Cri("/run/c.sock".into())));
        assert!("cri://run/c.sock".parse::<RuntimeChoice>().is_err());
        assert_eq!(bytes("256Mi"), Ok(256 << 20));
        assert_eq!(millis("1.5"), Ok(Millis(1500)));
        assert_eq!(ports("31000-31009, 80").unwrap().to_string(), "80,31000-31009");
        assert_eq!(ports("none"), Ok(PortRanges::NONE));
        let words = "\"9-8\" must be a port or a range of ports, such as 31000-32000, between 1 and 65535";
        assert_eq!(ports("80,9-8").unwrap_err(), words);
        assert!(ports("").is_err() && ports("0").is_err() && ports("1-70000").is_err());
        assert!(bytes("-1").is_err() && bytes("lots").is_err() && label("x").is_err());
        assert_eq!(label("rack=7"), Ok(("rack".to_owned(), "7".to_owned())));
        assert!(
            label("not a name=x").unwrap_err().starts_with("the key is not one of a label: name part must consist of")
        );
        assert!(label("zone=not a value!").unwrap_err().starts_with("the value is not one of a label: a valid label"));
    }
}
