use serde_json::{Value, json};

use crate::core::{
    selector::{Operator, Requirement},
    view::{AutomaticPort, BudgetView, Effect, HostPort, NodeView, OfferView, PodView, PortMapping},
};

fn pod(metadata: Value, spec: Value) -> PodView {
    serde_json::from_str(&json!({ "metadata": metadata, "spec": spec }).to_string()).unwrap()
}

fn spec(spec: Value) -> PodView {
    pod(json!({ "name": "p", "namespace": "ns", "labels": { "app": "web", "v": "2" } }), spec)
}

#[test]
fn requests_are_those_of_the_worst_moment() {
    let cpu = |n: &str| json!({ "requests": { "cpu": n } });
    let view = spec(json!({
        "initContainers": [
            { "name": "side", "restartPolicy": "Always", "resources": cpu("100m") },
            { "name": "big", "resources": cpu("1") },
        ],
        "containers": [{ "name": "a", "resources": cpu("300m") }, { "name": "b", "resources": cpu("200m") }],
        "overhead": { "cpu": "5m" },
    }));
    assert_eq!(view.spec.requests["cpu"], 1105);
    assert_eq!(view.spec.requests["pods"], 1);
    let whole = spec(json!({
        "resources": { "requests": { "cpu": "2" } },
        "containers": [{ "name": "a", "resources": { "requests": { "cpu": "1", "memory": "1Mi", "x/y": "0" } } }],
    }));
    assert_eq!(whole.spec.requests["cpu"], 2000);
    assert_eq!(whole.spec.requests["memory"], 1 << 20);
    assert!(!whole.spec.requests.contains_key("x/y"));
}

#[test]
fn ports_are_asked_for_by_number_or_left_open() {
    let ports =
        json!([{ "containerPort": 8080, "name": "web" }, { "containerPort": 53, "hostPort": 5353, "protocol": "UDP" }]);
    let containers = json!({ "containers": [{ "name": "c", "ports": ports }] });
    let labelled = |value: &str| {
        let notes =
            json!({ "k8s.mesosphere.io/port_TCP_8080": "31005", "other": "1", "mainstay.dev/refused-by": "n3" });
        let labels = json!({ "k8s.mesosphere.io/portMapping": value });
        pod(json!({ "name": "p", "namespace": "ns", "labels": labels, "annotations": notes }), containers.clone())
    };
    let port = AutomaticPort { container_port: 8080, protocol: "TCP".to_owned(), name: "web".to_owned() };
    let wild = labelled("wildcard");
    assert_eq!(wild.spec.ports, [HostPort::new(5353, "UDP", "")]);
    assert_eq!(wild.spec.automatic_ports, std::slice::from_ref(&port));
    assert_eq!(wild.assigned_ports, [port.assign(31005)]);
    assert_eq!(wild.refused_by.as_deref(), Some("n3"));
    assert_eq!(wild.spec.port_mapping, PortMapping::Always);
    let fixed = labelled("fixed");
    assert!(fixed.spec.automatic_ports.is_empty() && fixed.assigned_ports.is_empty());
    assert_eq!(fixed.unknown_port_mapping, None);
    let odd = labelled("sometimes");
    assert_eq!(
        (odd.unknown_port_mapping.as_deref(), odd.spec.port_mapping),
        (Some("sometimes"), PortMapping::AsNeeded)
    );
    assert_eq!((&odd.spec.automatic_ports, &odd.assigned_ports), (&wild.spec.automatic_ports, &wild.assigned_ports));
    let host =
        spec(json!({ "hostNetwork": true, "containers": [{ "name": "c", "ports": [{ "containerPort": 80 }] }] }));
    assert_eq!(host.spec.ports, [HostPort::new(80, "TCP", "")]);
}

