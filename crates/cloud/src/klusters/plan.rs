//! What is done for a Kluster now: a pure function of what was observed.

use jiff::{SignedDuration, Timestamp};
use mainstay_api::cloud::{
    kluster::{GROUND_FINALIZER, Kluster, KlusterPhase, OpenStackSpec},
    version::{is_upgrade, parse_version},
};
use mainstay_controllers::runtime::Plan;
use serde_json::Value;

use super::migrations::{self, LATEST};

/// After an action, whose effect is looked at before the next one.
const NEXT_STEP: SignedDuration = SignedDuration::from_secs(1);
/// While something is waited for that no watch tells of.
const SOON: SignedDuration = SignedDuration::from_secs(5);
/// After something was wrong that somebody has to change.
const RETRY: SignedDuration = SignedDuration::from_mins(1);
/// Everything is looked at again after this, whatever happens.
const RESYNC: SignedDuration = SignedDuration::from_mins(5);

/// What was observed of one Kluster.
#[derive(Clone, Debug)]
pub struct KlusterWorld {
    pub kluster: Kluster,
    pub discovery: Discovery,
    pub control_plane: ControlPlane,
    /// The newest version on offer.
    pub newest_version: Option<String>,
    /// Whether there is an image for the version of the spec.
    pub is_offered: bool,
}

/// Ids that the spec leaves out.
#[derive(Clone, Debug, PartialEq)]
pub enum Discovery {
    NotNeeded,
    Found(Box<OpenStackSpec>),
    /// Cannot be found; in words.
    Refused(String),
}

/// What there is of its control plane.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ControlPlane {
    /// Any object of it.
    pub exists: bool,
    pub has_authorities: bool,
    pub has_service_user: bool,
    pub needs_service_user: bool,
    /// When the administrator's certificate is made anew; none if there is no kubeconfig yet, or for another URL.
    pub renew_at: Option<Timestamp>,
    /// The URL of the API, once its Service has an address.
    pub url: Option<String>,
    /// Whether the servers are made from what the spec says now.
    pub is_current: bool,
    pub ready: bool,
    /// What the API says, if it answers.
    pub api_version: Option<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    AddFinalizer {
        version: String,
    },
    Migrate {
        number: i64,
        title: &'static str,
        patch: Option<Value>,
    },
    /// Writes discovered ids and the version into the spec.
    FillSpec {
        openstack: Option<Box<OpenStackSpec>>,
        version: Option<String>,
    },
    MakeAuthorities,
    MakeServiceUser,
    ApplyService,
    WriteKubeconfig,
    ApplyWorkload,
    RemoveServiceUser,
    RemoveControlPlane,
    DropFinalizer {
        version: String,
    },
}

/// What is reported of a Kluster, with the events that go with it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    pub phase: Option<KlusterPhase>,
    /// What it waits for; empty for nothing.
    pub message: String,
    pub api_url: Option<String>,
    pub api_version: Option<String>,
    pub version: Option<String>,
    pub spec_version: Option<i64>,
    pub migrations_pending: bool,
    pub warning: Option<Warning>,
}

/// A warning about something that somebody has to change.
#[derive(Clone, Debug, PartialEq)]
pub struct Warning {
    pub reason: &'static str,
    pub message: String,
}

pub const CONFIGURATION_ERROR: &str = "ConfigurationError";
pub const FAILED_UPGRADE: &str = "failedUpgrade";

pub fn plan(world: &KlusterWorld, now: Timestamp) -> Plan<Action, Report> {
    let kluster = &world.kluster;
    if kluster.metadata.deletion_timestamp.is_some() {
        return plan_termination(world, now);
    }
    if let Some(step) = migrations::next(kluster) {
        let patch = (step.patch)(kluster);
        let action = Action::Migrate { number: step.number, title: step.title, patch };
        let report = Report {
            spec_version: Some(step.number),
            migrations_pending: step.number < LATEST,
            ..current_report(world)
        };
        return Plan { actions: vec![action], status: Some(report), requeue_at: Some(now + NEXT_STEP) };
    }
    match kluster.phase() {
        KlusterPhase::Pending => plan_pending(world, now),
        KlusterPhase::Creating => plan_until_ready(world, now, KlusterPhase::Creating),
        KlusterPhase::Upgrading => plan_until_ready(world, now, KlusterPhase::Upgrading),
        KlusterPhase::Running => plan_running(world, now),
        // Somebody wrote the phase, but the object is not being deleted.
        KlusterPhase::Terminating => {
            let message = "waits for its deletion".to_owned();
            wait(Report { message, ..current_report(world) }, now + RESYNC)
        }
    }
}

