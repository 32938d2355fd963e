use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

const NOW: i64 = 100_000;

fn at_second(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// A pod that requests 1000m of CPU, as it is long after its start unless `more` says otherwise.
fn pod(name: &str, more: Value) -> Arc<Pod> {
    let mut pod = json!({
        "metadata": { "name": name },
        "spec": { "containers": [{ "name": "c", "resources": { "requests": { "cpu": "1", "memory": "1Ki" } } }] },
        "status": {
            "phase": "Running", "startTime": at_second(0).to_string(),
            "conditions": [{ "type": "Ready", "status": "True", "lastTransitionTime": at_second(10).to_string() }],
        },
    });
    json_patch(&mut pod, &more);
    Arc::new(serde_json::from_value(pod).unwrap())
}

fn json_patch(into: &mut Value, more: &Value) {
    match (into, more) {
        (Value::Object(into), Value::Object(more)) => {
            more.iter().for_each(|(key, value)| json_patch(into.entry(key.clone()).or_insert(Value::Null), value));
        }
        (into, more) => *into = more.clone(),
    }
}

fn unready() -> Value {
    json!({ "status": { "phase": "Pending" } })
}

fn samples(milli: &[(&str, i64)]) -> PodMetrics {
    let sample = |milli| PodMetric { milli, timestamp: at_second(NOW), window: SignedDuration::from_secs(10) };
    milli.iter().map(|(pod, milli)| ((*pod).to_owned(), sample(*milli))).collect()
}

fn calculator(pods: &[Arc<Pod>], current: i32) -> ReplicaCalculator<'_> {
    let tolerances = Tolerances { scale_down: 0.1, scale_up: 0.1 };
    ReplicaCalculator { pods, current, observed: current, tolerances, now: at_second(NOW) }
}

fn utilized(pods: &[Arc<Pod>], current: i32, metrics: &PodMetrics, target: i32) -> Result<(i32, i32), String> {
    let proposal = calculator(pods, current).by_utilization(metrics, "cpu", None, target)?;
    Ok((proposal.replicas, proposal.utilization.unwrap()))
}

fn three() -> Vec<Arc<Pod>> {
    ["a", "b", "c"].map(|name| pod(name, json!({}))).to_vec()
}

#[test]
fn replicas_follow_the_ratio_of_use_to_target() {
    let all = |milli| samples(&[("a", milli), ("b", milli), ("c", milli)]);
    assert_eq!(utilized(&three(), 3, &all(500), 30), Ok((5, 50)));
    assert_eq!(utilized(&three(), 3, &all(100), 50), Ok((1, 10)));
    assert_eq!(utilized(&three(), 3, &all(540), 50), Ok((3, 54)), "within the tolerance of a tenth");
    assert_eq!(utilized(&three(), 3, &all(560), 50), Ok((4, 56)));
    assert_eq!(utilized(&three(), 3, &all(0), 50), Ok((0, 0)));
}

#[test]
fn a_missing_pod_is_assumed_to_oppose_the_change() {
    let two = |milli| samples(&[("a", milli), ("b", milli)]);
    assert_eq!(utilized(&three(), 3, &two(1000), 50), Ok((4, 100)), "it uses nothing when scaling up: 67 % of 3");
    assert_eq!(utilized(&three(), 3, &two(600), 50), Ok((3, 60)), "and may cancel that");
    assert_eq!(utilized(&three(), 3, &two(100), 50), Ok((3, 10)), "it uses all when scaling down");
    assert_eq!(utilized(&three(), 3, &two(0), 100), Ok((1, 0)));
}

#[test]
fn pods_that_are_not_ready_count_as_idle_when_scaling_up_and_not_at_all_otherwise() {
    let pods = [pod("a", json!({})), pod("b", unready()), pod("c", unready())];
    let one = |milli| samples(&[("a", milli)]);
    assert_eq!(utilized(&pods, 3, &one(1500), 50), Ok((3, 150)), "150 % of one pod is the target of three");
    assert_eq!(utilized(&pods, 3, &one(3000), 50), Ok((6, 300)));
    assert_eq!(utilized(&pods, 3, &one(100), 50), Ok((1, 10)));
    let none = utilized(&[pod("a", unready())], 1, &one(100), 50);
    assert_eq!(none, Err("did not receive metrics for targeted pods (pods might be unready)".to_owned()));
}

#[test]
fn pods_that_go_or_failed_do_not_count() {
    let going = pod("b", json!({ "metadata": { "deletionTimestamp": at_second(NOW).to_string() } }));
    let failed = pod("c", json!({ "status": { "phase": "Failed" } }));
    let metrics = samples(&[("a", 500), ("b", 9000), ("c", 9000)]);
    assert_eq!(utilized(&[pod("a", json!({})), going, failed], 1, &metrics, 50), Ok((1, 50)));
}

