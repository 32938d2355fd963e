//! Server-side apply and the tracking of managers, through whole requests.

use super::*;

const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
const APPLY: &str = "application/apply-patch+yaml";

impl Server {
    async fn patch_as(&self, user: &User, path: &str, media_type: &str, agent: &str, body: String) -> (u16, Value) {
        let request = Request::builder().method(Method::PATCH).uri(path);
        let request = request.header("content-type", media_type).header("user-agent", agent);
        let caller = Caller::Network { user: Some(Arc::new(user.clone())), source: [127, 0, 0, 1].into() };
        answer(self.0.clone().handle(request.body(Full::<Bytes>::from(body)).unwrap(), caller).await).await
    }

    async fn apply(&self, path: &str, config: &Value) -> (u16, Value) {
        self.patch_as(&administrator(), path, APPLY, "test/1", config.to_string()).await
    }
}

fn deployment(replicas: i32) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
        "spec": {
            "replicas": replicas, "selector": {"matchLabels": {"a": "b"}},
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}},
        },
    })
}

fn managers(object: &Value) -> Vec<String> {
    let entries = object["metadata"]["managedFields"].as_array().into_iter().flatten();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    entries.map(|e| format!("{} {} {}", text(&e["manager"]), text(&e["operation"]), text(&e["subresource"]))).collect()
}

fn config_map(data: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": data})
}

#[tokio::test]
async fn an_apply_creates_updates_and_conflicts() {
    let server = Server::new(Settings::default()).await;
    let path = |query: &str| format!("{DEPLOYMENTS}/web?{query}");
    let (code, created) = server.apply(&path("fieldManager=a"), &deployment(1)).await;
    assert_eq!(code, 201, "{created}");
    assert_eq!(created["spec"]["strategy"]["type"], "RollingUpdate", "defaults are added, and belong to nobody");
    assert_eq!(managers(&created), ["a Apply "]);
    assert!(created["metadata"]["managedFields"][0]["fieldsV1"]["f:spec"].get("f:strategy").is_none());
    let (code, same) = server.apply(&path("fieldManager=a"), &deployment(1)).await;
    assert_eq!((code, &same), (200, &created), "nothing changed, the version included");
    let (code, conflict) = server.apply(&path("fieldManager=b"), &deployment(2)).await;
    assert_eq!((code, &conflict["reason"]), (409, &json!("Conflict")), "{conflict}");
    assert_eq!(
        conflict["details"],
        json!({"causes": [{"reason": "FieldManagerConflict", "message": "conflict with \"a\"", "field": ".spec.replicas"}]})
    );
    let dry = server.apply(&path("fieldManager=b&force=true&dryRun=All"), &deployment(2)).await;
    assert_eq!((dry.0, &dry.1["spec"]["replicas"]), (200, &json!(2)));
    let (code, forced) = server.apply(&path("fieldManager=b&force=true"), &deployment(2)).await;
    assert_eq!((code, &forced["spec"]["replicas"], &forced["metadata"]["generation"]), (200, &json!(2), &json!(2)));
    assert_eq!(managers(&forced), ["a Apply ", "b Apply "]);
}

#[tokio::test]
async fn every_way_of_writing_names_its_manager() {
    let server = Server::new(Settings::default()).await;
    let admin = administrator();
    let (_, mut created) =
        server.send(&admin, Method::POST, &format!("{DEPLOYMENTS}?fieldManager=author"), &deployment(1)).await;
    assert_eq!(managers(&created), ["author Update "]);
    created["status"]["replicas"] = json!(1);
    let (_, updated) =
        server.send(&admin, Method::PUT, &format!("{DEPLOYMENTS}/web/status?fieldManager=ctl"), &created).await;
    assert_eq!(managers(&updated), ["author Update ", "ctl Update status"]);
    let scale = json!({"spec": {"replicas": 3}}).to_string();
    let merge = "application/merge-patch+json";
    let (code, _) = server.patch_as(&admin, &format!("{DEPLOYMENTS}/web/scale"), merge, "hpa/v1 (linux)", scale).await;
    assert_eq!(code, 200);
    let config =
        json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "web"}, "spec": {"replicas": 5}});
    let (code, conflict) = server.apply(&format!("{DEPLOYMENTS}/web/scale?fieldManager=s"), &config).await;
    assert_eq!(code, 409, "{conflict}");
    assert_eq!(
        conflict["details"]["causes"][0]["message"],
        "conflict with \"hpa\" with subresource \"scale\" using apps/v1"
    );
    let (_, object) = server.send(&admin, Method::GET, &format!("{DEPLOYMENTS}/web"), &Value::Null).await;
    assert!(managers(&object).contains(&"hpa Update scale".to_owned()), "{object}");
    let partial = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io";
    let request = Request::builder().uri(format!("{DEPLOYMENTS}/web")).header("accept", partial);
    let caller = Caller::Network { user: Some(Arc::new(admin)), source: [127, 0, 0, 1].into() };
    let (_, partial) =
        answer(server.0.clone().handle(request.body(Full::<Bytes>::default()).unwrap(), caller).await).await;
    assert_eq!(partial["metadata"], object["metadata"]);
}

