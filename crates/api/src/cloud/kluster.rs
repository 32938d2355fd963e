//! The kind Kluster: a cluster of its own, whose servers run as pods here and whose machines are servers of the cloud.
//!
//! Served as `mainstay.dev/v1` and, over the same objects, as `kubernikus.sap.cc/v1` ([`super::kubernikus`]).

use std::{fmt, net::Ipv4Addr};

use ipnet::Ipv4Net;
use k8s_openapi::{NamespaceResourceScope, apimachinery::pkg::apis::meta::v1::Condition};
use serde::{Deserialize, Serialize};

use super::node_pool::{PoolSpec, PoolStatus};
use crate::own_object::{DefinitionDoc, OwnKind, OwnObject};

pub type Kluster = OwnObject<KlusterSpec, KlusterStatus>;

/// Finalizers, in the order in which they are removed.
pub const DEORBIT_FINALIZER: &str = "deorbiter";
pub const LAUNCH_FINALIZER: &str = "launchctl";
pub const GROUND_FINALIZER: &str = "groundctl";

/// A Kluster with this annotation, not empty, is neither deleted nor torn down.
pub const TERMINATION_PROTECTION: &str = "kubernikus.cloud.sap/termination-protection";
/// The project that a Kluster belongs to.
pub const ACCOUNT_LABEL: &str = "account";
/// Who made it, as user/domain.
pub const CREATOR_ANNOTATION: &str = "creator";

/// Stock values of what a spec leaves out.
pub const CLUSTER_CIDR: &str = "100.100.0.0/16";
pub const SERVICE_CIDR: &str = "198.18.128.0/17";
pub const ADVERTISE_ADDRESS: &str = "1.1.1.1";
pub const ADVERTISE_PORT: i32 = 6443;
pub const DNS_DOMAIN: &str = "cluster.local";
pub const SECURITY_GROUP: &str = "default";