/// The report of a Kluster for which nothing changes.
fn current_report(world: &KlusterWorld) -> Report {
    let known = world.kluster.status.as_ref();
    Report {
        phase: Some(world.kluster.phase()),
        api_url: world.control_plane.url.clone(),
        api_version: world.control_plane.api_version.clone(),
        version: None,
        spec_version: known.and_then(|status| status.spec_version).or(Some(LATEST)),
        ..Report::default()
    }
}

fn wait(report: Report, until: Timestamp) -> Plan<Action, Report> {
    Plan { actions: Vec::new(), status: Some(report), requeue_at: Some(until) }
}

/// Somebody has to change something, here or in the cloud.
fn refuse(world: &KlusterWorld, now: Timestamp, reason: &'static str, message: String) -> Plan<Action, Report> {
    let warning = Some(Warning { reason, message: message.clone() });
    wait(Report { message, warning, ..current_report(world) }, now + RETRY)
}

fn plan_pending(world: &KlusterWorld, now: Timestamp) -> Plan<Action, Report> {
    let kluster = &world.kluster;
    let mut actions = Vec::new();
    if !kluster.has_finalizer(GROUND_FINALIZER) {
        let version = kluster.metadata.resource_version.clone().unwrap_or_default();
        actions.push(Action::AddFinalizer { version });
        return Plan { actions, status: Some(current_report(world)), requeue_at: Some(now + NEXT_STEP) };
    }
    let openstack = match &world.discovery {
        Discovery::Refused(why) => return refuse(world, now, CONFIGURATION_ERROR, why.clone()),
        Discovery::NotNeeded => None,
        Discovery::Found(spec) => Some(spec.clone()),
    };
    let version = match (kluster.spec.version.is_empty(), &world.newest_version) {
        (false, _) => None,
        (true, Some(version)) => Some(version.clone()),
        (true, None) => {
            let message = "spec.version: no version is on offer; the server's settings name none".to_owned();
            return refuse(world, now, CONFIGURATION_ERROR, message);
        }
    };
    if openstack.is_some() || version.is_some() {
        actions.push(Action::FillSpec { openstack, version });
        return Plan { actions, status: Some(current_report(world)), requeue_at: Some(now + NEXT_STEP) };
    }
    if !world.is_offered {
        let message = format!("spec.version: there is no image for version {}", kluster.spec.version);
        return refuse(world, now, CONFIGURATION_ERROR, message);
    }
    actions.extend(missing_parts(world, now));
    if actions.is_empty() {
        let report = Report { phase: Some(KlusterPhase::Creating), ..current_report(world) };
        return Plan { actions, status: Some(report), requeue_at: Some(now + NEXT_STEP) };
    }
    let waits = world.control_plane.url.is_none().then(|| "waits for the address of its Service".to_owned());
    let report = Report { message: waits.unwrap_or_default(), ..current_report(world) };
    Plan { actions, status: Some(report), requeue_at: Some(now + NEXT_STEP) }
}

/// What the control plane lacks, in the order in which it is made. The address of the Service is needed for what comes after it.
fn missing_parts(world: &KlusterWorld, now: Timestamp) -> Vec<Action> {
    let plane = &world.control_plane;
    let mut actions = Vec::new();
    if !plane.has_authorities {
        actions.push(Action::MakeAuthorities);
    }
    if plane.needs_service_user && !plane.has_service_user {
        actions.push(Action::MakeServiceUser);
    }
    if plane.url.is_none() {
        actions.push(Action::ApplyService);
        return actions;
    }
    if plane.renew_at.is_none_or(|at| at <= now) {
        actions.push(Action::WriteKubeconfig);
    }
    if !plane.is_current {
        actions.push(Action::ApplyWorkload);
    }
    actions
}

