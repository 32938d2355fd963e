//! Why a pod is unschedulable: how many nodes each filter excludes, in upstream's words; then what is missing on the
//! closest node, and whether waiting can help at all.

use std::{collections::BTreeMap, fmt};

use mainstay_api::{
    resources::{PODS, format_amount},
    roles::ANY_ROLE,
    wellknown::mainstay::{MESOS_ROLES, ROLES},
};

use super::{
    devices::AllocationFailure,
    view::{HostPort, PodKey, PortRanges, Taint},
};

/// The filter that excluded a node first, in the order of filters.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reason {
    NotOffering,
    NotReady,
    Refused,
    Unschedulable,
    Taint {
        key: String,
        value: String,
    },
    NodeAffinity,
    Ports,
    AutomaticPorts,
    NoPool,
    TooManyPods,
    Insufficient {
        resource: String,
    },
    VolumeAffinity,
    SpreadLabel,
    Spread,
    Affinity,
    AntiAffinity,
    ExistingAntiAffinity,
    /// With upstream's words for it.
    Devices {
        why: String,
    },
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotOffering => "node(s) were not offering",
            Self::NotReady => "node(s) were not ready",
            Self::Refused => "node(s) refused the pod",
            Self::Unschedulable => "node(s) were unschedulable",
            Self::Taint { key, value } => return write!(f, "node(s) had untolerated taint {{{key}: {value}}}"),
            Self::NodeAffinity => "node(s) didn't match Pod's node affinity/selector",
            Self::Ports => "node(s) didn't have free ports for the requested pod ports",
            Self::AutomaticPorts => "node(s) didn't have enough automatic ports",
            Self::NoPool => "node(s) had nothing for the roles that the pod may use",
            Self::TooManyPods => "Too many pods",
            Self::Insufficient { resource } => return write!(f, "Insufficient {resource}"),
            Self::VolumeAffinity => "node(s) had volume node affinity conflict",
            Self::SpreadLabel => "node(s) didn't match pod topology spread constraints (missing required label)",
            Self::Spread => "node(s) didn't match pod topology spread constraints",
            Self::Affinity => "node(s) didn't match pod affinity rules",
            Self::AntiAffinity => "node(s) didn't match pod anti-affinity rules",
            Self::ExistingAntiAffinity => "node(s) didn't satisfy existing pods anti-affinity rules",
            Self::Devices { why } => why,
        })
    }
}

/// One filter that a pod fails on one node, with the details.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FilterFailure {
    NotOffering,
    NotReady,
    Refused,
    Cordoned,
    Taint(Taint),
    NodeAffinity,
    PortTaken {
        port: HostPort,
        by: PodKey,
    },
    PortOutside {
        port: HostPort,
        offered: PortRanges,
    },
    AutomaticPorts {
        requested: usize,
        free: usize,
    },
    /// The node has nothing for any of these roles.
    NoPool {
        roles: Vec<String>,
    },
    Insufficient {
        resource: String,
        /// How much is lacking.
        amount: i64,
        /// The node has enough when it is empty.
        fits_empty_node: bool,
        /// What is free for each of the pod's roles, if the node divides the resource among roles.
        pools: Vec<(String, i64)>,
    },
    Volume,
    SpreadLabel {
        topology_key: String,
    },
    Spread {
        topology_key: String,
        domain: String,
        max_skew: i32,
    },
    Affinity {
        topology_key: String,
    },
    AntiAffinity {
        topology_key: String,
        domain: String,
    },
    ExistingAntiAffinity {
        topology_key: String,
        domain: String,
    },
    /// Its ResourceClaims cannot be allocated, or are allocated elsewhere.
    Devices(AllocationFailure),
}