/// Bounds.
pub const NAME_MAX: usize = 20;
/// Names of the objects of its control plane begin with the name of the Kluster.
pub const OBJECT_NAME_MAX: usize = 53;
pub const MOST_POOLS: usize = 64;
pub const SSH_KEY_MAX: usize = 16 << 10;
pub const AUTHENTICATION_CONFIGURATION_MAX: usize = 128 << 10;
/// Prefix lengths of ranges of pods: a node gets a /24 of it.
pub const CLUSTER_PREFIXES: std::ops::RangeInclusive<u8> = 8..=24;
/// And of Services.
pub const SERVICE_PREFIXES: std::ops::RangeInclusive<u8> = 12..=28;
pub const AUDIT_SINKS: [&str; 4] = ["elasticsearch", "swift", "http", "stdout"];
pub const BACKUPS: [&str; 3] = ["on", "off", "externalAWS"];

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct KlusterSpec {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub advertise_address: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advertise_port: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub audit: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub authentication_configuration: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backup: Option<String>,
    #[serde(rename = "clusterCIDR", skip_serializing_if = "Option::is_none")]
    pub cluster_cidr: Option<String>,
    #[serde(rename = "customCNI", skip_serializing_if = "is_false")]
    pub custom_cni: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dashboard: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dex: Option<bool>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub dns_address: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub dns_domain: String,
    #[serde(skip_serializing_if = "is_false")]
    pub no_cloud: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub node_pools: Vec<PoolSpec>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oidc: Option<OidcSpec>,
    pub openstack: OpenStackSpec,
    #[serde(skip_serializing_if = "is_false")]
    pub seed_kubeadm: bool,
    #[serde(skip_serializing_if = "is_false")]
    pub seed_virtual: bool,
    #[serde(rename = "serviceCIDR", skip_serializing_if = "String::is_empty")]
    pub service_cidr: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub ssh_public_key: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub version: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OidcSpec {
    #[serde(rename = "clientID")]
    pub client_id: String,
    #[serde(rename = "issuerURL")]
    pub issuer_url: String,
}

/// Where in the project it lives; what is left out is discovered while it is Pending.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OpenStackSpec {
    /// The cloud, as the server's configuration of clouds names it; the stock one if empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cloud: String,
    #[serde(rename = "lbFloatingNetworkID", skip_serializing_if = "String::is_empty")]
    pub lb_floating_network_id: String,
    #[serde(rename = "lbSubnetID", skip_serializing_if = "String::is_empty")]
    pub lb_subnet_id: String,
    #[serde(rename = "networkID", skip_serializing_if = "String::is_empty")]
    pub network_id: String,
    #[serde(rename = "projectID", skip_serializing_if = "String::is_empty")]
    pub project_id: String,
    #[serde(rename = "routerID", skip_serializing_if = "String::is_empty")]
    pub router_id: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub security_group_name: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct KlusterStatus {
    pub phase: KlusterPhase,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub apiserver: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub apiserver_version: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub chart_name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub chart_version: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub dashboard: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    #[serde(skip_serializing_if = "is_false")]
    pub migrations_pending: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub node_pools: Vec<PoolStatus>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spec_version: Option<i64>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub version: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub wormhole: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum KlusterPhase {
    #[default]
    Pending,
    Creating,
    Running,
    Upgrading,
    Terminating,
}

impl KlusterPhase {
    pub fn text(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Creating => "Creating",
            Self::Running => "Running",
            Self::Upgrading => "Upgrading",
            Self::Terminating => "Terminating",
        }
    }
}

impl fmt::Display for KlusterPhase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl KlusterSpec {
    /// The range of pods; `None` for a Kluster without a cloud that has none.
    pub fn pod_range(&self) -> Option<Ipv4Net> {
        parse_range(self.cluster_cidr.as_deref()?)
    }

    pub fn service_range(&self) -> Option<Ipv4Net> {
        parse_range(&self.service_cidr)
    }

    /// The address of the Service `kubernetes`: the first one of the range.
    pub fn api_service_address(&self) -> Option<Ipv4Addr> {
        nth_address(self.service_range()?, 1)
    }
}

/// A range that begins with its own first address.
pub fn parse_range(text: &str) -> Option<Ipv4Net> {
    text.parse().ok().filter(|range: &Ipv4Net| range.addr() == range.network())
}

/// An address of a range, counted from its first.
pub fn nth_address(range: Ipv4Net, n: u32) -> Option<Ipv4Addr> {
    let address = Ipv4Addr::from(u32::from(range.network()).checked_add(n)?);
    range.contains(&address).then_some(address)
}

pub fn ranges_overlap(a: Ipv4Net, b: Ipv4Net) -> bool {
    a.contains(&b.network()) || b.contains(&a.network())
}

impl Kluster {
    pub fn phase(&self) -> KlusterPhase {
        self.status.as_ref().map_or(KlusterPhase::Pending, |status| status.phase)
    }

    pub fn has_finalizer(&self, finalizer: &str) -> bool {
        self.metadata.finalizers.iter().flatten().any(|name| name == finalizer)
    }

    /// Whether it may be neither deleted nor torn down.
    pub fn is_protected(&self) -> bool {
        let annotations = self.metadata.annotations.as_ref();
        annotations.and_then(|all| all.get(TERMINATION_PROTECTION)).is_some_and(|value| !value.is_empty())
    }
}

fn is_false(value: &bool) -> bool {
    !value
}

impl OwnKind for KlusterSpec {
    type Scope = NamespaceResourceScope;
    const KIND: &'static str = "Kluster";
    const LIST_KIND: &'static str = "KlusterList";
    const PLURAL: &'static str = "klusters";
    const ABOUT: &'static str =
        "A cluster of its own, whose servers run as pods here and whose machines are servers of the cloud.";
    const DEFINITIONS: &'static [DefinitionDoc] = &[
        DefinitionDoc {
            name: "KlusterSpec",
            about: "KlusterSpec is what a Kluster is to be.",
            fields: &[
                (
                    "advertiseAddress",
                    "The address under which pods of the Kluster reach its API. 1.1.1.1 if left out. Cannot be changed.",
                ),
                ("advertisePort", "The port of its API. 6443 if left out. Cannot be changed."),
                ("audit", "Where audit events go: elasticsearch, swift, http or stdout. None are written if left out."),
                ("authenticationConfiguration", "An AuthenticationConfiguration of apiserver.config.k8s.io, as text."),
                ("backup", "on, off or externalAWS: whether its store is backed up by somebody."),
                (
                    "clusterCIDR",
                    "The range of its pods. 100.100.0.0/16 if left out; may be empty with noCloud alone. Cannot be changed.",
                ),
                ("customCNI", "Whether pods get their network from somebody else: no routes are made."),
                ("dashboard", "Whether it is to have a dashboard."),
                ("dex", "Whether it is to have dex for its users."),
                (
                    "dnsAddress",
                    "The address of its DNS Service. The second one of serviceCIDR if left out. Cannot be changed.",
                ),
                ("dnsDomain", "The domain of its Services. cluster.local if left out. Cannot be changed."),
                ("name", "Its name in the cloud: at most 20 lower-case letters, digits and dashes. Cannot be changed."),
                (
                    "noCloud",
                    "Whether it has nothing in a cloud: no routes, volumes or load balancers are made. Cannot be changed.",
                ),
                ("nodePools", "Its machines. A pool can be removed once its size is 0 and its machines are gone."),
                ("oidc", "An OpenID Connect provider of its users."),
                (
                    "openstack",
                    "Where in the cloud it lives. What is left out is discovered, and cannot be changed afterwards.",
                ),
                ("seedKubeadm", "Whether it gets what kubeadm needs to join machines."),
                ("seedVirtual", "Whether it gets the virtual machines' seed."),
                ("serviceCIDR", "The range of its Services. 198.18.128.0/17 if left out. Cannot be changed."),
                ("sshPublicKey", "An SSH public key that its machines accept."),
                (
                    "version",
                    "The version of Kubernetes. The newest that is offered if left out. Can be changed while the Kluster is Running: within a minor version, or to the next one.",
                ),
            ],
        },
        DefinitionDoc {
            name: "KlusterStatus",
            about: "KlusterStatus is what is true of a Kluster.",
            fields: &[
                ("apiserver", "The URL of its API."),
                ("apiserverVersion", "The version that its API says it has."),
                ("chartName", "What its control plane is made of."),
                ("chartVersion", "And in which version of that."),
                ("conditions", "Ready, and what hinders it."),
                ("dashboard", "The URL of its dashboard."),
                ("message", "What it waits for, or why it cannot go on."),
                ("migrationsPending", "Whether migrations are still to be done; until then nothing else is."),
                ("nodePools", "How many machines its pools have."),
                ("phase", "Pending, Creating, Running, Upgrading or Terminating."),
                ("specVersion", "The last migration that was done."),
                ("version", "The version that it runs."),
                ("wormhole", "The URL of its tunnel server."),
            ],
        },
        DefinitionDoc {
            name: "KlusterOIDC",
            about: "KlusterOIDC is an OpenID Connect provider.",
            fields: &[
                ("clientID", "The client that tokens have to be for."),
                ("issuerURL", "Whose tokens are accepted."),
            ],
        },
        DefinitionDoc {
            name: "KlusterOpenStack",
            about: "KlusterOpenStack is where in a cloud a Kluster lives.",
            fields: &[
                ("cloud", "The cloud, as the server's configuration names it; its default one if left out."),
                ("lbFloatingNetworkID", "The network of floating IPs. The router's external network if left out."),
                ("lbSubnetID", "The subnet of load balancers. The only one of the network if left out."),
                ("networkID", "The network of its machines. The only one of the router if left out."),
                ("projectID", "The project. That of the cloud's credentials if left out."),
                ("routerID", "The router of its pod routes. The only one of the project if left out."),
                ("securityGroupName", "The security group of its machines. default if left out."),
            ],
        },
    ];
}
