//! The next step for a VolumeSnapshot. Pure.

use jiff::{SignedDuration, Timestamp};
use mainstay_controllers::runtime::Plan;

use crate::volumes::snapshots::{
    SNAPSHOT_FINALIZER,
    kinds::{ContentStatus, DeletionPolicy, SnapshotStatus},
};

/// While something that it needs is not there, or somebody uses it.
const WAIT_POLL: SignedDuration = SignedDuration::from_secs(10);

/// Follows from the VolumeSnapshot, so that making it twice makes it once.
pub fn content_name(snapshot_uid: &str) -> String {
    format!("snapcontent-{snapshot_uid}")
}

#[derive(Clone, Debug, Default, PartialEq)]
pub enum SourceVolume {
    Cinder {
        handle: String,
        mode: Option<String>,
    },
    NotReady {
        why: String,
    },
    /// No claim is named, or its volume is not one of Cinder.
    #[default]
    OfAnother,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub enum ClassChoice {
    Ours {
        name: String,
        policy: DeletionPolicy,
        /// It is the default, and not yet written to the VolumeSnapshot.
        is_chosen: bool,
    },
    /// Another driver makes the snapshot.
    OfAnother,
    Missing {
        why: String,
    },
    /// None was asked for, and whose default it would be is not known yet.
    #[default]
    Unknown,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct BoundContent {
    pub name: String,
    pub uid: String,
    pub version: String,
    pub is_deleting: bool,
    pub policy: DeletionPolicy,
    pub is_of_cinder: bool,
    /// Namespace and name of its `volumeSnapshotRef` are those of the VolumeSnapshot.
    pub names_snapshot: bool,
    /// The uid in its `volumeSnapshotRef`.
    pub bound_uid: Option<String>,
    pub status: ContentStatus,
}

#[derive(Clone, Debug, Default)]
pub struct World {
    pub version: String,
    pub uid: String,
    pub is_deleting: bool,
    pub finalizers: Vec<String>,
    pub volume: SourceVolume,
    pub class: ClassChoice,
    /// The content that it asks for, instead of a new one.
    pub named_content: Option<String>,
    pub content: Option<BoundContent>,
    /// The volume of a claim is to be made of it.
    pub is_in_use: bool,
    pub status: SnapshotStatus,
}

#[derive(Clone, Debug, PartialEq)]
pub struct NewContent {
    pub class: String,
    pub policy: DeletionPolicy,
    /// The id of the volume.
    pub volume: String,
    pub mode: Option<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Sets the finalizers, and the class if that is the default one.
    Prepare {
        version: String,
        finalizers: Vec<String>,
        class: Option<String>,
    },
    CreateContent(NewContent),
    BindContent {
        name: String,
        version: String,
        uid: String,
    },
    DeleteContent {
        name: String,
        uid: String,
    },
    Fail {
        reason: &'static str,
        message: String,
    },
}

impl Action {
    pub fn doing(&self) -> &'static str {
        match self {
            Self::Prepare { .. } => "set the finalizers",
            Self::CreateContent(_) => "create the content",
            Self::BindContent { .. } => "bind the content",
            Self::DeleteContent { .. } => "delete the content",
            Self::Fail { .. } => "report a failure",
        }
    }
}

/// What is written to the status; the time of a problem is added then.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StatusChange {
    pub uid: String,
    pub bound: Option<String>,
    pub created_at: Option<Timestamp>,
    pub is_ready: bool,
    pub restore_size: Option<String>,
    pub problem: Option<String>,
}

impl StatusChange {
    fn is_reported(&self, status: &SnapshotStatus) -> bool {
        status.bound_volume_snapshot_content_name == self.bound
            && status.ready_to_use == Some(self.is_ready)
            && status.restore_size == self.restore_size
            && status.error.as_ref().map(|error| &error.message) == self.problem.as_ref()
    }
}

