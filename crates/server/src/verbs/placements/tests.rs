use std::time::Duration;

use http::{Method, Request};
use http_body_util::{BodyExt, Full};
use mainstay_api::registry::Registry;
use mainstay_store::{Embedded, List, Memory, Store, embedded};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::{
    auth::User,
    handler::{Caller, Handler},
    settings::Settings,
};

struct Server(Arc<Handler>);

impl Server {
    fn on(store: Arc<dyn Store>) -> Self {
        let api = Api::new(Registry::builtin(), store, Settings::default());
        Self(Arc::new(Handler::new(api, CancellationToken::new())))
    }

    async fn with_nodes_and_namespace(store: Arc<dyn Store>) -> Self {
        let server = Self::on(store);
        server.post("/api/v1/namespaces", json!({"metadata": {"name": "default"}})).await;
        for node in ["n1", "n2"] {
            server.post("/api/v1/nodes", json!({"metadata": {"name": node}})).await;
        }
        server
    }

    async fn ask(&self, user: User, method: Method, path: &str, body: &Value) -> (u16, Value) {
        let request = Request::builder().method(method).uri(path).body(Full::from(body.to_string())).unwrap();
        let response = self.0.clone().handle(request, Caller::Internal(Arc::new(user))).await;
        let code = response.status().as_u16();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        (code, serde_json::from_slice(&bytes).unwrap())
    }

    async fn send(&self, method: Method, path: &str, body: Value) -> (u16, Value) {
        self.ask(User::internal("test"), method, path, &body).await
    }

    async fn post(&self, path: &str, body: Value) -> Value {
        let (code, answer) = self.send(Method::POST, path, body).await;
        assert_eq!(code, 201, "{answer:#}");
        answer
    }

    /// A pod's uid.
    async fn pod(&self, name: &str, extra: Value) -> String {
        let mut pod = json!({
            "metadata": {"name": name, "annotations": {"was": "there"}},
            "spec": {"containers": [{"name": "c", "image": "i"}], "serviceAccountName": ""},
        });
        mainstay_api::patch::merge(&mut pod, &extra);
        let made = self.post("/api/v1/namespaces/default/pods", pod).await;
        made["metadata"]["uid"].as_str().unwrap().to_owned()
    }

    async fn get_pod(&self, name: &str) -> Value {
        self.send(Method::GET, &format!("/api/v1/namespaces/default/pods/{name}"), json!(null)).await.1
    }

    async fn place(&self, items: Vec<Value>) -> Vec<Value> {
        let list = json!({"apiVersion": "mainstay.dev/v1", "kind": "PlacementList", "items": items});
        let (code, answer) = self.send(Method::POST, "/apis/mainstay.dev/v1/placements", list).await;
        assert_eq!((code, &answer["kind"]), (200, &json!("PlacementResultList")), "{answer:#}");
        answer["items"].as_array().unwrap().clone()
    }

    async fn events(&self) -> Vec<Value> {
        let answer = self.send(Method::GET, "/api/v1/namespaces/default/events", json!(null)).await.1;
        answer["items"].as_array().unwrap().clone()
    }
}

fn item(name: &str, uid: &str, node: &str) -> Value {
    json!({
        "metadata": {"namespace": "default", "name": name, "uid": uid}, "node": node,
        "message": format!("Successfully assigned default/{name} to {node}"),
    })
}

fn codes(results: &[Value]) -> Vec<u64> {
    results.iter().map(|result| result["code"].as_u64().unwrap()).collect()
}

