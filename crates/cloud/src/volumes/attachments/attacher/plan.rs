//! The next step for a VolumeAttachment. Pure.

use jiff::{SignedDuration, Timestamp};
use mainstay_controllers::runtime::Plan;

use crate::context::Pace;

/// While nothing tells when a node may lose a volume: its server may be shut down.
const RELEASE_POLL: SignedDuration = SignedDuration::from_secs(10);

/// What a VolumeAttachment says of the attachment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RecordedStatus {
    pub attached: bool,
    /// Empty if none is recorded.
    pub device: String,
    pub attach_error: Option<String>,
    pub detach_error: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeView {
    pub server: Option<String>,
    /// Its agent has the volume mounted, or is about to mount it.
    pub is_volume_in_use: bool,
    /// The administrator's word that the machine is off.
    pub is_out_of_service: bool,
    /// It is lost, and by its fence its unique pods have ended.
    pub unique_pods_ended: bool,
}

/// The Nova server of the node.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum ServerView {
    /// It is not known which one that is.
    #[default]
    Unknown,
    Gone,
    Present {
        status: String,
        /// The device of the attachment, if Nova shows one.
        device: Option<String>,
    },
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct CinderView {
    pub status: String,
    /// Servers that it is attached to.
    pub servers: Vec<String>,
}

#[derive(Clone, Debug, Default)]
pub struct World {
    pub is_deleting: bool,
    pub has_finalizer: bool,
    pub recorded: RecordedStatus,
    /// None if the Node is gone.
    pub node: Option<NodeView>,
    /// Where the volume is to be, or was last.
    pub server_id: Option<String>,
    pub server: ServerView,
    /// None if Cinder has no such volume.
    pub volume: Option<CinderView>,
    /// Servers of other nodes that have the volume without a VolumeAttachment, and without using it: an attachment that took effect after it was given up.
    pub strays: Vec<String>,
    pub pace: Pace,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    AddFinalizer,
    RemoveFinalizer,
    Attach { server: String },
    Detach { server: String, why: Release },
}

/// Why a node may lose a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// It is not mounted there.
    NotInUse,
    NodeDeleted,
    ServerDown,
    OutOfService,
    UniquePodsEnded,
}

impl Release {
    /// Whether a mounted volume is taken away.
    pub fn is_forced(self) -> bool {
        self != Self::NotInUse
    }
}

impl World {
    fn is_server_down(&self) -> bool {
        match &self.server {
            ServerView::Unknown => false,
            ServerView::Gone => true,
            ServerView::Present { status, .. } => matches!(status.as_str(), "SHUTOFF" | "DELETED" | "SOFT_DELETED"),
        }
    }

    /// Whether the node may lose the volume now, and why.
    fn release(&self) -> Option<Release> {
        let Some(node) = &self.node else { return Some(Release::NodeDeleted) };
        if !node.is_volume_in_use {
            Some(Release::NotInUse)
        } else if self.is_server_down() {
            Some(Release::ServerDown)
        } else if node.is_out_of_service {
            Some(Release::OutOfService)
        } else if node.unique_pods_ended {
            Some(Release::UniquePodsEnded)
        } else {
            None
        }
    }

    /// What Nova shows of the attachment: its device.
    fn attached_device(&self) -> Option<&str> {
        match &self.server {
            ServerView::Present { device, .. } => device.as_deref(),
            ServerView::Unknown | ServerView::Gone => None,
        }
    }

    /// Whether Nova or Cinder shows the volume at the server.
    fn is_anywhere_shown(&self) -> bool {
        let by_cinder = |server: &String| self.volume.as_ref().is_some_and(|volume| volume.servers.contains(server));
        let is_gone = self.server == ServerView::Gone;
        self.attached_device().is_some() || (!is_gone && self.server_id.as_ref().is_some_and(by_cinder))
    }
}

pub fn plan(world: &World, now: Timestamp) -> Plan<Action, RecordedStatus> {
    if world.is_deleting { plan_detachment(world, now) } else { plan_attachment(world, now) }
}

fn plan_detachment(world: &World, now: Timestamp) -> Plan<Action, RecordedStatus> {
    if !world.has_finalizer {
        return Plan::default();
    }
    let later = |delay| Plan { requeue_at: Some(now + delay), ..Plan::default() };
    let is_moving =
        world.volume.as_ref().is_some_and(|volume| matches!(volume.status.as_str(), "attaching" | "detaching"));
    match (&world.server_id, world.release()) {
        _ if !(world.is_anywhere_shown() || is_moving && world.server != ServerView::Gone) => {
            Plan::act([Action::RemoveFinalizer])
        }
        _ if is_moving => later(world.pace.poll),
        (Some(server), Some(why)) => {
            let detach = Action::Detach { server: server.clone(), why };
            Plan { actions: vec![detach], ..later(world.pace.poll) }
        }
        (_, _) => later(RELEASE_POLL),
    }
}

fn plan_attachment(world: &World, now: Timestamp) -> Plan<Action, RecordedStatus> {
    if !world.has_finalizer {
        return Plan::act([Action::AddFinalizer]);
    }
    let later = |delay| Plan { requeue_at: Some(now + delay), ..Plan::default() };
    let failed = |why: String, delay| {
        let status = RecordedStatus { attach_error: Some(why), ..RecordedStatus::default() };
        Plan { status: (status != world.recorded).then_some(status), ..later(delay) }
    };
    let Some(server) = &world.server_id else {
        let why = match &world.node {
            None => "the node does not exist",
            Some(_) => "spec.providerID of the node does not name a server (openstack:///UUID)",
        };
        return failed(why.to_owned(), RELEASE_POLL);
    };
    let Some(volume) = &world.volume else {
        return failed("Cinder has no such volume".to_owned(), world.pace.resync);
    };
    match (world.attached_device(), volume.status.as_str()) {
        (Some(device), "in-use" | "extending") => {
            let status = RecordedStatus { attached: true, device: device.to_owned(), ..RecordedStatus::default() };
            Plan { status: (status != world.recorded).then_some(status), ..later(world.pace.resync) }
        }
        _ if world.server == ServerView::Gone => {
            failed(format!("server {server} of the node does not exist"), RELEASE_POLL)
        }
        (_, "available") => {
            let attach = Action::Attach { server: server.clone() };
            Plan { actions: vec![attach], ..later(world.pace.poll) }
        }
        (_, "in-use") if !volume.servers.contains(server) && !world.strays.is_empty() => {
            let detach = |server: &String| Action::Detach { server: server.clone(), why: Release::NotInUse };
            Plan { actions: world.strays.iter().map(detach).collect(), ..later(world.pace.poll) }
        }
        (_, "in-use") if !volume.servers.contains(server) => {
            failed(format!("Cinder shows the volume at server {}", volume.servers.join(", ")), RELEASE_POLL)
        }
        (_, status) if status.starts_with("error") => {
            failed(format!("Cinder shows the volume as {status:?}"), RELEASE_POLL)
        }
        // `attaching`, `reserved`, `detaching` and the like pass.
        (_, _) => later(world.pace.poll),
    }
}

#[cfg(test)]
mod tests;