pub fn plan(world: &World, now: Timestamp) -> Plan<Action, StatusChange> {
    if world.is_deleting { plan_removal(world, now) } else { plan_binding(world, now) }
}

impl World {
    fn is_bound_to(&self, content: &BoundContent) -> bool {
        content.names_snapshot && content.bound_uid.as_ref() == Some(&self.uid)
    }

    fn prepare(&self, class: Option<&str>) -> Option<Action> {
        let has_finalizer = self.finalizers.iter().any(|own| own == SNAPSHOT_FINALIZER);
        (!has_finalizer || class.is_some()).then(|| Action::Prepare {
            version: self.version.clone(),
            finalizers: if has_finalizer {
                self.finalizers.clone()
            } else {
                self.finalizers.iter().cloned().chain([SNAPSHOT_FINALIZER.to_owned()]).collect()
            },
            class: class.map(str::to_owned),
        })
    }

    /// Reports what hinders it: as an Event and in the status when it is new, and looks again later.
    fn fail(&self, reason: &'static str, message: String, now: Timestamp) -> Plan<Action, StatusChange> {
        let bound = self.status.bound_volume_snapshot_content_name.clone();
        let problem = Some(message.clone());
        let change = StatusChange { uid: self.uid.clone(), bound, problem, ..StatusChange::default() };
        let is_new = !change.is_reported(&self.status);
        Plan {
            actions: is_new.then_some(Action::Fail { reason, message }).into_iter().collect(),
            status: is_new.then_some(change),
            requeue_at: Some(now + WAIT_POLL),
        }
    }
}

fn plan_binding(world: &World, now: Timestamp) -> Plan<Action, StatusChange> {
    if let Some(content) = &world.content {
        if !content.is_of_cinder {
            return Plan::default();
        }
        if !content.names_snapshot || content.bound_uid.as_ref().is_some_and(|uid| *uid != world.uid) {
            let message = format!("VolumeSnapshotContent {} is bound to another VolumeSnapshot", content.name);
            return world.fail("SnapshotContentMisbound", message, now);
        }
        return plan_bound(world, content);
    }
    if let Some(named) = &world.named_content {
        let message = format!("spec.source.volumeSnapshotContentName: there is no VolumeSnapshotContent {named}");
        return world.fail("SnapshotContentMissing", message, now);
    }
    let ClassChoice::Ours { name, policy, is_chosen } = &world.class else {
        return match &world.class {
            ClassChoice::Missing { why } => world.fail("GetSnapshotClassFailed", why.clone(), now),
            // Whose it is may be known when the claim is bound.
            ClassChoice::Unknown => Plan { requeue_at: Some(now + WAIT_POLL), ..Plan::default() },
            _ => Plan::default(),
        };
    };
    if let Some(lost) = &world.status.bound_volume_snapshot_content_name {
        // Another snapshot, of a later time, is not what was asked for.
        let message = format!("VolumeSnapshotContent {lost} is missing");
        return world.fail("SnapshotContentMissing", message, now);
    }
    let field = "spec.source.persistentVolumeClaimName";
    match &world.volume {
        SourceVolume::NotReady { why } => world.fail("SnapshotContentCreationFailed", format!("{field}: {why}"), now),
        SourceVolume::OfAnother => {
            world.fail("SnapshotContentCreationFailed", format!("{field}: its volume is not one of Cinder"), now)
        }
        SourceVolume::Cinder { handle, mode } => {
            let (class, volume, mode) = (name.clone(), handle.clone(), mode.clone());
            let create = Action::CreateContent(NewContent { class, policy: *policy, volume, mode });
            Plan::act(world.prepare(is_chosen.then_some(name)).into_iter().chain([create]))
        }
    }
}