#[test]
fn cpu_samples_from_the_start_of_a_pod_are_not_used() {
    let started = |ready: &str, since: i64| {
        pod(
            "b",
            json!({ "status": { "startTime": at_second(NOW - 60).to_string(), "conditions": [
                { "type": "Ready", "status": ready, "lastTransitionTime": at_second(since).to_string() },
            ] } }),
        )
    };
    let metrics = samples(&[("a", 500), ("b", 9000)]);
    let with = |b: Arc<Pod>| PodGroups::new(&[pod("a", json!({})), b], &metrics, "cpu", at_second(NOW)).ready;
    assert_eq!(with(started("True", NOW - 30)), 2);
    assert_eq!(with(started("True", NOW - 5)), 1, "the sample covers time before it was ready");
    assert_eq!(with(started("False", NOW - 30)), 1);
    let never = pod(
        "b",
        json!({ "status": { "conditions": [{ "type": "Ready", "status": "False", "lastTransitionTime": at_second(20).to_string() }] } }),
    );
    assert_eq!(with(never), 1, "never ready since its start long ago");
    let once = pod(
        "b",
        json!({ "status": { "conditions": [{ "type": "Ready", "status": "False", "lastTransitionTime": at_second(9000).to_string() }] } }),
    );
    assert_eq!(with(once), 2, "it was ready before");
}

#[test]
fn a_container_without_a_request_is_named() {
    let bare = pod("a", json!({ "spec": { "containers": [{ "name": "c" }] } }));
    let missing = utilized(std::slice::from_ref(&bare), 1, &samples(&[("a", 1)]), 50);
    assert_eq!(missing, Err("missing request for cpu in container c of Pod a".to_owned()));
    let average = calculator(&[bare], 1).by_average(&samples(&[("a", 900)]), "cpu", 300).unwrap();
    assert_eq!((average.replicas, average.milli), (3, 900), "an average needs no request");
}

#[test]
fn sidecars_count_and_init_containers_do_not() {
    let init = |restart: &str| {
        let requests = json!({ "requests": { "cpu": "1" } });
        let more =
            json!({ "spec": { "initContainers": [{ "name": "i", "restartPolicy": restart, "resources": requests }] } });
        pod_requests(&[pod("a", more)], "cpu", None).unwrap()["a"]
    };
    assert_eq!((init("Always"), init("")), (2000, 1000));
    let pods = [pod("a", json!({}))];
    assert_eq!(pod_requests(&pods, "cpu", Some("c")).unwrap()["a"], 1000);
}

#[test]
fn values_of_other_objects_are_compared_as_a_whole_or_per_pod() {
    let pods = three();
    let calculator = calculator(&pods, 3);
    assert_eq!(calculator.by_value(20_000, 10_000).unwrap().replicas, 6);
    assert_eq!(calculator.by_value(10_500, 10_000).unwrap().replicas, 3);
    assert_eq!(calculator.by_value_per_pod(50_000, 10_000), Proposal { replicas: 5, milli: 16_667, utilization: None });
    assert_eq!(calculator.by_value_per_pod(31_000, 10_000).replicas, 3);
    let idle = ReplicaCalculator { pods: &[], current: 0, observed: 0, ..calculator };
    assert_eq!(idle.by_value(25_000, 10_000).unwrap().replicas, 3, "from nothing, by the ratio alone");
    assert_eq!(idle.by_value_per_pod(25_000, 10_000).replicas, 3);
    assert_eq!(idle.by_value_per_pod(0, 10_000).replicas, 0);
}

/// Pods in every condition, with and without a sample.
fn any_pods() -> impl Strategy<Value = (Vec<Arc<Pod>>, PodMetrics)> {
    let one = (0..4_u8, any::<bool>(), 0..5000_i64);
    prop::collection::vec(one, 1..8).prop_map(|all| {
        let (mut pods, mut metrics) = (Vec::new(), PodMetrics::new());
        for (index, (state, measured, milli)) in all.into_iter().enumerate() {
            let name = format!("p{index}");
            let more = match state {
                0 => unready(),
                1 => json!({ "status": { "phase": "Failed" } }),
                _ => json!({}),
            };
            pods.push(pod(&name, more));
            if measured {
                metrics.extend(samples(&[(&name, milli)]));
            }
        }
        (pods, metrics)
    })
}

/// The replicas of a scale whose failed pods have been replaced. While they still count as replicas, upstream's result for
/// complete samples may be on the other side of the ratio.
fn living(pods: &[Arc<Pod>]) -> i32 {
    i32::try_from(pods.iter().filter(|pod| pod.status.phase != "Failed").count()).unwrap()
}

proptest! {
    #[test]
    fn the_proposal_is_on_the_side_of_the_ratio((pods, metrics) in any_pods(), current in 1..20_i32, target in 1..200_i32) {
        let living = living(&pods);
        if let Ok((replicas, utilization)) = utilized(&pods, living.max(1), &metrics, target) {
            prop_assert!(replicas >= 0);
            if f64::from(utilization) < f64::from(target) * 0.9 {
                prop_assert!(replicas <= living.max(1), "{replicas} of {living} at {utilization}/{target}");
            }
        }
        let _ = utilized(&pods, current, &metrics, target);
    }

    #[test]
    fn more_use_never_asks_for_fewer((pods, metrics) in any_pods(), extra in 0..5000_i64, target in 1..200_i32) {
        let more = metrics.iter().map(|(pod, m)| (pod.clone(), PodMetric { milli: m.milli + extra, ..*m })).collect();
        let current = living(&pods);
        if let (Ok(less), Ok(more)) = (utilized(&pods, current, &metrics, target), utilized(&pods, current, &more, target)) {
            prop_assert!(more.0 >= less.0.min(current), "{less:?} {more:?}");
        }
    }
}
