//! Single steps of a Job.

use jiff::SignedDuration;
use k8s_openapi::api::batch::v1::{JobStatus, SuccessPolicy};
use serde_json::{Value, json};

use super::{
    finish::condition,
    plan::{Action, Report, plan},
    policy::FailureAction,
    testing::*,
    view::{Desired, Life, View, World},
};
use crate::runtime::Plan;

const NOW: i64 = 1000;

fn make_plan(world: &World) -> Plan<Action, Report> {
    plan(world, at_second(NOW))
}

/// What a plan does, in short; names of new pods without their letters.
fn deeds(plan: &Plan<Action, Report>) -> Vec<String> {
    let deed = |action: &Action| match action {
        Action::OwnershipChange(claim) => format!("{claim:?}"),
        Action::Create(slot) => match slot.index {
            Some(index) => format!("create {index}"),
            None => "create".to_owned(),
        },
        Action::Stop { name, .. } => format!("stop {name}"),
        Action::GiveUp { name, .. } => format!("give up {name}"),
        Action::Release { name, .. } => format!("release {name}"),
    };
    plan.actions.iter().map(deed).collect()
}

fn status(value: Value) -> JobStatus {
    serde_json::from_value(value).unwrap()
}

fn reported(plan: &Plan<Action, Report>) -> Value {
    let mut value = serde_json::to_value(&plan.status.as_ref().expect("a report").status).unwrap();
    for condition in value.get_mut("conditions").and_then(Value::as_array_mut).into_iter().flatten() {
        let fields = condition.as_object_mut().unwrap();
        fields.retain(|field, _| !field.starts_with("last"));
    }
    value
}

fn decided(type_: &str) -> Value {
    json!({ "conditions": [{ "type": type_, "status": "True", "reason": "R", "message": "m" }], "startTime": "1970-01-01T00:00:00Z" })
}

#[test]
fn a_new_job_starts_its_clock_and_its_pods() {
    let plan = make_plan(&world(desired(), vec![]));
    assert_eq!(deeds(&plan), ["create", "create"]);
    let expected =
        json!({ "ready": 0, "terminating": 0, "startTime": "1970-01-01T00:16:40Z", "uncountedTerminatedPods": {} });
    assert_eq!(reported(&plan), expected);
    let names: Vec<&Action> = plan.actions.iter().collect();
    assert_ne!(names[0], names[1]);
    assert_eq!(make_plan(&world(desired(), vec![])).actions, plan.actions, "who looks again gives the same names");
}

#[test]
fn no_more_pods_than_there_is_work() {
    let cases: [(Desired, Vec<View>, &[&str]); 11] = [
        (desired(), vec![running("a")], &["create"]),
        (desired(), vec![running("a"), running("b")], &[]),
        (desired(), vec![succeeded("a", 1), succeeded("b", 1), succeeded("c", 1)], &["create"]),
        (Desired { completions: None, ..desired() }, vec![], &["create", "create"]),
        (Desired { completions: None, ..desired() }, vec![succeeded("a", 1), running("b")], &[]),
        (Desired { parallelism: 0, ..desired() }, vec![], &[]),
        (
            Desired { parallelism: 1, ..desired() },
            vec![running("a"), View { ready: false, ..running("b") }],
            &["give up b"],
        ),
        (desired(), vec![leaving("a"), leaving("b")], &[]), // just now: their failure is waited out
        (Desired { replace_ended_only: true, ..desired() }, vec![leaving("a")], &["create"]),
        (Desired { replace_ended_only: true, ..desired() }, vec![leaving("a"), leaving("b")], &[]),
        (desired(), vec![running("a"), released(running("b"))], &["give up b"]),
    ];
    for (want, mut pods, expected) in cases {
        for pod in pods.iter_mut().filter(|pod| pod.leaving) {
            pod.finished = at_second(NOW);
        }
        let plan = make_plan(&world(want, pods.clone()));
        assert_eq!(deeds(&plan), expected, "{pods:?}");
    }
}

#[test]
fn indexes_are_filled_from_the_lowest_and_once() {
    let cases: [(Vec<View>, &[&str]); 6] = [
        (vec![], &["create 0", "create 1"]),
        (vec![running("a-0")], &["create 1"]),
        (vec![succeeded("a-0", 1), running("a-2")], &["create 1"]),
        (vec![running("a-0"), running("b-0")], &["give up b-0"]),
        (vec![running("a-9"), running("a-1")], &["give up a-9"]),
        (vec![succeeded("a-0", 1), succeeded("a-1", 1), succeeded("a-2", 1), running("b-1")], &["give up b-1"]),
    ];
    for (pods, expected) in cases {
        assert_eq!(deeds(&make_plan(&world(indexed(), pods.clone()))), expected, "{pods:?}");
    }
}

