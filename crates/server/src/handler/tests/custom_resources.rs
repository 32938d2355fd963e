//! CustomResourceDefinitions and the objects of the kinds they define.

mod conversion;

use mainstay_api::crd::CLEANUP_FINALIZER;

use super::{
    upstream::{TABLE, warnings},
    *,
};
use crate::custom_resources::follow;

const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const CRONTABS: &str = "/apis/stable.example.com/v1/namespaces/default/crontabs";

fn crontabs() -> Value {
    json!({
        "metadata": {"name": "crontabs.stable.example.com"},
        "spec": {
            "group": "stable.example.com", "scope": "Namespaced",
            "names": {"plural": "crontabs", "kind": "CronTab", "shortNames": ["ct"], "categories": ["all"]},
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "description": "Runs at times.", "properties": {
                    "spec": {"type": "object", "required": ["cronSpec"], "properties": {
                        "cronSpec": {"type": "string", "pattern": "^[0-9*/ ]+$", "description": "When it runs."},
                        "image": {"type": "string", "default": "busybox"},
                        "replicas": {"type": "integer", "minimum": 1, "maximum": 10, "default": 1},
                        "color": {"type": "string"},
                    }},
                    "status": {"type": "object", "properties": {"replicas": {"type": "integer"}, "selector": {"type": "string"}}},
                }}},
                "subresources": {
                    "status": {},
                    "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas", "labelSelectorPath": ".status.selector"},
                },
                "additionalPrinterColumns": [
                    {"name": "Spec", "type": "string", "jsonPath": ".spec.cronSpec"},
                    {"name": "Replicas", "type": "integer", "jsonPath": ".spec.replicas"},
                ],
                "selectableFields": [{"jsonPath": ".spec.color"}],
            }],
        },
    })
}

fn crontab(name: &str) -> Value {
    json!({
        "apiVersion": "stable.example.com/v1", "kind": "CronTab", "metadata": {"name": name}, "spec": {"cronSpec": "* * * * */5"},
    })
}

impl Server {
    async fn with_crontabs() -> Self {
        let server = Self::new(Settings::default()).await;
        server.expect(201, Method::POST, CRDS, &crontabs()).await;
        server
    }

    async fn expect(&self, code: u16, method: Method, path: &str, body: &Value) -> Value {
        let (found, answer) = self.send(&administrator(), method.clone(), path, body).await;
        assert_eq!(found, code, "{method} {path}: {answer}");
        answer
    }

    async fn patch(&self, path: &str, media_type: &str, body: &Value) -> (u16, Value) {
        let request = Request::builder().method(Method::PATCH).uri(path).header("content-type", media_type);
        let caller = Caller::Internal(Arc::new(administrator()));
        answer(self.0.clone().handle(request.body(Full::<Bytes>::from(body.to_string())).unwrap(), caller).await).await
    }

    /// Follows definitions as a running server does, until the token is dropped.
    fn follow(&self) -> tokio_util::sync::DropGuard {
        let stop = CancellationToken::new();
        tokio::spawn(follow::follow(self.0.clone(), stop.clone()));
        stop.drop_guard()
    }

    async fn until_missing(&self, path: &str) {
        while self.get(path).await.status() != 404 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

fn condition<'a>(crd: &'a Value, name: &str) -> &'a Value {
    crd["status"]["conditions"].as_array().unwrap().iter().find(|condition| condition["type"] == name).unwrap()
}

#[tokio::test]
async fn a_definition_is_established_and_served_at_once() {
    let server = Server::new(Settings::default()).await;
    assert_eq!(server.get(CRONTABS).await.status(), 404);
    let crd = server.expect(201, Method::POST, CRDS, &crontabs()).await;
    assert_eq!(condition(&crd, "NamesAccepted")["status"], "True");
    assert_eq!(condition(&crd, "Established")["reason"], "InitialNamesAccepted");
    assert_eq!(crd["status"]["storedVersions"], json!(["v1"]));
    assert_eq!(crd["status"]["acceptedNames"]["singular"], "crontab");
    let made = server.expect(201, Method::POST, CRONTABS, &crontab("a")).await;
    assert_eq!(
        made["spec"],
        json!({"cronSpec": "* * * * */5", "image": "busybox", "replicas": 1}),
        "defaults are filled in"
    );
    assert_eq!(made["metadata"]["generation"], 1);
    let list = server.get(CRONTABS).await.into_body();
    assert_eq!((&list["kind"], list["items"].as_array().unwrap().len()), (&json!("CronTabList"), 1));
    let key = "/registry/stable.example.com/crontabs/default/a";
    assert!(server.0.store().get(key).await.unwrap().0.is_some(), "where upstream stores it");
}