impl FilterFailure {
    pub fn reason(&self) -> Reason {
        match self {
            Self::NotOffering => Reason::NotOffering,
            Self::NotReady => Reason::NotReady,
            Self::Refused => Reason::Refused,
            Self::Cordoned => Reason::Unschedulable,
            Self::Taint(taint) => Reason::Taint { key: taint.key.clone(), value: taint.value.clone() },
            Self::NodeAffinity => Reason::NodeAffinity,
            Self::PortTaken { .. } | Self::PortOutside { .. } => Reason::Ports,
            Self::AutomaticPorts { .. } => Reason::AutomaticPorts,
            Self::NoPool { .. } => Reason::NoPool,
            Self::Insufficient { resource, .. } if resource == PODS => Reason::TooManyPods,
            Self::Insufficient { resource, .. } => Reason::Insufficient { resource: resource.clone() },
            Self::Volume => Reason::VolumeAffinity,
            Self::SpreadLabel { .. } => Reason::SpreadLabel,
            Self::Spread { .. } => Reason::Spread,
            Self::Affinity { .. } => Reason::Affinity,
            Self::AntiAffinity { .. } => Reason::AntiAffinity,
            Self::ExistingAntiAffinity { .. } => Reason::ExistingAntiAffinity,
            Self::Devices(failure) => Reason::Devices { why: failure.reason() },
        }
    }

    /// The event that would resolve it; `None` if somebody has to change the pod or the node.
    pub fn remedy(&self) -> Option<Remedy> {
        match self {
            Self::NotOffering | Self::NotReady => Some(Remedy::NodeReturns),
            Self::Refused => Some(Remedy::RefusalExpires),
            Self::Cordoned => Some(Remedy::NodeUncordoned),
            Self::Taint(taint) => {
                taint.key.starts_with(mainstay_api::wellknown::taint::PREFIX).then_some(Remedy::NodeReturns)
            }
            Self::Insufficient { fits_empty_node, .. } => fits_empty_node.then_some(Remedy::PodsLeave),
            Self::PortTaken { .. } | Self::AutomaticPorts { .. } | Self::Spread { .. } => Some(Remedy::PodsLeave),
            Self::AntiAffinity { .. } | Self::ExistingAntiAffinity { .. } => Some(Remedy::PodsLeave),
            Self::Affinity { .. } => Some(Remedy::PodsArrive),
            Self::Devices(AllocationFailure::TooFewDevices { .. } | AllocationFailure::Unsatisfiable) => {
                Some(Remedy::DevicesFreed)
            }
            Self::Devices(AllocationFailure::Pool { .. }) => Some(Remedy::DevicesFreed),
            Self::Devices(_) => None,
            Self::NodeAffinity | Self::PortOutside { .. } | Self::Volume | Self::SpreadLabel { .. } => None,
            Self::NoPool { .. } => None,
        }
    }

    /// How hard it is to resolve, to compare nodes: smaller is closer.
    pub(super) fn distance(&self) -> u32 {
        match self {
            Self::Refused => 1,
            Self::Insufficient { fits_empty_node: true, .. } => 2,
            Self::PortTaken { .. } | Self::AutomaticPorts { .. } => 2,
            Self::Spread { .. } | Self::AntiAffinity { .. } | Self::ExistingAntiAffinity { .. } => 2,
            Self::Affinity { .. } => 3,
            Self::Devices(AllocationFailure::TooFewDevices { selected: 0, .. }) => 9,
            Self::Devices(_) => 3,
            Self::Cordoned => 4,
            Self::Taint(_) => 5,
            Self::NotOffering | Self::NotReady => 6,
            Self::PortOutside { .. } | Self::SpreadLabel { .. } => 7,
            Self::NodeAffinity | Self::NoPool { .. } => 8,
            Self::Volume => 9,
            Self::Insufficient { fits_empty_node: false, .. } => 10,
        }
    }

