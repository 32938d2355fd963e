//! Why a pod has no machine: how many machines each rule excludes, in the words people know from elsewhere, then
//! the nearest change that would make it fit, and whether waiting can help at all.

use std::{collections::BTreeMap, fmt};

use super::{
    amounts::{PODS, say},
    ports::{HostPort, PortRanges},
    view::{PodKey, Taint},
};

/// What excluded a machine first. Stages in the order they are asked.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reason {
    NotOffering,
    NotReady,
    Refused,
    Unschedulable,
    Taint { key: String, value: String },
    NodeAffinity,
    Ports,
    AutomaticPorts,
    TooManyPods,
    Insufficient { resource: String },
    VolumeAffinity,
    SpreadLabel,
    Spread,
    Affinity,
    AntiAffinity,
    OthersAntiAffinity,
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
            Self::TooManyPods => "Too many pods",
            Self::Insufficient { resource } => return write!(f, "Insufficient {resource}"),
            Self::VolumeAffinity => "node(s) had volume node affinity conflict",
            Self::SpreadLabel => "node(s) didn't match pod topology spread constraints (missing required label)",
            Self::Spread => "node(s) didn't match pod topology spread constraints",
            Self::Affinity => "node(s) didn't match pod affinity rules",
            Self::AntiAffinity => "node(s) didn't match pod anti-affinity rules",
            Self::OthersAntiAffinity => "node(s) didn't satisfy existing pods anti-affinity rules",
        })
    }
}

/// One thing in the way on one machine, exactly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Obstacle {
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
        wanted: usize,
        free: usize,
    },
    /// `ever`: the machine has as much when it is empty.
    Lacks {
        resource: String,
        amount: i64,
        ever: bool,
    },
    Volume,
    SpreadLabel {
        topology: String,
    },
    Spread {
        topology: String,
        domain: String,
        max_skew: i32,
    },
    Affinity {
        topology: String,
    },
    AntiAffinity {
        topology: String,
        domain: String,
    },
    OthersAntiAffinity {
        topology: String,
        domain: String,
    },
}

impl Obstacle {
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
            Self::Lacks { resource, .. } if resource == PODS => Reason::TooManyPods,
            Self::Lacks { resource, .. } => Reason::Insufficient { resource: resource.clone() },
            Self::Volume => Reason::VolumeAffinity,
            Self::SpreadLabel { .. } => Reason::SpreadLabel,
            Self::Spread { .. } => Reason::Spread,
            Self::Affinity { .. } => Reason::Affinity,
            Self::AntiAffinity { .. } => Reason::AntiAffinity,
            Self::OthersAntiAffinity { .. } => Reason::OthersAntiAffinity,
        }
    }

    /// What would take it away by itself; `None` if somebody has to change the pod or the machine.
    pub fn hope(&self) -> Option<Hope> {
        match self {
            Self::NotOffering | Self::NotReady => Some(Hope::MachineReturns),
            Self::Refused => Some(Hope::AskedAgain),
            Self::Cordoned => Some(Hope::Uncordoned),
            Self::Taint(taint) => taint.key.starts_with("node.kubernetes.io/").then_some(Hope::MachineReturns),
            Self::Lacks { ever, .. } => ever.then_some(Hope::PodsLeave),
            Self::PortTaken { .. } | Self::AutomaticPorts { .. } | Self::Spread { .. } => Some(Hope::PodsLeave),
            Self::AntiAffinity { .. } | Self::OthersAntiAffinity { .. } => Some(Hope::PodsLeave),
            Self::Affinity { .. } => Some(Hope::PodsArrive),
            Self::NodeAffinity | Self::PortOutside { .. } | Self::Volume | Self::SpreadLabel { .. } => None,
        }
    }

    /// How far it is from being out of the way, to compare machines: smaller is nearer.
    pub(super) fn distance(&self) -> u32 {
        match self {
            Self::Refused => 1,
            Self::Lacks { ever: true, .. } | Self::PortTaken { .. } | Self::AutomaticPorts { .. } => 2,
            Self::Spread { .. } | Self::AntiAffinity { .. } | Self::OthersAntiAffinity { .. } => 2,
            Self::Affinity { .. } => 3,
            Self::Cordoned => 4,
            Self::Taint(_) => 5,
            Self::NotOffering | Self::NotReady => 6,
            Self::PortOutside { .. } | Self::SpreadLabel { .. } => 7,
            Self::NodeAffinity => 8,
            Self::Volume => 9,
            Self::Lacks { ever: false, .. } => 10,
        }
    }
}

/// What would have to change on the nearest machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nearest {
    pub machine: String,
    pub obstacles: Vec<Obstacle>,
}

impl fmt::Display for Nearest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let said: Vec<String> = self.obstacles.iter().map(|obstacle| change(obstacle, &self.machine)).collect();
        f.write_str(&said.join(" and "))
    }
}