#[tokio::test]
async fn discovery_lists_custom_kinds_after_built_in_ones() {
    let server = Server::with_crontabs().await;
    let groups = server.get("/apis").await.into_body();
    let names: Vec<&str> = groups["groups"].as_array().unwrap().iter().map(|g| g["name"].as_str().unwrap()).collect();
    let position = |group: &str| names.iter().position(|name| *name == group).unwrap();
    assert!(position("stable.example.com") > position("admissionregistration.k8s.io"), "{names:?}");
    assert!(names.contains(&"apiextensions.k8s.io"));
    let listed = server.get("/apis/stable.example.com/v1").await.into_body();
    let names: Vec<&Value> = listed["resources"].as_array().unwrap().iter().map(|r| &r["name"]).collect();
    assert_eq!(names, ["crontabs", "crontabs/scale", "crontabs/status"]);
    assert_eq!(listed["resources"][0]["shortNames"], json!(["ct"]));
    let accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    let all = server.ask(&administrator(), Method::GET, "/apis", accept, &Value::Null).await.into_body();
    let ours = all["items"].as_array().unwrap().iter().find(|g| g["metadata"]["name"] == "stable.example.com").unwrap();
    assert_eq!(ours["versions"][0]["resources"][0]["responseKind"]["kind"], "CronTab");
}

