//! HorizontalPodAutoscalers, as far as they go without measurements.

use k8s_openapi::api::{apps::v1::Deployment, autoscaling::v2::HorizontalPodAutoscaler};
use kube::{Api, api::PostParams};
use serde_json::json;

use crate::cluster::{Cluster, until};

#[tokio::test]
pub async fn a_deployment_is_scaled_to_the_least_and_what_cannot_be_measured_is_said() {
    let cluster = Cluster::start().await;
    let deployments: Api<Deployment> = Api::namespaced(cluster.client.clone(), "default");
    let labels = json!({ "app": "web" });
    let container = json!({ "name": "c", "image": "i", "resources": { "requests": { "cpu": "1" } } });
    let deployment = json!({ "metadata": { "name": "web" }, "spec": {
        "replicas": 1, "selector": { "matchLabels": labels },
        "template": { "metadata": { "labels": labels }, "spec": { "containers": [container] } },
    } });
    let deployment = serde_json::from_value(deployment).unwrap();
    deployments.create(&PostParams::default(), &deployment).await.expect("create a deployment");
    let target = json!({ "type": "Utilization", "averageUtilization": 50 });
    let scaler = json!({ "metadata": { "name": "web" }, "spec": {
        "scaleTargetRef": { "apiVersion": "apps/v1", "kind": "Deployment", "name": "web" },
        "minReplicas": 2, "maxReplicas": 4,
        "metrics": [{ "type": "Resource", "resource": { "name": "cpu", "target": target } }],
    } });
    let scalers: Api<HorizontalPodAutoscaler> = Api::namespaced(cluster.client.clone(), "default");
    let scaler = serde_json::from_value(scaler).unwrap();
    scalers.create(&PostParams::default(), &scaler).await.expect("create an autoscaler");
    until("it is scaled to the least", async || {
        deployments.get("web").await.expect("the deployment").spec.replicas == Some(2)
    })
    .await;
    until("it says that nothing is measured", async || {
        let status = scalers.get("web").await.expect("the autoscaler").status.unwrap_or_default();
        let mut conditions = status.conditions.into_iter().flatten();
        conditions.any(|own| own.type_ == "ScalingActive" && own.status == "False")
    })
    .await;
    cluster.stop().await;
}