fn change(obstacle: &Obstacle, machine: &str) -> String {
    match obstacle {
        Obstacle::NotOffering => format!("{machine} makes no offer"),
        Obstacle::NotReady => format!("{machine} is not ready"),
        Obstacle::Refused => format!("{machine} refused it a moment ago"),
        Obstacle::Cordoned => format!("{machine} if it were uncordoned"),
        Obstacle::Taint(taint) => match taint.value.as_str() {
            "" => format!("{machine} if taint {} were tolerated", taint.key),
            value => format!("{machine} if taint {}={value} were tolerated", taint.key),
        },
        Obstacle::NodeAffinity => format!("{machine} if its labels matched the pod's node selector and affinity"),
        Obstacle::PortTaken { port, by } => format!("host port {} on {machine} is taken by {by}", port.port),
        Obstacle::PortOutside { port, offered } => {
            format!("host port {} lies outside {offered} that {machine} offers", port.port)
        }
        Obstacle::AutomaticPorts { wanted, free } => {
            format!("{machine} has {free} of {wanted} automatic host ports free")
        }
        Obstacle::Lacks { resource, amount, .. } if resource == PODS => {
            format!("{machine} lacks room for {amount} pod")
        }
        Obstacle::Lacks { resource, amount, .. } => format!("{machine} lacks {}", say(resource, *amount)),
        Obstacle::Volume => format!("{machine} if the pod's volumes could be reached from it"),
        Obstacle::SpreadLabel { topology } => format!("{machine} if it had the label {topology}"),
        Obstacle::Spread { topology, domain, max_skew } => {
            format!("{machine} if {topology}={domain} were not ahead of others by {max_skew}")
        }
        Obstacle::Affinity { topology } => format!("{machine} if a pod it wants to be near ran in its {topology}"),
        Obstacle::AntiAffinity { topology, domain } => {
            format!("{machine} if no pod it must keep away from ran in {topology}={domain}")
        }
        Obstacle::OthersAntiAffinity { topology, domain } => {
            format!("{machine} if no pod that keeps it away ran in {topology}={domain}")
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hope {
    AskedAgain,
    PodsLeave,
    PodsArrive,
    Uncordoned,
    MachineReturns,
    /// There is no machine at all.
    MachineJoins,
    /// Something the pod names is not there yet.
    Exists,
    /// Victims are on their way out.
    VictimsLeave,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Never {
    TooLarge {
        resource: String,
        wanted: i64,
        largest: i64,
    },
    /// The pod's rules exclude each other.
    Contradiction(Contradiction),
    /// Somebody has to change the pod or a machine.
    NothingMatches,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Contradiction {
    NodeLabel { key: String },
    NoTerms,
    NearAndAway { topology: String },
    PortTwice { port: u16 },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ever {
    NotYet(Hope),
    Never(Never),
}

impl fmt::Display for Ever {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotYet(Hope::AskedAgain) => "the machine will be asked again",
            Self::NotYet(Hope::PodsLeave) => "would fit when pods leave",
            Self::NotYet(Hope::PodsArrive) => "would fit when a pod it wants to be near runs",
            Self::NotYet(Hope::Uncordoned) => "would fit when a machine is uncordoned",
            Self::NotYet(Hope::MachineReturns) => "would fit when a machine returns",
            Self::NotYet(Hope::MachineJoins) => "cannot fit until a machine joins",
            Self::NotYet(Hope::Exists) => "will be looked at again when that exists",
            Self::NotYet(Hope::VictimsLeave) => "waits for the pods that make room for it",
            Self::Never(Never::TooLarge { resource, wanted, largest }) => {
                let wanted = say(resource, *wanted);
                let most = say(resource, *largest);
                return write!(
                    f,
                    "no machine has {wanted} (the largest has {most}): cannot fit until a larger machine joins"
                );
            }
            Self::Never(Never::NothingMatches) => "cannot fit until the pod or a machine is changed",
            Self::Never(Never::Contradiction(why)) => return write!(f, "cannot ever fit: {why}"),
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
            Self::NearAndAway { topology } => {
                write!(f, "pod affinity and anti-affinity want the same pods near and away within {topology}")
            }
            Self::PortTwice { port } => write!(f, "host port {port} is asked for twice in the pod"),
        }
    }
}

/// Everything there is to say about a pod that got no machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unplaced {
    /// All machines looked at.
    pub machines: usize,
    /// How many machines were excluded for each reason; a machine that lacks several resources counts for each.
    pub reasons: BTreeMap<Reason, usize>,
    /// What has to exist first; then no machine was looked at.
    pub missing: Vec<String>,
    pub nearest: Option<Nearest>,
    /// Why nobody was made to leave for it.
    pub preemption: Option<NoPreemption>,
    pub ever: Ever,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoPreemption {
    /// `preemptionPolicy: Never`.
    NotAllowed,
    /// Pods are leaving already.
    Waiting,
    /// No machine has pods of lower priority whose leaving would help.
    NoVictims,
}

impl fmt::Display for NoPreemption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotAllowed => "not eligible due to preemptionPolicy=Never.",
            Self::Waiting => "not eligible due to a terminating pod on the nominated node.",
            Self::NoVictims => "no pods of lower priority whose leaving would help.",
        })
    }
}

impl fmt::Display for Unplaced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.machines == 0 {
            f.write_str("no nodes available to schedule pods")?;
        } else {
            let counted = self.reasons.iter().map(|(reason, count)| format!("{count} {reason}"));
            let mut said: Vec<String> = self.missing.iter().cloned().chain(counted).collect();
            said.sort_unstable();
            write!(f, "0/{} nodes are available: {}.", self.machines, said.join(", "))?;
        }
        if let Some(why) = &self.preemption {
            write!(f, " preemption: {why}")?;
        }
        let semicolon = if self.machines == 0 { ";" } else { "" };
        match &self.nearest {
            Some(nearest) => write!(f, "{semicolon} closest: {nearest}; {}.", self.ever),
            None => write!(f, "{semicolon} {}.", self.ever),
        }
    }
}
