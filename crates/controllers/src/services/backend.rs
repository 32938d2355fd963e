//! A pod as an endpoint of a Service: where it is reached, and whether.

use jiff::Timestamp;
use k8s_openapi::{
    api::{
        core::v1::{EndpointAddress, ObjectReference},
        discovery::v1::{Endpoint, EndpointConditions, EndpointHints, ForNode, ForZone},
    },
    apimachinery::pkg::apis::meta::v1::Time,
};

use super::{
    endpoint_node::EndpointNode,
    ports::{self, Port},
};
use crate::objects::{pod::Pod, service::Service};

/// Where a pod is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodBackend<'a> {
    pub address: &'a str,
    pub ports: Vec<Port>,
    /// Host ports among them, with the container's port behind each.
    pub behind: Vec<(Port, i32)>,
}

/// Where a Service reaches a pod; nothing if it does not. Those on nodes whose pods have no addresses of their own
/// are there only as long as they are ready and stay.
pub fn reached<'a>(service: &Service, pod: &'a Pod, node: Option<&EndpointNode>) -> Option<PodBackend<'a>> {
    if pod.is_finished() {
        return None;
    }
    let mut found = PodBackend { address: &pod.status.pod_ip, ports: Vec::new(), behind: Vec::new() };
    if node.is_some_and(|node| node.by_host_port) {
        if !answers(pod, node) || pod.is_being_deleted() {
            return None;
        }
        found.address = &pod.status.host_ip;
        for port in &service.spec.ports {
            if let Some((number, own)) = ports::host_port(pod, port) {
                found.ports.push(Port::new(port, number));
                found.behind.push((Port::new(port, number), own));
            }
        }
        if found.ports.is_empty() && !service.spec.ports.is_empty() {
            return None;
        }
    } else {
        let ports = service.spec.ports.iter();
        found.ports.extend(ports.filter_map(|port| Some(Port::new(port, ports::target(pod, port)?))));
    }
    found.ports.sort();
    Some(found).filter(|found| !found.address.is_empty())
}

/// The pod in a slice. What is being deleted is not ready, but may still serve.
pub fn in_slice(service: &Service, pod: &Pod, node: Option<&EndpointNode>, address: &str) -> Endpoint {
    let (serving, terminating) = (answers(pod, node), pod.is_being_deleted());
    let ready = service.spec.publish_not_ready_addresses || (serving && !terminating);
    let zone = node.and_then(|node| node.zone.clone());
    let near = zone.clone().filter(|_| ready && service.prefers_close());
    let node_name = Some(pod.spec.node_name.clone()).filter(|node| !node.is_empty());
    let same_node = node_name.clone().filter(|_| ready && service.prefers_same_node());
    Endpoint {
        addresses: vec![address.to_owned()],
        conditions: Some(EndpointConditions {
            ready: Some(ready),
            serving: Some(serving),
            terminating: Some(terminating),
        }),
        hostname: hostname(service, pod),
        node_name,
        target_ref: Some(reference(pod)),
        hints: (near.is_some() || same_node.is_some()).then(|| EndpointHints {
            for_zones: near.map(|name| vec![ForZone { name }]),
            for_nodes: same_node.map(|name| vec![ForNode { name }]),
        }),
        zone,
        ..Endpoint::default()
    }
}

/// The pod in an Endpoints object, and whether it is ready there; nothing if it is being deleted.
pub fn in_subset(
    service: &Service,
    pod: &Pod,
    node: Option<&EndpointNode>,
    address: &str,
) -> Option<(EndpointAddress, bool)> {
    let always = service.spec.publish_not_ready_addresses;
    if pod.is_being_deleted() && !always {
        return None;
    }
    let found = EndpointAddress {
        ip: address.to_owned(),
        hostname: hostname(service, pod),
        node_name: Some(pod.spec.node_name.clone()).filter(|node| !node.is_empty()),
        target_ref: Some(reference(pod)),
    };
    Some((found, always || answers(pod, node)))
}

