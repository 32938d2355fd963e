//! Decides which machine of a Kluster is serviced now: replaced if its agent is older than the API, rebooted if its system is old.
//!
//! One machine at a time, replacement before reboot, in office hours of the operators, and only while all other machines are ready. A machine is cordoned and
//! drained first, and a drain honours budgets: a budget that allows no eviction ends the attempt after [`DRAIN_LIMIT`], the machine takes pods again, and the next
//! attempt comes with the next servicing. What is under way is read from annotations of the Node, so that a restart goes on where it was.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp, civil::Weekday, tz::TimeZone};
use mainstay_api::cloud::kluster::KlusterPhase;

use super::version::{Version, parse_flatcar, parse_version};
use crate::hammertime::plan::is_disabled;

pub const INTERVAL: SignedDuration = SignedDuration::from_mins(20);
pub const DRAIN_LIMIT: SignedDuration = SignedDuration::from_mins(5);
/// An update that is not done by then has failed, and nothing else is serviced until somebody has looked.
pub const UPDATE_LIMIT: SignedDuration = SignedDuration::from_mins(3 * 60 + 15);
/// While a machine is drained or comes back.
const BUSY_POLL: SignedDuration = SignedDuration::from_secs(10);
const POLL: SignedDuration = SignedDuration::from_mins(5);
/// The operators' office hours, in [`ZONE`].
pub const ZONE: &str = "Europe/Berlin";
const HOURS: std::ops::RangeInclusive<i8> = 9..=14;

/// Annotations of a Kluster.
pub const SERVICING: &str = "kubernikus.cloud.sap/servicing";
pub const SERVICING_TIMESTAMP: &str = "kubernikus.cloud.sap/servicingTimestamp";
pub const IGNORE_SERVICING_TIME: &str = "kubernikus.cloud.sap/ignoreServicingTime";
/// Label of a Kluster whose owner services it himself.
pub const MAINTENANCE_PROFILE: &str = "cloud.sap/maintenance-profile";
/// Annotations of a Node.
pub const UPDATE_TIMESTAMP: &str = "kubernikus.cloud.sap/updateTimestamp";
pub const REBOOT_TIMESTAMP: &str = "kubernikus.cloud.sap/rebootTimestamp";
pub const FORCE_REPLACE: &str = "kubernikus.cloud.sap/forceReplace";
pub const SKIP_REPLACE: &str = "kubernikus.cloud.sap/skipReplace";

#[derive(Clone, Debug)]
pub struct ServicingWorld {
    pub phase: KlusterPhase,
    pub annotations: BTreeMap<String, String>,
    pub labels: BTreeMap<String, String>,
    pub zone: TimeZone,
    /// The kluster's API.
    pub api_version: String,
    /// The newest stable release of the machines' system, if it is known and old enough.
    pub stable_system: Option<String>,
    pub nodes: Vec<ServicedNode>,
}

