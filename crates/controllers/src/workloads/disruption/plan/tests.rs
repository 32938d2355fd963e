use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn at_second(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn pod(name: &str, ready: bool, leaving: bool) -> Arc<Pod> {
    let pod = json!({
        "metadata": { "name": name, "creationTimestamp": Time(at_second(0)), "deletionTimestamp": leaving.then(|| Time(at_second(1))) },
        "status": { "phase": "Running", "conditions": [{ "type": "Ready", "status": if ready { "True" } else { "False" } }] },
    });
    Arc::new(serde_json::from_value(pod).unwrap())
}

fn world(spec: Value, pods: Vec<Arc<Pod>>, scale: i64) -> World {
    let budget = json!({ "metadata": { "name": "b", "namespace": "ns", "generation": 2 }, "spec": spec });
    let budget = Arc::new(serde_json::from_value(budget).unwrap());
    World { budget, pods, scale: Ok(scale), unmanaged: 0, evictions: BTreeMap::new() }
}

fn pods(ready: usize, ill: usize) -> Vec<Arc<Pod>> {
    let ready = (0..ready).map(|n| pod(&format!("r{n}"), true, false));
    ready.chain((0..ill).map(|n| pod(&format!("i{n}"), false, false))).collect()
}

/// Allowed, healthy, desired, expected.
fn counted(world: &World) -> (i32, i32, i32, i32) {
    let status = plan(world, at_second(100)).status.unwrap();
    let counts = [status.disruptions_allowed, status.current_healthy, status.desired_healthy, status.expected_pods];
    let [allowed, healthy, desired, expected] = counts.map(Option::unwrap);
    (allowed, healthy, desired, expected)
}

#[test]
fn budgets_are_counted_in_numbers_and_shares() {
    for (spec, ready, ill, scale, expected) in [
        (json!({ "minAvailable": 2 }), 3, 0, 0, (1, 3, 2, 3)),
        (json!({ "minAvailable": 2 }), 2, 1, 0, (0, 2, 2, 3)),
        (json!({ "minAvailable": 5 }), 3, 0, 0, (0, 3, 5, 3)),
        (json!({ "minAvailable": "50%" }), 3, 0, 3, (1, 3, 2, 3)),
        (json!({ "minAvailable": "50%" }), 3, 0, 10, (0, 3, 5, 10)),
        (json!({ "maxUnavailable": 1 }), 3, 0, 3, (1, 3, 2, 3)),
        (json!({ "maxUnavailable": 1 }), 2, 1, 3, (0, 2, 2, 3)),
        (json!({ "maxUnavailable": 1 }), 3, 0, 4, (0, 3, 3, 4)),
        (json!({ "maxUnavailable": "30%" }), 10, 0, 10, (3, 10, 7, 10)),
        (json!({ "maxUnavailable": "25%" }), 3, 0, 3, (1, 3, 2, 3)),
        (json!({ "maxUnavailable": "100%" }), 3, 0, 3, (3, 3, 0, 3)),
        (json!({ "maxUnavailable": 0 }), 3, 0, 3, (0, 3, 3, 3)),
        (json!({ "maxUnavailable": 5 }), 0, 0, 0, (0, 0, 0, 0)),
    ] {
        assert_eq!(counted(&world(spec.clone(), pods(ready, ill), scale)), expected, "{spec} {ready} {ill} {scale}");
    }
}

#[test]
fn the_condition_says_whether_pods_may_go_and_since_when() {
    let mut it = world(json!({ "minAvailable": 1 }), pods(2, 0), 0);
    let status = plan(&it, at_second(100)).status.unwrap();
    let condition = &status.conditions.as_ref().unwrap()[0];
    assert_eq!((condition.status.as_str(), condition.reason.as_str()), ("True", "SufficientPods"));
    assert_eq!((condition.observed_generation, status.observed_generation), (Some(2), Some(2)));
    Arc::make_mut(&mut it.budget).status = Some(status);
    assert_eq!(plan(&it, at_second(200)).status, None, "nothing changed");
    it.pods = pods(3, 0);
    let status = plan(&it, at_second(300)).status.unwrap();
    assert_eq!(status.conditions.as_ref().unwrap()[0].last_transition_time, Time(at_second(100)), "it was so before");
    it.pods = pods(1, 0);
    let condition = &plan(&it, at_second(400)).status.unwrap().conditions.unwrap()[0];
    assert_eq!((condition.status.as_str(), condition.reason.as_str()), ("False", "InsufficientPods"));
    assert_eq!(condition.last_transition_time, Time(at_second(400)));
}

#[test]
fn what_cannot_be_counted_allows_nothing() {
    let mut it = world(json!({ "maxUnavailable": 1 }), pods(3, 0), 3);
    Arc::make_mut(&mut it.budget).status = plan(&it, at_second(100)).status;
    it.scale = Err("found no controllers for pod \"r0\"".into());
    let plan = plan(&it, at_second(200));
    let status = plan.status.unwrap();
    let condition = &status.conditions.unwrap()[0];
    assert_eq!((status.disruptions_allowed, condition.reason.as_str()), (Some(0), "SyncFailed"));
    assert_eq!(condition.message, "found no controllers for pod \"r0\"");
    assert_eq!(plan.actions[0].note.reason, "CalculateExpectedPodCountFailed");
    assert_eq!(plan.requeue_at, Some(at_second(230)));
}

#[test]
fn evicted_pods_do_not_count_until_they_are_seen_to_go() {
    let mut it = world(json!({ "maxUnavailable": 2 }), pods(3, 0), 3);
    let evicted = BTreeMap::from([("r0".to_owned(), Time(at_second(100))), ("gone".to_owned(), Time(at_second(100)))]);
    let status = PodDisruptionBudgetStatus { disrupted_pods: Some(evicted), ..Default::default() };
    Arc::make_mut(&mut it.budget).status = Some(status);
    let early = plan(&it, at_second(110));
    let status = early.status.unwrap();
    assert_eq!((status.disruptions_allowed, status.current_healthy), (Some(1), Some(2)));
    assert_eq!(status.disrupted_pods.unwrap().keys().collect::<Vec<_>>(), ["r0"]);
    assert_eq!(early.requeue_at, Some(at_second(230)));
    let seen = |uid: &str, age| {
        let seen = SeenEviction { uid: Some(uid.to_owned()), age: Duration::from_secs(age) };
        BTreeMap::from([("r0".to_owned(), seen)])
    };
    it.evictions = seen(it.pods[0].uid(), 100);
    // Whatever the clocks say that wrote the eviction and the pod.
    for now in [at_second(-5000), at_second(110), at_second(9000)] {
        let planned = plan(&it, now);
        let status = planned.status.unwrap();
        assert_eq!((status.disruptions_allowed, planned.requeue_at), (Some(1), Some(now + Duration::from_secs(20))));
    }
    it.evictions = seen(it.pods[0].uid(), 120);
    let late = plan(&it, at_second(220));
    let status = late.status.unwrap();
    assert_eq!((status.disruptions_allowed, status.disrupted_pods), (Some(2), None), "nothing came of it");
    assert_eq!((&*late.actions[0].note.reason, late.actions[0].pod.as_deref()), ("NotDeleted", Some("r0")));
    it.pods[0] = pod("r0", true, true);
    let status = plan(&it, at_second(110)).status.unwrap();
    assert_eq!((status.disruptions_allowed, status.current_healthy, status.disrupted_pods), (Some(1), Some(2), None));
    it.pods[0] = pod("r0", true, false);
    it.evictions = seen("of another", 1);
    let status = plan(&it, at_second(110)).status.unwrap();
    assert_eq!((status.disruptions_allowed, status.disrupted_pods), (Some(2), None), "another of that name");
}

#[test]
fn a_pod_that_is_as_young_as_its_eviction_is_not_taken_for_the_evicted_one_for_long() {
    let mut it = world(json!({ "maxUnavailable": 2 }), pods(3, 0), 3);
    let evicted = BTreeMap::from([("r0".to_owned(), Time(at_second(0)))]);
    let status = PodDisruptionBudgetStatus { disrupted_pods: Some(evicted), ..Default::default() };
    Arc::make_mut(&mut it.budget).status = Some(status);
    let planned = |it: &mut World, age| {
        let seen = SeenEviction { uid: Some(it.pods[0].uid().to_owned()), age: Duration::from_secs(age) };
        it.evictions = BTreeMap::from([("r0".to_owned(), seen)]);
        let plan = plan(it, at_second(110));
        (plan.status.unwrap().disruptions_allowed, plan.requeue_at, plan.actions.len())
    };
    assert_eq!(planned(&mut it, 1), (Some(1), Some(at_second(114)), 0));
    assert_eq!(planned(&mut it, 5), (Some(2), None, 0), "its successor: nobody failed to delete it");
}

#[test]
fn a_budget_that_covers_nothing_says_so_once() {
    let mut it = world(json!({ "minAvailable": 0 }), vec![], 0);
    let first = plan(&it, at_second(100));
    assert_eq!(first.actions[0].note.reason, "NoPods");
    assert_eq!(first.status.as_ref().unwrap().disruptions_allowed, Some(0));
    Arc::make_mut(&mut it.budget).status = first.status;
    assert!(plan(&it, at_second(200)).actions.is_empty());
}

proptest! {
    /// Evictions take from the allowance; changes of pods may be seen late. There are never fewer healthy pods than desired.
    #[test]
    fn late_news_never_allows_too_much(
        most in 0..4_i64,
        steps in prop::collection::vec((0..3_u8, 0..6_usize), 0..40),
    ) {
        let mut it = world(json!({ "maxUnavailable": most }), pods(6, 0), 6);
        let mut truth = it.pods.clone();
        for (step, which) in steps {
            match step {
                0 => {
                    if let Some(status) = plan(&it, at_second(10)).status {
                        Arc::make_mut(&mut it.budget).status = Some(status);
                    }
                }
                1 => it.pods = truth.clone(),
                _ => {
                    let status = Arc::make_mut(&mut it.budget).status.get_or_insert_default();
                    if status.disruptions_allowed > Some(0) && !truth[which].is_being_deleted() {
                        status.disruptions_allowed = status.disruptions_allowed.map(|allowed| allowed - 1);
                        let name = truth[which].name().to_owned();
                        truth[which] = pod(&name, true, true);
                        status.disrupted_pods.get_or_insert_default().insert(name, Time(at_second(10)));
                    }
                }
            }
            let left = truth.iter().filter(|pod| !pod.is_being_deleted()).count();
            prop_assert!(i64::try_from(left).unwrap() >= 6 - most);
        }
    }
}
