//! What clients see of a server that ends, comes back, or comes back as it was some time ago.

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client, Error, ResourceExt,
    api::{ListParams, PostParams, WatchEvent, WatchParams},
    runtime::{WatchStreamExt, watcher},
};
use serde_json::json;

use crate::harness::{Cluster, PATIENCE, python};

async fn create(client: &Client, name: &str) -> ConfigMap {
    let map = serde_json::from_value(json!({"metadata": {"name": name, "labels": {"ours": "yes"}}})).unwrap();
    maps(client).create(&PostParams::default(), &map).await.unwrap()
}

fn maps(client: &Client) -> Api<ConfigMap> {
    Api::namespaced(client.clone(), "kube-public")
}

fn ours() -> ListParams {
    ListParams::default().labels("ours")
}

async fn names(client: &Client) -> Vec<String> {
    maps(client).list(&ours()).await.unwrap().iter().map(ResourceExt::name_any).collect()
}

#[tokio::test]
async fn a_killed_server_comes_back_with_everything_and_watches_resume() {
    let mut cluster = Cluster::start();
    let client = cluster.client().await;
    let first = create(&client, "first").await;
    create(&client, "second").await;
    cluster.kill();
    cluster.start_again();
    // The same certificate authority, address and objects: the same client goes on.
    assert_eq!(names(&client).await, ["first", "second"]);
    assert_eq!(maps(&client).get("first").await.unwrap().metadata, first.metadata);
    create(&client, "third").await;
    let since = WatchParams::default().labels("ours");
    let mut watch = maps(&client).watch(&since, &first.resource_version().unwrap()).await.unwrap().boxed();
    for expected in ["second", "third"] {
        match tokio::time::timeout(PATIENCE, watch.try_next()).await.unwrap().unwrap().unwrap() {
            WatchEvent::Added(map) => assert_eq!(map.name_any(), expected),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn a_server_that_is_asked_to_end_ends_its_watches_and_itself() {
    let mut cluster = Cluster::start();
    let client = cluster.client().await;
    let start = maps(&client).list(&ours()).await.unwrap().metadata.resource_version.unwrap();
    let watch = maps(&client).watch(&WatchParams::default().labels("ours"), &start).await.unwrap();
    let ending = tokio::task::spawn_blocking(move || (cluster.terminate(), cluster));
    let events: Vec<_> = tokio::time::timeout(PATIENCE, watch.collect()).await.expect("the watch ends");
    assert!(events.iter().all(Result::is_ok), "it ends as if its time were over: {events:?}");
    let (status, _cluster) = ending.await.unwrap();
    assert!(status.success(), "{status}");
}

#[tokio::test]
async fn after_a_restore_old_revisions_are_gone_and_clients_start_over() {
    let mut cluster = Cluster::start();
    let client = cluster.client().await;
    let old = create(&client, "old").await.resource_version().unwrap();
    create(&client, "kept").await;
    let mut events = watcher(maps(&client), watcher::Config::default().labels("ours")).default_backoff().boxed();
    loop {
        if let watcher::Event::InitDone =
            tokio::time::timeout(PATIENCE, events.try_next()).await.unwrap().unwrap().unwrap()
        {
            break;
        }
    }
    let file = cluster.home().join("backup").to_str().unwrap().to_owned();
    cluster.mainstay("backup", &file).ok();
    create(&client, "lost").await;
    cluster.kill();
    cluster.mainstay("restore", &file).ok();
    cluster.start_again();
    assert_eq!(names(&client).await, ["kept", "old"]);

    // A raw watch gets 410 Gone; the official Python client understands; kube's watcher starts over.
    let since = WatchParams::default().labels("ours");
    match maps(&client).watch(&since, &old).await.unwrap().boxed().try_next().await {
        Ok(Some(WatchEvent::Error(status))) => assert_eq!((status.code, status.reason.as_str()), (410, "Expired")),
        Err(Error::Api(status)) => assert_eq!((status.code, status.reason.as_str()), (410, "Expired")),
        other => panic!("{other:?}"),
    }
    let output = python(&cluster, "expired.py", &[&old]);
    assert_eq!(output.ok().trim(), "ok");
    let mut again = Vec::new();
    let started_over = async {
        loop {
            match events.next().await.expect("a watcher never ends") {
                Ok(watcher::Event::InitApply(map)) => again.push(map.name_any()),
                Ok(watcher::Event::InitDone) => break,
                Ok(_) | Err(_) => {} // the news of the lost object, the outage
            }
        }
    };
    tokio::time::timeout(PATIENCE, started_over).await.expect("the watcher lists again");
    again.sort();
    assert_eq!(again, ["kept", "old"]);
}
