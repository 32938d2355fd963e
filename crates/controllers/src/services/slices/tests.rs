use k8s_openapi::api::discovery::v1::Endpoint;
use serde_json::{Value, json};

use super::*;
use crate::services::testing::{pod, service};

fn world(change: Value, pods: Vec<Pod>) -> World {
    let near = EndpointNode { zone: Some("z1".into()), ..EndpointNode::default() };
    let far = EndpointNode { by_host_port: true, ..EndpointNode::default() };
    World {
        service: Arc::new(service(change)),
        pods: pods.into_iter().map(Arc::new).collect(),
        nodes: [("n1".to_owned(), near), ("host".to_owned(), far)].into(),
        slices: Vec::new(),
        names: (0..9).map(|number| format!("web-{number}")).collect(),
    }
}

fn made(world: &World) -> Vec<EndpointSlice> {
    let packed = plan(world);
    let all = packed.writes.into_iter().map(|write| match write {
        Write::Create(slice) => *slice,
        other => panic!("{other:?}"),
    });
    all.collect()
}

fn addresses(slice: &EndpointSlice) -> Vec<&str> {
    slice.endpoints.iter().flatten().map(|endpoint| endpoint.addresses[0].as_str()).collect()
}

#[test]
fn a_slice_says_all_that_upstream_says() {
    let change = json!({"metadata": {"labels": {HEADLESS: "x", MANAGED_BY: "me"}}, "spec": {
        "clusterIP": "None",
        "ports": [{"name": "http", "port": 80, "targetPort": "http", "appProtocol": "h2c"}, {"name": "any", "port": 9, "protocol": "UDP", "targetPort": 99}],
    }});
    let named = json!({"spec": {"hostname": "h", "subdomain": "web"}});
    let slices = made(&world(change, vec![pod("a", "10.1.0.1", named)]));
    let found = serde_json::to_value(&slices).unwrap();
    let expected = json!([{
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {
            "name": "web-0", "namespace": "ns", "generateName": "web-",
            "labels": {
                "team": "a", "kubernetes.io/service-name": "web", MANAGED_BY: CONTROLLER, HEADLESS: "",
            },
            "annotations": {"endpoints.kubernetes.io/last-change-trigger-time": "2026-01-01T00:00:00Z"},
            "ownerReferences": [{
                "apiVersion": "v1", "kind": "Service", "name": "web", "uid": "uid-web",
                "controller": true, "blockOwnerDeletion": true,
            }],
        },
        "addressType": "IPv4",
        "endpoints": [{
            "addresses": ["10.1.0.1"], "conditions": {"ready": true, "serving": true, "terminating": false},
            "hostname": "h", "nodeName": "n1", "zone": "z1",
            "targetRef": {"kind": "Pod", "namespace": "ns", "name": "a", "uid": "uid-a"},
        }],
        "ports": [
            {"name": "any", "protocol": "UDP", "port": 99},
            {"name": "http", "protocol": "TCP", "port": 8080, "appProtocol": "h2c"},
        ],
    }]);
    assert_eq!(found, expected);
}

#[test]
fn pods_that_mean_different_ports_by_one_name_are_in_different_slices() {
    let other = json!({"spec": {"containers": [{"ports": [{"name": "http", "containerPort": 9090}]}]}});
    let none = json!({"spec": {"containers": []}});
    let change = json!({"spec": {"ports": [{"port": 80, "targetPort": "http"}]}});
    let pods = vec![
        pod("a", "10.1.0.1", json!({})),
        pod("b", "10.1.0.2", other),
        pod("c", "10.1.0.3", json!({})),
        pod("d", "10.1.0.4", none),
    ];
    let slices = made(&world(change, pods));
    let found: Vec<(Option<i32>, Vec<&str>)> = slices
        .iter()
        .map(|slice| (slice.ports.iter().flatten().next().and_then(|port| port.port), addresses(slice)))
        .collect();
    let expected =
        [(None, vec!["10.1.0.4"]), (Some(8080), vec!["10.1.0.1", "10.1.0.3"]), (Some(9090), vec!["10.1.0.2"])];
    assert_eq!(found, expected);
}

#[test]
fn pods_of_machines_that_are_gone_are_left_out_unless_all_are_published() {
    let lost = || vec![pod("a", "10.1.0.1", json!({"spec": {"nodeName": "gone"}}))];
    let change = json!({"spec": {"ports": [{"port": 80}]}});
    assert_eq!(addresses(&made(&world(change.clone(), lost()))[0]), Vec::<&str>::new());
    let open = json!({"spec": {"ports": [{"port": 80}], "publishNotReadyAddresses": true}});
    assert_eq!(addresses(&made(&world(open, lost()))[0]), ["10.1.0.1"]);
}

#[test]
fn where_addresses_lead_nowhere_slices_name_machines_and_host_ports() {
    let on = |port: &str| json!({"metadata": {"annotations": {"k8s.mesosphere.io/port_TCP_8080": port}}, "spec": {"nodeName": "host"}});
    let change = json!({"spec": {"ports": [{"port": 80, "targetPort": "http"}]}});
    let pods = vec![pod("a", "10.1.0.1", on("31001")), pod("b", "10.1.0.2", on("31002"))];
    let slices = made(&world(change, pods));
    let found: Vec<(i32, Vec<&str>)> =
        slices.iter().map(|slice| (slice.ports.as_ref().unwrap()[0].port.unwrap(), addresses(slice))).collect();
    assert_eq!(found, [(31_001, vec!["192.168.0.1"]), (31_002, vec!["192.168.0.1"])]);
}

#[test]
fn a_service_that_selects_nothing_any_more_loses_its_slices() {
    let mut was = world(json!({}), vec![pod("a", "10.1.0.1", json!({}))]);
    let mut slice = made(&was).remove(0);
    slice.endpoints = Some(vec![Endpoint::default()]);
    was.slices = vec![Arc::new(slice)];
    for change in [json!({"spec": {"selector": null}}), json!({"spec": {"type": "ExternalName", "clusterIP": null}})] {
        was.service = Arc::new(service(change));
        assert!(matches!(&plan(&was).writes[..], [Write::Delete { .. }]));
    }
}