/// Creating and Upgrading: until the pods are ready and the API has the version of the spec.
fn plan_until_ready(world: &KlusterWorld, now: Timestamp, phase: KlusterPhase) -> Plan<Action, Report> {
    let (kluster, plane) = (&world.kluster, &world.control_plane);
    let actions = missing_parts(world, now);
    let wanted = &kluster.spec.version;
    let answers = plane.api_version.as_deref();
    if actions.is_empty() && plane.ready && answers == Some(wanted) {
        let version = Some(wanted.clone());
        let report = Report { phase: Some(KlusterPhase::Running), version, ..current_report(world) };
        return Plan { actions, status: Some(report), requeue_at: Some(now + RESYNC) };
    }
    let message = match (plane.ready, answers) {
        _ if !actions.is_empty() => "makes its control plane".to_owned(),
        (false, _) => "waits for the pods of its control plane to be ready".to_owned(),
        (true, None) => "waits for its API to answer".to_owned(),
        (true, Some(version)) => format!("waits for its API to be of version {wanted}; it is of {version}"),
    };
    let report = Report { phase: Some(phase), message, ..current_report(world) };
    Plan { actions, status: Some(report), requeue_at: Some(now + SOON) }
}

fn plan_running(world: &KlusterWorld, now: Timestamp) -> Plan<Action, Report> {
    let (kluster, plane) = (&world.kluster, &world.control_plane);
    let runs = kluster.status.as_ref().map(|status| status.version.as_str()).unwrap_or_default();
    let wanted = kluster.spec.version.as_str();
    if !wanted.is_empty() && wanted != runs {
        let is_step = match (parse_version(runs), parse_version(wanted)) {
            (Some(from), Some(to)) => is_upgrade(&from, &to),
            _ => true,
        };
        if is_step && world.is_offered {
            let report = Report { phase: Some(KlusterPhase::Upgrading), ..current_report(world) };
            return Plan { actions: Vec::new(), status: Some(report), requeue_at: Some(now + NEXT_STEP) };
        }
        let why = if is_step { "there is no image for it" } else { "it is no step of one minor version" };
        let message = format!("spec.version: {wanted} cannot follow {runs}: {why}");
        return refuse(world, now, FAILED_UPGRADE, message);
    }
    let actions = missing_parts(world, now);
    let message = if plane.ready { String::new() } else { "pods of its control plane are not ready".to_owned() };
    let renew_at = plane.renew_at.filter(|at| *at > now);
    let resync = now + if plane.ready && actions.is_empty() { RESYNC } else { SOON };
    Plan {
        actions,
        status: Some(Report { message, ..current_report(world) }),
        requeue_at: Some(renew_at.map_or(resync, |at| at.min(resync))),
    }
}

fn plan_termination(world: &KlusterWorld, now: Timestamp) -> Plan<Action, Report> {
    let kluster = &world.kluster;
    if kluster.is_protected() {
        let message = "is protected from termination: nothing is removed".to_owned();
        return wait(Report { message, ..current_report(world) }, now + RESYNC);
    }
    if !kluster.has_finalizer(GROUND_FINALIZER) {
        return Plan::default();
    }
    let others: Vec<&str> = kluster.metadata.finalizers.iter().flatten().map(String::as_str).collect();
    let others: Vec<&str> = others.into_iter().filter(|name| *name != GROUND_FINALIZER).collect();
    let phase = Some(KlusterPhase::Terminating);
    if kluster.phase() != KlusterPhase::Terminating || !others.is_empty() {
        let message = match others.is_empty() {
            true => String::new(),
            false => format!("waits for {} to let go", others.join(", ")),
        };
        let report = Report { phase, message, ..current_report(world) };
        let soon = now + if others.is_empty() { NEXT_STEP } else { SOON };
        return Plan { actions: Vec::new(), status: Some(report), requeue_at: Some(soon) };
    }
    let mut actions = Vec::new();
    if world.control_plane.needs_service_user {
        actions.push(Action::RemoveServiceUser);
    }
    if world.control_plane.exists {
        actions.push(Action::RemoveControlPlane);
        let message = "removes its control plane".to_owned();
        let report = Report { phase, message, ..current_report(world) };
        return Plan { actions, status: Some(report), requeue_at: Some(now + SOON) };
    }
    let version = kluster.metadata.resource_version.clone().unwrap_or_default();
    actions.push(Action::DropFinalizer { version });
    Plan { actions, status: None, requeue_at: Some(now + SOON) }
}

#[cfg(test)]
mod tests;
