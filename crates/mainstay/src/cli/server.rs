//! Flags of a server.

use std::{net::SocketAddr, path::PathBuf};

use clap::Args;
use mainstay_server::settings::PodSecurityLevel;

use super::{CommonOptions, DataDir, StoreDir, scheduler::SchedulerOptions, seconds};

#[derive(Debug, Args)]
pub struct ServerOptions {
    #[command(flatten)]
    pub data: DataDir,

    #[command(flatten)]
    pub common: CommonOptions,

    /// Address of the API [default: 127.0.0.1:6443 for up, 0.0.0.0:6443 for server]
    #[arg(long, env = "MAINSTAY_LISTEN", value_name = "ADDRESS:PORT")]
    pub listen: Option<SocketAddr>,

    /// Address that clients and machines use to reach the API, if not the one listened on
    #[arg(long, env = "MAINSTAY_ADVERTISE", value_name = "ADDRESS")]
    pub advertise: Option<std::net::IpAddr>,

    /// More names or addresses for the server's certificate
    #[arg(long, env = "MAINSTAY_TLS_SAN", value_name = "NAME", value_delimiter = ',')]
    pub tls_san: Vec<String>,

    /// Where objects are stored: `file`, or `etcd://HOST:PORT,HOST:PORT`
    #[arg(long, env = "MAINSTAY_STORE", default_value = "file")]
    pub store: String,

    #[command(flatten)]
    pub place: StoreDir,

    /// Changes younger than this are kept in the file store for watches and lists to continue from, in seconds
    #[arg(long, env = "MAINSTAY_HISTORY_SECONDS", value_name = "SECONDS", default_value_t = 300)]
    pub history_seconds: u64,

    /// Most changes that the file store keeps for this, whatever their age
    #[arg(long, env = "MAINSTAY_HISTORY_EVENTS", value_name = "N", default_value_t = 100_000)]
    pub history_events: usize,

    #[command(flatten)]
    pub etcd: EtcdOptions,

    #[command(flatten)]
    pub scheduler: SchedulerOptions,

    /// Pod Security Standard that pods must meet in namespaces without a label: privileged, baseline or restricted
    /// [default: baseline; privileged with --demo]
    #[arg(long, env = "MAINSTAY_POD_SECURITY_ENFORCE", value_name = "LEVEL")]
    pub pod_security_enforce: Option<PodSecurityLevel>,

    /// Pod Security Standard that clients are warned of in namespaces without a label
    /// [default: restricted; privileged with --demo]
    #[arg(long, env = "MAINSTAY_POD_SECURITY_WARN", value_name = "LEVEL")]
    pub pod_security_warn: Option<PodSecurityLevel>,

    /// How long events are kept, in seconds
    #[arg(long, env = "MAINSTAY_EVENT_TTL", value_name = "SECONDS", default_value_t = 3600)]
    pub event_ttl: u64,

    /// Requests that only read, at work at the same time; one user has at most a quarter of them
    #[arg(long, env = "MAINSTAY_MAX_READS", value_name = "N", default_value_t = 400, value_parser = clap::value_parser!(u32).range(1..))]
    pub max_reads: u32,

    /// Requests that write, at work at the same time; one user has at most a quarter of them
    #[arg(long, env = "MAINSTAY_MAX_WRITES", value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..))]
    pub max_writes: u32,

    /// Connections open at the same time; one user or source address has at most a tenth of them
    #[arg(long, env = "MAINSTAY_MAX_CONNECTIONS", value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub max_connections: u32,

    /// Longest time a request other than a watch may take, in seconds
    #[arg(long, env = "MAINSTAY_REQUEST_TIMEOUT", value_name = "SECONDS", default_value_t = 60, value_parser = seconds())]
    pub request_timeout: u64,

    /// Longest time a request's body may take to arrive, in seconds; one that keeps coming gets more
    #[arg(long, env = "MAINSTAY_BODY_TIMEOUT", value_name = "SECONDS", default_value_t = 10, value_parser = seconds())]
    pub body_timeout: u64,

    /// Longest time a new connection may take to complete its TLS handshake, in seconds
    #[arg(long, env = "MAINSTAY_HANDSHAKE_TIMEOUT", value_name = "SECONDS", default_value_t = 10, value_parser = seconds())]
    pub handshake_timeout: u64,

    /// Longest time a connection may stay open without a complete request under way, in seconds
    #[arg(long, env = "MAINSTAY_IDLE_TIMEOUT", value_name = "SECONDS", default_value_t = 120, value_parser = seconds())]
    pub idle_timeout: u64,

    /// Longest time a client may take none of what is sent to it, in seconds
    #[arg(long, env = "MAINSTAY_STALL_TIMEOUT", value_name = "SECONDS", default_value_t = 60, value_parser = seconds())]
    pub stall_timeout: u64,
}

impl ServerOptions {
    pub fn listen_by_default(&mut self, address: [u8; 4]) {
        self.listen = self.listen.or(Some((address, 6443).into()));
    }

    /// The pods of the demo run this very program, which they mount from the machine.
    pub fn allow_pods_of_demo(&mut self) {
        self.pod_security_enforce.get_or_insert(PodSecurityLevel::Privileged);
        self.pod_security_warn.get_or_insert(PodSecurityLevel::Privileged);
    }
}

#[derive(Debug, Args)]
pub struct EtcdOptions {
    /// CA that signed etcd's certificate
    #[arg(long, env = "MAINSTAY_ETCD_CA", value_name = "FILE")]
    pub etcd_ca: Option<PathBuf>,

    /// Client certificate for etcd
    #[arg(long, env = "MAINSTAY_ETCD_CERT", value_name = "FILE", requires = "etcd_key")]
    pub etcd_cert: Option<PathBuf>,

    /// Key of the client certificate for etcd
    #[arg(long, env = "MAINSTAY_ETCD_KEY", value_name = "FILE", requires = "etcd_cert")]
    pub etcd_key: Option<PathBuf>,

    /// User at etcd
    #[arg(long, env = "MAINSTAY_ETCD_USER", value_name = "NAME", requires = "etcd_password_file")]
    pub etcd_user: Option<String>,

    /// File with the password of the user at etcd
    #[arg(long, env = "MAINSTAY_ETCD_PASSWORD_FILE", value_name = "FILE", requires = "etcd_user")]
    pub etcd_password_file: Option<PathBuf>,
}
