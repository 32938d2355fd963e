use std::{net::Ipv4Addr, time::Duration};

use futures::future::join_all;
use http::{Method, StatusCode};
use mainstay_api::registry::Registry;
use mainstay_store::{Listing, Memory, Outcome, Store, StoreError, Txn, Watch};
use tokio::sync::Barrier;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::{background::bootstrap::BootstrapClient, handler::Handler, settings::Settings};

/// A cluster with room for two machines.
fn server() -> Arc<Handler> {
    server_with_range(23)
}

fn server_with_range(prefix: u8) -> Arc<Handler> {
    let settings = Settings { pod_range: (Ipv4Addr::new(10, 1, 0, 0), prefix), ..Settings::default() };
    let api = Api::new(Registry::builtin(), Arc::new(Memory::new()), settings);
    Arc::new(Handler::new(api, CancellationToken::new()))
}

async fn node(own: &BootstrapClient<'_>, name: &str) -> (StatusCode, Value) {
    let (code, answer) = own.call(Method::POST, "/api/v1/nodes", Some(&json!({"metadata": {"name": name}}))).await;
    if code == StatusCode::CREATED {
        ready(own, name, "True").await;
    }
    (code, answer)
}

async fn ready(own: &BootstrapClient<'_>, name: &str, status: &str) {
    let path = format!("/api/v1/nodes/{name}");
    let mut node = own.call(Method::GET, &path, None).await.1;
    node["status"] = json!({"conditions": [{"type": "Ready", "status": status}]});
    assert_eq!(own.call(Method::PUT, &format!("{path}/status"), Some(&node)).await.0, StatusCode::OK);
}

async fn table(own: &BootstrapClient<'_>, name: &str, nodes: &str) {
    let path = "/apis/mainstay.dev/v1/servicetables";
    let table = json!({"metadata": {"name": name}, "spec": {"endpoints": "1", "nodes": nodes}});
    let (code, _) = own.call(Method::PUT, &format!("{path}/{name}"), Some(&table)).await;
    if code == StatusCode::NOT_FOUND {
        assert_eq!(own.call(Method::POST, path, Some(&table)).await.0, StatusCode::CREATED);
    }
}

#[tokio::test]
async fn a_range_is_not_used_again_while_a_machine_may_route_to_it() {
    let handler = server();
    let own = BootstrapClient::new(&handler);
    for name in ["a", "b"] {
        assert_eq!(node(&own, name).await.0, StatusCode::CREATED);
        table(&own, name, "1").await;
    }
    let (code, full) = node(&own, "c").await;
    assert_eq!(code, StatusCode::SERVICE_UNAVAILABLE);
    let message = full["message"].as_str().unwrap();
    assert!(message.contains("is free in 10.1.0.0/23, which holds 2 nodes with a /24 each"), "{message}");
    assert!(message.contains("--node-pod-range-size"), "{message}");
    assert_eq!(own.call(Method::DELETE, "/api/v1/nodes/a", None).await.0, StatusCode::OK);
    let (code, told) = node(&own, "c").await;
    assert_eq!(code, StatusCode::SERVICE_UNAVAILABLE, "{told}");
    let message = told["message"].as_str().unwrap();
    assert!(message.ends_with("to 10.1.0.0/24, which was given back, these nodes may still route: b"), "{message}");
    let revision = handler.api.store.revision().await.unwrap();
    table(&own, "b", &revision.to_string()).await;
    let (code, given) = node(&own, "c").await;
    assert_eq!((code, &given["spec"]["podCIDR"]), (StatusCode::CREATED, &json!("10.1.0.0/24")));
}

#[tokio::test]
async fn who_is_silent_or_has_no_table_is_not_waited_for() {
    let handler = server();
    let own = BootstrapClient::new(&handler);
    for name in ["a", "b"] {
        assert_eq!(node(&own, name).await.0, StatusCode::CREATED);
    }
    own.call(Method::DELETE, "/api/v1/nodes/a", None).await;
    assert_eq!(node(&own, "c").await.0, StatusCode::CREATED, "b has no table");
    table(&own, "b", "1").await;
    own.call(Method::DELETE, "/api/v1/nodes/c", None).await;
    assert_eq!(node(&own, "d").await.0, StatusCode::SERVICE_UNAVAILABLE);
    ready(&own, "b", "Unknown").await;
    assert_eq!(node(&own, "d").await.0, StatusCode::CREATED, "b is silent");
}

