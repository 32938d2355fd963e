//! Pods and Services for tests.

use serde_json::{Value, json};

use crate::objects::{pod::Pod, service::Service};

/// A ready pod of Service `web` on node `n1`, but for `change`.
pub fn pod(name: &str, address: &str, change: Value) -> Pod {
    let mut pod = json!({
        "metadata": {"name": name, "namespace": "ns", "uid": format!("uid-{name}"), "labels": {"app": "web"}},
        "spec": {"nodeName": "n1", "containers": [{"ports": [{"name": "http", "containerPort": 8080}]}]},
        "status": {
            "phase": "Running", "podIP": address, "hostIP": "192.168.0.1",
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
        },
    });
    mainstay_api::patch::merge(&mut pod, &change);
    serde_json::from_value(pod).unwrap()
}

pub fn service(change: Value) -> Service {
    let mut service = json!({
        "metadata": {"name": "web", "namespace": "ns", "uid": "uid-web", "labels": {"team": "a"}},
        "spec": {"selector": {"app": "web"}, "clusterIP": "10.96.0.7", "type": "ClusterIP"},
    });
    mainstay_api::patch::merge(&mut service, &change);
    serde_json::from_value(service).unwrap()
}
