//! Settings of the server, with their defaults.

use std::{net::Ipv4Addr, sync::Arc, time::Duration};

use mainstay_api::roles::PodRoles;

use crate::auth::{oidc::TrustedIssuers, static_token::StaticTokens};

pub use crate::admission::{Level as PodSecurityLevel, PodSecuritySettings};

/// What `/version` says of how the program was built; what is not known is empty, as in upstream's own builds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BuildInfo {
    pub git_commit: &'static str,
    /// `clean` or `dirty`.
    pub git_tree_state: &'static str,
    /// As RFC 3339.
    pub build_date: &'static str,
}

impl Default for BuildInfo {
    fn default() -> Self {
        Self { git_commit: "", git_tree_state: "", build_date: "1970-01-01T00:00:00Z" }
    }
}

#[derive(Clone, Debug)]
pub struct Settings {
    pub build: BuildInfo,
    /// Longest request body taken.
    pub max_body: usize,
    /// Longest request head taken.
    pub max_head: usize,
    /// Requests that only read, and requests that write, at work at the same time.
    pub max_reads: usize,
    pub max_writes: usize,
    /// Watches and streams open at the same time.
    pub max_long_running: usize,
    pub max_connections: usize,
    /// Bytes of request bodies in memory at the same time.
    pub max_body_memory: usize,
    /// How long a request other than a watch may take.
    pub request_timeout: Duration,
    /// How long a request's body may take to arrive; one that keeps coming gets more, see `request_body`.
    pub body_timeout: Duration,
    /// How long a new connection may take to complete its TLS handshake.
    pub handshake_timeout: Duration,
    /// How long a connection may stay without a request under way; half a request is none.
    pub idle_timeout: Duration,
    /// How long a client may take none of what is sent to it.
    pub stall_timeout: Duration,
    /// How long events are kept.
    pub event_ttl: Duration,
    /// The longest a watch stays open if the client does not say; spread by up to as much again.
    pub watch_timeout: Duration,
    pub bookmark_interval: Duration,
    /// Addresses for Services.
    pub service_range: (Ipv4Addr, u8),
    /// Addresses for pods; each Node gets a part of them.
    pub pod_range: (Ipv4Addr, u8),
    /// The prefix length of each Node's part.
    pub node_pod_bits: u8,
    /// Who issues tokens of service accounts, and whom they are for unless they say otherwise.
    pub issuer: String,
    pub static_tokens: Arc<StaticTokens>,
    /// Whose tokens of people are taken.
    pub trusted_issuers: Arc<TrustedIssuers>,
    /// How long pods that do not say otherwise tolerate a node that is not ready or unreachable.
    pub toleration_seconds: i64,
    /// Which roles of machines pods may use that name none themselves.
    pub default_pod_roles: PodRoles,
    /// What is asked of pods in namespaces without Pod Security labels.
    pub pod_security: PodSecuritySettings,
    /// Ports for Services of type NodePort, both ends included.
    pub node_ports: (u16, u16),
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            build: BuildInfo::default(),
            max_body: 3 * 1024 * 1024,
            max_head: 64 * 1024,
            max_reads: 400,
            max_writes: 200,
            max_long_running: 20_000,
            max_connections: 20_000,
            max_body_memory: 128 * 1024 * 1024,
            request_timeout: Duration::from_secs(60),
            body_timeout: Duration::from_secs(10),
            handshake_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(120),
            stall_timeout: Duration::from_secs(60),
            event_ttl: Duration::from_secs(3600),
            watch_timeout: Duration::from_secs(30 * 60),
            bookmark_interval: Duration::from_secs(60),
            service_range: (Ipv4Addr::new(10, 96, 0, 0), 16),
            pod_range: (Ipv4Addr::new(10, 244, 0, 0), 16),
            node_pod_bits: 24,
            issuer: "https://kubernetes.default.svc.cluster.local".to_owned(),
            static_tokens: Arc::default(),
            trusted_issuers: Arc::default(),
            toleration_seconds: 5,
            default_pod_roles: PodRoles::default(),
            pod_security: PodSecuritySettings::default(),
            node_ports: mainstay_api::ports::DEFAULT_NODE_PORTS,
        }
    }
}
