//! LimitRanges as clients meet them.

use super::*;

const RANGES: &str = "/api/v1/namespaces/default/limitranges";

fn pod(resources: Value) -> Value {
    json!({ "metadata": { "generateName": "p-" }, "spec": { "containers": [{ "name": "c", "image": "i", "resources": resources }] } })
}

#[tokio::test]
async fn a_pod_gets_defaults_is_bounded_and_validated_with_them() {
    let server = Server::new(Settings::default()).await;
    let admin = administrator();
    let range = json!({ "metadata": { "name": "r" }, "spec": { "limits": [{
        "type": "Container", "default": { "cpu": "500m" }, "defaultRequest": { "cpu": "100m" }, "max": { "cpu": "1" },
    }] } });
    let (code, created) = server.send(&admin, Method::POST, RANGES, &range).await;
    assert_eq!(code, 201, "{created}");
    let (code, created) = server.send(&admin, Method::POST, PODS, &pod(json!({}))).await;
    assert_eq!(code, 201, "{created}");
    let resources = json!({ "requests": { "cpu": "100m" }, "limits": { "cpu": "500m" } });
    assert_eq!(created["spec"]["containers"][0]["resources"], resources);
    let says = "LimitRanger plugin set: cpu request for container c; cpu limit for container c";
    assert_eq!(created["metadata"]["annotations"]["kubernetes.io/limit-ranger"], says);
    assert_eq!(created["status"]["qosClass"], "Burstable", "computed with the defaults");

    let large = json!({ "requests": { "cpu": "2" }, "limits": { "cpu": "2" } });
    let (code, status) = server.send(&admin, Method::POST, PODS, &pod(large)).await;
    assert_eq!((code, &status["reason"]), (403, &json!("Forbidden")), "{status}");
    let message = status["message"].as_str().unwrap();
    assert!(message.ends_with("is forbidden: maximum cpu usage per Container is 1, but limit is 2"), "{message}");

    let (code, status) = server.send(&admin, Method::POST, PODS, &pod(json!({ "requests": { "cpu": "600m" } }))).await;
    assert_eq!(code, 422, "{status}");
    let cause = &status["details"]["causes"][0]["message"];
    assert_eq!(cause, "Invalid value: \"600m\": must be less than or equal to cpu limit of 500m", "{status}");

    assert_eq!(server.send(&admin, Method::DELETE, &format!("{RANGES}/r"), &Value::Null).await.0, 200);
    let (code, created) = server.send(&admin, Method::POST, PODS, &pod(json!({}))).await;
    assert_eq!((code, &created["spec"]["containers"][0]["resources"]), (201, &json!({})), "{created}");
}
