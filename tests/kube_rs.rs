//! kube-rs over TLS, with the administrator's kubeconfig: the client that controllers are made of.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::{
    api::{
        apps::v1::Deployment,
        core::v1::{ConfigMap, Namespace},
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api, Client, CustomResource, CustomResourceExt, Error, KubeSchema, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams},
    runtime::{
        Controller, WatchStreamExt,
        controller::Action,
        reflector,
        wait::{await_condition, conditions},
        watcher,
    },
};
use serde_json::json;

use crate::harness::{Cluster, PATIENCE};

fn map(name: &str) -> ConfigMap {
    ConfigMap { metadata: ObjectMeta { name: Some(name.into()), ..Default::default() }, ..Default::default() }
}

/// Waits for a future, within bounds.
async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("waited {PATIENCE:?} in vain: {what}"))
}

async fn started() -> (Cluster, Client) {
    let cluster = Cluster::start();
    let client = cluster.client().await;
    (cluster, client)
}

#[tokio::test]
async fn objects_are_created_read_changed_and_deleted() {
    let (_cluster, client) = started().await;
    let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
    let made = maps.create(&PostParams::default(), &map("a")).await.unwrap();
    assert!(made.uid().is_some() && made.resource_version().is_some());
    let mut changed = made.clone();
    changed.data = Some(BTreeMap::from([("k".into(), "v".into())]));
    let changed = maps.replace("a", &PostParams::default(), &changed).await.unwrap();
    match maps.replace("a", &PostParams::default(), &made).await {
        Err(Error::Api(status)) => assert_eq!((status.code, status.reason.as_str()), (409, "Conflict")),
        other => panic!("a stale write: {other:?}"),
    }
    let same = maps.replace("a", &PostParams::default(), &changed).await.unwrap();
    assert_eq!(same.resource_version(), changed.resource_version(), "a write that changes nothing is none");
    let patched = maps.patch("a", &PatchParams::default(), &Patch::Merge(json!({"data": {"k": null}}))).await.unwrap();
    assert_eq!(patched.data.unwrap_or_default(), BTreeMap::new());
    assert_eq!(maps.get_metadata("a").await.unwrap().metadata.uid, made.metadata.uid);
    let listed = maps.list(&ListParams::default().fields("metadata.name=a")).await.unwrap();
    assert_eq!(listed.items.len(), 1);
    assert!(maps.delete("a", &DeleteParams::default()).await.unwrap().is_right());
    assert!(maps.get_opt("a").await.unwrap().is_none());
    let spaces: Api<Namespace> = Api::all(client);
    assert!(spaces.get("kube-system").await.is_ok());
}

