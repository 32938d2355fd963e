//! Rules about ports that several parts must decide alike: protocols, host ports of pods, target ports of Services.
//!
//! * [`PortRanges`]: sets of ports, as flags and offers write them
//! * [`host_ports`], [`assigned_host_ports`], [`mapped_host_port`]: which ports of a node belong to a pod
//! * [`resolve_target_port`]: which port of a pod a Service's port means
//!
//! Whoever reads containers into a type of its own hands its ports over as [`DeclaredPort`]s. Only ports of containers that
//! last as long as the pod count ([`crate::pod::lasting`]): an ordinary init container ends before the pod serves anybody.

mod host;
mod ranges;
mod service;

use k8s_openapi::api::core::v1::ContainerPort;

pub use self::{
    host::{
        AssignedHostPort, HostPort, assigned_host_ports, declared_ports, host_port_annotations, host_ports,
        is_host_port_annotation, mapped_host_port, parse_assigned_host_port, requested_host_port,
    },
    ranges::{PortRangeError, PortRanges},
    service::resolve_target_port,
};

pub const TCP: &str = "TCP";
pub const UDP: &str = "UDP";
pub const SCTP: &str = "SCTP";
/// All protocols of ports, in the order of upstream's messages.
pub const PROTOCOLS: &[&str] = &[SCTP, TCP, UDP];

/// The ports for Services of type NodePort unless the server is started with others, both ends included.
pub const DEFAULT_NODE_PORTS: (u16, u16) = (30_000, 32_767);
/// The ports that a node gives to pods that ask for any, unless its agent is started with others.
pub const DEFAULT_AUTOMATIC_PORTS: &str = "31000-32000";
/// The ports that a pod may ask for by number, unless the agent is started with others.
pub const DEFAULT_EXPLICIT_PORTS: &str = "1-65535";

/// The protocol of a port that may leave it out.
pub fn protocol_or_default(protocol: Option<&str>) -> &str {
    protocol.filter(|protocol| !protocol.is_empty()).unwrap_or(TCP)
}

/// What the rules read of a container's port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeclaredPort<'a> {
    /// Empty if it has none.
    pub name: &'a str,
    /// May be empty.
    pub protocol: &'a str,
    pub container_port: i32,
    /// Zero if it is left open.
    pub host_port: i32,
}

impl DeclaredPort<'_> {
    pub fn protocol(&self) -> &str {
        protocol_or_default(Some(self.protocol))
    }
}

impl<'a> From<&'a ContainerPort> for DeclaredPort<'a> {
    fn from(port: &'a ContainerPort) -> Self {
        Self {
            name: port.name.as_deref().unwrap_or_default(),
            protocol: port.protocol.as_deref().unwrap_or_default(),
            container_port: port.container_port,
            host_port: port.host_port.unwrap_or_default(),
        }
    }
}

/// A port number that a packet can have.
fn valid_port(number: i32) -> Option<u16> {
    u16::try_from(number).ok().filter(|port| *port > 0)
}
