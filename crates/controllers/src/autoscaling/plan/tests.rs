use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::autoscaling::replica_calculator::{PodMetric, PodMetrics};

fn at_second(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

const NOW: i64 = 10_000;

/// A target with pods that request 100m of CPU each and use what a test says.
struct Model {
    spec: Value,
    replicas: i32,
    status: HorizontalPodAutoscalerStatus,
    history: ScaleHistory,
}

impl Model {
    fn new(replicas: i32, more: Value) -> Self {
        let mut spec = json!({
            "minReplicas": 1, "maxReplicas": 10,
            "scaleTargetRef": { "apiVersion": "apps/v1", "kind": "Deployment", "name": "web" },
            "metrics": [{ "type": "Resource", "resource": { "name": "cpu", "target": { "type": "Utilization", "averageUtilization": 50 } } }],
        });
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        Self { spec, replicas, status: HorizontalPodAutoscalerStatus::default(), history: ScaleHistory::default() }
    }

    fn target(&self, sample: Result<MetricSample, String>) -> ScaleTarget {
        let scale = json!({
            "metadata": { "name": "web", "resourceVersion": "7" }, "spec": { "replicas": self.replicas },
            "status": { "replicas": self.replicas, "selector": "app=web" },
        });
        let count = self.spec["metrics"].as_array().unwrap().len();
        let mut samples = vec![sample];
        samples.resize(count, Err("unreachable".to_owned()));
        ScaleTarget {
            resource: ApiResource::erase::<k8s_openapi::api::apps::v1::Deployment>(&()),
            scale: serde_json::from_value(scale).unwrap(),
            pods: Ok(SelectedPods { pods: (0..self.replicas).map(pod).collect(), samples }),
        }
    }

    fn plan(&self, target: Result<ScaleTarget, String>, now: i64) -> runtime::Plan<Action, Report> {
        let autoscaler = HorizontalPodAutoscaler {
            spec: serde_json::from_value(self.spec.clone()).unwrap(),
            status: Some(self.status.clone()),
            ..HorizontalPodAutoscaler::default()
        };
        plan(&World { autoscaler: Arc::new(autoscaler), target, history: self.history.clone() }, at_second(now))
    }

    /// Plans with pods that use `milli` each, does what was planned, and says to how many was scaled.
    fn step(&mut self, milli: i64, now: i64) -> Option<i32> {
        let plan = self.plan(Ok(self.target(Ok(usage(self.replicas, milli, now)))), now);
        let mut scaled = None;
        for action in plan.actions {
            match action {
                Action::Record(_) => {}
                Action::Remember(history) => self.history = history,
                Action::Rescale(rescale) => {
                    assert_eq!(rescale.from, self.replicas);
                    self.history.scaled(rescale.to - rescale.from, rescale.at, rescale.remembered_for);
                    (self.replicas, scaled) = (rescale.to, Some(rescale.to));
                }
            }
        }
        if let Some(report) = plan.status {
            self.status = report.status;
        }
        scaled
    }

    fn condition(&self, type_: &str) -> (String, String) {
        let all = self.status.conditions.iter().flatten();
        let found = all.into_iter().find(|condition| condition.type_ == type_).expect("the condition");
        (found.status.clone(), found.reason.clone().unwrap_or_default())
    }
}

fn pod(index: i32) -> Arc<Pod> {
    let pod = json!({
        "metadata": { "name": format!("web-{index}") },
        "spec": { "containers": [{ "name": "c", "resources": { "requests": { "cpu": "100m" } } }] },
        "status": {
            "phase": "Running", "startTime": at_second(0).to_string(),
            "conditions": [{ "type": "Ready", "status": "True", "lastTransitionTime": at_second(10).to_string() }],
        },
    });
    Arc::new(serde_json::from_value(pod).unwrap())
}

fn usage(replicas: i32, milli: i64, now: i64) -> MetricSample {
    let sample = PodMetric { milli, timestamp: at_second(now), window: SignedDuration::from_secs(10) };
    MetricSample::PerPod((0..replicas).map(|index| (format!("web-{index}"), sample)).collect::<PodMetrics>())
}

fn reasons(plan: &runtime::Plan<Action, Report>) -> Vec<(&str, &str)> {
    let events = plan.actions.iter().filter_map(|action| match action {
        Action::Record(note) => Some((&*note.reason, note.message.as_str())),
        Action::Remember(_) | Action::Rescale(_) => None,
    });
    events.collect()
}

fn yes(reason: &str) -> (String, String) {
    ("True".to_owned(), reason.to_owned())
}

fn no(reason: &str) -> (String, String) {
    ("False".to_owned(), reason.to_owned())
}

#[test]
fn load_scales_up_at_once_and_its_end_scales_down_after_the_window() {
    let mut model = Model::new(2, json!({}));
    assert_eq!(model.step(100, NOW), Some(4));
    assert_eq!(model.condition("AbleToScale"), yes("SucceededRescale"));
    assert_eq!(model.condition("ScalingActive"), yes("ValidMetricFound"));
    assert_eq!(model.condition("ScalingLimited"), no("DesiredWithinRange"));
    let status = &model.status;
    assert_eq!((status.current_replicas, status.desired_replicas), (Some(2), 4));
    assert_eq!(status.last_scale_time, Some(Time(at_second(NOW))));
    let shown = serde_json::to_value(&status.current_metrics).unwrap();
    let expected = json!([{ "type": "Resource", "resource": { "name": "cpu", "current": { "averageUtilization": 100, "averageValue": "100m" } } }]);
    assert_eq!(shown, expected);
    assert_eq!(model.step(10, NOW + 15), None);
    assert_eq!(model.condition("AbleToScale"), yes("ScaleDownStabilized"));
    assert_eq!(model.step(10, NOW + 299), None);
    assert_eq!(model.step(10, NOW + 301), Some(1));
    assert_eq!(model.step(10, NOW + 316), None);
    assert_eq!(model.condition("AbleToScale"), yes("ReadyForNewScale"));
}

#[test]
fn behavior_makes_it_faster_and_bounds_it() {
    let quick = json!({ "maxReplicas": 3, "behavior": {
        "scaleUp": { "stabilizationWindowSeconds": 0, "selectPolicy": "Max", "policies": [{ "type": "Pods", "value": 1, "periodSeconds": 15 }] },
        "scaleDown": { "stabilizationWindowSeconds": 0, "selectPolicy": "Max", "policies": [{ "type": "Percent", "value": 100, "periodSeconds": 15 }] },
    } });
    let mut model = Model::new(1, quick);
    assert_eq!(model.step(300, NOW), Some(2));
    assert_eq!(model.condition("ScalingLimited"), yes("ScaleUpLimit"));
    assert_eq!(model.step(300, NOW + 10), None, "one pod in fifteen seconds");
    assert_eq!(model.step(300, NOW + 15), Some(3));
    assert_eq!(model.step(300, NOW + 30), None);
    assert_eq!(model.condition("ScalingLimited"), yes("TooManyReplicas"));
    assert_eq!(model.step(0, NOW + 45), Some(1));
    assert_eq!(model.condition("ScalingLimited"), yes("TooFewReplicas"));
}

#[test]
fn bounds_come_before_metrics() {
    let mut model = Model::new(12, json!({}));
    assert_eq!(model.step(50, NOW), Some(10));
    let mut model = Model::new(1, json!({ "minReplicas": 2 }));
    assert_eq!(model.step(50, NOW), Some(2));
    let mut model = Model::new(0, json!({}));
    assert_eq!(model.step(50, NOW), None);
    assert_eq!(model.condition("ScalingActive"), no("ScalingDisabled"));
}

#[test]
fn a_metric_that_cannot_be_read_is_named_and_nothing_is_scaled() {
    let model = Model::new(3, json!({}));
    let unread = model.target(Err("no metrics returned from resource metrics API".to_owned()));
    let plan = model.plan(Ok(unread), NOW);
    let why = "failed to get cpu utilization: unable to get metrics for resource cpu: no metrics returned from resource metrics API";
    let all =
        format!("invalid metrics (1 invalid out of 1), first error is: failed to get cpu resource metric value: {why}");
    assert_eq!(reasons(&plan), [("FailedGetResourceMetric", why), ("FailedComputeMetricsReplicas", all.as_str())]);
    let status = plan.status.unwrap().status;
    let active = status.conditions.unwrap().into_iter().find(|condition| condition.type_ == "ScalingActive").unwrap();
    assert_eq!(active.reason.as_deref(), Some("FailedGetResourceMetric"));
    assert_eq!(active.message, Some(format!("the HPA was unable to compute the replica count: {why}")));
    assert_eq!(status.current_replicas, Some(3));
    assert_eq!(plan.requeue_at, Some(at_second(NOW + 15)));
}

#[test]
fn one_unreadable_metric_of_two_stops_scaling_down_only() {
    let metrics = json!([
        { "type": "Resource", "resource": { "name": "cpu", "target": { "type": "Utilization", "averageUtilization": 50 } } },
        { "type": "Pods", "pods": { "metric": { "name": "rps" }, "target": { "type": "AverageValue", "averageValue": "1" } } },
    ]);
    let mut model = Model::new(2, json!({ "metrics": metrics }));
    assert_eq!(model.step(100, NOW), Some(4));
    assert_eq!(model.step(1, NOW + 1000), None);
    assert_eq!(model.condition("ScalingActive"), no("FailedGetPodsMetric"));
}

#[test]
fn a_target_without_a_scale_or_selector_is_reported() {
    let mut model = Model::new(2, json!({}));
    let plan = model.plan(Err("deployments.apps \"web\" not found".to_owned()), NOW);
    assert_eq!(reasons(&plan), [("FailedGetScale", "deployments.apps \"web\" not found")]);
    model.status = plan.status.unwrap().status;
    assert_eq!(model.condition("AbleToScale"), no("FailedGetScale"));
    let target = ScaleTarget { pods: Err(SelectorError::Missing), ..model.target(Err(String::new())) };
    let plan = model.plan(Ok(target), NOW);
    assert_eq!(reasons(&plan)[0], ("SelectorRequired", "selector is required"));
    model.status = plan.status.unwrap().status;
    assert_eq!(model.condition("ScalingActive"), no("InvalidSelector"));
    assert_eq!(model.condition("AbleToScale"), yes("SucceededGetScale"));
}

#[test]
fn a_refused_rescale_keeps_the_old_desire_and_says_why() {
    let model = Model::new(2, json!({}));
    let report = model.plan(Ok(model.target(Ok(usage(2, 100, NOW)))), NOW).status.unwrap();
    let failed = report.rescale_failed("quota");
    assert_eq!((failed.desired_replicas, &failed.last_scale_time), (0, &None));
    let able = failed.conditions.unwrap().into_iter().find(|condition| condition.type_ == "AbleToScale").unwrap();
    assert_eq!((able.status.as_str(), able.reason.as_deref()), ("False", Some("FailedUpdateScale")));
    assert_eq!(able.message.as_deref(), Some("the HPA controller was unable to update the target scale: quota"));
}

#[test]
fn an_unchanged_world_writes_no_status() {
    let mut model = Model::new(2, json!({}));
    model.step(50, NOW);
    assert!(model.plan(Ok(model.target(Ok(usage(2, 50, NOW + 15)))), NOW + 15).status.is_none());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn replicas_stay_within_bounds_and_come_to_rest(
        start in 0..40_i32, min in 1..5_i32, span in 0..15_i32, loads in prop::collection::vec(0..3000_i64, 1..20), quick: bool,
    ) {
        let behavior = if quick { json!({
            "scaleUp": { "stabilizationWindowSeconds": 0, "policies": [{ "type": "Percent", "value": 50, "periodSeconds": 30 }] },
            "scaleDown": { "stabilizationWindowSeconds": 30, "policies": [{ "type": "Pods", "value": 2, "periodSeconds": 60 }] },
        }) } else { Value::Null };
        let max = min + span;
        let mut model = Model::new(start, json!({ "minReplicas": min, "maxReplicas": max, "behavior": behavior }));
        let mut now = NOW;
        // The load is shared by the pods there are.
        let share = |model: &Model, load: i64| load / i64::from(model.replicas.max(1));
        for load in &loads {
            let per_pod = share(&model, *load);
            if let Some(to) = model.step(per_pod, now) {
                prop_assert!((min..=max).contains(&to));
            }
            now += 15;
        }
        let load = loads[0];
        for _ in 0..200 {
            let per_pod = share(&model, load);
            model.step(per_pod, now);
            now += 15;
        }
        let rested = model.replicas;
        for _ in 0..40 {
            let per_pod = share(&model, load);
            prop_assert_eq!(model.step(per_pod, now), None, "at {}", rested);
            now += 15;
        }
    }
}
