//! The next step for the volume of a claim. Pure.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use mainstay_controllers::runtime::Plan;

use crate::context::Pace;

/// While the claim waits for its first pod, or for its source.
const CONSUMER_POLL: SignedDuration = SignedDuration::from_secs(10);

#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClaimView {
    pub version: String,
    pub is_deleting: bool,
    pub is_bound: bool,
    pub size_gib: u64,
    /// What a Cinder volume cannot be, if the claim asks for that.
    pub refusal: Option<&'static str>,
    /// `FileSystemResizePending` is already reported.
    pub is_resize_reported: bool,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClassView {
    pub name: String,
    pub is_immediate: bool,
    pub parameters: BTreeMap<String, String>,
    pub reclaim_policy: String,
    pub allows_expansion: bool,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct PersistentVolumeView {
    pub name: String,
    pub version: String,
    pub size_gib: u64,
    pub handle: String,
}

/// What Cinder shows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CinderView {
    pub id: String,
    pub status: String,
    pub size_gib: u64,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub enum Backing {
    /// No entry, or one without an id.
    #[default]
    None,
    /// An entry whose volume Cinder does not show.
    Lost,
    Present(CinderView),
}

/// What Cinder makes a volume from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CopySource {
    /// The id of another claim's volume.
    Volume(String),
    /// The id of a snapshot.
    Snapshot(String),
}

/// What the volume begins with: a claim's `dataSource`.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum SourceView {
    #[default]
    Empty,
    /// What is copied, and its size.
    Copy { of: CopySource, size_gib: u64 },
    /// There is none that could be cloned, or not yet.
    NotReady { why: String },
}

#[derive(Clone, Debug, Default)]
pub struct World {
    /// None if there is no such claim any more, or another of its name.
    pub claim: Option<ClaimView>,
    /// The claim's class, if it is one of ours.
    pub class: Option<ClassView>,
    /// A node was chosen for the first pod.
    pub has_consumer: bool,
    pub persistent_volume: Option<PersistentVolumeView>,
    pub source: SourceView,
    pub backing: Backing,
    /// Entries of claims that are gone before they had a PersistentVolume.
    pub abandoned: Vec<String>,
    pub pace: Pace,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    EnsureVolume {
        size_gib: u64,
        source: Option<CopySource>,
    },
    /// Of a volume in error, or lost, to have another.
    RemoveVolume {
        why: String,
    },
    RemoveAbandoned {
        entry: String,
    },
    CreatePersistentVolume {
        id: String,
        size_gib: u64,
    },
    Extend {
        id: String,
        size_gib: u64,
    },
    SetCapacity {
        name: String,
        version: String,
        size_gib: u64,
    },
    Refuse {
        why: String,
    },
}

/// The volume has grown; its filesystem is the node's to grow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResizePending {
    pub version: String,
}

pub fn plan(world: &World, now: Timestamp) -> Plan<Action, ResizePending> {
    let mut plan = match (&world.claim, &world.class) {
        (Some(claim), class) if claim.is_bound => plan_growth(world, claim, class.as_ref(), now),
        (Some(claim), Some(class)) if !claim.is_deleting => plan_provisioning(world, claim, class, now),
        _ => Plan::default(),
    };
    for entry in &world.abandoned {
        plan.actions.push(Action::RemoveAbandoned { entry: entry.clone() });
        plan.requeue_at = Some(now + world.pace.poll);
    }
    plan
}

fn plan_provisioning(
    world: &World,
    claim: &ClaimView,
    class: &ClassView,
    now: Timestamp,
) -> Plan<Action, ResizePending> {
    if let Some(why) = claim.refusal {
        return Plan::act([Action::Refuse { why: why.to_owned() }]);
    }
    if world.persistent_volume.is_some() {
        return Plan::default(); // the binder's turn
    }
    let step = |action: Action| Plan { requeue_at: Some(now + world.pace.poll), ..Plan::act([action]) };
    match &world.backing {
        Backing::None if !class.is_immediate && !world.has_consumer => {
            Plan { requeue_at: Some(now + CONSUMER_POLL), ..Plan::default() }
        }
        Backing::None => match &world.source {
            SourceView::Empty => step(Action::EnsureVolume { size_gib: claim.size_gib, source: None }),
            SourceView::NotReady { why } => {
                Plan { requeue_at: Some(now + CONSUMER_POLL), ..Plan::act([Action::Refuse { why: why.clone() }]) }
            }
            SourceView::Copy { size_gib, .. } if claim.size_gib < *size_gib => {
                let why = format!(
                    "spec.resources.requests.storage: {} GiB are less than the {size_gib} GiB of spec.dataSource",
                    claim.size_gib
                );
                Plan::act([Action::Refuse { why }])
            }
            SourceView::Copy { of, .. } => {
                step(Action::EnsureVolume { size_gib: claim.size_gib, source: Some(of.clone()) })
            }
        },
        Backing::Lost => step(Action::RemoveVolume { why: "Cinder does not have it any more".to_owned() }),
        Backing::Present(volume) => match volume.status.as_str() {
            "available" | "in-use" => {
                Plan::act([Action::CreatePersistentVolume { id: volume.id.clone(), size_gib: volume.size_gib }])
            }
            "creating" | "downloading" => Plan { requeue_at: Some(now + world.pace.poll), ..Plan::default() },
            status => step(Action::RemoveVolume { why: format!("it is {status:?}") }),
        },
    }
}

