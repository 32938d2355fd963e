//! Flags of a server.

use std::{net::SocketAddr, path::PathBuf};

use clap::Args;
use mainstay_api::roles::{ANY_ROLE, PodRoles, is_role_name};
use mainstay_server::settings::PodSecurityLevel;

use super::{
    CloudOptions, CommonOptions, DataDir, StoreDir, node_loss::NodeLossOptions, scheduler::SchedulerOptions, seconds,
};

#[derive(Debug, Args)]
pub struct ServerOptions {
    #[command(flatten)]
    pub data: DataDir,

    /// Prefix length of each machine's part of --pod-range: 24 for 254 addresses. The same on all servers
    #[arg(long, env = "MAINSTAY_NODE_POD_RANGE_SIZE", value_name = "BITS", default_value_t = 24, value_parser = clap::value_parser!(u8).range(16..=29))]
    pub node_pod_range_size: u8,

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

    /// Directory with ca.crt, ca.key, node-ca.crt and node-ca.key: authorities to use in place of its own
    #[arg(long, env = "MAINSTAY_AUTHORITIES", value_name = "DIR")]
    pub authorities: Option<PathBuf>,

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

    /// Upstream's EncryptionConfiguration with the keys that encrypt Secrets in the store, made at the first start; servers
    /// on one etcd need the same [default: `encryption-config.yaml` in the data directory]
    #[arg(long, env = "MAINSTAY_ENCRYPTION_PROVIDER_CONFIG", value_name = "FILE")]
    pub encryption_provider_config: Option<PathBuf>,

    #[command(flatten)]
    pub scheduler: SchedulerOptions,

    /// Roles of machines that pods may use which name none themselves, in the order of preference; `*` is what no role has.
    /// The same on all servers
    #[arg(long, env = "MAINSTAY_DEFAULT_POD_ROLES", value_name = "ROLE,…", default_value = ANY_ROLE, value_parser = pod_roles)]
    pub default_pod_roles: PodRoles,

    #[command(flatten)]
    pub node_loss: NodeLossOptions,

    #[command(flatten)]
    pub audit: AuditOptions,

    #[command(flatten)]
    pub cloud: CloudOptions,

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

    /// File with tokens of users, a line each: `token,user,uid,"group1,group2"`
    #[arg(long, env = "MAINSTAY_TOKEN_AUTH_FILE", value_name = "FILE")]
    pub token_auth_file: Option<PathBuf>,

    /// AuthenticationConfiguration (apiserver.config.k8s.io/v1): OpenID Connect providers whose tokens are accepted
    #[arg(long, env = "MAINSTAY_AUTHENTICATION_CONFIG", value_name = "FILE")]
    pub authentication_config: Option<PathBuf>,

    /// Seats for requests at work that only read; FlowSchemas share out the seats of both kinds together
    #[arg(long, env = "MAINSTAY_MAX_READS", value_name = "N", default_value_t = 400, value_parser = clap::value_parser!(u32).range(1..))]
    pub max_reads: u32,

    /// Seats for requests at work that write; FlowSchemas share out the seats of both kinds together
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

    /// How long the server still answers when it was asked to stop, while /readyz fails and others take over
    /// [default: 2s with etcd, where there may be others, else 0s]
    #[arg(long, env = "MAINSTAY_SHUTDOWN_DELAY_DURATION", value_name = "TIME", value_parser = super::duration)]
    pub shutdown_delay_duration: Option<std::time::Duration>,
}

/// `batch,*`.
fn pod_roles(text: &str) -> Result<PodRoles, String> {
    let roles = PodRoles::parse(text);
    if roles.is_empty() {
        return Err("must name at least one role, such as `*` or `batch,*`: other pods could not be placed".to_owned());
    }
    match roles.names().iter().find(|role| *role != ANY_ROLE && !is_role_name(role)) {
        Some(role) => {
            Err(format!("{role:?} is not the name of a role: `*`, or at most 63 small letters, digits and dashes"))
        }
        None => Ok(roles),
    }
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
pub struct AuditOptions {
    /// Log no requests
    #[arg(long, env = "MAINSTAY_NO_AUDIT", conflicts_with_all = ["audit_policy_file", "audit_log_path"])]
    pub no_audit: bool,

    /// Upstream's audit policy, which says what of which requests is logged [default: metadata, without the cluster's own chatter]
    #[arg(long, env = "MAINSTAY_AUDIT_POLICY_FILE", value_name = "FILE")]
    pub audit_policy_file: Option<PathBuf>,

    /// Where requests are logged [default: `audit/audit.log` in the data directory]
    #[arg(long, env = "MAINSTAY_AUDIT_LOG_PATH", value_name = "FILE")]
    pub audit_log_path: Option<PathBuf>,

    /// Megabytes after which the audit log is set aside and a new one begun
    #[arg(long, env = "MAINSTAY_AUDIT_LOG_MAXSIZE", value_name = "MB", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub audit_log_maxsize: u64,

    /// Most older audit logs that are left; 0 for any number
    #[arg(long, env = "MAINSTAY_AUDIT_LOG_MAXBACKUP", value_name = "N", default_value_t = 5)]
    pub audit_log_maxbackup: usize,

    /// Days after which older audit logs are removed; 0 for never
    #[arg(long, env = "MAINSTAY_AUDIT_LOG_MAXAGE", value_name = "DAYS", default_value_t = 0)]
    pub audit_log_maxage: u64,
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