#[test]
fn long_names_keep_their_index() {
    let mut want = indexed();
    want.name = "n".repeat(60);
    let plan = make_plan(&world(want, vec![]));
    let Action::Create(slot) = &plan.actions[1] else { panic!() };
    assert!(slot.name.len() <= 63 && slot.name.contains("-1-"), "{}", slot.name);
}

#[test]
fn counting_goes_on_record_first_then_releases_then_adds_up() {
    let mut world = world(desired(), vec![succeeded("a", 1), failed("b", 1)]);
    let first = make_plan(&world);
    assert_eq!(deeds(&first), ["create", "create"], "nothing is released that is not on record");
    assert_eq!(reported(&first)["uncountedTerminatedPods"], json!({ "succeeded": ["a"], "failed": ["b"] }));
    assert_eq!(first.status.as_ref().unwrap().begun.len(), 2);

    world.status = first.status.unwrap().status;
    let second = make_plan(&world);
    assert_eq!(deeds(&second)[..2], ["release a", "release b"]);
    assert_eq!(second.status, None, "what is on record stays so until they are released");

    world.pods = vec![released(succeeded("a", 1))]; // and b is gone altogether
    let third = make_plan(&world);
    let totals = reported(&third);
    assert_eq!((&totals["succeeded"], &totals["failed"]), (&json!(1), &json!(1)));
    assert_eq!(totals["uncountedTerminatedPods"], json!({}));

    world.status = third.status.unwrap().status;
    world.pods.extend([running("c"), running("d")]);
    world.status.active = Some(2);
    world.status.ready = Some(2);
    assert_eq!(make_plan(&world), Plan::default(), "and then it rests");
}

#[test]
fn indexes_count_by_themselves() {
    let mut world = world(indexed(), vec![succeeded("a-0", 1), succeeded("a-1", 1), failed("a-2", 990)]);
    let first = make_plan(&world);
    assert_eq!(reported(&first)["completedIndexes"], "0,1");
    assert_eq!(reported(&first)["uncountedTerminatedPods"], json!({ "failed": ["a-2"] }));
    world.status = first.status.unwrap().status;
    let second = make_plan(&world);
    assert_eq!(deeds(&second)[..3], ["release a-0", "release a-1", "release a-2"]);
    assert_eq!(world.status.succeeded, Some(2));
}

#[test]
fn a_pod_put_down_as_failed_does_not_succeed_later() {
    let mut world = world(desired(), vec![leaving("a")]);
    world.status = status(json!({ "uncountedTerminatedPods": { "failed": ["a"] } }));
    world.pods[0].life = Life::Succeeded;
    let plan = make_plan(&world);
    assert_eq!(deeds(&plan)[0], "release a");
    assert!(plan.status.is_some_and(|report| report.begun.is_empty()));
}

#[test]
fn failures_are_made_good_after_a_pause() {
    let plan = make_plan(&world(desired(), vec![failed("a", NOW - 4)]));
    assert!(deeds(&plan).is_empty());
    assert_eq!(plan.requeue_at, Some(at_second(NOW + 6)));
    assert_eq!(deeds(&make_plan(&world(desired(), vec![failed("a", NOW - 10)]))), ["create", "create"]);
}

