//! The next step for the snapshot of a VolumeSnapshotContent. Pure.

use jiff::{SignedDuration, Timestamp};
use mainstay_controllers::runtime::Plan;

use crate::{
    context::Pace,
    volumes::snapshots::{
        CONTENT_FINALIZER,
        kinds::{ContentSource, ContentStatus, DeletionPolicy},
    },
};

/// While Cinder refuses, or a snapshot that was named is not there.
const REFUSED_POLL: SignedDuration = SignedDuration::from_secs(60);
const GIB: i64 = 1 << 30;

/// What Cinder shows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CinderView {
    pub id: String,
    pub status: String,
    pub size_gib: u64,
    pub created_at: Option<Timestamp>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub enum Backing {
    /// No id is known, or Cinder need not be asked.
    #[default]
    None,
    /// Cinder shows no snapshot of this id.
    Lost {
        id: String,
    },
    Present(CinderView),
}

#[derive(Clone, Debug, Default)]
pub struct World {
    pub version: String,
    pub is_deleting: bool,
    pub finalizers: Vec<String>,
    pub policy: DeletionPolicy,
    pub source: ContentSource,
    pub status: ContentStatus,
    /// The VolumeSnapshot that it is bound to is there, and nobody deletes that.
    pub has_live_snapshot: bool,
    /// The ledger has an entry for the snapshot, maybe without an id.
    pub has_entry: bool,
    pub backing: Backing,
    pub pace: Pace,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    SetFinalizers {
        version: String,
        finalizers: Vec<String>,
    },
    EnsureSnapshot {
        /// The id of the volume.
        volume: String,
    },
    RemoveSnapshot,
    ReportFailure {
        message: String,
    },
}

/// What is written to the status; the time of a problem is added then.
#[derive(Clone, Debug, PartialEq)]
pub struct StatusChange {
    pub handle: String,
    pub is_ready: bool,
    pub created_at: Option<Timestamp>,
    /// In bytes.
    pub restore_size: Option<i64>,
    pub problem: Option<String>,
}

impl StatusChange {
    fn is_reported(&self, status: &ContentStatus) -> bool {
        status.snapshot_handle.as_deref() == Some(&self.handle)
            && status.ready_to_use == Some(self.is_ready)
            && status.restore_size == self.restore_size
            && status.error.as_ref().map(|error| &error.message) == self.problem.as_ref()
    }
}

impl World {
    fn is_ready(&self) -> bool {
        self.status.ready_to_use == Some(true)
    }

    fn has_finalizer(&self) -> bool {
        self.finalizers.iter().any(|own| own == CONTENT_FINALIZER)
    }

    fn is_to_be_removed(&self) -> bool {
        self.is_deleting && self.has_finalizer() && !self.has_live_snapshot && self.policy == DeletionPolicy::Delete
    }

    /// Whether what Cinder says decides something.
    pub fn needs_backing(&self) -> bool {
        if self.is_deleting { self.is_to_be_removed() } else { !self.is_ready() }
    }
}

pub fn plan(world: &World, now: Timestamp) -> Plan<Action, StatusChange> {
    if world.is_deleting { plan_removal(world, now) } else { plan_creation(world, now) }
}

fn plan_creation(world: &World, now: Timestamp) -> Plan<Action, StatusChange> {
    let mut plan = Plan::default();
    // Before anything is in the cloud: nobody could remove it otherwise.
    if !world.has_finalizer() {
        let finalizers = world.finalizers.iter().cloned().chain([CONTENT_FINALIZER.to_owned()]).collect();
        plan.actions.push(Action::SetFinalizers { version: world.version.clone(), finalizers });
    }
    if world.is_ready() {
        return plan;
    }
    plan.requeue_at = Some(now + world.pace.poll);
    let change = match (&world.backing, &world.source.volume_handle) {
        (Backing::None, Some(volume)) => {
            plan.actions.push(Action::EnsureSnapshot { volume: volume.clone() });
            None
        }
        (Backing::None, None) => None,
        // Never ready, so nobody relies on it: the next look makes another.
        (Backing::Lost { .. }, Some(_)) if world.has_entry => {
            plan.actions.push(Action::RemoveSnapshot);
            None
        }
        (Backing::Lost { id }, _) => {
            plan.requeue_at = Some(now + REFUSED_POLL);
            Some(StatusChange {
                handle: id.clone(),
                is_ready: false,
                created_at: None,
                restore_size: None,
                problem: Some(format!("Cinder has no snapshot {id}")),
            })
        }
        (Backing::Present(snapshot), _) => {
            let is_ready = snapshot.status == "available";
            let is_under_way = matches!(snapshot.status.as_str(), "creating" | "backing-up" | "restoring");
            if is_ready {
                plan.requeue_at = None;
            } else if !is_under_way {
                plan.requeue_at = Some(now + REFUSED_POLL);
            }
            let problem = format!("Cinder says {:?} of snapshot {}", snapshot.status, snapshot.id);
            Some(StatusChange {
                handle: snapshot.id.clone(),
                is_ready,
                created_at: snapshot.created_at,
                restore_size: i64::try_from(snapshot.size_gib).ok().map(|gib| gib.saturating_mul(GIB)),
                problem: (!is_ready && !is_under_way).then_some(problem),
            })
        }
    };
    plan.status = change.filter(|change| !change.is_reported(&world.status));
    plan
}

