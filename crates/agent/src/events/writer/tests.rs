use kube::api::ListParams;

use super::*;
use crate::{
    events::{Events, Kind},
    testing::{api, until},
};

fn pod(name: &str) -> k8s_openapi::api::core::v1::Pod {
    serde_json::from_value(json!({ "metadata": { "name": name, "namespace": "default", "uid": name } })).unwrap()
}

#[tokio::test]
async fn events_arrive_in_order_and_repeats_count_up() {
    let client = api(&["default"]).await;
    let (events, said) = Events::channel();
    let stop = CancellationToken::new();
    let task = tokio::spawn(Writer::new(client.clone(), "m1", said).run(stop.clone()));
    for message in ["one", "two", "one", "one"] {
        events.pod(&pod("web"), Kind::Normal, "Testing", message);
    }
    let all = Api::<Event>::namespaced(client.clone(), "default");
    let found = || async {
        let mut items = all.list(&ListParams::default()).await.unwrap().items;
        items.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
        items.into_iter().map(|event| (event.message.unwrap(), event.count.unwrap())).collect::<Vec<_>>()
    };
    let expected = vec![("one".to_owned(), 3), ("two".to_owned(), 1)];
    until("both are there", async || found().await == expected).await;
    // Somebody cleaned up: the next repeat is written anew.
    all.delete_collection(&Default::default(), &ListParams::default()).await.unwrap();
    events.pod(&pod("web"), Kind::Normal, "Testing", "one");
    until("it is there again", async || found().await == [("one".to_owned(), 4)]).await;
    // What cannot be written does not hold up the rest, and what is left at the end is still written.
    let mut lost = pod("lost");
    lost.metadata.namespace = Some("missing".into());
    events.pod(&lost, Kind::Normal, "Testing", "lost");
    events.pod(&pod("web"), Kind::Normal, "Testing", "last");
    stop.cancel();
    task.await.unwrap();
    assert!(found().await.contains(&("last".to_owned(), 1)));
}