#[tokio::test]
async fn an_offer_that_was_withdrawn_binds_no_pod() {
    const OFFERS: &str = "/apis/mainstay.dev/v1/offers";
    let server = Server::with_nodes_and_namespace(Arc::new(Memory::new())).await;
    let offer = json!({"metadata": {"name": "n1"}, "spec": {"free": {"cpu": "1"}, "ttlSeconds": 30, "seen": "7"}});
    let posted = server.post(OFFERS, offer.clone()).await;
    let used = posted["metadata"]["uid"].as_str().unwrap();
    let with_offer = |name: &str, uid: &str, node: &str| {
        let mut item = item(name, uid, node);
        item["offerUid"] = json!(used);
        item
    };
    let (first, second, third) =
        (server.pod("a", json!({})).await, server.pod("b", json!({})).await, server.pod("c", json!({})).await);
    let mut renewed = posted.clone();
    renewed["spec"]["ttlSeconds"] = json!(31);
    let (code, answer) = server.send(Method::PUT, &format!("{OFFERS}/n1"), renewed).await;
    assert_eq!(code, 200, "{answer}");
    let results = server.place(vec![with_offer("a", &first, "n1"), with_offer("b", &second, "n2")]).await;
    assert_eq!(codes(&results), [201, 409], "a renewed offer stands, and n2 has none: {results:?}");

    server.send(Method::DELETE, &format!("{OFFERS}/n1"), json!(null)).await;
    let results = server.place(vec![with_offer("b", &second, "n1")]).await;
    assert_eq!((codes(&results), &results[0]["reason"]), (vec![409], &json!("Conflict")));
    let message = results[0]["message"].as_str().unwrap();
    assert!(message.contains("the offer of node \"n1\" was withdrawn"), "{message}");

    server.post(OFFERS, offer).await;
    let results = server.place(vec![with_offer("b", &second, "n1"), item("c", &third, "n1")]).await;
    assert_eq!(codes(&results), [409, 201], "the same name is another offer: {results:?}");
    assert!(server.get_pod("b").await["spec"].get("nodeName").is_none());
}

#[tokio::test]
async fn a_pod_that_cannot_be_parsed_is_an_error_of_its_own() {
    let store: Arc<dyn Store> = Arc::new(Memory::new());
    let server = Server::with_nodes_and_namespace(store.clone()).await;
    let whole = server.pod("whole", json!({})).await;
    let (key, value) = ("/registry/pods/default/torn".into(), Bytes::from_static(b"{\"kind\":\"Pod\",\"metadata\":{"));
    store.commit(Txn { compares: Vec::new(), ops: vec![Op::Put { key, value }] }).await.unwrap();
    let results = server.place(vec![item("torn", "u", "n1"), item("whole", &whole, "n1")]).await;
    assert_eq!(codes(&results), [500, 201], "{results:?}");
    let message = results[0]["message"].as_str().unwrap();
    assert!(message.contains("stored object \"/registry/pods/default/torn\" cannot be parsed"), "{message}");
}