#[test]
fn a_job_ends_for_the_reasons_people_know() {
    let late = Desired { deadline: Some(SignedDuration::from_secs(100)), ..desired() };
    let per_index = Desired { backoff_limit: i32::MAX, backoff_limit_per_index: Some(0), ..indexed() };
    let restarting = Desired { restarts_count: true, backoff_limit: 2, ..desired() };
    let policy: SuccessPolicy = serde_json::from_value(json!({ "rules": [{ "succeededIndexes": "1" }] })).unwrap();
    let poisoned = View { ruling: FailureAction::FailJob("why".into()), ..failed("a", 1) };
    let many = |count: usize| (0..count).map(|i| failed(&format!("a-{i}"), 1)).collect::<Vec<_>>();
    let all = || (0..4).map(|i| succeeded(&format!("a-{i}"), 1)).collect::<Vec<_>>();
    let cases = [
        (desired(), many(7), "FailureTarget BackoffLimitExceeded: Job has reached the specified backoff limit"),
        (
            Desired { backoff_limit: 0, ..desired() },
            many(1),
            "FailureTarget BackoffLimitExceeded: Job has reached the specified backoff limit",
        ),
        (
            restarting.clone(),
            vec![View { restarts: 2, ..running("a") }],
            "FailureTarget BackoffLimitExceeded: Job has reached the specified backoff limit",
        ),
        (restarting.clone(), vec![View { restarts: 1, ..running("a") }], ""),
        (
            Desired { backoff_limit: 0, ..restarting },
            vec![View { restarts: 1, ..running("a") }],
            "FailureTarget BackoffLimitExceeded: Job has reached the specified backoff limit",
        ),
        (
            late.clone(),
            vec![running("a")],
            "FailureTarget DeadlineExceeded: Job was active longer than specified deadline",
        ),
        (Desired { suspended: true, ..late }, vec![], "Suspended JobSuspended: Job suspended"),
        (desired(), vec![poisoned], "FailureTarget PodFailurePolicy: why"),
        (desired(), many(6), ""),
        (
            Desired { max_failed_indexes: Some(1), ..per_index.clone() },
            many(2),
            "FailureTarget MaxFailedIndexesExceeded: Job has exceeded the specified maximal number of failed indexes",
        ),
        (Desired { max_failed_indexes: Some(2), ..per_index.clone() }, many(2), ""),
        (per_index.clone(), many(4), "FailureTarget FailedIndexes: Job has failed indexes"),
        (
            Desired { success: Some(policy), ..indexed() },
            vec![succeeded("a-1", 1), running("a-0")],
            "SuccessCriteriaMet SuccessPolicy: Matched rules at index 0",
        ),
        (desired(), all(), "SuccessCriteriaMet CompletionsReached: Reached expected number of succeeded pods"),
        (indexed(), all(), "SuccessCriteriaMet CompletionsReached: Reached expected number of succeeded pods"),
        (desired(), [all(), vec![running("b")]].concat(), ""),
        (
            Desired { completions: None, ..desired() },
            vec![succeeded("a", 1)],
            "SuccessCriteriaMet CompletionsReached: Reached expected number of succeeded pods",
        ),
        (
            Desired { completions: Some(0), ..desired() },
            vec![],
            "SuccessCriteriaMet CompletionsReached: Reached expected number of succeeded pods",
        ),
    ];
    for (want, pods, expected) in cases {
        let mut world = world(want, pods);
        world.status.start_time = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at_second(0)));
        let plan = make_plan(&world);
        let conditions = reported(&plan)["conditions"].take();
        let text = |field: &str| conditions[0][field].as_str().unwrap_or_default().to_owned();
        let found = match conditions.is_null() {
            true => String::new(),
            false => format!("{} {}: {}", text("type"), text("reason"), text("message")),
        };
        assert_eq!(found, expected, "{:?}", world.pods);
        if !expected.is_empty() {
            assert!(
                !deeds(&plan).iter().any(|deed| deed.starts_with("create") || deed.starts_with("stop")),
                "{expected}"
            );
        }
    }
}

#[test]
fn once_decided_pods_are_stopped_counted_and_then_it_is_over() {
    for (target, terminal, failures) in [("FailureTarget", "Failed", 2), ("SuccessCriteriaMet", "Complete", 0)] {
        let mut world = world(desired(), vec![running("a"), running("b")]);
        world.status = status(decided(target));
        let plan = make_plan(&world);
        assert_eq!(deeds(&plan), ["stop a", "stop b"]);
        let mut reconciles = 0;
        while condition(&world.status, terminal).is_none() {
            let plan = make_plan(&world);
            for deed in deeds(&plan) {
                match deed.split_once(' ').unwrap() {
                    ("stop", name) => world.pods.iter_mut().find(|pod| pod.name == name).unwrap().leaving = true,
                    ("release", name) => world.pods.retain(|pod| pod.name != name),
                    other => panic!("{other:?}"),
                }
            }
            if let Some(report) = plan.status {
                world.status = report.status;
            }
            reconciles += 1;
            assert!(reconciles < 10);
        }
        assert_eq!(world.status.failed.unwrap_or_default(), failures, "{target}");
        assert_eq!(world.status.completion_time.is_some(), terminal == "Complete");
        assert_eq!(make_plan(&world), Plan::default());
    }
}

#[test]
fn it_is_not_over_while_pods_are_still_ending() {
    let mut world = world(desired(), vec![released(leaving("a"))]);
    world.status = status(decided("FailureTarget"));
    let plan = make_plan(&world);
    assert_eq!(reported(&plan)["terminating"], 1);
    assert!(condition(&plan.status.unwrap().status, "Failed").is_none());
}