fn plan_bound(world: &World, content: &BoundContent) -> Plan<Action, StatusChange> {
    let mut plan = Plan::act(world.prepare(None));
    if content.bound_uid.is_none() {
        let (name, version, uid) = (content.name.clone(), content.version.clone(), world.uid.clone());
        plan.actions.push(Action::BindContent { name, version, uid });
    }
    let status = &content.status;
    let change = StatusChange {
        uid: world.uid.clone(),
        bound: Some(content.name.clone()),
        created_at: status.creation_time.and_then(|nanos| Timestamp::from_nanosecond(nanos.into()).ok()),
        is_ready: status.ready_to_use == Some(true),
        restore_size: status.restore_size.map(|bytes| match bytes % (1 << 30) {
            0 => format!("{}Gi", bytes >> 30),
            _ => bytes.to_string(),
        }),
        problem: status.error.as_ref().map(|error| error.message.clone()),
    };
    plan.status = Some(change).filter(|change| !change.is_reported(&world.status));
    plan
}

fn plan_removal(world: &World, now: Timestamp) -> Plan<Action, StatusChange> {
    let has_finalizer = world.finalizers.iter().any(|own| own == SNAPSHOT_FINALIZER);
    if !has_finalizer {
        return Plan::default();
    }
    if world.is_in_use {
        return Plan { requeue_at: Some(now + WAIT_POLL), ..Plan::default() };
    }
    if let Some(content) = &world.content
        && world.is_bound_to(content)
        && content.policy == DeletionPolicy::Delete
    {
        let (name, uid) = (content.name.clone(), content.uid.clone());
        return Plan::act((!content.is_deleting).then_some(Action::DeleteContent { name, uid }));
    }
    let finalizers = world.finalizers.iter().filter(|own| *own != SNAPSHOT_FINALIZER).cloned().collect();
    Plan::act([Action::Prepare { version: world.version.clone(), finalizers, class: None }])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volumes::snapshots::kinds::SnapshotError;

    fn now() -> Timestamp {
        "2026-01-01T00:00:00Z".parse().unwrap()
    }

    fn world() -> World {
        let (name, policy) = ("fast".to_owned(), DeletionPolicy::Delete);
        World {
            version: "7".to_owned(),
            uid: "u".to_owned(),
            finalizers: vec![SNAPSHOT_FINALIZER.to_owned()],
            volume: SourceVolume::Cinder { handle: "v".to_owned(), mode: None },
            class: ClassChoice::Ours { name, policy, is_chosen: false },
            ..World::default()
        }
    }

    fn content() -> BoundContent {
        BoundContent {
            name: "snapcontent-u".to_owned(),
            uid: "c".to_owned(),
            policy: DeletionPolicy::Delete,
            is_of_cinder: true,
            names_snapshot: true,
            bound_uid: Some("u".to_owned()),
            ..BoundContent::default()
        }
    }

    #[test]
    fn a_content_is_made_once_and_its_status_is_shown() {
        let planned = plan(&world(), now()).actions;
        assert!(matches!(&planned[..], [Action::CreateContent(new)] if new.volume == "v" && new.class == "fast"));
        let status = ContentStatus {
            ready_to_use: Some(true),
            restore_size: Some(2 << 30),
            creation_time: Some(1_000_000_000),
            ..ContentStatus::default()
        };
        let bound = World { content: Some(BoundContent { status, ..content() }), ..world() };
        let planned = plan(&bound, now());
        assert!(planned.actions.is_empty());
        let change = planned.status.unwrap();
        assert_eq!((change.is_ready, change.restore_size.as_deref()), (true, Some("2Gi")));
        let status = SnapshotStatus {
            bound_volume_snapshot_content_name: Some("snapcontent-u".to_owned()),
            ready_to_use: Some(true),
            restore_size: Some("2Gi".to_owned()),
            ..SnapshotStatus::default()
        };
        assert_eq!(plan(&World { status: status.clone(), ..bound }, now()), Plan::default());
        let lost = plan(&World { status, ..world() }, now());
        assert!(
            matches!(&lost.actions[..], [Action::Fail { reason: "SnapshotContentMissing", .. }]),
            "no other snapshot is taken: {lost:?}"
        );
    }

    #[test]
    fn the_default_class_is_written_down() {
        let class = ClassChoice::Ours { name: "fast".to_owned(), policy: DeletionPolicy::Retain, is_chosen: true };
        let planned = plan(&World { class, finalizers: vec![], ..world() }, now()).actions;
        let finalizers = vec![SNAPSHOT_FINALIZER.to_owned()];
        let prepare = Action::Prepare { version: "7".to_owned(), finalizers, class: Some("fast".to_owned()) };
        assert_eq!(planned[0], prepare);
        assert_eq!(planned.len(), 2);
    }

    #[test]
    fn a_problem_is_said_once_and_looked_at_again() {
        let why = "there is no PersistentVolumeClaim data".to_owned();
        let waiting = World { volume: SourceVolume::NotReady { why }, ..world() };
        let planned = plan(&waiting, now());
        let message = "spec.source.persistentVolumeClaimName: there is no PersistentVolumeClaim data".to_owned();
        let reason = "SnapshotContentCreationFailed";
        assert_eq!(planned.actions, [Action::Fail { reason, message: message.clone() }]);
        assert!(planned.requeue_at.is_some() && planned.status.is_some());
        let error = Some(SnapshotError { message, time: None });
        let status = SnapshotStatus { error, ready_to_use: Some(false), ..SnapshotStatus::default() };
        let again = plan(&World { status, ..waiting }, now());
        assert!(again.actions.is_empty() && again.status.is_none() && again.requeue_at.is_some());
    }

    #[test]
    fn what_others_make_is_left_to_them() {
        for class in [ClassChoice::OfAnother, ClassChoice::Unknown] {
            let planned = plan(&World { class, ..world() }, now());
            assert!(planned.actions.is_empty() && planned.status.is_none());
        }
        let content = Some(BoundContent { is_of_cinder: false, ..content() });
        assert_eq!(plan(&World { content, ..world() }, now()), Plan::default());
    }

    #[test]
    fn a_content_that_was_there_is_bound_and_one_of_another_is_not() {
        let named = |content: BoundContent| World {
            named_content: Some("old".to_owned()),
            content: Some(BoundContent { name: "old".to_owned(), version: "3".to_owned(), ..content }),
            ..world()
        };
        let free = named(BoundContent { bound_uid: None, ..content() });
        let bind = Action::BindContent { name: "old".to_owned(), version: "3".to_owned(), uid: "u".to_owned() };
        assert_eq!(plan(&free, now()).actions, [bind]);
        let others = [
            BoundContent { bound_uid: Some("x".to_owned()), ..content() },
            BoundContent { names_snapshot: false, ..content() },
        ];
        for other in others {
            let planned = plan(&named(other), now()).actions;
            assert!(matches!(&planned[..], [Action::Fail { reason: "SnapshotContentMisbound", .. }]), "{planned:?}");
        }
    }

    #[test]
    fn it_goes_after_its_content_unless_that_is_retained() {
        let deleting = World { is_deleting: true, content: Some(content()), ..world() };
        let delete = Action::DeleteContent { name: "snapcontent-u".to_owned(), uid: "c".to_owned() };
        assert_eq!(plan(&deleting, now()).actions, [delete]);
        let waiting = World { content: Some(BoundContent { is_deleting: true, ..content() }), ..deleting.clone() };
        assert_eq!(plan(&waiting, now()), Plan::default());
        let release = [Action::Prepare { version: "7".to_owned(), finalizers: vec![], class: None }];
        let retained = BoundContent { policy: DeletionPolicy::Retain, ..content() };
        let of_another = BoundContent { bound_uid: Some("x".to_owned()), ..content() };
        for content in [None, Some(retained), Some(of_another)] {
            assert_eq!(plan(&World { content, ..deleting.clone() }, now()).actions, release);
        }
        let in_use = plan(&World { is_in_use: true, ..deleting }, now());
        assert!(in_use.actions.is_empty() && in_use.requeue_at.is_some());
    }
}
