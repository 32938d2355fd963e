use serde_json::{Value, json};

use crate::core::{
    ports::{GivenPort, HostPort, PortMapping, PortWish},
    selector::{Operator, Requirement},
    view::{BudgetView, Effect, NodeView, OfferView, PodView},
};

fn pod(metadata: Value, spec: Value) -> PodView {
    serde_json::from_str(&json!({ "metadata": metadata, "spec": spec }).to_string()).unwrap()
}

fn spec(spec: Value) -> PodView {
    pod(json!({ "name": "p", "namespace": "ns", "labels": { "app": "web", "v": "2" } }), spec)
}

#[test]
fn what_runs_before_counts_as_much_as_what_runs_at_once() {
    let cpu = |n: &str| json!({ "requests": { "cpu": n } });
    let view = spec(json!({
        "initContainers": [
            { "name": "side", "restartPolicy": "Always", "resources": cpu("100m") },
            { "name": "big", "resources": cpu("1") },
        ],
        "containers": [{ "name": "a", "resources": cpu("300m") }, { "name": "b", "resources": cpu("200m") }],
        "overhead": { "cpu": "5m" },
    }));
    assert_eq!(view.shape.requests["cpu"], 1105);
    assert_eq!(view.shape.requests["pods"], 1);
    let whole = spec(json!({
        "resources": { "requests": { "cpu": "2" } },
        "containers": [{ "name": "a", "resources": { "requests": { "cpu": "1", "memory": "1Mi", "x/y": "0" } } }],
    }));
    assert_eq!(whole.shape.requests["cpu"], 2000);
    assert_eq!(whole.shape.requests["memory"], 1 << 20);
    assert!(!whole.shape.requests.contains_key("x/y"));
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
    let wish = PortWish { container_port: 8080, protocol: "TCP".to_owned(), name: "web".to_owned() };
    let wild = labelled("wildcard");
    assert_eq!(wild.shape.ports, [HostPort::new(5353, "UDP", "")]);
    assert_eq!(wild.shape.wishes, std::slice::from_ref(&wish));
    assert_eq!(wild.given, [GivenPort { wish, host_port: 31005 }]);
    assert_eq!(wild.refused_by.as_deref(), Some("n3"));
    assert_eq!(wild.shape.mapping, PortMapping::Always);
    let fixed = labelled("fixed");
    assert!(fixed.shape.wishes.is_empty() && fixed.given.is_empty());
    assert_eq!(fixed.odd_port_mapping, None);
    let odd = labelled("sometimes");
    assert_eq!((odd.odd_port_mapping.as_deref(), odd.shape.mapping), (Some("sometimes"), PortMapping::AsNeeded));
    assert_eq!((&odd.shape.wishes, &odd.given), (&wild.shape.wishes, &wild.given));
    let host =
        spec(json!({ "hostNetwork": true, "containers": [{ "name": "c", "ports": [{ "containerPort": 80 }] }] }));
    assert_eq!(host.shape.ports, [HostPort::new(80, "TCP", "")]);
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
    let all = &view.shape.machine.tolerations;
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
    let together = &view.shape.together;
    assert_eq!(together.required[0].pods.namespaces, ["ns"]);
    assert_eq!(together.required[1].pods.namespaces, ["a", "z"]);
    assert_eq!(together.preferred[0].0, 7);
    assert!(together.preferred[0].1.pods.namespaces.is_empty());
    assert!(together.preferred[0].1.pods.namespaces_like.is_some());
    let narrowed = &together.forbidden[0].pods.labels.as_ref().unwrap().0;
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
    let [zone, host] = &view.shape.spread[..] else { panic!("two rules") };
    assert!(zone.hard && zone.honour_affinity && !zone.honour_taints);
    assert_eq!((zone.max_skew, zone.min_domains), (2, Some(3)));
    assert_eq!(zone.pods.labels.as_ref().unwrap().0.len(), 2);
    assert!(!host.hard && !host.honour_affinity && host.honour_taints);
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
    assert_eq!((view.version, view.node.as_deref(), view.nominated.as_deref()), (12, None, Some("n1")));
    assert!(view.terminating && view.ended && view.shape.never_preempts);
    assert_eq!(view.started, Some(view.created + 1_000_000));
    assert_eq!(view.gates, ["g"]);
    assert_eq!(view.claims, ["c", "p-e"]);
    assert_eq!(view.complaint, Some(("Unschedulable".to_owned(), "no".to_owned())));
    assert_eq!(view.scheduler, "default-scheduler");
}

#[test]
fn equal_pods_have_equal_shapes_and_tags() {
    let one = spec(json!({ "containers": [{ "name": "a", "resources": { "requests": { "cpu": "1000m" } } }] }));
    let two =
        spec(json!({ "containers": [{ "name": "b", "image": "x", "resources": { "requests": { "cpu": "1" } } }] }));
    assert!(one.shape.same(&two.shape));
    assert_eq!((one.shape.print(), one.tags.print()), (two.shape.print(), two.tags.print()));
    assert!(!one.shape.same(&two.with_volumes(vec![vec![]]).shape));
}

#[test]
fn machines_offers_and_budgets_are_read() {
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
    assert!(offer.automatic.contains(31001) && offer.explicit.contains(99) && !offer.explicit.contains(100));
    let budget: BudgetView = serde_json::from_value(json!({
        "metadata": { "name": "b", "namespace": "ns" }, "spec": { "minAvailable": 1, "selector": { "matchLabels": { "a": "b" } } },
        "status": { "disruptionsAllowed": 1, "disruptedPods": { "p": "2024-01-01T00:00:00Z" } },
    }))
    .unwrap();
    assert_eq!((budget.disruptions_allowed, &budget.disrupted[..]), (1, &["p".to_owned()][..]));
    assert_eq!(budget.selector.unwrap().0.len(), 1);
}