#[test]
fn suspending_gives_up_pods_uncounted_and_resuming_starts_the_clock_again() {
    let mut world = world(Desired { suspended: true, ..desired() }, vec![running("a"), succeeded("b", 1)]);
    let plan = make_plan(&world);
    assert_eq!(deeds(&plan), ["give up a"]);
    let report = reported(&plan);
    assert_eq!(
        report["conditions"],
        json!([{ "type": "Suspended", "status": "True", "reason": "JobSuspended", "message": "Job suspended" }])
    );
    assert!(report.get("startTime").is_none());
    assert_eq!(report["uncountedTerminatedPods"], json!({ "succeeded": ["b"] }));
    assert_eq!(plan.status.as_ref().unwrap().events[0].reason, "Suspended");

    world.status = plan.status.unwrap().status;
    world.want.suspended = false;
    world.pods.clear();
    let plan = make_plan(&world);
    assert_eq!(deeds(&plan), ["create", "create"]);
    let report = reported(&plan);
    assert_eq!(
        report["conditions"],
        json!([{ "type": "Suspended", "status": "False", "reason": "JobResumed", "message": "Job resumed" }])
    );
    assert_eq!(report["startTime"], "1970-01-01T00:16:40Z");
    assert_eq!(plan.status.unwrap().events[0].reason, "Resumed");
}

#[test]
fn an_index_remembers_its_failures_through_its_pods() {
    let want = Desired { backoff_limit: i32::MAX, backoff_limit_per_index: Some(1), parallelism: 4, ..indexed() };
    let mut pods = vec![failed("a-0", 1), running("a-1"), running("a-2"), running("a-3")];
    let mut world = world(want, pods.clone());
    let first = make_plan(&world);
    let Action::Create(slot) = &first.actions[0] else { panic!("{:?}", first.actions) };
    assert_eq!((slot.index, slot.failures), (Some(0), Some((1, 0))));
    assert_eq!(reported(&first)["failedIndexes"], "");
    let uncounted = first.status.as_ref().unwrap();
    assert!(uncounted.begun.is_empty(), "it is kept until its replacement is there");

    world.pods.push(View { index_failures: 1, ..running("b-0") });
    let second = make_plan(&world);
    assert_eq!(reported(&second)["uncountedTerminatedPods"], json!({ "failed": ["a-0"] }));

    pods[0] = View { index_failures: 1, ..failed("b-0", 1) };
    world.pods = pods.clone();
    let third = make_plan(&world);
    assert_eq!(reported(&third)["failedIndexes"], "0");
    assert!(deeds(&third).is_empty(), "an index that failed is not tried again");

    pods[0] = View { ruling: FailureAction::Ignore, index_failures: 1, ..failed("b-0", 1) };
    world.pods = pods.clone();
    let ignored = make_plan(&world);
    let Action::Create(slot) = &ignored.actions[0] else { panic!("{:?}", ignored.actions) };
    assert_eq!(slot.failures, Some((1, 1)));

    pods[0] = View { ruling: FailureAction::FailIndex, ..failed("a-0", 1) };
    world.pods = pods;
    assert_eq!(reported(&make_plan(&world))["failedIndexes"], "0");
}

#[test]
fn ignored_failures_count_for_nothing() {
    let want = Desired { backoff_limit: 0, ..desired() };
    let plan = make_plan(&world(want, vec![View { ruling: FailureAction::Ignore, ..failed("a", 1) }]));
    assert_eq!(deeds(&plan), ["release a", "create", "create"]);
    assert_eq!(reported(&plan)["uncountedTerminatedPods"], json!({}));
}

#[test]
fn a_job_that_is_deleted_or_over_lets_its_pods_go() {
    let pods = vec![running("a"), released(running("b")), succeeded("c", 1)];
    let deleted = make_plan(&world(Desired { leaving: true, ..desired() }, pods.clone()));
    assert_eq!(deeds(&deleted), ["release a", "release c"]);
    assert_eq!(deleted.status, None);
    let mut over = world(desired(), pods);
    over.status = status(decided("Complete"));
    assert_eq!(deeds(&make_plan(&over)), ["release a", "release c"]);
}

#[test]
fn names_that_others_bear_are_passed_over() {
    let mut world = world(desired(), vec![]);
    let Action::Create(first) = &make_plan(&world).actions[0] else { panic!() };
    world.foreign.push(first.name.clone());
    assert!(
        make_plan(&world)
            .actions
            .iter()
            .all(|action| !matches!(action, Action::Create(slot) if slot.name == first.name))
    );
    assert_eq!(deeds(&make_plan(&world)).len(), 2);
}
