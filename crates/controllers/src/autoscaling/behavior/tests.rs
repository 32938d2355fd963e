use serde_json::{Value, json};

use super::*;

fn at_second(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

const NOW: i64 = 10_000;

fn behavior(behavior: Value) -> HorizontalPodAutoscalerBehavior {
    serde_json::from_value(behavior).unwrap()
}

fn rules(behavior: Option<&HorizontalPodAutoscalerBehavior>) -> ScalingRules<'_> {
    ScalingRules { behavior, min: 2, max: 20 }
}

fn recommended(all: &[(i64, i32)]) -> ScaleHistory {
    let mut history = ScaleHistory::default();
    for (ago, replicas) in all {
        history.recommend(*replicas, at_second(NOW - ago), SignedDuration::from_hours(1));
    }
    history
}

fn scaled(all: &[(i64, i32)]) -> ScaleHistory {
    let mut history = ScaleHistory::default();
    for (ago, change) in all {
        history.scaled(*change, at_second(NOW - ago), SignedDuration::from_hours(1));
    }
    history
}

fn limit(rules: &ScalingRules<'_>, history: &ScaleHistory, current: i32, desired: i32) -> (i32, &'static str) {
    let limited = rules.limit(history, current, desired, at_second(NOW));
    (limited.replicas, limited.reason)
}

#[test]
fn without_a_behavior_a_decline_must_last_five_minutes() {
    let history = recommended(&[(301, 12), (299, 8), (10, 4)]);
    let stabilized = rules(None).stabilize(&history, 9, 3, at_second(NOW));
    assert_eq!((stabilized.replicas, stabilized.reason), (8, "ScaleDownStabilized"));
    assert_eq!(rules(None).stabilize(&history, 9, 15, at_second(NOW)).replicas, 15, "up at once");
}

#[test]
fn without_a_behavior_one_step_doubles_at_most() {
    let none = ScaleHistory::default();
    assert_eq!(limit(&rules(None), &none, 3, 10), (6, "ScaleUpLimit"));
    assert_eq!(limit(&rules(None), &none, 1, 10), (4, "ScaleUpLimit"));
    assert_eq!(limit(&rules(None), &none, 15, 30), (20, "TooManyReplicas"));
    assert_eq!(limit(&rules(None), &none, 5, 1), (2, "TooFewReplicas"));
    assert_eq!(limit(&rules(None), &none, 5, 7), (7, "DesiredWithinRange"));
}

#[test]
fn each_direction_has_its_window() {
    let both = behavior(json!({
        "scaleUp": { "stabilizationWindowSeconds": 60 }, "scaleDown": { "stabilizationWindowSeconds": 30 },
    }));
    let history = recommended(&[(50, 6), (20, 8)]);
    let stabilize = |current, desired| {
        let stabilized = rules(Some(&both)).stabilize(&history, current, desired, at_second(NOW));
        (stabilized.replicas, stabilized.reason)
    };
    assert_eq!(stabilize(5, 10), (6, "ScaleUpStabilized"), "the lowest of the last minute");
    assert_eq!(stabilize(9, 3), (8, "ScaleDownStabilized"), "the highest of the last half minute");
    assert_eq!(stabilize(7, 7), (7, "ScaleUpStabilized"));
    let none = behavior(json!({ "scaleDown": { "stabilizationWindowSeconds": 0 } }));
    assert_eq!(rules(Some(&none)).stabilize(&history, 9, 3, at_second(NOW)).replicas, 3);
}

#[test]
fn policies_count_what_already_changed_in_their_period() {
    let pods = |direction: &str, select: &str| {
        behavior(json!({ direction: { "selectPolicy": select, "policies": [
            { "type": "Pods", "value": 4, "periodSeconds": 60 }, { "type": "Percent", "value": 10, "periodSeconds": 60 },
        ] } }))
    };
    let limit = |behavior: &_, history: &_, current, desired| limit(&rules(Some(behavior)), history, current, desired);
    let none = ScaleHistory::default();
    assert_eq!(limit(&pods("scaleUp", "Max"), &none, 10, 18), (14, "ScaleUpLimit"));
    assert_eq!(limit(&pods("scaleUp", "Min"), &none, 10, 18), (11, "ScaleUpLimit"));
    assert_eq!(limit(&pods("scaleUp", "Disabled"), &none, 10, 18), (10, "ScaleUpLimit"));
    assert_eq!(limit(&pods("scaleUp", "Max"), &scaled(&[(30, 3)]), 10, 18), (11, "ScaleUpLimit"));
    assert_eq!(limit(&pods("scaleUp", "Max"), &scaled(&[(61, 3)]), 10, 18), (14, "ScaleUpLimit"));
    assert_eq!(limit(&pods("scaleUp", "Max"), &scaled(&[(30, 8)]), 10, 18), (10, "ScaleUpLimit"), "never down");
    assert_eq!(limit(&pods("scaleDown", "Max"), &none, 10, 3), (6, "ScaleDownLimit"));
    assert_eq!(limit(&pods("scaleDown", "Min"), &none, 10, 3), (9, "ScaleDownLimit"));
    assert_eq!(limit(&pods("scaleDown", "Disabled"), &none, 10, 3), (10, "ScaleDownLimit"));
    assert_eq!(limit(&pods("scaleDown", "Max"), &scaled(&[(30, -2)]), 10, 3), (8, "ScaleDownLimit"));
    assert_eq!(limit(&pods("scaleDown", "Max"), &none, 4, 0), (2, "TooFewReplicas"));
    assert_eq!(limit(&pods("scaleUp", "Max"), &none, 18, 30), (20, "TooManyReplicas"));
    assert_eq!(limit(&pods("scaleUp", "Max"), &none, 5, 5), (5, "DesiredWithinRange"));
}

#[test]
fn a_direction_can_have_its_own_tolerance() {
    let own = behavior(json!({ "scaleUp": { "tolerance": "0.02" } }));
    assert_eq!(rules(Some(&own)).tolerances(), Tolerances { scale_down: 0.1, scale_up: 0.02 });
}
