use std::sync::Arc;

use http::{Method, StatusCode};
use mainstay_api::registry::Registry;
use mainstay_store::Memory;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::{background::bootstrap::BootstrapClient, handler::Handler};

const SERVICES: &str = "/api/v1/namespaces/default/services";

async fn server(settings: Settings) -> Arc<Handler> {
    let api = Api::new(Registry::builtin(), Arc::new(Memory::new()), settings);
    let handler = Arc::new(Handler::new(api, CancellationToken::new()));
    let namespace = json!({"metadata": {"name": "default"}});
    let (code, _) = BootstrapClient::new(&handler).call(Method::POST, "/api/v1/namespaces", Some(&namespace)).await;
    assert_eq!(code, StatusCode::CREATED);
    handler
}

fn service(name: &str, change: Value) -> Value {
    let mut service = json!({"metadata": {"name": name}, "spec": {"ports": [{"port": 80}]}});
    mainstay_api::patch::merge(&mut service, &change);
    service
}

async fn create(handler: &Arc<Handler>, name: &str, change: Value) -> (u16, String) {
    let (code, answer) = BootstrapClient::new(handler).call(Method::POST, SERVICES, Some(&service(name, change))).await;
    (code.as_u16(), answer["message"].as_str().unwrap_or_default().to_owned())
}

fn node_port(number: u16, protocol: &str) -> Value {
    json!({"spec": {"type": "NodePort", "ports": [{"port": 80, "nodePort": number, "protocol": protocol}]}})
}

#[tokio::test]
async fn what_another_has_is_refused_by_field() {
    let handler = server(Settings::default()).await;
    assert_eq!(create(&handler, "a", node_port(30_080, "TCP")).await.0, 201);
    let taken =
        "Service \"b\" is invalid: spec.ports[0].nodePort: Invalid value: 30080: provided port is already allocated";
    assert_eq!(create(&handler, "b", node_port(30_080, "TCP")).await, (422, taken.into()));
    assert_eq!(
        create(&handler, "b", node_port(30_080, "UDP")).await,
        (422, taken.into()),
        "numbers are given, not pairs"
    );
    assert_eq!(create(&handler, "c", json!({"spec": {"clusterIP": "10.96.0.77"}})).await.0, 201);
    let taken = "Service \"d\" is invalid: spec.clusterIPs: Invalid value: [\"10.96.0.77\"]: failed to allocate IP \
                 10.96.0.77: provided IP is already allocated";
    assert_eq!(create(&handler, "d", json!({"spec": {"clusterIP": "10.96.0.77"}})).await, (422, taken.into()));
    let own = BootstrapClient::new(&handler);
    assert_eq!(own.call(Method::DELETE, &format!("{SERVICES}/a"), None).await.0, StatusCode::OK);
    assert_eq!(create(&handler, "b", node_port(30_080, "TCP")).await.0, 201, "what is given back is free");
}

#[tokio::test]
async fn what_lies_outside_is_refused_by_field() {
    let handler = server(Settings::default()).await;
    let ports = "Service \"a\" is invalid: spec.ports[0].nodePort: Invalid value: 80: provided port is not in the valid \
                 range. The range of valid ports is 30000-32767";
    assert_eq!(create(&handler, "a", node_port(80, "TCP")).await, (422, ports.into()));
    let addresses = "Service \"a\" is invalid: spec.clusterIPs: Invalid value: [\"10.97.0.1\"]: failed to allocate IP \
                     10.97.0.1: the provided IP (10.97.0.1) is not in the valid range. The range of valid IPs is \
                     10.96.0.0/16";
    assert_eq!(create(&handler, "a", json!({"spec": {"clusterIP": "10.97.0.1"}})).await, (422, addresses.into()));
    let (code, message) = create(&handler, "my_app", json!({})).await;
    assert_eq!(code, 422);
    let begin = "Service \"my_app\" is invalid: metadata.name: Invalid value: \"my_app\": a DNS-1035 label must consist of \
                 lower case alphanumeric characters or '-'";
    assert!(message.starts_with(begin), "{message}");
}

#[tokio::test]
async fn when_all_are_given_the_range_is_full() {
    let settings = Settings {
        service_range: (Ipv4Addr::new(10, 9, 0, 0), 29),
        node_ports: (30_000, 30_001),
        ..Settings::default()
    };
    let handler = server(settings).await;
    let headless = json!({"spec": {"clusterIP": "None"}});
    for number in 0..6 {
        assert_eq!(create(&handler, &format!("s{number}"), json!({})).await.0, 201, "{number}");
    }
    let (code, message) = create(&handler, "more", json!({})).await;
    assert_eq!(code, 500);
    assert!(message.contains("range 10.9.0.0/29 is full") || message.contains("range is full"), "{message}");
    assert_eq!(create(&handler, "headless", headless).await.0, 201, "who needs none is not refused");
    let own = BootstrapClient::new(&handler);
    own.call(Method::DELETE, &format!("{SERVICES}/s0"), None).await;
    own.call(Method::DELETE, &format!("{SERVICES}/s1"), None).await;
    let two = json!({"spec": {"type": "NodePort", "ports": [{"name": "a", "port": 80}, {"name": "b", "port": 81}]}});
    assert_eq!(create(&handler, "two", two).await.0, 201);
    let (code, message) = create(&handler, "third", json!({"spec": {"type": "NodePort"}})).await;
    assert_eq!(code, 500);
    assert!(message.contains("failed to allocate a nodePort: range"), "{message}");
    assert_eq!(create(&handler, "plain", json!({})).await.0, 201, "what failed half way holds nothing");
}