#[tokio::test]
async fn a_watcher_lists_then_follows_by_paging_and_by_streaming() {
    let (_cluster, client) = started().await;
    let maps: Api<ConfigMap> = Api::namespaced(client, "kube-public");
    for name in ["a", "b", "c"] {
        maps.create(&PostParams::default(), &map(name)).await.unwrap();
    }
    for config in [watcher::Config::default().page_size(2), watcher::Config::default().streaming_lists()] {
        let config = config.labels("!hidden").fields("metadata.name!=kube-root-ca.crt");
        let mut events = watcher(maps.clone(), config).boxed();
        let mut initial = Vec::new();
        soon("the initial list", async {
            loop {
                match events.try_next().await.unwrap().unwrap() {
                    watcher::Event::Init => {}
                    watcher::Event::InitApply(found) => initial.push(found.name_any()),
                    watcher::Event::InitDone => break,
                    other => panic!("before the list was done: {other:?}"),
                }
            }
        })
        .await;
        initial.sort();
        assert_eq!(initial, ["a", "b", "c"]);
        maps.patch("b", &PatchParams::default(), &Patch::Merge(json!({"metadata": {"labels": {"hidden": "yes"}}})))
            .await
            .unwrap();
        match soon("b leaves the selection", events.try_next()).await.unwrap().unwrap() {
            watcher::Event::Delete(gone) => assert_eq!(gone.name_any(), "b"),
            other => panic!("{other:?}"),
        }
        maps.patch("b", &PatchParams::default(), &Patch::Merge(json!({"metadata": {"labels": {"hidden": null}}})))
            .await
            .unwrap();
        match soon("b comes back", events.try_next()).await.unwrap().unwrap() {
            watcher::Event::Apply(back) => assert_eq!(back.name_any(), "b"),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn metadata_is_watched_without_the_rest() {
    let (_cluster, client) = started().await;
    let maps: Api<ConfigMap> = Api::namespaced(client, "kube-public");
    let start = maps.list_metadata(&ListParams::default()).await.unwrap().metadata.resource_version.unwrap();
    let selection = WatchParams::default().fields("metadata.name!=kube-root-ca.crt");
    let mut watch = maps.watch_metadata(&selection, &start).await.unwrap().boxed();
    let mut made = map("a");
    made.data = Some(BTreeMap::from([("k".into(), "v".into())]));
    maps.create(&PostParams::default(), &made).await.unwrap();
    match soon("the addition", watch.try_next()).await.unwrap().unwrap() {
        WatchEvent::Added(partial) => {
            assert_eq!(partial.name_any(), "a");
            assert_eq!(partial.types.unwrap().kind, "PartialObjectMetadata");
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_reflector_holds_what_the_server_holds() {
    let (_cluster, client) = started().await;
    let maps: Api<ConfigMap> = Api::namespaced(client, "kube-public");
    let (reader, writer) = reflector::store();
    let following = watcher(maps.clone(), watcher::Config::default()).default_backoff().reflect(writer);
    let following = tokio::spawn(following.applied_objects().for_each(|_| std::future::ready(())));
    soon("the store is filled", reader.wait_until_ready()).await.unwrap();
    for i in 0..20 {
        maps.create(&PostParams::default(), &map(&format!("m{i}"))).await.unwrap();
    }
    for i in 0..10 {
        maps.delete(&format!("m{i}"), &DeleteParams::default()).await.unwrap();
    }
    soon("the store has the ten that are left", async {
        let left = |reader: &reflector::Store<ConfigMap>| {
            let mut names: Vec<_> =
                reader.state().iter().map(|m| m.name_any()).filter(|n| n.starts_with('m')).collect();
            names.sort();
            names
        };
        while left(&reader) != (10..20).map(|i| format!("m{i}")).collect::<Vec<_>>() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    following.abort();
}

/// A controller that mirrors `spec.replicas` of deployments into a config map that they own.
#[tokio::test]
async fn a_controller_reconciles_until_the_world_is_as_it_should_be() {
    let (_cluster, client) = started().await;
    let deployments: Api<Deployment> = Api::default_namespaced(client.clone());
    let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());

    async fn reconcile(deployment: Arc<Deployment>, client: Arc<Client>) -> Result<Action, Error> {
        let maps: Api<ConfigMap> = Api::default_namespaced((*client).clone());
        let replicas = deployment.spec.replicas.unwrap_or_default();
        let owner = kube::Resource::controller_owner_ref(&*deployment, &()).expect("it is stored");
        let mirror = ConfigMap {
            metadata: ObjectMeta { owner_references: Some(vec![owner]), ..map(&deployment.name_any()).metadata },
            data: Some(BTreeMap::from([("replicas".into(), replicas.to_string())])),
            ..Default::default()
        };
        match maps.create(&PostParams::default(), &mirror).await {
            Err(Error::Api(status)) if status.reason == "AlreadyExists" => {
                let patch = json!({"data": mirror.data});
                maps.patch(&deployment.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await?;
            }
            other => drop(other?),
        }
        Ok(Action::await_change())
    }

    let controller = Controller::new(deployments.clone(), watcher::Config::default())
        .owns(maps.clone(), watcher::Config::default())
        .run(reconcile, |_, _, _| Action::requeue(Duration::from_millis(100)), Arc::new(client.clone()))
        .for_each(|_| std::future::ready(()));
    let controller = tokio::spawn(controller);

    let deployment: Deployment = serde_json::from_value(json!({
        "metadata": {"name": "web"},
        "spec": {
            "replicas": 2, "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": "x"}]}},
        },
    }))
    .unwrap();
    deployments.create(&PostParams::default(), &deployment).await.unwrap();
    let mirrored = |wanted: &'static str| {
        let maps = maps.clone();
        soon("the mirror shows it", async move {
            loop {
                let found = maps.get_opt("web").await.unwrap().and_then(|m| m.data).unwrap_or_default();
                if found.get("replicas").is_some_and(|r| r == wanted) {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
    };
    mirrored("2").await;
    deployments.patch("web", &PatchParams::default(), &Patch::Merge(json!({"spec": {"replicas": 5}}))).await.unwrap();
    mirrored("5").await;
    // What others break is repaired.
    maps.delete("web", &DeleteParams::default()).await.unwrap();
    mirrored("5").await;
    deployments.delete("web", &DeleteParams::background()).await.unwrap();
    soon("the mirror follows its owner", async {
        while maps.get_opt("web").await.unwrap().is_some() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    controller.abort();
}

/// A kind as people define it with kube-rs.
#[derive(Clone, Debug, CustomResource, KubeSchema, serde::Deserialize, serde::Serialize)]
#[kube(
    group = "rust.example.com",
    version = "v1",
    kind = "Widget",
    namespaced,
    shortname = "wd",
    status = "WidgetStatus",
    scale(spec_replicas_path = ".spec.replicas", status_replicas_path = ".status.replicas"),
    printcolumn(name = "Color", type_ = "string", json_path = ".spec.color"),
    validation = Rule::new("self.metadata.name != 'forbidden'").message("this name is taken")
)]
#[x_kube(validation = Rule::new("self.color == oldSelf.color").message("color is immutable"))]
struct WidgetSpec {
    #[x_kube(validation = Rule::new("self > 0").message("size must be positive"))]
    size: i64,
    #[serde(default = "grey")]
    color: String,
    #[serde(default)]
    replicas: i32,
}

#[derive(Clone, Debug, Default, KubeSchema, serde::Deserialize, serde::Serialize)]
struct WidgetStatus {
    ready: bool,
    #[serde(default)]
    replicas: i32,
}

fn grey() -> String {
    "grey".to_owned()
}

const DEFINITION: &str = "widgets.rust.example.com";

/// Defines the derived kind, and waits until it is served.
async fn define_widgets(client: &Client) -> Api<CustomResourceDefinition> {
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    definitions.create(&PostParams::default(), &Widget::crd()).await.unwrap();
    let established = await_condition(definitions.clone(), DEFINITION, conditions::is_crd_established());
    soon("the definition is established", established).await.unwrap();
    definitions
}

fn widget(name: &str, size: i64, color: &str) -> Widget {
    Widget::new(name, WidgetSpec { size, color: color.into(), replicas: 1 })
}

fn assert_refused<T: std::fmt::Debug>(result: Result<T, Error>, words: &str) {
    match result {
        Err(Error::Api(status)) => assert!(status.message.contains(words), "{status:?}"),
        other => panic!("a rule was not kept: {other:?}"),
    }
}

#[tokio::test]
async fn a_derived_kind_is_defined_validated_and_followed() {
    let (_cluster, client) = started().await;
    let definitions = define_widgets(&client).await;
    let api: Api<Widget> = Api::default_namespaced(client);
    let post = PostParams::default();
    assert_refused(api.create(&post, &widget("one", 0, "red")).await, "size must be positive");
    assert_refused(api.create(&post, &widget("forbidden", 1, "red")).await, "this name is taken");
    let mut events = watcher(api.clone(), watcher::Config::default()).applied_objects().boxed();
    let made = api.create(&post, &widget("one", 1, "red")).await.unwrap();
    assert_eq!(made.metadata.generation, Some(1));
    let seen = soon("the new object", events.try_next()).await.unwrap().unwrap();
    assert_eq!(seen.spec.color, "red");
    let blue = Patch::Merge(json!({"spec": {"color": "blue"}}));
    assert_refused(api.patch("one", &PatchParams::default(), &blue).await, "color is immutable");
    let stale = Widget { spec: WidgetSpec { size: 5, ..made.spec.clone() }, ..made.clone() };
    let larger = Patch::Merge(json!({"spec": {"size": 3}}));
    assert_eq!(api.patch("one", &PatchParams::default(), &larger).await.unwrap().metadata.generation, Some(2));
    let seen = soon("the change", events.try_next()).await.unwrap().unwrap();
    assert_eq!(seen.spec.size, 3);
    assert!(matches!(api.replace("one", &post, &stale).await, Err(Error::Api(status)) if status.code == 409));
    let bare = json!({"apiVersion": "rust.example.com/v1", "kind": "Widget", "metadata": {"name": "bare"}, "spec": {"size": 1}});
    let bare = api.create(&post, &serde_json::from_value(bare).unwrap()).await.unwrap();
    assert_eq!(bare.spec.color, "grey", "the default of the type");
    definitions.delete(DEFINITION, &DeleteParams::default()).await.unwrap();
    let gone =
        await_condition(definitions, DEFINITION, |definition: Option<&CustomResourceDefinition>| definition.is_none());
    soon("the definition goes", gone).await.unwrap();
    match api.list(&ListParams::default()).await {
        Err(Error::Api(status)) => assert_eq!(status.code, 404),
        other => panic!("still served: {other:?}"),
    }
}

#[tokio::test]
async fn a_derived_kind_has_status_scale_columns_and_server_side_apply() {
    let (_cluster, client) = started().await;
    define_widgets(&client).await;
    let api: Api<Widget> = Api::default_namespaced(client.clone());
    let patch = PatchParams::default();
    api.create(&PostParams::default(), &widget("one", 1, "red")).await.unwrap();
    let status = Patch::Merge(json!({"spec": {"size": 9}, "status": {"ready": true, "replicas": 1}}));
    let patched = api.patch_status("one", &patch, &status).await.unwrap();
    assert_eq!((patched.spec.size, patched.metadata.generation), (1, Some(1)), "the spec is not the status' to change");
    assert!(patched.status.unwrap().ready);

    let scale = api.get_scale("one").await.unwrap();
    assert_eq!(scale.spec.unwrap().replicas, Some(1));
    assert_eq!(scale.status.unwrap().replicas, 1);
    api.patch_scale("one", &patch, &Patch::Merge(json!({"spec": {"replicas": 4}}))).await.unwrap();
    assert_eq!(api.get("one").await.unwrap().spec.replicas, 4);

    let applied = |size: i64| {
        Patch::Apply(
            json!({"apiVersion": "rust.example.com/v1", "kind": "Widget", "metadata": {"name": "two"}, "spec": {"size": size, "color": "red"}}),
        )
    };
    let first = api.patch("two", &PatchParams::apply("first"), &applied(1)).await.unwrap();
    assert_eq!(first.spec.replicas, 0);
    match api.patch("two", &PatchParams::apply("second"), &applied(2)).await {
        Err(Error::Api(status)) => {
            assert_eq!(status.code, 409);
            assert!(status.message.contains("conflict with \"first\": .spec.size"), "{status:?}");
        }
        other => panic!("two managers own one field: {other:?}"),
    }
    let forced = api.patch("two", &PatchParams::apply("second").force(), &applied(2)).await.unwrap();
    assert_eq!(forced.spec.size, 2);

    let table = http::Request::get("/apis/rust.example.com/v1/namespaces/default/widgets")
        .header("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
        .body(Vec::new())
        .unwrap();
    let table: serde_json::Value = client.request(table).await.unwrap();
    let columns: Vec<&str> =
        table["columnDefinitions"].as_array().unwrap().iter().filter_map(|column| column["name"].as_str()).collect();
    assert_eq!(columns, ["Name", "Color"]);
    assert_eq!(table["rows"][0]["cells"], json!(["one", "red"]));

    assert!(api.delete("one", &DeleteParams::default()).await.unwrap().is_right());
    assert!(api.get_opt("one").await.unwrap().is_none());
}