#[tokio::test]
async fn smaller_ranges_make_room_for_more_machines_and_keep_clear_of_larger_ones() {
    let store = Arc::new(Memory::new());
    let start = |bits: u8| {
        let settings =
            Settings { pod_range: (Ipv4Addr::new(10, 1, 0, 0), 23), node_pod_bits: bits, ..Settings::default() };
        Arc::new(Handler::new(Api::new(Registry::builtin(), store.clone(), settings), CancellationToken::new()))
    };
    let first = start(24);
    assert_eq!(node(&BootstrapClient::new(&first), "a").await.1["spec"]["podCIDR"], json!("10.1.0.0/24"));
    let second = start(26);
    let own = BootstrapClient::new(&second);
    let mut given = Vec::new();
    for name in ["b", "c", "d", "e"] {
        given.push(node(&own, name).await.1["spec"]["podCIDR"].as_str().unwrap().to_owned());
    }
    assert_eq!(given, ["10.1.1.0/26", "10.1.1.64/26", "10.1.1.128/26", "10.1.1.192/26"]);
    assert_eq!(node(&own, "f").await.0, StatusCode::SERVICE_UNAVAILABLE);
}

async fn list_routes(own: &BootstrapClient<'_>, data: Value) {
    let path = "/api/v1/namespaces/kube-system/configmaps";
    let map = json!({"metadata": {"name": "pod-range-routes"}, "data": data});
    let (code, answer) = own.call(Method::PUT, &format!("{path}/pod-range-routes"), Some(&map)).await;
    if code == StatusCode::NOT_FOUND {
        let (code, answer) = own.call(Method::POST, path, Some(&map)).await;
        assert_eq!(code, StatusCode::CREATED, "{answer}");
    } else {
        assert_eq!(code, StatusCode::OK, "{answer}");
    }
}

#[tokio::test]
async fn a_range_that_a_router_still_routes_is_not_handed_out() {
    let handler = server();
    let own = BootstrapClient::new(&handler);
    let namespace = json!({"metadata": {"name": "kube-system"}});
    own.call(Method::POST, "/api/v1/namespaces", Some(&namespace)).await;
    list_routes(&own, json!({"10.1.0.0_24": "10.0.0.9", "nonsense": "10.0.0.8"})).await;
    let (code, given) = node(&own, "a").await;
    assert_eq!((code, given["spec"]["podCIDR"].as_str()), (StatusCode::CREATED, Some("10.1.1.0/24")), "{given}");
    let (code, refused) = node(&own, "b").await;
    assert_eq!(code, StatusCode::SERVICE_UNAVAILABLE, "{refused}");
    let message = refused["message"].as_str().unwrap();
    assert!(message.contains("a router of the cloud still has a route to 10.1.0.0/24"), "{message}");
    // Also one that was given back, until the route is gone.
    list_routes(&own, json!({"10.1.1.0_25": "10.0.0.9"})).await;
    assert_eq!(node(&own, "b").await.1["spec"]["podCIDR"], "10.1.0.0/24");
    assert_eq!(own.call(Method::DELETE, "/api/v1/nodes/a", None).await.0, StatusCode::OK);
    assert_eq!(node(&own, "c").await.0, StatusCode::SERVICE_UNAVAILABLE);
    list_routes(&own, json!({})).await;
    assert_eq!(node(&own, "c").await.1["spec"]["podCIDR"], "10.1.1.0/24");
}

#[tokio::test]
async fn a_range_that_was_routed_is_the_next_once_the_route_is_gone() {
    let handler = server_with_range(22);
    let own = BootstrapClient::new(&handler);
    let namespace = json!({"metadata": {"name": "kube-system"}});
    own.call(Method::POST, "/api/v1/namespaces", Some(&namespace)).await;
    list_routes(&own, json!({"10.1.0.0_24": "10.0.0.9"})).await;
    assert_eq!(node(&own, "a").await.1["spec"]["podCIDR"], "10.1.1.0/24");
    list_routes(&own, json!({})).await;
    assert_eq!(node(&own, "b").await.1["spec"]["podCIDR"], "10.1.0.0/24");
    assert_eq!(node(&own, "c").await.1["spec"]["podCIDR"], "10.1.2.0/24");
}

/// A store in which no Node is committed before so many are about to be.
struct CommitsTogether {
    inner: Memory,
    together: Barrier,
}

#[async_trait]
impl Store for CommitsTogether {
    async fn get(&self, key: &str) -> Result<(Option<Arc<Entry>>, Revision), StoreError> {
        self.inner.get(key).await
    }

    async fn list(&self, query: List<'_>) -> Result<Listing, StoreError> {
        self.inner.list(query).await
    }

    async fn commit(&self, txn: Txn) -> Result<Outcome, StoreError> {
        if txn.compares.iter().any(|compare| compare.key.starts_with(RANGES)) {
            self.together.wait().await;
        }
        self.inner.commit(txn).await
    }