const CIDRS: &str = "/apis/networking.k8s.io/v1/servicecidrs";

fn service_cidr(name: &str, ranges: Value) -> Value {
    json!({"metadata": {"name": name, "finalizers": ["example.com/held"]}, "spec": {"cidrs": ranges}})
}

#[tokio::test]
async fn a_service_cidr_gives_addresses_while_it_is_ready_and_not_deleted() {
    let settings = Settings { service_range: (Ipv4Addr::new(10, 9, 0, 0), 30), ..Settings::default() };
    let handler = server(settings).await;
    let own = BootstrapClient::new(&handler);
    for name in ["s0", "s1"] {
        assert_eq!(create(&handler, name, json!({})).await.0, 201);
    }
    let (code, message) = create(&handler, "more", json!({})).await;
    assert!(code == 500 && message.contains("range 10.9.0.0/30 is full"), "{message}");
    let more = service_cidr("more", json!(["10.8.0.0/24", "fd00::/112"]));
    assert_eq!(own.call(Method::POST, CIDRS, Some(&more)).await.0, StatusCode::CREATED);
    assert_eq!(create(&handler, "more", json!({})).await.0, 201);
    let (_, found) = own.call(Method::GET, &format!("{SERVICES}/more"), None).await;
    assert!(found["spec"]["clusterIP"].as_str().is_some_and(|ip| ip.starts_with("10.8.0.")), "{found}");
    assert_eq!(create(&handler, "chosen", json!({"spec": {"clusterIP": "10.8.0.200"}})).await.0, 201);
    let (_, outside) = create(&handler, "outside", json!({"spec": {"clusterIP": "10.7.0.1"}})).await;
    assert!(outside.ends_with("The range of valid IPs is 10.9.0.0/30, 10.8.0.0/24"), "{outside}");

    let (_, mut found) = own.call(Method::GET, &format!("{CIDRS}/more"), None).await;
    let since = "2026-01-01T00:00:00Z";
    let refused =
        json!({"type": "Ready", "status": "False", "reason": "Held", "message": "", "lastTransitionTime": since});
    found["status"] = json!({ "conditions": [refused] });
    assert_eq!(own.call(Method::PUT, &format!("{CIDRS}/more/status"), Some(&found)).await.0, StatusCode::OK);
    assert_eq!(create(&handler, "late", json!({"spec": {"clusterIP": "10.8.0.201"}})).await.0, 422, "not ready");
    let (_, mut found) = own.call(Method::GET, &format!("{CIDRS}/more"), None).await;
    found["status"] = json!({ "conditions": [] });
    assert_eq!(own.call(Method::PUT, &format!("{CIDRS}/more/status"), Some(&found)).await.0, StatusCode::OK);
    assert_eq!(create(&handler, "late", json!({"spec": {"clusterIP": "10.8.0.201"}})).await.0, 201);
    own.call(Method::DELETE, &format!("{CIDRS}/more"), None).await;
    assert_eq!(create(&handler, "later", json!({"spec": {"clusterIP": "10.8.0.202"}})).await.0, 422, "being deleted");
}

#[tokio::test]
async fn a_service_cidr_has_no_addresses_of_pods() {
    let handler = server(Settings::default()).await;
    let own = BootstrapClient::new(&handler);
    for ranges in [json!(["10.244.7.0/24"]), json!(["10.0.0.0/8"]), json!(["fd00::/112", "10.244.0.0/16"])] {
        let (code, answer) = own.call(Method::POST, CIDRS, Some(&service_cidr("pods", ranges.clone()))).await;
        let message = answer["message"].as_str().unwrap_or_default();
        assert_eq!(code, StatusCode::UNPROCESSABLE_ENTITY, "{ranges}");
        assert!(message.ends_with("overlaps with 10.244.0.0/16, the range of pods"), "{message}");
    }
    let tiny = service_cidr("tiny", json!(["10.8.0.1/32"]));
    assert_eq!(own.call(Method::POST, CIDRS, Some(&tiny)).await.0, StatusCode::CREATED);
    assert_eq!(create(&handler, "a", json!({})).await.0, 201, "a range without an address to give is passed over");
}