#[tokio::test]
async fn each_pod_is_placed_or_refused_for_itself() {
    let server = Server::with_nodes_and_namespace(Arc::new(Memory::new())).await;
    let plain = server.pod("plain", json!({})).await;
    let ported = server.pod("ported", json!({})).await;
    let bound = server.pod("bound", json!({"spec": {"nodeName": "n2"}})).await;
    let gated = server.pod("gated", json!({"spec": {"schedulingGates": [{"name": "g"}]}})).await;
    let going = server.pod("going", json!({"metadata": {"finalizers": ["a.example/f"]}})).await;
    server.send(Method::DELETE, "/api/v1/namespaces/default/pods/going", json!(null)).await;
    let other = server.pod("other", json!({})).await;
    let lost = server.pod("lost", json!({})).await;
    let mut with_port = item("ported", &ported, "n2");
    with_port["metadata"]["annotations"] = json!({"k8s.mesosphere.io/port_TCP_80": "31000"});
    let results = server
        .place(vec![
            item("plain", &plain, "n1"),
            item("gone", "u", "n1"),
            item("bound", &bound, "n1"),
            item("gated", &gated, "n1"),
            item("going", &going, "n1"),
            item("other", "another-uid", "n1"),
            item("lost", &lost, "n3"),
            item("plain", &plain, "n2"),
            item("../../x", "u", "n1"),
            with_port,
        ])
        .await;
    assert_eq!(codes(&results), [201, 404, 409, 409, 409, 409, 404, 409, 404, 201], "{results:#?}");
    assert_eq!(results[1]["reason"], "NotFound");
    assert_eq!(
        results[2]["message"],
        "Operation cannot be fulfilled on pods/binding \"bound\": pod bound is already assigned to node \"n2\""
    );
    assert_eq!(results[6]["message"], "nodes \"n3\" not found");
    assert_eq!(results[7]["reason"], "Conflict", "the same pod twice in one list is placed once");

    let pod = server.get_pod("plain").await;
    assert_eq!(pod["spec"]["nodeName"], "n1");
    assert_eq!(pod["metadata"]["resourceVersion"], results[0]["resourceVersion"]);
    assert_eq!(pod["metadata"]["generation"], 1);
    let condition = &pod["status"]["conditions"].as_array().unwrap()[0];
    assert_eq!((&condition["type"], &condition["status"]), (&json!("PodScheduled"), &json!("True")));
    let annotations = &server.get_pod("ported").await["metadata"]["annotations"];
    assert_eq!(*annotations, json!({"was": "there", "k8s.mesosphere.io/port_TCP_80": "31000"}));
    assert_eq!(server.get_pod("other").await["spec"].get("nodeName"), None);
    assert_ne!(server.get_pod("other").await["metadata"]["uid"], json!("another-uid"), "{other}");

    let events = server.events().await;
    assert_eq!(events.len(), 2, "{events:#?}");
    let event = events.iter().find(|event| event["involvedObject"]["name"] == "plain").unwrap();
    assert_eq!((&event["reason"], &event["type"]), (&json!("Scheduled"), &json!("Normal")));
    assert_eq!(event["message"], "Successfully assigned default/plain to n1");
    assert_eq!(event["involvedObject"]["uid"], json!(plain));
    assert_eq!(
        (&event["source"]["component"], &event["reportingComponent"]),
        (&json!("default-scheduler"), &json!("default-scheduler"))
    );
    let mut again = event.clone();
    let conformed = mainstay_api::schema::Schema::builtin().conform("io.k8s.api.core.v1.Event", &mut again);
    assert_eq!(conformed.map_err(|error| error.to_string()), Ok(Vec::new()), "a valid Event");
}

#[tokio::test]
async fn a_dry_run_and_a_broken_body_place_nothing() {
    let server = Server::with_nodes_and_namespace(Arc::new(Memory::new())).await;
    let uid = server.pod("p", json!({})).await;
    let list = json!({"items": [item("p", &uid, "n1")]});
    let (code, answer) = server.send(Method::POST, "/apis/mainstay.dev/v1/placements?dryRun=All", list).await;
    assert_eq!((code, &answer["items"][0]["code"]), (200, &json!(201)));
    let (code, answer) =
        server.send(Method::POST, "/apis/mainstay.dev/v1/placements", json!({"items": [{"node": 1}]})).await;
    assert_eq!(code, 400, "{answer}");
    assert_eq!(server.send(Method::GET, "/apis/mainstay.dev/v1/placements", json!(null)).await.0, 405);
    assert_eq!(server.get_pod("p").await["spec"].get("nodeName"), None);
    assert!(server.events().await.is_empty());
}