fn plan_removal(world: &World, now: Timestamp) -> Plan<Action, StatusChange> {
    // The VolumeSnapshot's own deletion comes back to this.
    if !world.has_finalizer() || world.has_live_snapshot {
        return Plan::default();
    }
    let finalizers = world.finalizers.iter().filter(|own| *own != CONTENT_FINALIZER).cloned().collect();
    let release = Action::SetFinalizers { version: world.version.clone(), finalizers };
    if !world.is_to_be_removed() {
        return Plan::act([release]);
    }
    match &world.backing {
        Backing::Present(snapshot) if snapshot.status == "error_deleting" => {
            let message = format!(
                "Cinder could not delete snapshot {}: it is \"error_deleting\" there. An administrator of the cloud has to reset it.",
                snapshot.id
            );
            Plan { requeue_at: Some(now + REFUSED_POLL), ..Plan::act([Action::ReportFailure { message }]) }
        }
        Backing::None | Backing::Lost { .. } if !world.has_entry => Plan::act([release]),
        _ => Plan { requeue_at: Some(now + world.pace.poll), ..Plan::act([Action::RemoveSnapshot]) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> Timestamp {
        "2026-01-01T00:00:00Z".parse().unwrap()
    }

    fn world() -> World {
        World {
            version: "7".to_owned(),
            finalizers: vec![CONTENT_FINALIZER.to_owned()],
            policy: DeletionPolicy::Delete,
            source: ContentSource { volume_handle: Some("v".to_owned()), snapshot_handle: None },
            ..World::default()
        }
    }

    fn present(status: &str) -> Backing {
        let (id, status) = ("s".to_owned(), status.to_owned());
        Backing::Present(CinderView { id, status, size_gib: 2, created_at: Some(now()) })
    }

    #[test]
    fn the_finalizer_comes_before_the_snapshot() {
        let planned = plan(&World { finalizers: vec![], ..world() }, now()).actions;
        let finalizers = vec![CONTENT_FINALIZER.to_owned()];
        let expected = [
            Action::SetFinalizers { version: "7".to_owned(), finalizers },
            Action::EnsureSnapshot { volume: "v".to_owned() },
        ];
        assert_eq!(planned, expected);
    }

    #[test]
    fn the_status_is_what_cinder_says() {
        let status = |backing: Backing| plan(&World { backing, has_entry: true, ..world() }, now());
        let creating = status(present("creating"));
        assert!(creating.requeue_at == Some(now() + Pace::default().poll) && creating.actions.is_empty());
        assert_eq!(creating.status.map(|change| (change.is_ready, change.problem)), Some((false, None)));
        let ready = status(present("available"));
        assert_eq!(ready.requeue_at, None);
        assert_eq!(ready.status.unwrap().restore_size, Some(2 * GIB));
        let failed = status(present("error")).status.unwrap();
        assert_eq!(failed.problem.as_deref(), Some("Cinder says \"error\" of snapshot s"));
        assert_eq!(status(Backing::Lost { id: "s".to_owned() }).actions, [Action::RemoveSnapshot], "and made again");
    }

    #[test]
    fn what_is_ready_is_left_alone() {
        let status = ContentStatus { ready_to_use: Some(true), ..ContentStatus::default() };
        let ready = World { status, has_entry: true, ..world() };
        assert!(!ready.needs_backing());
        assert_eq!(plan(&ready, now()), Plan::default());
    }

    #[test]
    fn a_named_snapshot_that_is_not_there_is_said_and_none_is_made() {
        let source = ContentSource { volume_handle: None, snapshot_handle: Some("s".to_owned()) };
        let planned = plan(&World { source, backing: Backing::Lost { id: "s".to_owned() }, ..world() }, now());
        assert!(planned.actions.is_empty());
        assert_eq!(planned.status.unwrap().problem.as_deref(), Some("Cinder has no snapshot s"));
    }

    #[test]
    fn the_object_stays_until_cinder_has_no_snapshot() {
        let deleting = World { is_deleting: true, has_entry: true, ..world() };
        let with = |backing: Backing| plan(&World { backing, ..deleting.clone() }, now()).actions;
        assert_eq!(with(present("available")), [Action::RemoveSnapshot]);
        assert_eq!(with(present("deleting")), [Action::RemoveSnapshot]);
        assert!(matches!(&with(present("error_deleting"))[..], [Action::ReportFailure { .. }]));
        assert_eq!(with(Backing::None), [Action::RemoveSnapshot], "a create may be under way");
        let gone = plan(&World { has_entry: false, ..deleting.clone() }, now()).actions;
        let release = [Action::SetFinalizers { version: "7".to_owned(), finalizers: vec![] }];
        assert_eq!(gone, release);
        let retained = World { policy: DeletionPolicy::Retain, backing: present("available"), ..deleting.clone() };
        assert_eq!(plan(&retained, now()).actions, release);
        assert_eq!(plan(&World { has_live_snapshot: true, ..deleting }, now()), Plan::default());
    }
}