    fn describe(&self, node: &str) -> String {
        match self {
            Self::NotOffering => format!("{node} makes no offer"),
            Self::NotReady => format!("{node} is not ready"),
            Self::Refused => format!("{node} refused it a moment ago"),
            Self::Cordoned => format!("{node} if it were uncordoned"),
            Self::Taint(taint) => match taint.value.as_str() {
                "" => format!("{node} if taint {} were tolerated", taint.key),
                value => format!("{node} if taint {}={value} were tolerated", taint.key),
            },
            Self::NodeAffinity => format!("{node} if its labels matched the pod's node selector and affinity"),
            Self::PortTaken { port, by } => format!("host port {} on {node} is taken by {by}", port.port),
            Self::PortOutside { port, offered } if offered.is_empty() => {
                format!("host port {} is not offered: {node} offers none", port.port)
            }
            Self::PortOutside { port, offered } => {
                format!("host port {} lies outside {offered} that {node} offers", port.port)
            }
            Self::AutomaticPorts { requested, free } => {
                format!("{node} has {free} of {requested} automatic host ports free")
            }
            Self::Insufficient { resource, amount, .. } if resource == PODS => {
                format!("{node} lacks room for {amount} pod")
            }
            Self::NoPool { roles } => format!("{node} has nothing for the role{}", list_roles(roles)),
            Self::Insufficient { resource, amount, pools, .. } if !pools.is_empty() => {
                let free = pools.iter().map(|(role, room)| format!("{role} has {}", format_amount(resource, *room)));
                let free = free.collect::<Vec<_>>().join(", ");
                format!("{node} lacks {}: the role {free} free", format_amount(resource, *amount))
            }
            Self::Insufficient { resource, amount, .. } => format!("{node} lacks {}", format_amount(resource, *amount)),
            Self::Volume => format!("{node} if the pod's volumes could be reached from it"),
            Self::SpreadLabel { topology_key } => format!("{node} if it had the label {topology_key}"),
            Self::Spread { topology_key, domain, max_skew } => {
                format!("{node} if {topology_key}={domain} were not ahead of others by {max_skew}")
            }
            Self::Affinity { topology_key } => {
                format!("{node} if a pod it wants to be near ran in its {topology_key}")
            }
            Self::AntiAffinity { topology_key, domain } => {
                format!("{node} if no pod it must keep away from ran in {topology_key}={domain}")
            }
            Self::ExistingAntiAffinity { topology_key, domain } => {
                format!("{node} if no pod that keeps it away ran in {topology_key}={domain}")
            }
            Self::Devices(failure) => format!("{node} if {failure}"),
        }
    }
}

/// ` batch`, `s batch, *`.
fn list_roles(roles: &[String]) -> String {
    format!("{} {}", if roles.len() == 1 { "" } else { "s" }, roles.join(", "))
}

/// The node that is closest to fitting, and what is missing there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClosestNode {
    pub node: String,
    pub failures: Vec<FilterFailure>,
}

impl fmt::Display for ClosestNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: Vec<String> = self.failures.iter().map(|failure| failure.describe(&self.node)).collect();
        f.write_str(&texts.join(" and "))
    }
}

/// An event that would make the pod schedulable; the sooner it is to be expected, the smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Remedy {
    RefusalExpires,
    PodsLeave,
    PodsArrive,
    DevicesFreed,
    NodeUncordoned,
    NodeReturns,
    /// There is no node at all.
    NodeJoins,
    /// An object that the pod names does not exist yet.
    ObjectCreated,
    /// Victims are terminating.
    VictimsDeleted,
}

/// Why no event can make the pod schedulable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Impossibility {
    TooLarge {
        resource: String,
        requested: i64,
        largest: i64,
    },
    Contradiction(Contradiction),
    /// No node has anything for these roles.
    NoRole {
        roles: Vec<String>,
    },
    /// Somebody has to change the pod or a node.
    NothingMatches,
}

/// Rules of one pod that exclude each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Contradiction {
    NodeLabel {
        key: String,
    },
    NoTerms,
    AffinityAndAntiAffinity {
        topology_key: String,
    },
    PortTwice {
        port: u16,
    },
    /// Its annotation leaves it no role.
    NoRoles,
}

/// Whether waiting can help.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prospect {
    Later(Remedy),
    Never(Impossibility),
}

