//! Behaviours that clients know from upstream and its conformance tests look for.

use super::*;

pub(super) const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";

impl Server {
    pub(super) async fn ask(
        &self,
        user: &User,
        method: Method,
        path: &str,
        accept: &str,
        body: &Value,
    ) -> http::Response<Value> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", "application/json")
            .header("accept", accept)
            .body(Full::<Bytes>::from(body.to_string()));
        let caller = Caller::Network { user: Some(Arc::new(user.clone())), source: [127, 0, 0, 1].into() };
        let (head, body) = self.0.clone().handle(request.unwrap(), caller).await.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        http::Response::from_parts(head, serde_json::from_slice(&bytes).unwrap())
    }

    pub(super) async fn get(&self, path: &str) -> http::Response<Value> {
        self.ask(&administrator(), Method::GET, path, "application/json", &Value::Null).await
    }
}

pub(super) fn warnings<T>(response: &http::Response<T>) -> Vec<&str> {
    response.headers().get_all("warning").iter().map(|value| value.to_str().unwrap()).collect()
}

#[tokio::test]
async fn a_condition_may_have_no_transition_time() {
    let server = Server::new(Settings::default()).await;
    let services = "/api/v1/namespaces/default/services";
    let service = json!({"metadata": {"name": "s"}, "spec": {"clusterIP": "None", "ports": [{"port": 80}]}});
    let (code, mut service) = server.send(&administrator(), Method::POST, services, &service).await;
    assert_eq!(code, 201, "{service}");
    for time in [json!({}), json!({"lastTransitionTime": null})] {
        let mut condition = json!({"type": "StatusUpdate", "status": "True", "reason": "E2E", "message": "Set"});
        condition.as_object_mut().unwrap().extend(time.as_object().unwrap().clone());
        service["status"]["conditions"] = json!([condition]);
        let path = format!("{services}/s/status");
        let (code, updated) = server.send(&administrator(), Method::PUT, &path, &service).await;
        assert_eq!(code, 200, "{updated}");
        assert_eq!(updated["status"]["conditions"][0]["lastTransitionTime"], "0001-01-01T00:00:00Z");
        service = updated;
    }
}

#[tokio::test]
async fn an_approval_may_change_metadata_and_conditions_and_nothing_else() {
    let server = Server::new(Settings::default()).await;
    let requests = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
    let key = rcgen::KeyPair::generate().unwrap();
    let pem = rcgen::CertificateParams::default().serialize_request(&key).unwrap().pem().unwrap();
    let encoded = base64::Engine::encode(&base64::prelude::BASE64_STANDARD, pem);
    let spec = json!({"request": encoded, "signerName": "example.com/own", "usages": ["client auth"]});
    let request = json!({"metadata": {"name": "r"}, "spec": spec});
    let (code, mut request) = server.send(&administrator(), Method::POST, requests, &request).await;
    assert_eq!(code, 201, "{request}");
    let before = request.clone();
    request["metadata"]["annotations"] = json!({"patched": "true"});
    request["spec"]["signerName"] = json!("example.com/another");
    request["status"]["conditions"] =
        json!([{"type": "Approved", "status": "True", "reason": "E2E", "message": "Set from an e2e test"}]);
    request["status"]["certificate"] = json!("bm9uZQ==");
    let path = format!("{requests}/r/approval");
    let (code, approved) = server.send(&administrator(), Method::PUT, &path, &request).await;
    assert_eq!(code, 200, "{approved}");
    assert_eq!(approved["metadata"]["annotations"], json!({"patched": "true"}));
    assert_eq!(approved["status"]["conditions"][0]["type"], "Approved");
    assert_eq!(approved["spec"], before["spec"]);
    assert_eq!(approved["status"].get("certificate"), None);
}

