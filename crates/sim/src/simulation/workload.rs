//! What the cluster is asked for: a Deployment with a budget and a Service, and a StatefulSet.

use std::collections::BTreeMap;

use http::Method;
use kube::Client;
use mainstay_sim::requests::{self, CallError, JSON, MERGE};
use serde_json::{Value, json};

use super::cluster_view::PodView;

pub const WEB: &str = "web";
pub const DB: &str = "db";
pub const WEB_REPLICAS: usize = 4;
pub const DB_REPLICAS: usize = 3;
/// How many pods of the Deployment its budget lets go at a time.
pub const WEB_DISRUPTIONS: usize = 1;

fn template(app: &str, cpu: &str, grace: u32, port: Value) -> Value {
    let container = json!({
        "name": "c", "image": "host", "resources": { "requests": { "cpu": cpu } }, "ports": port,
    });
    json!({
        "metadata": { "labels": { "app": app } },
        "spec": { "terminationGracePeriodSeconds": grace, "containers": [container] },
    })
}

/// Creates everything.
pub async fn create(client: &Client) -> Result<(), CallError> {
    let selector = |app: &str| json!({ "matchLabels": { "app": app } });
    let port = json!([{ "containerPort": 80, "hostPort": 8080 }]);
    let objects = [
        (
            "/api/v1/namespaces/default/services",
            json!({ "metadata": { "name": WEB }, "spec": { "selector": { "app": WEB }, "ports": [{ "port": 80 }] } }),
        ),
        (
            "/apis/policy/v1/namespaces/default/poddisruptionbudgets",
            json!({
                "metadata": { "name": WEB },
                "spec": { "maxUnavailable": WEB_DISRUPTIONS, "selector": selector(WEB) },
            }),
        ),
        (
            "/apis/apps/v1/namespaces/default/deployments",
            json!({
                "metadata": { "name": WEB },
                "spec": {
                    "replicas": WEB_REPLICAS, "selector": selector(WEB), "template": template(WEB, "400m", 10, json!([])),
                },
            }),
        ),
        (
            "/apis/apps/v1/namespaces/default/statefulsets",
            json!({
                "metadata": { "name": DB },
                "spec": {
                    "replicas": DB_REPLICAS, "serviceName": DB, "selector": selector(DB),
                    "podManagementPolicy": "Parallel", "template": template(DB, "500m", 5, port),
                },
            }),
        ),
    ];
    for (path, object) in objects {
        requests::call(client, Method::POST, path, JSON, object.to_string().into()).await?;
    }
    Ok(())
}

pub async fn scale_web(client: &Client, replicas: usize) -> Result<(), CallError> {
    let path = format!("/apis/apps/v1/namespaces/default/deployments/{WEB}/scale");
    let body = json!({ "spec": { "replicas": replicas } });
    requests::call(client, Method::PATCH, &path, MERGE, body.to_string().into()).await.map(drop)
}

/// Asks for the eviction of a pod, as a drain does; says whether it was granted.
pub async fn evict(client: &Client, pod: &str, uid: &str) -> bool {
    let body = json!({
        "kind": "Eviction", "apiVersion": "policy/v1", "metadata": { "name": pod, "namespace": "default" },
        "deleteOptions": { "preconditions": { "uid": uid } },
    });
    let path = format!("/api/v1/namespaces/default/pods/{pod}/eviction");
    requests::call(client, Method::POST, &path, JSON, body.to_string().into()).await.is_ok()
}

/// Deletes a pod whatever its budget says.
pub async fn delete(client: &Client, pod: &str) -> bool {
    let path = format!("/api/v1/namespaces/default/pods/{pod}");
    requests::call(client, Method::DELETE, &path, JSON, Vec::new()).await.is_ok()
}

/// Whether everything that was asked for runs, and nothing else; if not, why.
pub fn unmet(pods: &BTreeMap<String, PodView>) -> Option<String> {
    let of = |app: &str| pods.iter().filter(|(_, pod)| pod.app == app).collect::<Vec<_>>();
    for (app, wanted) in [(WEB, WEB_REPLICAS), (DB, DB_REPLICAS)] {
        let found = of(app);
        let live = found.iter().filter(|(_, pod)| !matches!(pod.phase.as_str(), "Succeeded" | "Failed"));
        let ready = live.clone().filter(|(_, pod)| pod.is_ready && !pod.is_terminating).count();
        if ready != wanted || live.count() != wanted {
            return Some(format!("{ready} of {wanted} pods of {app} are ready, of {} there are", found.len()));
        }
    }
    None
}