    async fn watch(&self, prefix: &str, after: Revision) -> Result<Box<dyn Watch>, StoreError> {
        self.inner.watch(prefix, after).await
    }

    async fn compact(&self, at: Revision) -> Result<(), StoreError> {
        self.inner.compact(at).await
    }

    async fn revision(&self) -> Result<Revision, StoreError> {
        self.inner.revision().await
    }
}

fn handler_on(store: Arc<dyn Store>, bits: u8) -> Arc<Handler> {
    let settings = Settings { pod_range: (Ipv4Addr::new(10, 1, 0, 0), bits), ..Settings::default() };
    Arc::new(Handler::new(Api::new(Registry::builtin(), store, settings), CancellationToken::new()))
}

#[tokio::test]
async fn machines_that_register_together_do_not_wait_for_each_others_commits() {
    const NODES: usize = 16;
    let store = Arc::new(CommitsTogether { inner: Memory::new(), together: Barrier::new(NODES) });
    let handler = handler_on(store, 16);
    let register = |number: usize| {
        let handler = handler.clone();
        async move {
            let node = json!({"metadata": {"name": format!("n{number}")}});
            let (code, node) = BootstrapClient::new(&handler).call(Method::POST, "/api/v1/nodes", Some(&node)).await;
            assert_eq!(code, StatusCode::CREATED, "{node}");
            node["spec"]["podCIDR"].as_str().unwrap().to_owned()
        }
    };
    let registered = tokio::time::timeout(Duration::from_secs(60), join_all((0..NODES).map(register)));
    let mut ranges = registered.await.expect("all commits are under way at once");
    ranges.sort_by_key(|range| range.split('.').nth(2).unwrap().parse::<u8>().unwrap());
    let expected: Vec<String> = (0..NODES).map(|number| format!("10.1.{number}.0/24")).collect();
    assert_eq!(ranges, expected);
}

#[tokio::test]
async fn a_range_that_a_write_did_not_take_in_the_end_is_the_next() {
    let handler = handler_on(Arc::new(Memory::new()), 22);
    let own = BootstrapClient::new(&handler);
    let tried = json!({"metadata": {"name": "tried"}});
    let (code, answer) = own.call(Method::POST, "/api/v1/nodes?dryRun=All", Some(&tried)).await;
    assert_eq!((code, &answer["spec"]["podCIDR"]), (StatusCode::CREATED, &json!("10.1.0.0/24")));
    assert_eq!(node(&own, "a").await.1["spec"]["podCIDR"], json!("10.1.0.0/24"));
    assert_eq!(node(&own, "a").await.0, StatusCode::CONFLICT);
    assert_eq!(node(&own, "b").await.1["spec"]["podCIDR"], json!("10.1.1.0/24"));
}

#[tokio::test]
async fn servers_that_share_a_store_never_give_out_the_same_addresses() {
    let store = Arc::new(Memory::new());
    let (first, second) = (handler_on(store.clone(), 21), handler_on(store, 21));
    let (first, second) = (BootstrapClient::new(&first), BootstrapClient::new(&second));
    let mut given = Vec::new();
    for (client, name) in [(&first, "a"), (&second, "b"), (&first, "c"), (&second, "d")] {
        given.push(node(client, name).await.1["spec"]["podCIDR"].as_str().unwrap().to_owned());
    }
    assert_eq!(given, ["10.1.0.0/24", "10.1.1.0/24", "10.1.2.0/24", "10.1.3.0/24"]);
    // A Node that brings a range of another size.
    let bring = |name: &str, range: &str| json!({"metadata": {"name": name}, "spec": {"podCIDR": range}});
    let brought = bring("e", "10.1.4.0/23");
    assert_eq!(second.call(Method::POST, "/api/v1/nodes", Some(&brought)).await.0, StatusCode::CREATED);
    assert_eq!(node(&first, "f").await.1["spec"]["podCIDR"], json!("10.1.6.0/24"));
    for taken in ["10.1.5.0/24", "10.1.6.0/25", "10.1.0.0/16"] {
        let (code, refused) = first.call(Method::POST, "/api/v1/nodes", Some(&bring("g", taken))).await;
        assert_eq!(code, StatusCode::UNPROCESSABLE_ENTITY, "{taken}: {refused}");
        assert!(refused["message"].as_str().unwrap().contains("the range of node"), "{refused}");
    }
    // What it held is free again with it.
    assert_eq!(first.call(Method::DELETE, "/api/v1/nodes/e", None).await.0, StatusCode::OK);
    let brought = bring("h", "10.1.4.0/24");
    assert_eq!(first.call(Method::POST, "/api/v1/nodes", Some(&brought)).await.0, StatusCode::CREATED);
}
