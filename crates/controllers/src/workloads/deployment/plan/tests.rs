use std::{collections::BTreeSet, sync::Arc};

use jiff::SignedDuration;
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::{
    objects::deployment::RolloutLimits,
    workloads::{
        controller_ref::OwnershipChange,
        deployment::view::{Counts, UnmetNeeds},
    },
};

fn at_second(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn want(replicas: i32, surge: i32, unavailable: i32) -> Desired {
    Desired {
        name: "web".into(),
        version: "1".into(),
        generation: 1,
        annotations: BTreeMap::new(),
        replicas,
        min_ready_seconds: 0,
        leeway: RolloutLimits { surge, unavailable },
        recreate: false,
        paused: false,
        leaving: false,
        history_limit: Some(2),
        deadline: Some(600),
        template: Arc::new(json!({})),
        hash: "hash".into(),
    }
}

/// A set that does what it should.
fn set(name: &str, revision: i64, replicas: i32, available: i32) -> Set {
    let annotations = [(REVISION.to_owned(), revision.to_string())].into();
    Set {
        name: name.into(),
        uid: name.into(),
        version: "1".into(),
        born: at_second(revision),
        leaving: false,
        annotations,
        current: false,
        replicas,
        min_ready_seconds: 0,
        seen: Counts { replicas, ready: available, available, leaving: 0 },
        observed: true,
        failure: None,
    }
}

fn world(want: Desired, mut sets: Vec<Set>) -> World {
    // The last one is of the current template, unless it says otherwise; its revision is known.
    let mut want = want;
    if let Some(new) = sets.last_mut() {
        new.current = true;
        want.annotations.insert(REVISION.into(), new.revision().to_string());
    }
    for set in &mut sets {
        set.annotations.extend(want.marks().map(|(name, value)| (name.to_owned(), value)));
    }
    World {
        want,
        sets,
        claims: vec![],
        taken: BTreeSet::new(),
        old_pods: false,
        standing: Status::default(),
        unmet_needs: None,
        needs_met: None,
    }
}

fn scales(plan: &Plan<Step, Status>) -> Vec<(&str, i32)> {
    let mut scales = Vec::new();
    for step in &plan.actions {
        if let Step::Scale { set, to, .. } = step {
            scales.push((set.name.as_str(), *to));
        }
    }
    scales
}

fn reason(status: &Status, type_: &str) -> (String, String) {
    let condition = status.condition(type_).expect("the condition");
    (condition.status.clone().unwrap(), condition.reason.clone().unwrap())
}

#[test]
fn the_first_set_has_everything_and_the_second_what_the_surge_allows() {
    let first = plan(&world(want(10, 3, 2), vec![]), at_second(10));
    let [Step::Create(create)] = &first.actions[..] else { panic!("{:?}", first.actions) };
    assert_eq!((create.name.as_str(), create.replicas, create.annotations[REVISION].as_str()), ("web-hash", 10, "1"));
    assert_eq!((create.annotations[DESIRED].as_str(), create.annotations[MAX].as_str()), ("10", "13"));
    let mut updating = world(want(10, 3, 2), vec![set("old", 4, 10, 10)]);
    updating.sets[0].current = false;
    let second = plan(&updating, at_second(10));
    let [Step::Create(create)] = &second.actions[..] else { panic!("{:?}", second.actions) };
    assert_eq!((create.replicas, create.annotations[REVISION].as_str()), (3, "5"));
}

#[test]
fn a_rolling_update_goes_by_surge_and_availability() {
    for (what, old, new, expected) in [
        ("grow while there is room", set("old", 1, 10, 10), set("new", 2, 0, 0), vec![("new", 3)]),
        ("take what is above the minimum", set("old", 1, 10, 10), set("new", 2, 3, 0), vec![("old", 8)]),
        ("no more than that", set("old", 1, 8, 8), set("new", 2, 5, 0), vec![]),
        ("what became available frees as much", set("old", 1, 8, 8), set("new", 2, 5, 2), vec![("old", 6)]),
        ("the rest goes at last", set("old", 1, 1, 1), set("new", 2, 10, 10), vec![("old", 0)]),
        ("broken ones go first", set("old", 1, 10, 4), set("new", 2, 3, 0), vec![("old", 8)]),
        ("done", set("old", 1, 0, 0), set("new", 2, 10, 10), vec![]),
        ("too many of the new", set("old", 1, 0, 0), set("new", 2, 12, 10), vec![("new", 10)]),
    ] {
        let plan = plan(&world(want(10, 3, 2), vec![old, new]), at_second(10));
        assert_eq!(scales(&plan), expected, "{what}");
    }
}

#[test]
fn nothing_is_taken_before_every_set_answered() {
    let mut world = world(want(10, 3, 2), vec![set("old", 1, 10, 10), set("new", 2, 3, 3)]);
    assert_eq!(scales(&plan(&world, at_second(10))), [("old", 5)]);
    world.sets[1].observed = false;
    assert!(plan(&world, at_second(10)).actions.is_empty());
}

#[test]
fn recreate_waits_for_the_last_old_pod() {
    let recreate = || Desired { recreate: true, ..want(3, 0, 0) };
    let mut updating = world(recreate(), vec![set("old", 1, 3, 3)]);
    updating.sets[0].current = false;
    assert_eq!(scales(&plan(&updating, at_second(10))), [("old", 0)]);
    updating.sets[0] = Set { annotations: updating.sets[0].annotations.clone(), ..set("old", 1, 0, 0) };
    updating.old_pods = true;
    assert!(plan(&updating, at_second(10)).actions.is_empty());
    updating.old_pods = false;
    let plan = plan(&updating, at_second(10));
    assert!(matches!(&plan.actions[..], [Step::Create(create)] if create.replicas == 3), "{:?}", plan.actions);
}

#[test]
fn a_new_size_is_shared_by_all_sets() {
    let mut scaling = world(want(10, 5, 2), vec![set("old", 1, 8, 8), set("new", 2, 5, 2)]);
    scaling.want.replicas = 15;
    assert_eq!(scales(&plan(&scaling, at_second(10))), [("old", 13), ("new", 7)]);
    scaling.want.replicas = 5;
    assert_eq!(scales(&plan(&scaling, at_second(10))), [("old", 5), ("new", 5)]);
}

#[test]
fn a_single_set_takes_the_new_size_at_once_even_when_paused() {
    let mut scaling = world(want(3, 1, 0), vec![set("new", 1, 3, 3)]);
    scaling.want.replicas = 7;
    assert_eq!(scales(&plan(&scaling, at_second(10))), [("new", 7)]);
    scaling.want.paused = true;
    let plan = plan(&scaling, at_second(10));
    assert_eq!(scales(&plan), [("new", 7)]);
    assert_eq!(reason(&plan.status.unwrap(), "Progressing"), ("Unknown".into(), "DeploymentPaused".into()));
}

#[test]
fn a_paused_one_begins_no_update_and_goes_on_when_resumed() {
    let mut paused = world(want(3, 1, 0), vec![set("old", 1, 3, 3)]);
    paused.sets[0].current = false;
    paused.want.paused = true;
    let first = plan(&paused, at_second(10));
    assert!(first.actions.is_empty(), "{:?}", first.actions);
    paused.standing = first.status.unwrap();
    paused.want.paused = false;
    let resumed = plan(&paused, at_second(20));
    assert!(matches!(&resumed.actions[..], [Step::Create(_)]));
    assert_eq!(reason(&resumed.status.unwrap(), "Progressing"), ("Unknown".into(), "DeploymentResumed".into()));
}

#[test]
fn an_old_set_of_the_same_template_is_the_newest_revision_again() {
    let mut undone = world(want(3, 1, 0), vec![set("b", 2, 3, 3), set("a", 1, 0, 0)]);
    undone.want.annotations =
        [(REVISION.into(), "2".into()), ("kubernetes.io/change-cause".into(), "undo".into())].into();
    let first = plan(&undone, at_second(10));
    let [Step::Annotate { set, annotations, .. }] = &first.actions[..] else { panic!("{:?}", first.actions) };
    let expected = [(REVISION, "3"), (REVISION_HISTORY, "1"), ("kubernetes.io/change-cause", "undo")];
    assert_eq!(set.name, "a");
    assert_eq!(*annotations, expected.map(|(name, value)| (name.to_owned(), value.to_owned())).into());
    undone.sets[1].annotations.extend(annotations.clone());
    let second = plan(&undone, at_second(10));
    assert_eq!(second.actions, [Step::Revise { version: "1".into(), revision: 3 }]);
    assert!(second.status.is_none());
}

#[test]
fn a_name_that_is_taken_leads_to_another() {
    let mut taken = world(want(3, 1, 0), vec![]);
    taken.taken.insert("web-hash".into());
    let plan = plan(&taken, at_second(10));
    assert!(plan.actions.is_empty());
    assert_eq!(plan.status.unwrap().collision_count, Some(1));
}

#[test]
fn one_that_still_goes_is_waited_for() {
    let mut going = world(want(3, 1, 0), vec![set("web-hash", 1, 3, 3)]);
    going.sets[0].leaving = true;
    going.taken.insert("web-hash".into());
    let plan = plan(&going, at_second(10));
    assert!(plan.actions.is_empty());
    assert_eq!(plan.status.unwrap().collision_count, None);
}

#[test]
fn old_revisions_beyond_the_limit_are_forgotten_once_all_is_well() {
    let sets = || vec![set("a", 1, 0, 0), set("b", 2, 0, 0), set("c", 3, 0, 0), set("d", 4, 3, 3)];
    let done = plan(&world(want(3, 1, 0), sets()), at_second(10));
    assert!(matches!(&done.actions[..], [Step::Forget(set)] if set.name == "a"), "{:?}", done.actions);
    let unwell = plan(
        &world(want(3, 1, 0), {
            let mut sets = sets();
            sets[3].seen.available = 2;
            sets
        }),
        at_second(10),
    );
    assert!(unwell.actions.is_empty());
    let all = Desired { history_limit: None, ..want(3, 1, 0) };
    assert!(plan(&world(all, sets()), at_second(10)).actions.is_empty());
}

#[test]
fn ownership_comes_first_and_one_that_goes_does_nothing() {
    let claim = OwnershipChange::Adopt { name: "x".into(), uid: "x".into(), version: "1".into() };
    let mut adopting = world(want(3, 1, 0), vec![]);
    adopting.claims.push(claim.clone());
    assert_eq!(plan(&adopting, at_second(10)).actions, [Step::OwnershipChange(claim)]);
    let leaving = world(Desired { leaving: true, ..want(3, 1, 0) }, vec![]);
    assert!(plan(&leaving, at_second(10)).actions.is_empty());
}

#[test]
fn progress_is_reported_and_its_lack_too() {
    let mut rolling = world(want(3, 1, 0), vec![set("old", 1, 3, 3), set("new", 2, 1, 0)]);
    let moving = plan(&rolling, at_second(10));
    let status = moving.status.unwrap();
    assert_eq!(reason(&status, "Progressing"), ("True".into(), "ReplicaSetUpdated".into()));
    assert_eq!(reason(&status, "Available"), ("True".into(), "MinimumReplicasAvailable".into()));
    assert_eq!((status.replicas, status.updated_replicas, status.unavailable_replicas), (4, 1, 1));
    assert_eq!(moving.requeue_at, Some(at_second(10) + SignedDuration::from_secs(601)));

    rolling.standing = status.clone();
    let waiting = plan(&rolling, at_second(500));
    assert_eq!((waiting.status.unwrap(), waiting.requeue_at), (status, Some(at_second(611))));
    let late = plan(&rolling, at_second(611));
    let status = late.status.unwrap();
    assert_eq!(reason(&status, "Progressing"), ("False".into(), "ProgressDeadlineExceeded".into()));
    let message = status.condition("Progressing").unwrap().message.clone().unwrap();
    assert_eq!((message.as_str(), late.requeue_at), ("ReplicaSet \"new\" has timed out progressing.", None));

    rolling.standing = status;
    rolling.sets = world(want(3, 1, 0), vec![set("old", 1, 0, 0), set("new", 2, 3, 3)]).sets;
    let done = plan(&rolling, at_second(700)).status.unwrap();
    assert_eq!(reason(&done, "Progressing"), ("True".into(), "NewReplicaSetAvailable".into()));
    rolling.standing = done.clone();
    let rests = plan(&rolling, at_second(9000));
    assert!(rests.actions.is_empty() && rests.requeue_at.is_none());
    assert_eq!(rests.status.unwrap(), done);
}

#[test]
fn without_a_deadline_nothing_is_reported_of_progress() {
    let plan = plan(&world(Desired { deadline: None, ..want(3, 1, 0) }, vec![set("new", 1, 3, 1)]), at_second(10));
    assert!(plan.requeue_at.is_none());
    let status = plan.status.unwrap();
    assert_eq!(reason(&status, "Available").1, "MinimumReplicasUnavailable");
    assert!(status.condition("Progressing").is_none());
}

mod model;

#[test]
fn the_time_that_pods_wait_for_their_needs_does_not_count_against_the_deadline() {
    let mut world = world(want(2, 1, 0), vec![set("old", 1, 2, 2), set("new", 2, 1, 0)]);
    world.standing = plan(&world, at_second(100)).status.unwrap();
    let unmet = |is_overdue| UnmetNeeds { pods: 1, is_overdue, missing: "mysql: 0 of 1 ready".to_owned() };
    world.unmet_needs = Some(unmet(false));
    let waiting = plan(&world, at_second(5000));
    assert_eq!(waiting.requeue_at, None, "no deadline runs");
    let status = waiting.status.unwrap();
    assert_eq!(reason(&status, "Progressing"), ("True".into(), "ReplicaSetUpdated".into()));
    // It counts from when the needs were met.
    world.standing = status;
    (world.unmet_needs, world.needs_met) = (None, Some(at_second(6000)));
    let met = plan(&world, at_second(6010));
    assert_eq!(met.requeue_at, Some(at_second(6601)));
    assert_eq!(reason(&met.status.unwrap(), "Progressing").0, "True");
    assert_eq!(reason(&plan(&world, at_second(6601)).status.unwrap(), "Progressing").1, "ProgressDeadlineExceeded");
    // Whoever waits longer than it says it should has failed to progress.
    (world.unmet_needs, world.needs_met) = (Some(unmet(true)), None);
    assert_eq!(reason(&plan(&world, at_second(6601)).status.unwrap(), "Progressing").1, "ProgressDeadlineExceeded");
}

#[test]
fn what_pods_wait_for_is_said_in_the_progress() {
    let mut world = world(want(2, 1, 0), vec![set("old", 1, 2, 2), set("new", 2, 1, 0)]);
    let progressing = |status: &Status| {
        let condition = status.condition("Progressing").unwrap().clone();
        (condition.reason.unwrap(), condition.message.unwrap(), condition.last_update_time.unwrap().0)
    };
    let first = plan(&world, at_second(100)).status.unwrap();
    let (reason, plain, since) = progressing(&first);
    world.standing = first;
    let unmet = |pods, is_overdue, missing: &str| UnmetNeeds { pods, is_overdue, missing: missing.to_owned() };
    world.unmet_needs = Some(unmet(1, false, "mysql: 0 of 1 ready"));
    let waiting = plan(&world, at_second(200)).status.unwrap();
    let expected = format!("{plain} Waiting: 1 pod waits for needs: mysql: 0 of 1 ready");
    assert_eq!(progressing(&waiting), (reason, expected, since));
    // It is said once, and the deadline passes for those who wait too long.
    world.standing = waiting;
    world.unmet_needs = Some(unmet(2, true, "mysql: no such Service"));
    let late = plan(&world, at_second(701)).status.unwrap();
    let (reason, message, _) = progressing(&late);
    assert_eq!(reason, "ProgressDeadlineExceeded");
    assert!(
        message.ends_with(" Waiting: 2 pods wait for needs longer than they should: mysql: no such Service"),
        "{message}"
    );
    assert_eq!(message.matches("Waiting").count(), 1);
    world.standing = late;
    world.unmet_needs = None;
    let (_, message, _) = progressing(&plan(&world, at_second(702)).status.unwrap());
    assert!(!message.contains("Waiting"), "{message}");
}
