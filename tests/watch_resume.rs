//! A watch that is dropped and resumed at its last revision, again and again, while eight writers are
//! at work, sees every event once, in order.

use std::collections::BTreeMap;

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::{api::core::v1::ConfigMap, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams},
};
use serde_json::json;

use crate::harness::{Cluster, PATIENCE};

const WRITERS: usize = 8;
const OBJECTS: usize = 6;
const CHANGES: usize = 5;

/// Everything one writer does to one object, in the order in which it is acknowledged.
async fn write(maps: &Api<ConfigMap>, name: &str) {
    let metadata = ObjectMeta { name: Some(name.to_owned()), ..Default::default() };
    maps.create(&PostParams::default(), &ConfigMap { metadata, ..Default::default() }).await.unwrap();
    for n in 1..=CHANGES {
        let patch = Patch::Merge(json!({"data": {"n": n.to_string()}}));
        maps.patch(name, &PatchParams::default(), &patch).await.unwrap();
    }
    maps.delete(name, &DeleteParams::default()).await.unwrap();
}

/// `+`, `1`…, `-`: what an event says about its object.
fn step(event: &WatchEvent<ConfigMap>) -> (String, String, u64) {
    let (what, object) = match event {
        WatchEvent::Added(object) => ("+".to_owned(), object),
        WatchEvent::Modified(object) => (object.data.as_ref().unwrap()["n"].clone(), object),
        WatchEvent::Deleted(object) => ("-".to_owned(), object),
        other => panic!("{other:?}"),
    };
    (object.name_any(), what, object.resource_version().unwrap().parse().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_resumed_watch_misses_nothing_and_repeats_nothing() {
    let cluster = Cluster::start();
    let client = cluster.client().await;
    let maps: Api<ConfigMap> = Api::namespaced(client, "kube-public");
    let mut last = maps.list(&ListParams::default()).await.unwrap().metadata.resource_version.unwrap();

    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let maps = maps.clone();
            tokio::spawn(async move {
                for object in 0..OBJECTS {
                    write(&maps, &format!("w{writer}-{object}")).await;
                }
            })
        })
        .collect();

    let total = WRITERS * OBJECTS * (CHANGES + 2);
    let mut observed: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let (mut count, mut newest, mut connections) = (0, 0, 0);
    let selection = WatchParams::default().fields("metadata.name!=kube-root-ca.crt").disable_bookmarks();
    let following = async {
        while count < total {
            let mut watch = maps.watch(&selection, &last).await.unwrap().boxed();
            connections += 1;
            // Drop it after a number of events that differs from time to time.
            for _ in 0..1 + connections % 13 {
                if count == total {
                    break;
                }
                let event = watch.try_next().await.unwrap().expect("the watch goes on");
                let (name, what, revision) = step(&event);
                assert!(revision > newest, "{name} {what}: {revision} after {newest}");
                newest = revision;
                last = revision.to_string();
                observed.entry(name).or_default().push(what);
                count += 1;
            }
        }
    };
    tokio::time::timeout(PATIENCE * 3, following).await.expect("all events come");
    for writer in writers {
        writer.await.unwrap();
    }
    assert!(connections > 20, "{connections}");
    assert_eq!(observed.len(), WRITERS * OBJECTS);
    let life: Vec<String> =
        ["+".to_owned()].into_iter().chain((1..=CHANGES).map(|n| n.to_string())).chain(["-".to_owned()]).collect();
    for (name, steps) in observed {
        assert_eq!(steps, life, "{name}");
    }
}