/// A Node of one of the Kluster's pools.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServicedNode {
    pub name: String,
    pub uid: String,
    pub kubelet_version: String,
    pub os_image: String,
    pub ready: bool,
    pub unschedulable: bool,
    pub annotations: BTreeMap<String, String>,
    pub allow_reboot: bool,
    pub allow_replace: bool,
    /// Pods that a drain has to move: neither of DaemonSets nor static ones.
    pub pods_left: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Update {
    Replace,
    Reboot,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServicingAction {
    /// Writes the time of the update to the Node, cordons it, and writes the time of servicing to the Kluster.
    Begin {
        node: String,
        update: Update,
    },
    /// Asks for the eviction of every pod that is left.
    Evict {
        node: String,
    },
    Reboot {
        node: String,
    },
    Replace {
        node: String,
    },
    /// It takes pods again, and the annotations go.
    Release {
        node: String,
        result: UpdateResult,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpdateResult {
    Successful,
    /// Pods were left after the limit.
    DrainFailed,
}

/// Why nothing is begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    NotRunning,
    Disabled,
    MaintenanceProfile,
    UpdateFailed,
    Updating,
    Interval,
    OutsideHours,
    NodeNotReady,
    NothingToDo,
}

#[derive(Debug, PartialEq, Eq)]
pub struct ServicingPlan {
    pub actions: Vec<ServicingAction>,
    pub gate: Option<Gate>,
    pub next_look: Timestamp,
}

pub fn plan(world: &ServicingWorld, now: Timestamp) -> ServicingPlan {
    if world.phase != KlusterPhase::Running {
        return ServicingPlan { actions: Vec::new(), gate: Some(Gate::NotRunning), next_look: now + POLL };
    }
    let mut actions = Vec::new();
    for node in world.nodes.iter().filter(|node| node.updating_since().is_some()) {
        actions.extend(continue_update(world, node, now));
    }
    let gate = find_gate(world, now);
    let begins = gate.is_none();
    if let Some((node, update)) = choose(world).filter(|_| begins) {
        actions.push(ServicingAction::Begin { node: node.name.clone(), update });
    }
    let is_busy = begins || world.nodes.iter().any(|node| node.updating_since().is_some());
    ServicingPlan { actions, gate, next_look: now + if is_busy { BUSY_POLL } else { POLL } }
}

/// The gates, in order.
fn find_gate(world: &ServicingWorld, now: Timestamp) -> Option<Gate> {
    let annotation = |name: &str| world.annotations.get(name).map(String::as_str);
    let last = annotation(SERVICING_TIMESTAMP).and_then(|text| text.parse::<Timestamp>().ok());
    let ignores_hours = annotation(IGNORE_SERVICING_TIME).is_some_and(|value| !is_disabled(value));
    let failed = world.nodes.iter().any(|node| has_failed(world, node, now));
    if annotation(SERVICING).is_some_and(is_disabled) {
        Some(Gate::Disabled)
    } else if world.labels.contains_key(MAINTENANCE_PROFILE) {
        Some(Gate::MaintenanceProfile)
    } else if failed {
        Some(Gate::UpdateFailed)
    } else if world.nodes.iter().any(|node| node.updating_since().is_some()) {
        Some(Gate::Updating)
    } else if last.is_some_and(|last| now.duration_since(last) < INTERVAL) {
        Some(Gate::Interval)
    } else if !ignores_hours && !is_in_hours(now, &world.zone) {
        Some(Gate::OutsideHours)
    } else if world.nodes.iter().any(|node| !node.ready) {
        Some(Gate::NodeNotReady)
    } else if choose(world).is_none() {
        Some(Gate::NothingToDo)
    } else {
        None
    }
}

fn is_in_hours(now: Timestamp, zone: &TimeZone) -> bool {
    let local = now.to_zoned(zone.clone());
    !matches!(local.weekday(), Weekday::Saturday | Weekday::Sunday) && HOURS.contains(&local.hour())
}

/// What the first machine that needs something needs: all replacements come before the first reboot.
fn choose(world: &ServicingWorld) -> Option<(&ServicedNode, Update)> {
    let first = |update| world.nodes.iter().find(|node| needs(world, node, update)).map(|node| (node, update));
    first(Update::Replace).or_else(|| first(Update::Reboot))
}

pub fn needs(world: &ServicingWorld, node: &ServicedNode, update: Update) -> bool {
    let is_set = |name: &str| node.annotations.get(name).is_some_and(|value| !is_disabled(value));
    match update {
        Update::Replace => {
            let api: Option<Version> = parse_version(&world.api_version);
            let kubelet = parse_version(&node.kubelet_version);
            let is_older = matches!((kubelet, api), (Some(kubelet), Some(api)) if kubelet < api);
            node.allow_replace && !is_set(SKIP_REPLACE) && (is_older || is_set(FORCE_REPLACE))
        }
        Update::Reboot => {
            let stable = world.stable_system.as_deref().and_then(parse_version);
            let is_older = matches!((parse_flatcar(&node.os_image), stable), (Some(os), Some(stable)) if os < stable);
            node.allow_reboot && is_older
        }
    }
}

impl ServicedNode {
    /// Since when it is being updated.
    pub fn updating_since(&self) -> Option<Timestamp> {
        self.annotations.get(UPDATE_TIMESTAMP)?.parse().ok()
    }

    fn rebooted(&self) -> bool {
        self.annotations.contains_key(REBOOT_TIMESTAMP)
    }
}

pub fn has_failed(world: &ServicingWorld, node: &ServicedNode, now: Timestamp) -> bool {
    let is_late = node.updating_since().is_some_and(|since| now.duration_since(since) > UPDATE_LIMIT);
    is_late && (!node.ready || needs(world, node, Update::Replace) || needs(world, node, Update::Reboot))
}

fn continue_update(world: &ServicingWorld, node: &ServicedNode, now: Timestamp) -> Option<ServicingAction> {
    let name = node.name.clone();
    let since = node.updating_since()?;
    let replace = needs(world, node, Update::Replace);
    let reboot = needs(world, node, Update::Reboot);
    if !replace && !reboot {
        return node.ready.then_some(ServicingAction::Release { node: name, result: UpdateResult::Successful });
    }
    if has_failed(world, node, now) || (node.rebooted() && !replace) {
        return None; // it is coming back, or somebody has to look
    }
    if node.pods_left > 0 {
        return Some(if now.duration_since(since) > DRAIN_LIMIT {
            ServicingAction::Release { node: name, result: UpdateResult::DrainFailed }
        } else {
            ServicingAction::Evict { node: name }
        });
    }
    Some(if replace { ServicingAction::Replace { node: name } } else { ServicingAction::Reboot { node: name } })
}

#[cfg(test)]
mod tests;