#[tokio::test]
async fn a_status_is_applied_through_its_subresource_alone() {
    let server = Server::new(Settings::default()).await;
    let mut config = deployment(1);
    config["status"] = json!({"replicas": 7});
    let (_, created) = server.apply(&format!("{DEPLOYMENTS}/web?fieldManager=a"), &config).await;
    assert_eq!(created["status"]["replicas"], json!(null), "{created}");
    assert!(created["metadata"]["managedFields"][0]["fieldsV1"].get("f:status").is_none());
    let (code, updated) = server.apply(&format!("{DEPLOYMENTS}/web/status?fieldManager=a"), &config).await;
    assert_eq!((code, &updated["status"]["replicas"]), (200, &json!(7)), "{updated}");
    assert_eq!(managers(&updated), ["a Apply ", "a Apply status"]);
    let missing = server.apply(&format!("{DEPLOYMENTS}/nobody/status?fieldManager=a"), &config).await;
    assert_eq!(missing.0, 404);
}

#[tokio::test]
async fn a_request_that_cannot_be_applied_says_why() {
    let server = Server::new(Settings::default()).await;
    let path = format!("{CONFIG_MAPS}/m?fieldManager=a");
    for (path, config, code, message) in [
        (
            format!("{CONFIG_MAPS}/m"),
            config_map(json!({})),
            422,
            "PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: Required value: is required for apply patch",
        ),
        (
            path.clone(),
            json!({"apiVersion": "v2", "kind": "ConfigMap", "metadata": {"name": "m"}}),
            400,
            "Incorrect version specified in apply patch. Specified patch version: v2, expected: v1",
        ),
        (
            path.clone(),
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "other"}}),
            400,
            "the name of the object (other) does not match the name on the URL (m)",
        ),
        (
            path.clone(),
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "nonsense": 1}),
            500,
            "failed to create typed patch object (/m; v1, Kind=ConfigMap): .nonsense: field not declared in schema",
        ),
        (
            path.clone(),
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m", "managedFields": []}}),
            400,
            "metadata.managedFields must be nil",
        ),
        (
            path.clone(),
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m", "uid": "u"}}),
            409,
            "Operation cannot be fulfilled on configmaps \"m\": uid mismatch: the provided object specified uid u, and no \
             existing object was found",
        ),
    ] {
        let (answered, status) = server.apply(&path, &config).await;
        assert_eq!((answered, status["message"].as_str().unwrap()), (code, message), "{config}");
    }
    let (code, status) = server.patch_as(&administrator(), &path, APPLY, "t", "a: [".to_owned()).await;
    assert_eq!(code, 400);
    assert!(status["message"].as_str().unwrap().starts_with("error decoding YAML: "), "{status}");
    let (code, _) = server.patch_as(&administrator(), &path, "application/apply-patch+cbor", "t", "x".to_owned()).await;
    assert_eq!(code, 415);
    let yaml = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: m}\ndata: {a: b}\n".to_owned();
    let (code, _) = server.patch_as(&administrator(), &path, APPLY, "t", yaml).await;
    assert_eq!(code, 201);
    let mut stale = config_map(json!({"a": "b"}));
    stale["metadata"]["resourceVersion"] = json!("1");
    assert_eq!(server.apply(&path, &stale).await.0, 409);
}

#[tokio::test]
async fn managed_fields_are_cleared_by_an_empty_entry_and_kept_by_clients_that_do_not_know_them() {
    let server = Server::new(Settings::default()).await;
    let admin = administrator();
    let (_, created) = server.send(&admin, Method::POST, CONFIG_MAPS, &config_map(json!({"a": "1"}))).await;
    let mut unaware = created.clone();
    unaware["metadata"].as_object_mut().unwrap().remove("managedFields");
    let path = format!("{CONFIG_MAPS}/m");
    let (_, updated) = server.send(&admin, Method::PUT, &path, &unaware).await;
    assert_eq!(updated, created);
    for cleared in [json!([]), json!([{}])] {
        let mut object = created.clone();
        object["metadata"]["managedFields"] = cleared.clone();
        object["metadata"].as_object_mut().unwrap().remove("resourceVersion");
        let (code, updated) = server.send(&admin, Method::PUT, &path, &object).await;
        assert_eq!((code, updated["metadata"].get("managedFields")), (200, None), "{cleared}");
    }
}

#[tokio::test]
async fn many_managers_do_not_make_an_object_grow_without_end() {
    let server = Server::new(Settings::default()).await;
    let admin = administrator();
    server.send(&admin, Method::POST, CONFIG_MAPS, &config_map(json!({"a": "0"}))).await;
    let merge = "application/merge-patch+json";
    let mut object = Value::Null;
    for at in 0..300 {
        let path = format!("{CONFIG_MAPS}/m?fieldManager=m{at}");
        let patch = json!({"data": {format!("k{}", at % 20): at.to_string()}}).to_string();
        let (code, patched) = server.patch_as(&admin, &path, merge, "t", patch).await;
        assert_eq!(code, 200, "{patched}");
        object = patched;
    }
    assert_eq!(managers(&object).len(), 10, "{object}");
    assert!(managers(&object).contains(&"ancient-changes Update ".to_owned()), "{object}");
}
