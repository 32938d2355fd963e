use http::{Method, StatusCode};
use mainstay_api::registry::Registry;
use mainstay_store::Memory;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::{background::bootstrap::BootstrapClient, handler::Handler, settings::Settings};

/// A cluster with room for two machines.
fn server() -> Arc<Handler> {
    let settings = Settings { pod_range: (Ipv4Addr::new(10, 1, 0, 0), 23), ..Settings::default() };
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
