use super::*;

fn v2() -> Value {
    json!({
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "web", "annotations": {"team": "a"}},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
            "minReplicas": 2,
            "maxReplicas": 9,
            "metrics": [
                {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 60}}},
                {"type": "Resource", "resource": {"name": "memory", "target": {"type": "AverageValue", "averageValue": "200Mi"}}},
                {"type": "Pods", "pods": {"metric": {"name": "rps"}, "target": {"type": "AverageValue", "averageValue": "10"}}},
                {"type": "Object", "object": {
                    "describedObject": {"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "name": "web"},
                    "metric": {"name": "hits", "selector": {"matchLabels": {"verb": "GET"}}},
                    "target": {"type": "Value", "value": "10k"},
                }},
                {"type": "Object", "object": {
                    "describedObject": {"kind": "Service", "name": "web"},
                    "metric": {"name": "hits"},
                    "target": {"type": "AverageValue", "averageValue": "5"},
                }},
                {"type": "External", "external": {
                    "metric": {"name": "queue", "selector": {"matchLabels": {"q": "a"}}},
                    "target": {"type": "AverageValue", "averageValue": "30"},
                }},
                {"type": "External", "external": {"metric": {"name": "lag"}, "target": {"type": "Value", "value": "1"}}},
                {"type": "ContainerResource", "containerResource": {
                    "name": "cpu", "container": "app", "target": {"type": "Utilization", "averageUtilization": 50},
                }},
            ],
            "behavior": {"scaleDown": {
                "stabilizationWindowSeconds": 60,
                "selectPolicy": "Max",
                "policies": [{"type": "Pods", "value": 4, "periodSeconds": 60}],
            }},
        },
        "status": {
            "currentReplicas": 3,
            "desiredReplicas": 4,
            "currentMetrics": [
                {"type": "Resource", "resource": {"name": "cpu", "current": {"averageUtilization": 41, "averageValue": "410m"}}},
                {"type": "Pods", "pods": {"metric": {"name": "rps"}, "current": {"averageValue": "11"}}},
                {"type": "Object", "object": {
                    "describedObject": {"kind": "Service", "name": "web"},
                    "metric": {"name": "hits"},
                    "current": {"averageValue": "6"},
                }},
                {"type": "External", "external": {"metric": {"name": "lag"}, "current": {"value": "2"}}},
            ],
            "conditions": [{"type": "AbleToScale", "status": "True", "lastTransitionTime": "2025-01-01T00:00:00Z"}],
        },
    })
}

#[test]
fn what_version_one_cannot_say_travels_in_annotations() {
    let mut object = v2();
    Autoscaler.to_served(&mut object);
    assert_eq!(object["apiVersion"], "autoscaling/v1");
    assert_eq!(object["spec"]["targetCPUUtilizationPercentage"], 60);
    assert_eq!(object["status"]["currentCPUUtilizationPercentage"], 41);
    assert!(object["spec"].get("metrics").is_none() && object["spec"].get("behavior").is_none());
    assert!(object["status"].get("currentMetrics").is_none() && object["status"].get("conditions").is_none());
    let annotations = object["metadata"]["annotations"].as_object().unwrap();
    assert_eq!(annotations["team"], "a");
    let metrics: Value = serde_json::from_str(annotations[METRICS].as_str().unwrap()).unwrap();
    assert_eq!(metrics[0], json!({"type": "Resource", "resource": {"name": "memory", "targetAverageValue": "200Mi"}}));
    assert_eq!(metrics[1], json!({"type": "Pods", "pods": {"metricName": "rps", "targetAverageValue": "10"}}));
    assert_eq!(metrics[2]["object"]["target"]["kind"], "Ingress");
    assert_eq!(metrics[2]["object"]["targetValue"], "10k");
    assert_eq!(metrics[4]["external"]["metricSelector"], json!({"matchLabels": {"q": "a"}}));
    let behavior: Value = serde_json::from_str(annotations[BEHAVIOR].as_str().unwrap()).unwrap();
    assert_eq!(behavior["ScaleDown"]["Policies"][0]["PeriodSeconds"], 60);
}

#[test]
fn a_round_trip_through_version_one_changes_nothing() {
    let mut object = v2();
    Autoscaler.to_served(&mut object);
    Autoscaler.to_stored(&mut object);
    assert_eq!(object, v2());
}

#[test]
fn a_round_trip_of_version_one_changes_nothing() {
    let original = json!({
        "apiVersion": "autoscaling/v1",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "web"},
        "spec": {"scaleTargetRef": {"kind": "Deployment", "name": "web"}, "maxReplicas": 3, "targetCPUUtilizationPercentage": 70},
    });
    let mut object = original.clone();
    Autoscaler.to_stored(&mut object);
    assert_eq!(object["spec"]["metrics"], json!([cpu_target(70.into())]));
    Autoscaler.to_served(&mut object);
    assert_eq!(object, original);
}

#[test]
fn a_second_cpu_target_is_not_lost() {
    let mut object = v2();
    object["spec"]["metrics"] = json!([cpu_target(60.into()), cpu_target(70.into())]);
    let original = object.clone();
    Autoscaler.to_served(&mut object);
    assert_eq!(object["spec"]["targetCPUUtilizationPercentage"], 60);
    Autoscaler.to_stored(&mut object);
    assert_eq!(object, original);
}

#[test]
fn without_any_metric_the_default_is_cpu() {
    let mut object = json!({"spec": {"maxReplicas": 3}});
    Autoscaler.to_stored(&mut object);
    assert_eq!(object["spec"]["metrics"], json!([cpu_target(80.into())]));
}

#[test]
fn annotations_nobody_can_read_are_dropped() {
    let mut object = json!({
        "metadata": {"annotations": {METRICS: "nonsense", CURRENT_METRICS: "7", CONDITIONS: "{}", BEHAVIOR: "[]"}},
        "spec": {"targetCPUUtilizationPercentage": 50},
        "status": {"currentCPUUtilizationPercentage": 30},
    });
    Autoscaler.to_stored(&mut object);
    assert_eq!(object["spec"]["metrics"], json!([cpu_target(50.into())]));
    assert_eq!(object["status"]["currentMetrics"], json!([cpu_current(30.into())]));
    assert_eq!(object["metadata"], json!({}));
    for mut odd in [json!(null), json!([1]), json!({"spec": [], "status": 1, "metadata": "x"})] {
        Autoscaler.to_stored(&mut odd);
        Autoscaler.to_served(&mut odd);
        assert!(odd.pointer("/spec/metrics").is_none());
    }
}
