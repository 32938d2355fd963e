use mainstay_api::registry::Registry;
use mainstay_store::Memory;

use super::*;
use crate::{api::Api, settings::Settings};

fn server(store: &Arc<Memory>) -> Arc<Handler> {
    let api = Api::new(Registry::builtin(), store.clone(), Settings::default());
    Arc::new(Handler::new(api, CancellationToken::new()))
}

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

async fn listed(handler: &Arc<Handler>) -> (Vec<String>, Vec<String>) {
    let own = BootstrapClient::new(handler);
    let slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes";
    let slice = own.call(Method::GET, slices, None).await.1;
    let endpoints = own.call(Method::GET, "/api/v1/namespaces/default/endpoints/kubernetes", None).await.1;
    let list = |all: &Value| all.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let in_slice = list(&slice["endpoints"]).iter().map(|own| text(&own["addresses"][0])).collect();
    let subsets = list(&endpoints["subsets"]);
    let in_subsets = subsets.iter().flat_map(|subset| list(&subset["addresses"])).map(|own| text(&own["ip"])).collect();
    (in_slice, in_subsets)
}

#[tokio::test(start_paused = true)]
async fn the_list_is_of_servers_that_live() {
    let store = Arc::new(Memory::new());
    let (one, two) = (server(&store), server(&store));
    crate::background::bootstrap::bootstrap(&one, address("10.0.0.1:6443")).await.unwrap();
    crate::background::bootstrap::bootstrap(&two, address("10.0.0.2:6443")).await.unwrap();
    let both: Vec<String> = ["10.0.0.1", "10.0.0.2"].map(str::to_owned).into();
    assert_eq!(listed(&one).await, (both.clone(), both.clone()));
    let stop = CancellationToken::new();
    let keeper = tokio::spawn(keep(one.clone(), address("10.0.0.1:6443"), stop.clone()));
    let version = || async {
        let path = "/api/v1/namespaces/default/endpoints/kubernetes";
        BootstrapClient::new(&one).call(Method::GET, path, None).await.1["metadata"]["resourceVersion"].clone()
    };
    let before = version().await;
    tokio::time::sleep(Duration::from_secs(12)).await;
    assert_eq!(listed(&one).await.0, both, "the other may yet be heard");
    assert_eq!(version().await, before, "what stands is not written again");
    tokio::time::sleep(Duration::from_secs(18)).await;
    let alone = vec!["10.0.0.1".to_owned()];
    assert_eq!(listed(&one).await, (alone.clone(), alone), "it was not");
    stop.cancel();
    keeper.await.unwrap();
    assert_eq!(listed(&one).await, (vec![], vec![]), "who ends in peace takes himself off");
    renew(&two, address("10.0.0.2:6443"), &mut ServerHeartbeats::default()).await.unwrap();
    assert_eq!(listed(&one).await.0, ["10.0.0.2"]);
}

#[tokio::test]
async fn a_server_that_nobody_else_reaches_is_not_listed() {
    let store = Arc::new(Memory::new());
    let one = server(&store);
    crate::background::bootstrap::bootstrap(&one, address("127.0.0.1:6443")).await.unwrap();
    assert_eq!(listed(&one).await, (vec![], vec![]));
}

#[tokio::test]
async fn every_cluster_has_an_address_for_dns() {
    let store = Arc::new(Memory::new());
    let one = server(&store);
    crate::background::bootstrap::bootstrap(&one, address("127.0.0.1:6443")).await.unwrap();
    let dns =
        BootstrapClient::new(&one).call(Method::GET, "/api/v1/namespaces/kube-system/services/kube-dns", None).await.1;
    assert_eq!(dns["spec"]["clusterIP"], "10.96.0.10");
    assert_eq!(dns["spec"]["selector"], Value::Null);
    assert_eq!(dns["metadata"]["labels"]["k8s-app"], "kube-dns");
    let ports: Vec<String> = dns["spec"]["ports"]
        .as_array()
        .unwrap()
        .iter()
        .map(|port| {
            format!("{} {}/{}", port["name"].as_str().unwrap(), port["port"], port["protocol"].as_str().unwrap())
        })
        .collect();
    assert_eq!(ports, ["dns 53/UDP", "dns-tcp 53/TCP"]);
}

#[test]
fn servers_at_different_ports_are_in_different_subsets_and_the_slice_has_most() {
    let servers = ["10.0.0.1:6443", "10.0.0.2:7443", "10.0.0.3:7443"].map(address);
    assert_eq!(endpoints(&servers)["subsets"].as_array().unwrap().len(), 2);
    let slice = slice(&servers);
    assert_eq!((&slice["ports"][0]["port"], slice["endpoints"].as_array().unwrap().len()), (&json!(7443), 2));
}
