//! Pod Security as clients meet it.

use super::*;

const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
const NAMESPACE: &str = "/api/v1/namespaces/default";

fn pod(name: &str, fields: Value) -> Value {
    let mut pod = json!({ "metadata": { "name": name }, "spec": { "containers": [{ "name": "c", "image": "i" }] } });
    pod["spec"].as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    pod
}

async fn send(server: &Server, method: Method, path: &str, body: &Value) -> (u16, Value, Vec<String>) {
    let request = Request::builder().method(&method).uri(path);
    let media = if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
    let request = request.header("content-type", media).body(Full::<Bytes>::from(body.to_string())).unwrap();
    let caller = Caller::Network { user: Some(Arc::new(administrator())), source: [127, 0, 0, 1].into() };
    let response = server.0.clone().handle(request, caller).await;
    let warnings = response.headers().get_all("warning").iter();
    let warnings = warnings.map(|value| value.to_str().unwrap().replace("299 - ", "")).collect();
    let (code, body) = answer(response).await;
    (code, body, warnings)
}

async fn label(server: &Server, labels: Value) -> (u16, Value, Vec<String>) {
    send(server, Method::PATCH, NAMESPACE, &json!({ "metadata": { "labels": labels } })).await
}

#[tokio::test]
async fn stock_is_baseline_with_warnings_of_what_is_not_restricted() {
    let server = Server::new(Settings::default()).await;
    let (code, status, warnings) = send(&server, Method::POST, PODS, &pod("x", json!({ "hostNetwork": true }))).await;
    assert_eq!((code, warnings.len()), (403, 0), "{status}");
    let words = "pods \"x\" is forbidden: violates PodSecurity \"baseline:latest\": host namespaces (hostNetwork=true)";
    assert_eq!(status["message"], words);
    let (code, _, warnings) = send(&server, Method::POST, PODS, &pod("y", json!({}))).await;
    assert_eq!((code, warnings.len()), (201, 1));
    let beginning = r#""would violate PodSecurity \"restricted:latest\": allowPrivilegeEscalation != false"#;
    assert!(warnings[0].starts_with(beginning), "{warnings:?}");
    let system = PODS.replace("default", "kube-system");
    let (code, _, warnings) = send(&server, Method::POST, &system, &pod("x", json!({ "hostNetwork": true }))).await;
    assert_eq!((code, warnings.len()), (201, 0));
}

#[tokio::test]
async fn workloads_are_warned_of_and_never_refused() {
    let server = Server::new(Settings::default()).await;
    label(&server, json!({ "pod-security.kubernetes.io/warn": "baseline" })).await;
    let mut template = pod("", json!({ "hostPID": true }));
    template["metadata"] = json!({ "labels": { "a": "b" } });
    let deployment = json!({
        "metadata": { "name": "d" }, "spec": { "selector": { "matchLabels": { "a": "b" } }, "template": template },
    });
    let (code, _, warnings) = send(&server, Method::POST, DEPLOYMENTS, &deployment).await;
    let words = r#""would violate PodSecurity \"baseline:latest\": host namespaces (hostPID=true)""#;
    assert_eq!((code, warnings), (201, vec![words.to_owned()]));
}

#[tokio::test]
async fn labels_change_the_level_and_name_the_pods_that_no_longer_meet_it() {
    let server = Server::new(Settings::default()).await;
    let privileged = json!({
        "pod-security.kubernetes.io/enforce": "privileged", "pod-security.kubernetes.io/warn": "privileged",
    });
    assert_eq!(label(&server, privileged).await.0, 200);
    for name in ["a", "b", "c"] {
        let (code, _, warnings) = send(&server, Method::POST, PODS, &pod(name, json!({ "hostIPC": true }))).await;
        assert_eq!((code, warnings.len()), (201, 0));
    }
    let (code, _, warnings) = label(&server, json!({ "pod-security.kubernetes.io/enforce": "baseline" })).await;
    let words = [
        r#""existing pods in namespace \"default\" violate the new PodSecurity enforce level \"baseline:latest\"""#,
        r#""a (and 2 other pods): host namespaces""#,
    ];
    assert_eq!((code, warnings), (200, words.map(str::to_owned).to_vec()));
    let (code, status, _) = label(&server, json!({ "pod-security.kubernetes.io/enforce": "strict" })).await;
    assert_eq!(code, 422, "{status}");
    let cause = &status["details"]["causes"][0];
    assert_eq!(cause["field"], "metadata.labels[pod-security.kubernetes.io/enforce]");
    assert_eq!(cause["message"], "Invalid value: \"strict\": must be one of privileged, baseline, restricted");
}