#[tokio::test]
async fn components_are_listed_as_healthy() {
    let server = Server::new(Settings::default()).await;
    let list = server.get("/api/v1/componentstatuses").await;
    assert_eq!(warnings(&list), ["299 - \"v1 ComponentStatus is deprecated in v1.19+\""]);
    let list = list.into_body();
    assert_eq!(list["kind"], "ComponentStatusList");
    let names: Vec<&str> =
        list["items"].as_array().unwrap().iter().map(|item| item["metadata"]["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["scheduler", "controller-manager", "etcd-0"]);
    let healthy = json!([{"type": "Healthy", "status": "True", "message": "ok"}]);
    let one = server.get("/api/v1/componentstatuses/etcd-0").await.into_body();
    assert_eq!((&one["kind"], &one["conditions"]), (&json!("ComponentStatus"), &healthy));
    let missing = server.get("/api/v1/componentstatuses/none").await;
    assert_eq!((missing.status().as_u16(), &missing.body()["reason"]), (404, &json!("NotFound")));
    let table = server.ask(&administrator(), Method::GET, "/api/v1/componentstatuses", TABLE, &Value::Null).await;
    assert_eq!(table.body()["rows"][2]["cells"], json!(["etcd-0", "Healthy", "ok", ""]));
    let (code, _) = server.send(&administrator(), Method::POST, "/api/v1/componentstatuses", &json!({})).await;
    assert_eq!(code, 405);
    let stranger = server.send(&service_account("a"), Method::GET, "/api/v1/componentstatuses", &Value::Null).await;
    assert_eq!(stranger.0, 403, "{}", stranger.1);
    let words = "componentstatuses is forbidden: User \"system:serviceaccount:default:a\" cannot list resource \
                 \"componentstatuses\" in API group \"\" at the cluster scope";
    assert_eq!(stranger.1["message"], words);
    let resources = server.get("/api/v1").await.into_body();
    let listed = resources["resources"].as_array().unwrap().iter().find(|r| r["name"] == "componentstatuses").unwrap();
    assert_eq!((&listed["shortNames"], &listed["verbs"]), (&json!(["cs"]), &json!(["get", "list"])));
}

#[tokio::test]
async fn a_review_has_no_table() {
    let server = Server::new(Settings::default()).await;
    let ask = async |accept: &str| {
        let body = json!({"spec": {"resourceAttributes": {"verb": "get", "resource": "pods"}}});
        let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
        server.ask(&administrator(), Method::POST, path, accept, &body).await
    };
    let refused = ask(TABLE).await;
    assert_eq!((refused.status().as_u16(), &refused.body()["reason"]), (406, &json!("NotAcceptable")));
    let reviewed = ask(&format!("{TABLE},application/json")).await;
    assert_eq!((reviewed.status().as_u16(), &reviewed.body()["status"]["allowed"]), (201, &json!(true)));
}

#[tokio::test]
async fn endpoints_are_deprecated_in_every_response() {
    let server = Server::new(Settings::default()).await;
    let text = "299 - \"v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice\"";
    let path = "/api/v1/namespaces/default/endpoints";
    let created =
        server.ask(&administrator(), Method::POST, path, "application/json", &json!({"metadata": {"name": "e"}})).await;
    assert_eq!((created.status().as_u16(), warnings(&created)), (201, vec![text]));
    assert_eq!(warnings(&server.get(path).await), [text]);
    assert_eq!(warnings(&server.get(&format!("{path}/e")).await), [text]);
    let missing = server.get(&format!("{path}/none")).await;
    assert_eq!((missing.status().as_u16(), warnings(&missing)), (404, vec![text]));
    assert!(warnings(&server.get("/api/v1/namespaces/default/services").await).is_empty());
}

#[test]
fn a_store_that_does_not_answer_is_told_apart_from_other_errors() {
    use mainstay_store::StoreError;
    let is_outage = |error: StoreError| Box::<ApiError>::from(error).is_store_outage();
    assert!(is_outage(StoreError::Unavailable { why: "gone".into() }));
    assert!(!is_outage(StoreError::Closing));
    assert!(!is_outage(StoreError::NoSpace));
    assert!(!ApiError::unreachable("an agent").is_store_outage());
}

#[tokio::test]
async fn versions_that_upstream_removed_are_not_found() {
    let server = Server::new(Settings::default()).await;
    for path in [
        "/apis/extensions/v1beta1/ingresses",
        "/apis/networking.k8s.io/v1beta1/ipaddresses",
        "/apis/storage.k8s.io/v1beta1/volumeattributesclasses",
        "/apis/flowcontrol.apiserver.k8s.io/v1beta3/flowschemas",
        "/apis/autoscaling/v2beta2/horizontalpodautoscalers",
        "/apis/policy/v1beta1/poddisruptionbudgets",
        "/apis/resource.k8s.io/v1beta1/resourceclaims",
    ] {
        let answer = server.get(path).await;
        assert_eq!(answer.status(), 404, "{path}");
        let (reason, message) = (&answer.body()["reason"], &answer.body()["message"]);
        assert_eq!((reason, message), (&json!("NotFound"), &json!("the server could not find the requested resource")));
    }
}

#[tokio::test]
async fn a_trust_bundle_of_a_signer_takes_the_right_to_attest_for_it() {
    let server = Server::new(Settings::default()).await;
    let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let anchor = params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap().pem();
    let bundle = json!({
        "metadata": {"name": "example.com:ca:v1"}, "spec": {"signerName": "example.com/ca", "trustBundle": anchor},
    });
    let role = json!({
        "metadata": {"name": "bundles"},
        "rules": [{"apiGroups": ["certificates.k8s.io"], "resources": ["clustertrustbundles"], "verbs": ["create"]}],
    });
    let binding = json!({
        "metadata": {"name": "bundles"}, "subjects": [{"kind": "User", "name": "ann"}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "bundles"},
    });
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    for (path, object) in [("clusterroles", &role), ("clusterrolebindings", &binding)] {
        let (code, answer) = server.send(&administrator(), Method::POST, &format!("{rbac}/{path}"), object).await;
        assert_eq!(code, 201, "{answer}");
    }
    let api = &server.0.api;
    api.rbac.load(&api.registry, &*api.store).await.unwrap(); // nobody follows the store here
    let bundles = "/apis/certificates.k8s.io/v1/clustertrustbundles";
    let ann = User::authenticated("ann".to_owned(), Vec::new());
    let (code, answer) = server.send(&ann, Method::POST, bundles, &bundle).await;
    assert_eq!(code, 403, "{answer}");
    let message = answer["message"].as_str().unwrap();
    assert!(message.contains(r#"user not permitted to attest for signerName "example.com/ca""#), "{message}");
    let (code, answer) = server.send(&administrator(), Method::POST, bundles, &bundle).await;
    assert_eq!(code, 201, "{answer}");
}