#[test]
fn host_ports_of_ordinary_init_containers_do_not_count() {
    let port = |number: u16| json!([{ "containerPort": 80, "hostPort": number }]);
    let view = spec(json!({
        "initContainers": [
            { "name": "once", "ports": port(1000) },
            { "name": "sidecar", "restartPolicy": "Always", "ports": port(2000) },
        ],
        "containers": [{ "name": "main", "ports": port(3000) }],
    }));
    assert_eq!(view.spec.ports, [HostPort::new(2000, "TCP", ""), HostPort::new(3000, "TCP", "")]);
    let pod: mainstay_api::k8s_openapi::api::core::v1::PodSpec = serde_json::from_value(json!({
        "initContainers": [{ "name": "once", "ports": port(1000) }], "containers": [{ "name": "main" }],
    }))
    .unwrap();
    assert_eq!(mainstay_api::ports::host_ports(&pod), [], "the node's gate and the scheduler use one rule");
}

#[test]
fn tolerations_say_what_they_leave_open() {
    let view = spec(json!({ "containers": [], "tolerations": [
        { "operator": "Exists" },
        { "key": "a", "value": "b", "effect": "NoSchedule" },
        { "key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5 },
        { "key": "a", "effect": "Sometimes" },
        { "value": "b" },
    ] }));
    let all = &view.spec.node.tolerations;
    assert_eq!(all.len(), 3);
    assert_eq!((&all[0].key, &all[0].value, all[0].effect), (&None, &None, None));
    assert_eq!(all[1].value.as_deref(), Some("b"));
    assert_eq!((all[2].value.as_deref(), all[2].effect), (None, Some(Effect::NoExecute)));
}

#[test]
fn affinities_are_filled_in_from_the_pod() {
    let term = |more: Value| {
        let mut term = json!({ "topologyKey": "zone", "labelSelector": { "matchLabels": { "app": "web" } } });
        term.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        term
    };
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    let preferred = "preferredDuringSchedulingIgnoredDuringExecution";
    let view = spec(json!({ "containers": [], "affinity": {
        "podAffinity": {
            required: [term(json!({})), term(json!({ "namespaces": ["z", "a"] }))],
            preferred: [{ "weight": 7, "podAffinityTerm": term(json!({ "namespaceSelector": {} })) }],
        },
        "podAntiAffinity": { required: [term(json!({ "matchLabelKeys": ["v", "gone"], "mismatchLabelKeys": ["app"] }))] },
    } }));
    let pod_affinity = &view.spec.pod_affinity;
    assert_eq!(pod_affinity.required[0].pods.namespaces, ["ns"]);
    assert_eq!(pod_affinity.required[1].pods.namespaces, ["a", "z"]);
    assert_eq!(pod_affinity.preferred[0].0, 7);
    assert!(pod_affinity.preferred[0].1.pods.namespaces.is_empty());
    assert!(pod_affinity.preferred[0].1.pods.namespaces_like.is_some());
    let narrowed = &pod_affinity.anti_required[0].pods.labels.as_ref().unwrap().0;
    let not_web = Requirement { operator: Operator::NotIn, ..Requirement::equal("app", "web") };
    assert_eq!(*narrowed, [Requirement::equal("app", "web"), not_web, Requirement::equal("v", "2")]);
}

#[test]
fn spreading_has_its_documented_defaults() {
    let view = spec(json!({ "containers": [], "topologySpreadConstraints": [
        { "maxSkew": 2, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "matchLabelKeys": ["v"],
          "labelSelector": { "matchLabels": { "app": "web" } }, "minDomains": 3 },
        { "maxSkew": 1, "topologyKey": "host", "whenUnsatisfiable": "ScheduleAnyway",
          "nodeAffinityPolicy": "Ignore", "nodeTaintsPolicy": "Honor" },
    ] }));
    let [zone, host] = &view.spec.spread[..] else { panic!("two rules") };
    assert!(zone.hard && zone.honor_affinity && !zone.honor_taints);
    assert_eq!((zone.max_skew, zone.min_domains), (2, Some(3)));
    assert_eq!(zone.pods.labels.as_ref().unwrap().0.len(), 2);
    assert!(!host.hard && !host.honor_affinity && host.honor_taints);
    assert_eq!(host.pods.labels, None);
}

#[test]
fn pods_carry_their_state_and_null_is_nothing() {
    let view: PodView = serde_json::from_value(json!({
        "metadata": {
            "name": "p", "namespace": "ns", "uid": "u", "resourceVersion": "12", "labels": null, "annotations": null,
            "creationTimestamp": "2024-01-01T00:00:00Z", "deletionTimestamp": "2024-01-01T00:00:09Z",
            "managedFields": [{ "fieldsV1": { "f:spec": {} } }],
        },
        "spec": {
            "nodeName": "", "containers": [], "priority": 5, "preemptionPolicy": "Never", "affinity": null,
            "schedulingGates": [{ "name": "g" }],
            "volumes": [
                { "name": "a", "persistentVolumeClaim": { "claimName": "c" } }, { "name": "b", "emptyDir": {} },
                { "name": "e", "ephemeral": { "volumeClaimTemplate": {} } },
            ],
        },
        "status": {
            "phase": "Failed", "nominatedNodeName": "n1", "startTime": "2024-01-01T00:00:01Z",
            "conditions": [{ "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no" }],
        },
    }))
    .unwrap();
    assert_eq!((view.version, view.node.as_deref(), view.nominated_node.as_deref()), (12, None, Some("n1")));
    assert!(view.terminating && view.finished && view.spec.never_preempts);
    assert_eq!(view.started, Some(view.created + 1_000_000));
    assert_eq!(view.gates, ["g"]);
    assert_eq!(view.claims, ["c", "p-e"]);
    assert_eq!(view.unscheduled_condition, Some(("Unschedulable".to_owned(), "no".to_owned())));
    assert_eq!(view.scheduler, "default-scheduler");
}

#[test]
fn equal_pods_have_equal_specs_and_label_sets() {
    let one = spec(json!({ "containers": [{ "name": "a", "resources": { "requests": { "cpu": "1000m" } } }] }));
    let two =
        spec(json!({ "containers": [{ "name": "b", "image": "x", "resources": { "requests": { "cpu": "1" } } }] }));
    assert!(one.spec.is_equal(&two.spec));
    assert_eq!(
        (one.spec.fingerprint(), one.label_set.fingerprint()),
        (two.spec.fingerprint(), two.label_set.fingerprint())
    );
    assert!(!one.spec.is_equal(&two.with_volumes(vec![vec![]]).spec));
}

#[test]
fn nodes_offers_and_budgets_are_decoded() {
    let node: NodeView = serde_json::from_value(json!({
        "metadata": { "name": "n1", "labels": { "zone": "a" } },
        "spec": { "unschedulable": true, "taints": [{ "key": "k", "effect": "NoSchedule" }, { "key": "x", "effect": "?" }] },
        "status": { "allocatable": { "cpu": "4", "pods": "110" }, "conditions": [{ "type": "Ready", "status": "True" }] },
    }))
    .unwrap();
    assert!(node.ready && node.unschedulable);
    assert_eq!(node.taints.len(), 1);
    assert_eq!(node.allocatable["cpu"], 4000);
    let offer = serde_json::from_value(json!({
        "free": { "cpu": "1500m" }, "automaticPorts": ["31000-31001"], "explicitPorts": ["1-99"], "ttlSeconds": 5, "seen": "7",
    }))
    .unwrap();
    let offer = OfferView::from(&offer);
    assert_eq!((offer.free["cpu"], offer.seen), (1500, 7));
    assert!(
        offer.automatic_ports.contains(31001)
            && offer.explicit_ports.contains(99)
            && !offer.explicit_ports.contains(100)
    );
    let budget: BudgetView = serde_json::from_value(json!({
        "metadata": { "name": "b", "namespace": "ns" }, "spec": { "minAvailable": 1, "selector": { "matchLabels": { "a": "b" } } },
        "status": { "disruptionsAllowed": 1, "disruptedPods": { "p": "2024-01-01T00:00:00Z" } },
    }))
    .unwrap();
    assert_eq!((budget.disruptions_allowed, &budget.disrupted[..]), (1, &["p".to_owned()][..]));
    assert_eq!(budget.selector.unwrap().0.len(), 1);
}