#[tokio::test]
async fn only_the_servers_own_and_administrators_place() {
    let server = Server::with_nodes_and_namespace(Arc::new(Memory::new())).await;
    for user in [User::node("n1"), User::authenticated("ann".into(), vec![])] {
        let answer = server.ask(user, Method::POST, "/apis/mainstay.dev/v1/placements", &json!({"items": []})).await;
        assert_eq!(answer.0, 403, "{answer:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_who_place_the_same_pods_while_others_change_them_one_wins_each() {
    const PODS: usize = 60;
    let server = Server::with_nodes_and_namespace(Arc::new(Memory::new())).await;
    let mut pods = Vec::new();
    for i in 0..PODS {
        let name = format!("p{i}");
        let uid = server.pod(&name, json!({})).await;
        pods.push((name, uid));
    }
    let all_on = |node: &str| pods.iter().map(|(name, uid)| item(name, uid, node)).collect::<Vec<_>>();
    let change = async {
        for (name, _) in &pods {
            let path = format!("/api/v1/namespaces/default/pods/{name}");
            let mut pod = server.get_pod(name).await;
            pod["metadata"]["labels"] = json!({"touched": "yes"});
            pod["metadata"].as_object_mut().unwrap().remove("resourceVersion");
            pod["spec"].as_object_mut().unwrap().remove("nodeName");
            server.send(Method::PUT, &path, pod).await;
        }
    };
    let (one, two, ()) = tokio::join!(server.place(all_on("n1")), server.place(all_on("n2")), change);
    for (i, (name, _)) in pods.iter().enumerate() {
        let mut both = [codes(&one)[i], codes(&two)[i]];
        both.sort_unstable();
        assert_eq!(both, [201, 409], "{name}");
        let winner = if codes(&one)[i] == 201 { "n1" } else { "n2" };
        assert_eq!(server.get_pod(name).await["spec"]["nodeName"], winner);
    }
    assert_eq!(server.events().await.len(), PODS);
}

/// A request that is cut off, and a store that is opened again: each pod has its machine and its event, or neither.
#[tokio::test(flavor = "multi_thread")]
async fn cut_off_half_way_each_pod_is_placed_whole_or_not_at_all() {
    const PODS: usize = 200;
    let mut placed_somewhere = false;
    for cut_after in [0, 300, 1_000, 3_000, 10_000_000] {
        let dir = tempfile::tempdir().unwrap();
        let open = || Embedded::open(dir.path(), embedded::Options::default()).unwrap();
        let store = Arc::new(open());
        let server = Server::with_nodes_and_namespace(store.clone()).await;
        let mut items = Vec::new();
        for i in 0..PODS {
            let name = format!("p{i}");
            let uid = server.pod(&name, json!({})).await;
            items.push(item(&name, &uid, "n1"));
        }
        let _ = tokio::time::timeout(Duration::from_micros(cut_after), server.place(items)).await;
        store.close().await.unwrap();
        drop((server, store));

        let store: Arc<dyn Store> = Arc::new(open());
        let values = async |prefix: &str| {
            let listing = store.list(List { prefix, ..List::default() }).await.unwrap();
            listing.entries.iter().map(|entry| serde_json::from_slice(&entry.value).unwrap()).collect::<Vec<Value>>()
        };
        let pods = values("/registry/pods/default/").await;
        assert_eq!(pods.len(), PODS);
        let bound = pods.iter().filter(|pod| pod["spec"]["nodeName"] == "n1");
        let bound: std::collections::BTreeSet<String> = bound.map(|pod| pod["metadata"]["name"].to_string()).collect();
        let told: Vec<String> =
            values("/registry/events/default/").await.iter().map(|e| e["involvedObject"]["name"].to_string()).collect();
        assert_eq!(told.len(), bound.len(), "cut after {cut_after} µs");
        assert_eq!(told.into_iter().collect::<std::collections::BTreeSet<_>>(), bound);
        placed_somewhere |= !bound.is_empty();
    }
    assert!(placed_somewhere);
}

#[tokio::test]
async fn a_machine_gives_back_what_is_its_own_and_never_started() {
    let server = Server::with_nodes_and_namespace(Arc::new(Memory::new())).await;
    let uid = server.pod("p", json!({})).await;
    server.place(vec![item("p", &uid, "n1")]).await;
    let path = "/api/v1/namespaces/default/pods/p/refusal";
    let said = json!({"uid": uid, "reason": "OutOfcpu", "message": "wants 4 cpu, has 2"});
    let refuse = async |node: &str, said: &Value| server.ask(User::node(node), Method::POST, path, said).await;
    assert_eq!(refuse("n2", &said).await.0, 403);
    assert_eq!(refuse("n1", &json!({"uid": "another"})).await.0, 409);
    assert_eq!(refuse("n1", &json!({})).await.0, 400);
    assert_eq!(refuse("n1", &said).await.0, 201);
    let pod = server.get_pod("p").await;
    assert_eq!(pod["spec"].get("nodeName"), None);
    assert_eq!(pod["metadata"]["annotations"]["mainstay.dev/refused-by"], "n1");
    let condition = &pod["status"]["conditions"][0];
    assert_eq!((&condition["status"], &condition["reason"]), (&json!("False"), &json!("Refused")));
    assert_eq!(condition["message"], "node n1 refused: OutOfcpu: wants 4 cpu, has 2");
    let events = server.events().await;
    assert!(events.iter().any(|e| e["reason"] == "Refused" && e["type"] == "Warning"), "{events:#?}");
    assert_eq!(refuse("n1", &said).await.0, 403, "it is no longer there");

    assert_eq!(codes(&server.place(vec![item("p", &uid, "n2")]).await), [201]);
    let started = json!({"status": {"startTime": "2026-01-01T00:00:00Z", "phase": "Running"}});
    let mut pod = server.get_pod("p").await;
    mainstay_api::patch::merge(&mut pod, &started);
    let status = "/api/v1/namespaces/default/pods/p/status";
    assert_eq!(server.ask(User::node("n2"), Method::PUT, status, &pod).await.0, 200);
    assert_eq!(refuse("n2", &said).await.0, 409);
    assert_eq!(server.get_pod("p").await["spec"]["nodeName"], "n2");
}

#[tokio::test]
async fn a_machine_offers_what_it_has_and_not_what_others_have() {
    let server = Server::with_nodes_and_namespace(Arc::new(Memory::new())).await;
    let offer = |name: &str| {
        let spec = json!({"free": {"cpu": "1.5"}, "automaticPorts": ["31000-32000"], "ttlSeconds": 5, "seen": "7"});
        json!({"metadata": {"name": name}, "spec": spec})
    };
    let path = "/apis/mainstay.dev/v1/offers";
    let (code, answer) = server.ask(User::node("n1"), Method::POST, path, &offer("n2")).await;
    assert_eq!(code, 403, "{answer}");
    assert!(
        answer["message"].as_str().unwrap().contains("is not allowed to create the offer of node \"n2\""),
        "{answer}"
    );
    let (code, answer) = server.ask(User::node("n1"), Method::POST, path, &offer("n1")).await;
    assert_eq!((code, &answer["spec"]["free"]["cpu"]), (201, &json!("1500m")), "{answer}");
    let own = format!("{path}/n1");
    assert_eq!(server.ask(User::node("n1"), Method::PUT, &own, &offer("n1")).await.0, 200, "whatever it was before");
    assert_eq!(server.ask(User::node("n2"), Method::PUT, &own, &offer("n1")).await.0, 403);
    assert_eq!(server.ask(User::node("n2"), Method::DELETE, &own, &json!(null)).await.0, 403);
    assert_eq!(server.ask(User::node("n1"), Method::DELETE, &own, &json!(null)).await.0, 200);
}

#[tokio::test]
async fn a_machine_says_what_it_sends_to_and_not_what_others_do() {
    let server = Server::with_nodes_and_namespace(Arc::new(Memory::new())).await;
    let table = |name: &str| json!({"metadata": {"name": name}, "spec": {"endpoints": "7", "nodes": "5"}});
    let path = "/apis/mainstay.dev/v1/servicetables";
    let (code, answer) = server.ask(User::node("n1"), Method::POST, path, &table("n2")).await;
    assert_eq!(code, 403, "{answer}");
    assert!(
        answer["message"].as_str().unwrap().contains("is not allowed to create the servicetable of node \"n2\""),
        "{answer}"
    );
    let (code, answer) = server.ask(User::node("n1"), Method::POST, path, &table("n1")).await;
    assert_eq!((code, &answer["spec"]["endpoints"]), (201, &json!("7")), "{answer}");
    let own = format!("{path}/n1");
    assert_eq!(server.ask(User::node("n1"), Method::PUT, &own, &table("n1")).await.0, 200, "whatever it was before");
    assert_eq!(server.ask(User::node("n2"), Method::PUT, &own, &table("n1")).await.0, 403);
}
