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
