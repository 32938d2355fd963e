use kube::api::{ObjectMeta, Patch, PatchParams};
use mainstay_api::ports::PortRanges;
use serde_json::json;

use super::*;
use crate::{
    events::Events,
    node::Evictions,
    offers::OfferAdmission,
    settings::Offering,
    sources::{
        manifest::{self, Origin},
        pod_watch::PodWatch,
    },
    testing::{api, until},
};

fn key(name: &str) -> Key {
    ("default".into(), name.into())
}

fn found(uid: &str, shows: Option<&str>, deleting: bool) -> MirrorState {
    MirrorState { uid: uid.into(), shows: shows.map(str::to_owned), deleting }
}

#[test]
fn a_mirror_follows_its_file_and_nothing_else_is_touched() {
    let wanted =
        BTreeMap::from([(key("new"), "n".to_owned()), (key("same"), "s".into()), (key("changed"), "c2".into())]);
    let there = BTreeMap::from([
        (key("same"), found("1", Some("s"), false)),
        (key("changed"), found("2", Some("c1"), false)),
        (key("gone"), found("3", Some("g"), false)),
        (key("other"), found("4", None, false)),
    ]);
    let expected = [
        Action::Delete(key("changed"), "2".into()),
        Action::Delete(key("gone"), "3".into()),
        Action::Create(key("new")),
    ];
    assert_eq!(plan(&wanted, &there), expected);
    let deleted = BTreeMap::from([(key("new"), found("5", Some("n"), true))]);
    let only = BTreeMap::from([(key("new"), "n".to_owned())]);
    assert_eq!(plan(&only, &deleted), [Action::Delete(key("new"), "5".into())], "by a user: once more, at once");
    let foreign = BTreeMap::from([(key("new"), found("6", None, false))]);
    assert_eq!(plan(&only, &foreign), [], "a pod that was there first");
}

fn static_pod(image: &str) -> Pod {
    let text = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "web" },
        "spec": { "containers": [{ "name": "c", "image": image }] },
    });
    let origin = Origin {
        node: "m1",
        file: "web.yaml",
        changed: jiff::Timestamp::UNIX_EPOCH,
        termination_grace: std::time::Duration::from_secs(30),
    };
    manifest::read(text.to_string().as_bytes(), &origin).unwrap().pods.remove(0)
}

#[tokio::test]
async fn a_static_pod_is_seen_in_the_api_as_long_as_its_file_is_there() {
    let client = api(&["default"]).await;
    let metadata = ObjectMeta { name: Some("m1".into()), ..ObjectMeta::default() };
    let node = Node { metadata, ..Node::default() };
    let node = Api::all(client.clone()).create(&PostParams::default(), &node).await.unwrap();
    let wake = Wake::default();
    let pods = Arc::new(Pods::new(wake.clone()));
    let (_node, known) = watch::channel(Some(node.clone()));
    let mirrors = Mirrors::new(client.clone(), pods.clone(), wake.clone(), known.clone());
    let stop = CancellationToken::new();
    let task = tokio::spawn(mirrors.clone().run(stop.clone()));
    let (events, _) = Events::new("m1");
    let offering = Offering { automatic: PortRanges::NONE, explicit: PortRanges::NONE, ..Offering::default() };
    let (evictions, avoids) = (Evictions::new(wake), Box::new(|_: &Pod| None));
    let admission = OfferAdmission::new(client.clone(), pods.clone(), known, evictions, events, offering, avoids);
    let directory = tempfile::tempdir().unwrap();
    let watch =
        PodWatch::new(client.clone(), "m1".into(), pods.clone(), admission, directory.path(), mirrors.clone()).unwrap();
    let watching = tokio::spawn(watch.run(stop.clone()));
    let observed = Api::<Pod>::namespaced(client.clone(), "default");
    let image = || async {
        let pod = observed.get_opt("web-m1").await.unwrap()?;
        (crate::pods::is_mirror_pod(&pod) && pod.metadata.deletion_timestamp.is_none())
            .then(|| pod.spec.unwrap().containers[0].image.clone().unwrap())
    };
    let first = static_pod("a");
    assert_eq!(mirrors.api_identity(&first), None);
    pods.replace(Source::File, vec![first.clone()]);
    mirrors.changed.notify_one();
    until("the mirror is there", async || image().await.as_deref() == Some("a")).await;
    until("it is known", async || mirrors.api_identity(&first).is_some()).await;
    let shown = observed.get("web-m1").await.unwrap();
    let identity = mirrors.api_identity(&first).unwrap();
    assert_eq!((Some(identity.uid), identity.name.as_str()), (shown.metadata.uid.clone(), "web-m1"));
    assert_eq!(shown.metadata.owner_references.unwrap()[0].uid, node.metadata.uid.unwrap());
    assert_eq!(shown.spec.unwrap().node_name.as_deref(), Some("m1"));
    let patch = Patch::Merge(json!({ "status": { "phase": "Running" } }));
    observed.patch_status("web-m1", &PatchParams::default(), &patch).await.unwrap();

    observed.delete("web-m1", &DeleteParams::default()).await.unwrap();
    until("a user's deletion is undone", async || {
        let now = observed.get_opt("web-m1").await.unwrap();
        now.is_some_and(|now| now.metadata.uid != shown.metadata.uid && now.metadata.deletion_timestamp.is_none())
    })
    .await;

    let second = static_pod("b");
    pods.replace(Source::File, vec![second.clone()]);
    mirrors.changed.notify_one();
    until("the mirror changes with its file", async || image().await.as_deref() == Some("b")).await;
    until("it is known", async || mirrors.api_identity(&second).is_some()).await;
    assert_eq!(mirrors.api_identity(&first), None);

    pods.replace(Source::File, vec![]);
    mirrors.changed.notify_one();
    until("the mirror goes with its file", async || observed.get_opt("web-m1").await.unwrap().is_none()).await;
    stop.cancel();
    task.await.unwrap();
    watching.await.unwrap();
}