#[tokio::test]
async fn what_is_wrong_with_an_object_is_refused_and_what_is_unknown_is_dropped() {
    let server = Server::with_crontabs().await;
    let mut bad = crontab("bad");
    bad["spec"] = json!({"cronSpec": "never", "replicas": 11});
    let status = server.expect(422, Method::POST, CRONTABS, &bad).await;
    let message = status["message"].as_str().unwrap();
    assert!(message.starts_with("CronTab.stable.example.com \"bad\" is invalid: "), "{message}");
    assert!(message.contains("spec.replicas in body should be less than or equal to 10"), "{message}");
    assert!(message.contains("spec.cronSpec in body should match '^[0-9*/ ]+$'"), "{message}");
    let mut unknown = crontab("unknown");
    unknown["spec"]["colour"] = json!("red");
    unknown["metadata"]["nonsense"] = json!(1);
    let response = server
        .ask(&administrator(), Method::POST, &format!("{CRONTABS}?fieldValidation=Warn"), "application/json", &unknown)
        .await;
    assert_eq!(
        warnings(&response),
        [r#"299 - "unknown field \"metadata.nonsense\"""#, r#"299 - "unknown field \"spec.colour\"""#]
    );
    assert_eq!(response.body()["spec"].get("colour"), None);
    unknown["metadata"]["name"] = json!("strict");
    let status = server.expect(400, Method::POST, &format!("{CRONTABS}?fieldValidation=Strict"), &unknown).await;
    let words = "CronTab in version \"v1\" cannot be handled as a CronTab: strict decoding error: ";
    assert!(status["message"].as_str().unwrap().starts_with(words), "{status}");
    let mut labels = crontab("labels");
    labels["metadata"]["labels"] = json!({"a": 1});
    let status = server.expect(400, Method::POST, CRONTABS, &labels).await;
    assert!(status["message"].as_str().unwrap().contains("json: cannot unmarshal number into Go"), "{status}");
    server
        .expect(
            400,
            Method::POST,
            CRONTABS,
            &json!({"apiVersion": "stable.example.com/v2", "kind": "CronTab", "metadata": {"name": "x"}}),
        )
        .await;
}

#[tokio::test]
async fn status_and_scale_are_written_apart() {
    let server = Server::with_crontabs().await;
    let mut object = crontab("a");
    object["status"] = json!({"replicas": 9});
    let mut made = server.expect(201, Method::POST, CRONTABS, &object).await;
    assert_eq!(made.get("status"), None, "dropped on create");
    let path = format!("{CRONTABS}/a");
    made["status"] = json!({"replicas": 3, "selector": "app=a", "unknown": 1});
    made["spec"]["image"] = json!("other");
    made["metadata"]["annotations"] = json!({"a": "b"});
    let updated = server.expect(200, Method::PUT, &format!("{path}/status"), &made).await;
    assert_eq!(updated["status"], json!({"replicas": 3, "selector": "app=a"}));
    assert_eq!((&updated["spec"]["image"], &updated["metadata"]["generation"]), (&json!("busybox"), &json!(1)));
    assert_eq!(updated["metadata"].get("annotations"), None);
    let mut scale = server.get(&format!("{path}/scale")).await.into_body();
    assert_eq!(scale["spec"], json!({"replicas": 1}));
    assert_eq!(scale["status"], json!({"replicas": 3, "selector": "app=a"}));
    scale["spec"]["replicas"] = json!(4);
    server.expect(200, Method::PUT, &format!("{path}/scale"), &scale).await;
    let object = server.get(&path).await.into_body();
    assert_eq!((&object["spec"]["replicas"], &object["metadata"]["generation"]), (&json!(4), &json!(2)));
    scale["metadata"].as_object_mut().unwrap().remove("resourceVersion");
    scale["spec"]["replicas"] = json!(40);
    server.expect(422, Method::PUT, &format!("{path}/scale"), &scale).await;
}

#[tokio::test]
async fn an_update_names_the_version_it_replaces() {
    let server = Server::with_crontabs().await;
    let made = server.expect(201, Method::POST, CRONTABS, &crontab("a")).await;
    let path = format!("{CRONTABS}/a");
    let status = server.expect(422, Method::PUT, &path, &crontab("a")).await;
    assert!(status["message"].as_str().unwrap().contains("metadata.resourceVersion: Invalid value"), "{status}");
    let same = server.expect(200, Method::PUT, &path, &made).await;
    assert_eq!(
        same["metadata"]["resourceVersion"], made["metadata"]["resourceVersion"],
        "nothing changed, nothing is written"
    );
    let (code, status) = server.patch(&path, "application/strategic-merge-patch+json", &json!({})).await;
    assert_eq!((code, &status["reason"]), (415, &json!("UnsupportedMediaType")), "{status}");
    let merge = json!({"spec": {"image": null, "color": "red"}});
    let (code, patched) = server.patch(&path, "application/merge-patch+json", &merge).await;
    assert_eq!((code, &patched["spec"]["image"], &patched["spec"]["color"]), (200, &json!("busybox"), &json!("red")));
    let json_patch = json!([{"op": "replace", "path": "/spec/replicas", "value": 2}]);
    assert_eq!(server.patch(&path, "application/json-patch+json", &json_patch).await.1["spec"]["replicas"], 2);
}

#[tokio::test]
async fn tables_and_selectors_are_those_of_the_definition() {
    let server = Server::with_crontabs().await;
    for (name, color) in [("a", "red"), ("b", "blue")] {
        let mut object = crontab(name);
        object["spec"]["color"] = json!(color);
        server.expect(201, Method::POST, CRONTABS, &object).await;
    }
    let table = server.ask(&administrator(), Method::GET, CRONTABS, TABLE, &Value::Null).await.into_body();
    let columns: Vec<&Value> = table["columnDefinitions"].as_array().unwrap().iter().map(|c| &c["name"]).collect();
    assert_eq!(columns, ["Name", "Spec", "Replicas"]);
    assert_eq!(table["rows"][0]["cells"], json!(["a", "* * * * */5", 1]));
    let red = server.get(&format!("{CRONTABS}?fieldSelector=spec.color%3Dred")).await.into_body();
    assert_eq!(red["items"].as_array().unwrap().len(), 1);
    let unknown = server.get(&format!("{CRONTABS}?fieldSelector=spec.image%3Dx")).await;
    assert_eq!(unknown.body()["message"], "field label not supported: spec.image");
}

#[tokio::test]
async fn openapi_explains_custom_kinds() {
    let server = Server::new(Settings::default()).await;
    assert_eq!(server.get("/openapi/v3/apis/stable.example.com/v1").await.status(), 404);
    server.expect(201, Method::POST, CRDS, &crontabs()).await;
    let index = server.get("/openapi/v3").await.into_body();
    let url = index["paths"]["apis/stable.example.com/v1"]["serverRelativeURL"].as_str().unwrap().to_owned();
    let document = server.get(&url).await.into_body();
    let schema = &document["components"]["schemas"]["com.example.stable.v1.CronTab"];
    assert_eq!(schema["description"], "Runs at times.");
    assert_eq!(schema["properties"]["spec"]["properties"]["cronSpec"]["description"], "When it runs.");
    assert_eq!(schema["x-kubernetes-group-version-kind"][0]["kind"], "CronTab");
    assert!(schema["properties"]["metadata"]["allOf"][0]["$ref"].as_str().unwrap().ends_with(".ObjectMeta"));
    assert!(document["paths"].get("/apis/stable.example.com/v1/namespaces/{namespace}/crontabs/{name}").is_some());
    let v2 = server.get("/openapi/v2").await.into_body();
    assert_eq!(
        v2["definitions"]["com.example.stable.v1.CronTab"]["properties"]["spec"]["required"],
        json!(["cronSpec"])
    );
    let mut crd = server.get(&format!("{CRDS}/crontabs.stable.example.com")).await.into_body();
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["description"] = json!("Changed.");
    server.expect(200, Method::PUT, &format!("{CRDS}/crontabs.stable.example.com"), &crd).await;
    let changed =
        server.get("/openapi/v3").await.into_body()["paths"]["apis/stable.example.com/v1"]["serverRelativeURL"].clone();
    assert_ne!(changed, json!(url), "clients that keep documents notice");
}

#[tokio::test]
async fn a_second_version_is_another_view_of_the_same_objects() {
    let server = Server::with_crontabs().await;
    server.expect(201, Method::POST, CRONTABS, &crontab("a")).await;
    let path = format!("{CRDS}/crontabs.stable.example.com");
    let mut crd = server.get(&path).await.into_body();
    let versions = crd["spec"]["versions"].as_array_mut().unwrap();
    versions[0]["storage"] = json!(false);
    versions[0]["deprecated"] = json!(true);
    let mut v2 = versions[0].clone();
    v2["name"] = json!("v2");
    v2["storage"] = json!(true);
    v2.as_object_mut().unwrap().remove("deprecated");
    v2["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["extra"] =
        json!({"type": "string", "default": "new"});
    versions.push(v2);
    let crd = server.expect(200, Method::PUT, &path, &crd).await;
    assert_eq!(crd["status"]["storedVersions"], json!(["v1", "v2"]));
    let v2 = "/apis/stable.example.com/v2/namespaces/default/crontabs";
    let object = server.get(&format!("{v2}/a")).await.into_body();
    assert_eq!((&object["apiVersion"], &object["spec"]["extra"]), (&json!("stable.example.com/v2"), &json!("new")));
    let old =
        server.ask(&administrator(), Method::GET, &format!("{CRONTABS}/a"), "application/json", &Value::Null).await;
    assert_eq!(warnings(&old), ["299 - \"stable.example.com/v1 CronTab is deprecated\""]);
    assert_eq!((&old.body()["apiVersion"], old.body()["spec"].get("extra")), (&json!("stable.example.com/v1"), None));
    server.expect(201, Method::POST, CRONTABS, &crontab("b")).await;
    let stored = server.0.store().get("/registry/stable.example.com/crontabs/default/b").await.unwrap().0.unwrap();
    let stored: Value = serde_json::from_slice(&stored.value).unwrap();
    assert_eq!(stored["apiVersion"], "stable.example.com/v2");
    let group = server.get("/apis/stable.example.com").await.into_body();
    assert_eq!(group["preferredVersion"]["version"], "v2");
}

#[tokio::test]
async fn names_that_are_taken_are_not_served() {
    let server = Server::with_crontabs().await;
    let _following = server.follow();
    let mut other = crontabs();
    other["metadata"]["name"] = json!("others.stable.example.com");
    other["spec"]["names"] = json!({"plural": "others", "kind": "CronTab", "singular": "other"});
    let refused = server.expect(201, Method::POST, CRDS, &other).await;
    assert_eq!(condition(&refused, "NamesAccepted")["reason"], "ListKindConflict");
    assert_eq!(condition(&refused, "Established")["status"], "False");
    assert_eq!(server.get("/apis/stable.example.com/v1/others").await.status(), 404);
    server.expect(200, Method::DELETE, &format!("{CRDS}/crontabs.stable.example.com"), &Value::Null).await;
    while server.get("/apis/stable.example.com/v1/others").await.status() != 200 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let mut shadow = crontabs();
    shadow["metadata"] = json!({"name": "leases.coordination.k8s.io", "annotations": {"api-approved.kubernetes.io": "unapproved, a test"}});
    shadow["spec"]["group"] = json!("coordination.k8s.io");
    shadow["spec"]["names"] = json!({"plural": "leases", "kind": "Lease"});
    let shadow = server.expect(201, Method::POST, CRDS, &shadow).await;
    assert_eq!(condition(&shadow, "NamesAccepted")["status"], "False");
    let lease = json!({"metadata": {"name": "l"}, "spec": {"holderIdentity": "me"}});
    server.expect(201, Method::POST, "/apis/coordination.k8s.io/v1/namespaces/default/leases", &lease).await;
}

#[tokio::test]
async fn deleting_a_definition_deletes_its_objects_and_ends_their_watches() {
    let server = Server::with_crontabs().await;
    for n in 0..3 {
        server.expect(201, Method::POST, CRONTABS, &crontab(&format!("c{n}"))).await;
    }
    let mut held = crontab("held");
    held["metadata"]["finalizers"] = json!(["bare-name"]);
    server.expect(201, Method::POST, CRONTABS, &held).await;
    let watch = server.start(&administrator(), Method::GET, &format!("{CRONTABS}?watch=1"), Full::default()).await;
    let events = tokio::spawn(watch.into_body().collect());
    let path = format!("{CRDS}/crontabs.stable.example.com");
    let marked = server.expect(200, Method::DELETE, &path, &Value::Null).await;
    assert_eq!(marked["metadata"]["finalizers"], json!([CLEANUP_FINALIZER]));
    assert_eq!(condition(&marked, "Terminating")["reason"], "InstanceDeletionPending");
    let refused = server.expect(405, Method::POST, CRONTABS, &crontab("late")).await;
    assert_eq!(refused["message"], "create not allowed while custom resource definition is terminating");
    let _following = server.follow();
    while server.get(CRONTABS).await.body()["items"].as_array().unwrap().len() > 1 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(server.get(&path).await.status(), 200, "an object with a finalizer holds the definition");
    let (code, _) = server
        .patch(&format!("{CRONTABS}/held"), "application/merge-patch+json", &json!({"metadata": {"finalizers": null}}))
        .await;
    assert_eq!(code, 200);
    server.until_missing(&path).await;
    assert_eq!(server.get(CRONTABS).await.status(), 404);
    let events = events.await.unwrap().unwrap().to_bytes();
    let events = String::from_utf8(events.to_vec()).unwrap();
    assert_eq!(events.matches("\"DELETED\"").count(), 4, "{events}");
    server.expect(201, Method::POST, CRDS, &crontabs()).await;
    assert!(server.get(CRONTABS).await.body()["items"].as_array().unwrap().is_empty(), "nothing is left over");
}

#[tokio::test]
async fn a_watch_goes_on_while_the_schema_changes() {
    let server = Server::with_crontabs().await;
    let watch = server.start(&administrator(), Method::GET, &format!("{CRONTABS}?watch=1"), Full::default()).await;
    let mut body = watch.into_body();
    let path = format!("{CRDS}/crontabs.stable.example.com");
    server.expect(201, Method::POST, CRONTABS, &crontab("before")).await;
    let mut crd = server.get(&path).await.into_body();
    // The second change: after the first, stored objects are read by the new schema.
    for default in ["alpine", "debian"] {
        crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["image"]["default"] =
            json!(default);
        crd = server.expect(200, Method::PUT, &path, &crd).await;
    }
    let made = server.expect(201, Method::POST, CRONTABS, &crontab("after")).await;
    assert_eq!(made["spec"]["image"], "debian");
    let mut seen = String::new();
    while !seen.contains("\"after\"") {
        let frame = body.frame().await.expect("the watch goes on").unwrap();
        seen.push_str(std::str::from_utf8(frame.data_ref().unwrap()).unwrap());
    }
    assert!(seen.contains("\"before\""), "{seen}");
    assert_eq!(
        server.get(&format!("{CRONTABS}/before")).await.body()["spec"]["image"],
        "busybox",
        "what was stored stays"
    );
}

#[tokio::test]
async fn definitions_of_another_server_are_followed() {
    let store = Arc::new(Memory::new());
    let server = || async {
        let api = Api::new(Registry::builtin(), store.clone(), Settings::default());
        let server = Server(Arc::new(Handler::new(api, CancellationToken::new())));
        bootstrap(&server.0, "192.0.2.1:6443".parse().unwrap()).await.unwrap();
        server
    };
    let (one, two) = (server().await, server().await);
    let _following = two.follow();
    one.expect(201, Method::POST, CRDS, &crontabs()).await;
    while two.get(CRONTABS).await.status() != 200 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let three = server().await;
    assert_eq!(three.get(CRONTABS).await.status(), 200, "known from the start");
}