fn plan_growth(
    world: &World,
    claim: &ClaimView,
    class: Option<&ClassView>,
    now: Timestamp,
) -> Plan<Action, ResizePending> {
    let Some(volume) = &world.persistent_volume else { return Plan::default() };
    let has_grown = |size: u64| size >= claim.size_gib;
    if has_grown(volume.size_gib) || claim.is_deleting || !class.is_some_and(|class| class.allows_expansion) {
        return Plan::default();
    }
    let Backing::Present(cinder) = &world.backing else { return Plan::default() };
    let wait = Plan { requeue_at: Some(now + world.pace.poll), ..Plan::default() };
    match cinder.status.as_str() {
        "available" | "in-use" if has_grown(cinder.size_gib) => Plan {
            actions: vec![Action::SetCapacity {
                name: volume.name.clone(),
                version: volume.version.clone(),
                size_gib: cinder.size_gib,
            }],
            status: (!claim.is_resize_reported).then(|| ResizePending { version: claim.version.clone() }),
            requeue_at: None,
        },
        "available" | "in-use" => {
            Plan { actions: vec![Action::Extend { id: cinder.id.clone(), size_gib: claim.size_gib }], ..wait }
        }
        _ => wait,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> Timestamp {
        "2026-01-01T00:00:00Z".parse().unwrap()
    }

    fn world(backing: Backing) -> World {
        let claim = ClaimView { version: "7".into(), size_gib: 3, ..ClaimView::default() };
        let class = ClassView { is_immediate: true, allows_expansion: true, ..ClassView::default() };
        World { claim: Some(claim), class: Some(class), backing, ..World::default() }
    }

    fn volume(status: &str, size_gib: u64) -> Backing {
        Backing::Present(CinderView { id: "v".into(), status: status.into(), size_gib })
    }

    fn actions(world: &World) -> Vec<Action> {
        plan(world, now()).actions
    }

    #[test]
    fn a_claim_gets_a_volume_and_then_its_object() {
        assert_eq!(actions(&world(Backing::None)), [Action::EnsureVolume { size_gib: 3, source: None }]);
        assert_eq!(actions(&world(volume("creating", 3))), []);
        let create = Action::CreatePersistentVolume { id: "v".into(), size_gib: 3 };
        assert_eq!(actions(&world(volume("available", 3))), [create]);
        let mut done = world(volume("available", 3));
        done.persistent_volume = Some(PersistentVolumeView::default());
        assert_eq!(plan(&done, now()), Plan::default());
    }

    #[test]
    fn a_clone_is_at_least_as_large_as_its_source_and_waits_for_it() {
        let mut world = world(Backing::None);
        world.source = SourceView::Copy { of: CopySource::Volume("s".into()), size_gib: 3 };
        assert_eq!(
            actions(&world),
            [Action::EnsureVolume { size_gib: 3, source: Some(CopySource::Volume("s".into())) }]
        );
        world.source = SourceView::Copy { of: CopySource::Volume("s".into()), size_gib: 4 };
        let [Action::Refuse { why }] = &actions(&world)[..] else { panic!("a clone that is too small") };
        assert!(why.starts_with("spec.resources.requests.storage: 3 GiB are less than the 4 GiB"), "{why}");
        world.source = SourceView::NotReady { why: "not bound".into() };
        let waiting = plan(&world, now());
        assert_eq!(waiting.actions, [Action::Refuse { why: "not bound".into() }]);
        assert!(waiting.requeue_at.is_some(), "the source may come");
    }

    #[test]
    fn a_volume_in_error_is_replaced() {
        let why = "it is \"error\"".to_owned();
        assert_eq!(actions(&world(volume("error", 3))), [Action::RemoveVolume { why }]);
        assert!(matches!(actions(&world(Backing::Lost))[..], [Action::RemoveVolume { .. }]));
    }

    #[test]
    fn a_claim_that_waits_for_a_pod_has_no_volume() {
        let mut world = world(Backing::None);
        world.class.as_mut().unwrap().is_immediate = false;
        assert_eq!(actions(&world), []);
        world.has_consumer = true;
        assert_eq!(actions(&world), [Action::EnsureVolume { size_gib: 3, source: None }]);
    }

    #[test]
    fn claims_of_other_classes_or_impossible_ones_get_nothing() {
        let mut world = world(Backing::None);
        world.claim.as_mut().unwrap().refusal = Some("no");
        assert_eq!(actions(&world), [Action::Refuse { why: "no".into() }]);
        world.class = None;
        assert_eq!(actions(&world), []);
    }

    #[test]
    fn a_claim_that_went_before_its_volume_leaves_nothing() {
        let gone = World { abandoned: vec!["volume-1".into()], ..World::default() };
        assert_eq!(actions(&gone), [Action::RemoveAbandoned { entry: "volume-1".into() }]);
        assert!(plan(&gone, now()).requeue_at.is_some());
    }

    #[test]
    fn a_bound_claim_grows_its_volume_and_then_its_object() {
        let mut world = world(volume("in-use", 1));
        world.claim.as_mut().unwrap().is_bound = true;
        let object = PersistentVolumeView { name: "pv".into(), version: "9".into(), size_gib: 1, handle: "v".into() };
        world.persistent_volume = Some(object);
        assert_eq!(actions(&world), [Action::Extend { id: "v".into(), size_gib: 3 }]);
        world.backing = volume("extending", 1);
        assert_eq!(actions(&world), []);
        world.backing = volume("in-use", 3);
        let set = Action::SetCapacity { name: "pv".into(), version: "9".into(), size_gib: 3 };
        let grown = plan(&world, now());
        assert_eq!(grown.actions, [set]);
        assert_eq!(grown.status, Some(ResizePending { version: "7".into() }));
        world.class.as_mut().unwrap().allows_expansion = false;
        assert_eq!(plan(&world, now()), Plan::default());
    }
}