/// Whether its last reported condition is ready, by a node that is not lost since.
fn answers(pod: &Pod, node: Option<&EndpointNode>) -> bool {
    pod.is_ready() && !node.is_some_and(|node| node.lost)
}

/// When what an endpoint says came about, as far as the pod tells.
pub fn since(pod: &Pod) -> Option<Timestamp> {
    pod.condition("Ready")?.last_transition_time.as_ref().map(|Time(at)| *at)
}

fn hostname(service: &Service, pod: &Pod) -> Option<String> {
    let named = !pod.spec.hostname.is_empty() && pod.spec.subdomain == service.name();
    (named && pod.metadata.namespace == service.metadata.namespace).then(|| pod.spec.hostname.clone())
}

fn reference(pod: &Pod) -> ObjectReference {
    ObjectReference {
        kind: Some("Pod".to_owned()),
        namespace: pod.metadata.namespace.clone(),
        name: pod.metadata.name.clone(),
        uid: pod.metadata.uid.clone(),
        ..ObjectReference::default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::services::testing::{pod, service};

    fn conditions(endpoint: &Endpoint) -> [Option<bool>; 3] {
        let conditions = endpoint.conditions.as_ref().unwrap();
        [conditions.ready, conditions.serving, conditions.terminating]
    }

    #[test]
    fn readiness_is_as_upstream_has_it() {
        let gone = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
        let unready = json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}});
        let (plain, open) = (service(json!({})), service(json!({"spec": {"publishNotReadyAddresses": true}})));
        for (service, change, expected) in [
            (&plain, json!({}), [true, true, false]),
            (&plain, unready.clone(), [false, false, false]),
            (&plain, gone.clone(), [false, true, true]),
            (&open, unready, [true, false, false]),
            (&open, gone, [true, true, true]),
        ] {
            let pod = pod("a", "10.1.0.1", change);
            let endpoint = in_slice(service, &pod, None, "10.1.0.1");
            assert_eq!(conditions(&endpoint), expected.map(Some), "{pod:?}");
        }
    }

    #[test]
    fn where_close_is_preferred_those_that_are_ready_are_for_their_zone() {
        let close = service(json!({"spec": {"trafficDistribution": "PreferClose"}}));
        let (here, nowhere) =
            (EndpointNode { zone: Some("z1".into()), ..EndpointNode::default() }, EndpointNode::default());
        let unready = json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}});
        let zones = |service: &Service, node: &EndpointNode, change| {
            let endpoint = in_slice(service, &pod("a", "10.1.0.1", change), Some(node), "10.1.0.1");
            let zones = endpoint.hints.and_then(|hints| hints.for_zones).unwrap_or_default();
            zones.into_iter().map(|zone| zone.name).collect::<Vec<_>>()
        };
        assert_eq!(zones(&close, &here, json!({})), ["z1"]);
        assert_eq!(zones(&close, &here, unready), Vec::<String>::new());
        assert_eq!(zones(&close, &nowhere, json!({})), Vec::<String>::new());
        assert_eq!(zones(&service(json!({})), &here, json!({})), Vec::<String>::new());
    }

    #[test]
    fn where_the_same_node_is_preferred_endpoints_are_for_their_node_whether_or_not_it_has_a_zone() {
        let same_node = service(json!({"spec": {"trafficDistribution": "PreferSameNode"}}));
        let hints = |zone: Option<&str>, change| {
            let node = EndpointNode { zone: zone.map(str::to_owned), ..EndpointNode::default() };
            let endpoint = in_slice(&same_node, &pod("a", "10.1.0.1", change), Some(&node), "10.1.0.1");
            endpoint.hints.map(|hints| {
                let zones = hints.for_zones.unwrap_or_default().into_iter().map(|zone| zone.name);
                let nodes = hints.for_nodes.unwrap_or_default().into_iter().map(|node| node.name);
                (zones.collect::<Vec<_>>(), nodes.collect::<Vec<_>>())
            })
        };
        let on_node = json!({"spec": {"nodeName": "n"}});
        let (zone, node) = ("z1".to_owned(), "n".to_owned());
        assert_eq!(hints(Some("z1"), on_node.clone()), Some((vec![zone], vec![node.clone()])));
        assert_eq!(hints(None, on_node), Some((vec![], vec![node])));
        let unready = json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}});
        assert_eq!(hints(Some("z1"), unready), None);
    }

    #[test]
    fn nothing_is_sent_to_a_machine_that_is_lost() {
        let node = |ready: &str, effects: &[&str]| {
            let status = json!({"conditions": [{"type": "Ready", "status": ready}]});
            let taint = |effect| json!({"key": "node.kubernetes.io/unreachable", "effect": effect});
            let spec = json!({"taints": effects.iter().map(taint).collect::<Vec<_>>()});
            let node = json!({"metadata": {"name": "n"}, "spec": spec, "status": status});
            EndpointNode::from(&serde_json::from_value(node).unwrap())
        };
        let (service, pod) = (service(json!({})), pod("a", "10.1.0.1", json!({})));
        let (no_schedule, lost) = (&["NoSchedule"][..], &["NoSchedule", "NoExecute"][..]);
        for (ready, effects, expected) in [
            ("True", &[][..], true),
            ("False", &[], true),
            ("Unknown", no_schedule, true), // so is everybody
            ("Unknown", lost, false),
            ("True", lost, true), // it is back
        ] {
            let node = node(ready, effects);
            let endpoint = in_slice(&service, &pod, Some(&node), "10.1.0.1");
            assert_eq!(conditions(&endpoint), [expected, expected, false].map(Some), "{ready} {effects:?}");
            let (_, in_subset) = in_subset(&service, &pod, Some(&node), "10.1.0.1").unwrap();
            assert_eq!(in_subset, expected, "{ready} {effects:?}");
        }
    }

    #[test]
    fn a_pod_counts_once_it_has_an_address_and_until_it_ended() {
        let service = service(json!({"spec": {"ports": [{"port": 80}]}}));
        let is_reached = |pod: &Pod| reached(&service, pod, None).is_some();
        assert!(is_reached(&pod("a", "10.1.0.1", json!({}))));
        assert!(!is_reached(&pod("a", "", json!({}))));
        for phase in ["Failed", "Succeeded"] {
            assert!(!is_reached(&pod("a", "10.1.0.1", json!({"status": {"phase": phase}}))), "{phase}");
        }
    }

    #[test]
    fn a_host_name_is_reported_below_the_service_that_the_pod_names() {
        let named = |subdomain: &str| pod("a", "1.1.1.1", json!({"spec": {"hostname": "h", "subdomain": subdomain}}));
        let service = service(json!({}));
        assert_eq!(in_slice(&service, &named("web"), None, "").hostname.as_deref(), Some("h"));
        assert_eq!(in_slice(&service, &named("other"), None, "").hostname, None);
    }

    #[test]
    fn where_addresses_lead_nowhere_it_is_the_machines_and_only_while_ready() {
        let service = service(json!({"spec": {"ports": [{"port": 80, "targetPort": 8080}]}}));
        let node = EndpointNode { by_host_port: true, ..EndpointNode::default() };
        let ports = json!({"metadata": {"annotations": {"k8s.mesosphere.io/port_TCP_8080": "31001"}}});
        let ready = pod("a", "10.1.0.1", ports);
        let found = reached(&service, &ready, Some(&node)).unwrap();
        assert_eq!((found.address, found.ports[0].port, found.behind[0].1), ("192.168.0.1", 31_001, 8080));
        let without = pod("a", "10.1.0.1", json!({}));
        assert_eq!(reached(&service, &without, Some(&node)), None, "no port of the node leads to it");
        let mut leaving = ready.clone();
        leaving.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
        assert_eq!(reached(&service, &leaving, Some(&node)), None);
        let mut unready = ready;
        unready.status.conditions.clear();
        assert_eq!(reached(&service, &unready, Some(&node)), None);
    }
}
