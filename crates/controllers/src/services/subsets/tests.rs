use serde_json::{Value, json};

use super::*;
use crate::services::testing::{pod, service};

fn planned(change: Value, pods: Vec<Pod>, current: Option<&Endpoints>) -> Option<Endpoints> {
    let pods: Vec<Arc<Pod>> = pods.into_iter().map(Arc::new).collect();
    let nodes = [("host".to_owned(), EndpointNode { by_host_port: true, ..EndpointNode::default() })].into();
    plan(&service(change), &pods, &nodes, current)
}

fn ports() -> Value {
    json!({"spec": {"ports": [{"name": "http", "port": 80, "targetPort": "http"}]}})
}

#[test]
fn subsets_are_as_upstream_has_them() {
    let unready = json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}});
    let leaving = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
    let pods = vec![
        pod("b", "10.1.0.10", json!({})),
        pod("a", "10.1.0.9", json!({})),
        pod("c", "10.1.0.3", unready),
        pod("d", "10.1.0.4", leaving),
        pod("e", "10.1.0.5", json!({"spec": {"containers": []}})),
    ];
    let found = planned(ports(), pods.clone(), None).unwrap();
    let address = |name: &str, ip: &str| json!({"ip": ip, "nodeName": "n1", "targetRef": {"kind": "Pod", "namespace": "ns", "name": name, "uid": format!("uid-{name}")}});
    let expected = json!({
        "apiVersion": "v1", "kind": "Endpoints",
        "metadata": {
            "name": "web", "namespace": "ns", "labels": {"team": "a", MANAGED_BY: CONTROLLER},
            "annotations": {TRIGGERED: "2026-01-01T00:00:00Z"},
        },
        "subsets": [{
            "addresses": [address("a", "10.1.0.9"), address("b", "10.1.0.10")],
            "notReadyAddresses": [address("c", "10.1.0.3")],
            "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
        }],
    });
    assert_eq!(serde_json::to_value(&found).unwrap(), expected);
    assert_eq!(planned(ports(), pods, Some(&found)), None, "and rests");
}

#[test]
fn a_service_that_publishes_all_has_them_all_ready() {
    let unready = json!({"status": {"conditions": []}});
    let leaving = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
    let mut open = ports();
    open["spec"]["publishNotReadyAddresses"] = json!(true);
    let found = planned(open, vec![pod("a", "10.1.0.1", unready), pod("b", "10.1.0.2", leaving)], None).unwrap();
    let subset = &found.subsets.unwrap()[0];
    assert_eq!((subset.addresses.as_ref().map(Vec::len), &subset.not_ready_addresses), (Some(2), &None));
}

#[test]
fn pods_of_different_ports_are_in_different_subsets_and_a_headless_service_needs_none() {
    let other = json!({"spec": {"containers": [{"ports": [{"name": "http", "containerPort": 9090}]}]}});
    let pods = vec![pod("a", "10.1.0.1", json!({})), pod("b", "10.1.0.2", other)];
    assert_eq!(planned(ports(), pods.clone(), None).unwrap().subsets.unwrap().len(), 2);
    let headless = planned(json!({"spec": {"clusterIP": "None"}}), pods.clone(), None).unwrap();
    assert_eq!(headless.metadata.labels.unwrap()[HEADLESS], "");
    let subsets = headless.subsets.unwrap();
    assert_eq!((subsets.len(), &subsets[0].ports), (1, &None));
    assert_eq!(planned(json!({}), pods, None).unwrap().subsets, None);
}

#[test]
fn beyond_a_thousand_what_is_not_ready_goes_first_and_it_says_so() {
    let pods = |ready: usize, not_ready: usize| -> Vec<Pod> {
        let one = |number: usize| {
            let change = if number < ready { json!({}) } else { json!({"status": {"conditions": []}}) };
            pod(&format!("p{number}"), &std::net::Ipv4Addr::from(0x0a01_0000 + number as u32).to_string(), change)
        };
        (0..ready + not_ready).map(one).collect()
    };
    for (ready, not_ready, expected, truncated) in
        [(600, 400, (600, 400), false), (600, 500, (600, 400), true), (1100, 50, (1000, 0), true)]
    {
        let found = planned(ports(), pods(ready, not_ready), None).unwrap();
        let noted = found.metadata.annotations.as_ref().and_then(|all| all.get(OVER_CAPACITY)).map(String::as_str);
        assert_eq!(noted, truncated.then_some("truncated"));
        let count = |all: &Option<Vec<EndpointAddress>>| all.as_ref().map_or(0, Vec::len);
        let subset = &found.subsets.as_ref().unwrap()[0];
        assert_eq!((count(&subset.addresses), count(&subset.not_ready_addresses)), expected);
        assert_eq!(planned(ports(), pods(ready, not_ready), Some(&found)), None, "and rests");
    }
}

#[test]
fn too_many_are_taken_from_all_subsets_alike() {
    let list = |count: usize| vec![EndpointAddress::default(); count];
    let (mut one, mut other, mut none) = (list(900), list(300), list(0));
    shrink(vec![&mut one, &mut other, &mut none], 1200, 1000);
    assert_eq!((one.len(), other.len(), none.len()), (750, 250, 0));
    let (mut one, mut other) = (list(2), list(1));
    shrink(vec![&mut one, &mut other], 3, 2);
    assert_eq!(one.len() + other.len(), 2);
}

#[test]
fn host_ports_are_reported_with_the_containers_port_behind_them() {
    let on_host = json!({
        "metadata": {"annotations": {"k8s.mesosphere.io/port_TCP_8080": "31001"}}, "spec": {"nodeName": "host"},
    });
    let found = planned(ports(), vec![pod("a", "10.1.0.1", on_host)], None).unwrap();
    let subset = &found.subsets.as_ref().unwrap()[0];
    assert_eq!(subset.addresses.as_ref().unwrap()[0].ip, "192.168.0.1");
    assert_eq!(subset.ports.as_ref().unwrap()[0].port, 31_001);
    let key = "k8s.mesosphere.io/containerPort_TCP_192.168.0.1_31001";
    assert_eq!(found.metadata.annotations.as_ref().unwrap()[key], "8080");
    let later = planned(ports(), Vec::new(), Some(&found)).unwrap();
    assert_eq!(later.metadata.annotations, None, "what is gone is not told");
}