impl fmt::Display for Prospect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Later(Remedy::RefusalExpires) => "the node will be tried again",
            Self::Later(Remedy::PodsLeave) => "would fit when pods leave",
            Self::Later(Remedy::PodsArrive) => "would fit when a pod it wants to be near runs",
            Self::Later(Remedy::DevicesFreed) => "would fit when devices are freed or added",
            Self::Later(Remedy::NodeUncordoned) => "would fit when a node is uncordoned",
            Self::Later(Remedy::NodeReturns) => "would fit when a node returns",
            Self::Later(Remedy::NodeJoins) => "cannot fit until a node joins",
            Self::Later(Remedy::ObjectCreated) => "will be scheduled when that exists",
            Self::Later(Remedy::VictimsDeleted) => "waits for the deletion of preempted pods",
            Self::Never(Impossibility::TooLarge { resource, requested, largest }) => {
                let (requested, largest) = (format_amount(resource, *requested), format_amount(resource, *largest));
                return write!(
                    f,
                    "no node has {requested} (the largest has {largest}): cannot fit until a larger node joins"
                );
            }
            Self::Never(Impossibility::NoRole { roles }) => {
                let roles = list_roles(roles);
                return write!(
                    f,
                    "no node has anything for the role{roles}: cannot fit until a node or the pod is changed"
                );
            }
            Self::Never(Impossibility::NothingMatches) => "cannot fit until the pod or a node is changed",
            Self::Never(Impossibility::Contradiction(why)) => return write!(f, "cannot ever fit: {why}"),
        })
    }
}

impl fmt::Display for Contradiction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NodeLabel { key } => {
                write!(f, "the node selector and affinity ask for values of {key} that exclude each other")
            }
            Self::NoTerms => f.write_str("the required node affinity has no term that could match"),
            Self::AffinityAndAntiAffinity { topology_key } => {
                write!(f, "pod affinity and anti-affinity want the same pods near and away within {topology_key}")
            }
            Self::PortTwice { port } => write!(f, "host port {port} is asked for twice in the pod"),
            Self::NoRoles => write!(
                f,
                "its annotation {ROLES} (or {MESOS_ROLES}) names no role; the rest of each node has the role {ANY_ROLE}"
            ),
        }
    }
}

/// Why a pod is unschedulable, as its condition and event say it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnosis {
    /// All nodes considered.
    pub nodes: usize,
    /// How many nodes each filter excluded; a node that lacks several resources counts for each.
    pub reasons: BTreeMap<Reason, usize>,
    /// Objects that have to exist first; then no node was considered.
    pub missing: Vec<String>,
    pub closest: Option<ClosestNode>,
    pub preemption: Option<NoPreemption>,
    pub prospect: Prospect,
}

/// Why no pod is preempted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoPreemption {
    /// `preemptionPolicy: Never`.
    NotAllowed,
    /// Victims are terminating already.
    Waiting,
    /// No node has pods of lower priority without which the pod would fit.
    NoVictims,
}

impl fmt::Display for NoPreemption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotAllowed => "not eligible due to preemptionPolicy=Never.",
            Self::Waiting => "not eligible due to a terminating pod on the nominated node.",
            Self::NoVictims => "No preemption victims found for incoming pod.",
        })
    }
}

impl fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nodes == 0 {
            f.write_str("no nodes available to schedule pods")?;
        } else {
            let counted = self.reasons.iter().map(|(reason, count)| format!("{count} {reason}"));
            let mut reasons: Vec<String> = self.missing.iter().cloned().chain(counted).collect();
            reasons.sort_unstable();
            write!(f, "0/{} nodes are available: {}.", self.nodes, reasons.join(", "))?;
        }
        if let Some(why) = &self.preemption {
            write!(f, " preemption: {why}")?;
        }
        let semicolon = if self.nodes == 0 { ";" } else { "" };
        match &self.closest {
            Some(closest) => write!(f, "{semicolon} closest: {closest}; {}.", self.prospect),
            None => write!(f, "{semicolon} {}.", self.prospect),
        }
    }
}
