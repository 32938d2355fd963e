use serde_json::{Value, json};

use super::*;
use crate::services::testing::service;

fn world(change: Value, selector: Value) -> World {
    let mut endpoints = json!({
        "metadata": {
            "name": "web", "namespace": "ns", "uid": "uid-e", "labels": {"team": "b"},
            "annotations": {"note": "x", LAST_APPLIED: "{}"},
        },
        "subsets": [{
            "addresses": [{"ip": "10.9.0.1", "hostname": "h", "nodeName": "n1"}, {"ip": "fd00::1"}],
            "notReadyAddresses": [{"ip": "10.9.0.2"}],
            "ports": [{"name": "db", "port": 5432}],
        }],
    });
    mainstay_api::patch::merge(&mut endpoints, &change);
    World {
        service: Some(Arc::new(service(json!({"spec": {"selector": selector}})))),
        endpoints: Arc::new(serde_json::from_value(endpoints).unwrap()),
        slices: Vec::new(),
        names: vec!["web-0".into(), "web-1".into()],
    }
}

fn made(world: &World) -> Vec<EndpointSlice> {
    let writes = plan(world).writes.into_iter();
    writes.map(|write| if let Write::Create(slice) = write { *slice } else { panic!("{write:?}") }).collect()
}

#[test]
fn what_people_wrote_is_repeated_by_kind_of_address() {
    let slices = made(&world(json!({}), json!(null)));
    let found = serde_json::to_value(&slices).unwrap();
    let meta = |name: &str| {
        json!({
            "name": name, "namespace": "ns", "generateName": "web-",
            "labels": {"team": "b", "kubernetes.io/service-name": "web", MANAGED_BY: CONTROLLER},
            "annotations": {"note": "x"},
            "ownerReferences": [{
                "apiVersion": "v1", "kind": "Endpoints", "name": "web", "uid": "uid-e",
                "controller": true, "blockOwnerDeletion": true,
            }],
        })
    };
    let ports = json!([{"name": "db", "port": 5432, "protocol": "TCP"}]);
    let slice = |name: &str, kind: &str, endpoints: Value| {
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": meta(name),
            "addressType": kind, "endpoints": endpoints, "ports": ports,
        })
    };
    let four = json!([
        {"addresses": ["10.9.0.1"], "conditions": {"ready": true}, "hostname": "h", "nodeName": "n1"},
        {"addresses": ["10.9.0.2"], "conditions": {"ready": false}},
    ]);
    let six = json!([{"addresses": ["fd00::1"], "conditions": {"ready": true}}]);
    assert_eq!(found, json!([slice("web-0", "IPv4", four), slice("web-1", "IPv6", six)]));
}

#[test]
fn what_is_not_to_be_repeated_is_not_and_what_was_goes() {
    let skipped = json!({"metadata": {"labels": {SKIP: "true"}}});
    let lock = json!({"metadata": {"annotations": {super::super::endpoints::LEADER: "x"}}});
    for (change, selector) in [(skipped, json!(null)), (lock, json!(null)), (json!({}), json!({"app": "web"}))] {
        let mut world = world(change, selector);
        assert_eq!(plan(&world).writes, []);
        world.slices = made(&self::world(json!({}), json!(null))).into_iter().map(Arc::new).collect();
        let writes = plan(&world).writes;
        assert!(writes.len() == 2 && writes.iter().all(|write| matches!(write, Write::Delete { .. })), "{writes:?}");
    }
}
