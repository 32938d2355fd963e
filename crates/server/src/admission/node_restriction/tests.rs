use mainstay_api::wellknown::kubernetes::MIRROR_POD;
use serde_json::json;

use super::{
    mirror_pod::check_mirror_pod,
    own_node::{forbidden_labels, is_forbidden},
    *,
};

fn mirror() -> Value {
    json!({
        "metadata": {
            "name": "web-a", "annotations": {MIRROR_POD: "x"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "a", "uid": "u", "controller": true}],
        },
        "spec": {"nodeName": "a", "containers": [{"name": "c", "image": "i"}]},
    })
}

fn target(plural: &str, name: &str) -> Target {
    let registry = mainstay_api::registry::Registry::builtin();
    let group = match plural {
        "leases" => "coordination.k8s.io",
        "machines" | "machinefiles" => "mainstay.dev",
        "endpointslices" => "discovery.k8s.io",
        _ => "",
    };
    Target { d: registry.find(group, "v1", plural).unwrap().clone(), namespace: None, name: name.into() }
}

#[test]
fn a_mirror_pod_of_its_own_is_taken() {
    assert_eq!(check_mirror_pod("a", "u", &mirror()), Ok(()));
}

#[test]
fn other_pods_of_a_node_are_refused_with_upstreams_words() {
    for (pointer, value, words) in [
        ("/metadata/annotations", json!({}), "pod does not have \"kubernetes.io/config.mirror\" annotation"),
        ("/spec/nodeName", json!("b"), "can only create pods with spec.nodeName set to itself"),
        ("/metadata/ownerReferences", json!([]), "with an owner reference set to itself"),
        ("/metadata/ownerReferences/0/name", json!("b"), "with an owner reference set to itself"),
        ("/metadata/ownerReferences/0/controller", json!(false), "with a controller owner reference"),
        ("/metadata/ownerReferences/0/uid", json!("v"), "node a UID mismatch: expected v got u"),
    ] {
        let mut pod = mirror();
        *pod.pointer_mut(pointer).unwrap() = value;
        let why = check_mirror_pod("a", "u", &pod).unwrap_err();
        assert!(why.contains(words), "{why}");
    }
}

#[test]
fn a_mirror_pod_refers_to_no_object_of_the_api() {
    for (field, value, resource) in [
        ("serviceAccountName", json!("default"), "serviceaccounts"),
        ("imagePullSecrets", json!([{"name": "s"}]), "secrets"),
        ("resourceClaims", json!([{"name": "gpu"}]), "resourceclaims"),
        ("volumes", json!([{"name": "v", "csi": {"driver": "d", "nodePublishSecretRef": {"name": "s"}}}]), "secrets"),
        ("volumes", json!([{"name": "v", "azureFile": {"secretName": "s", "shareName": "x"}}]), "secrets"),
        ("volumes", json!([{"name": "v", "configMap": {"name": "c"}}]), "configmaps"),
        ("volumes", json!([{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]), "persistentvolumeclaims"),
    ] {
        let mut pod = mirror();
        pod["spec"][field] = value;
        let why = format!("node \"a\" can not create pods that reference {resource}");
        assert_eq!(check_mirror_pod("a", "u", &pod), Err(why), "{field}");
    }
}

#[test]
fn a_node_may_not_steer_pods_to_itself_by_labels() {
    for allowed in
        ["zone", "example.org/rack", "kubernetes.io/hostname", "node.kubernetes.io/anything", "mainstay.dev/x"]
    {
        assert!(!is_forbidden(allowed), "{allowed}");
    }
    for refused in [
        "node-restriction.kubernetes.io/trusted",
        "x.node-restriction.kubernetes.io/trusted",
        "node-role.kubernetes.io/control-plane",
        "pod-security.kubernetes.io/enforce",
        "example.k8s.io/a",
    ] {
        assert!(is_forbidden(refused), "{refused}");
    }
    let labels = json!({"a": "1", "node-role.kubernetes.io/x": ""});
    assert_eq!(forbidden_labels(&labels, &Value::Null), ["node-role.kubernetes.io/x"]);
    assert_eq!(forbidden_labels(&labels, &labels), Vec::<String>::new());
    assert_eq!(forbidden_labels(&Value::Null, &labels), ["node-role.kubernetes.io/x"]);
}

#[test]
fn a_node_registers_itself_and_leaves_the_rest_to_others() {
    assert_eq!(
        own_node::create("a", "a", &json!({"spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}})),
        Ok(())
    );
    assert_eq!(
        own_node::create("a", "b", &json!({})),
        Err("node \"a\" is not allowed to modify node \"b\"".to_owned())
    );
    for (object, words) in [
        (json!({"metadata": {"ownerReferences": [{"kind": "Node"}]}}), "set ownerReferences"),
        (json!({"metadata": {"finalizers": ["x/y"]}}), "set finalizers"),
        (json!({"metadata": {"labels": {"node-role.kubernetes.io/x": ""}}}), "set the following labels"),
        (json!({"spec": {"podCIDR": "10.0.0.0/8"}}), "set podCIDR"),
        (json!({"spec": {"podCIDRs": ["10.0.0.0/8"]}}), "set podCIDRs"),
        (json!({"spec": {"configSource": {}}}), "create pods with a non-nil configSource"),
    ] {
        let why = own_node::create("a", "a", &object).unwrap_err();
        assert!(why.contains(words), "{why}");
    }
}

#[test]
fn a_node_does_not_change_what_keeps_pods_off_it_or_makes_it_go() {
    let target = target("nodes", "a");
    let old = json!({"metadata": {"name": "a"}, "spec": {"unschedulable": true}});
    let judged = |part: Part, new: &Value| update(&User::node("a"), &target, part, new, &old);
    assert!(judged(Part::Main, &old).is_ok());
    let owners = json!({"ownerReferences": [{"apiVersion": "v1", "kind": "Namespace", "name": "gone", "uid": "1"}]});
    for (change, field) in [
        (json!({"spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}}), "taints"),
        (json!({"spec": {"unschedulable": false}}), "unschedulable"),
        (json!({"metadata": {"finalizers": ["x/y"]}}), "finalizers"),
        (json!({ "metadata": owners }), "ownerReferences"),
    ] {
        let mut new = old.clone();
        mainstay_api::patch::merge(&mut new, &change);
        let refused = judged(Part::Main, &new).unwrap_err().status();
        let words = format!("nodes \"a\" is forbidden: node \"a\" is not allowed to modify {field}");
        assert_eq!(refused["message"], json!(words));
        assert!(update(&User::internal("x"), &target, Part::Main, &new, &old).is_ok(), "others may");
        assert_eq!(judged(Part::Status, &new).is_ok(), change.get("spec").is_some(), "a status has no spec: {field}");
    }
}

#[test]
fn of_a_claim_a_node_changes_its_size_and_conditions_alone() {
    let target = target("persistentvolumeclaims", "data");
    let claim = |status: Value| json!({"metadata": {"name": "data", "uid": "u"}, "status": status});
    let old = claim(
        json!({"phase": "Bound", "capacity": {"storage": "1Gi"}, "conditions": [{"type": "FileSystemResizePending"}]}),
    );
    let change = |part: Part, new: &Value| update(&User::node("a"), &target, part, new, &old);
    let grown = claim(json!({"phase": "Bound", "capacity": {"storage": "2Gi"}}));
    assert!(change(Part::Status, &grown).is_ok());
    assert!(change(Part::Main, &grown).is_err());
    let lost = claim(json!({"phase": "Lost", "capacity": {"storage": "2Gi"}}));
    let refused = change(Part::Status, &lost).unwrap_err().status();
    assert!(refused["message"].as_str().unwrap().contains("other than status.capacity"), "{refused}");
    let mut labelled = grown;
    labelled["metadata"]["labels"] = json!({"k": "v"});
    assert!(change(Part::Status, &labelled).is_err());
}

#[test]
fn of_a_pod_a_node_changes_its_own_status_alone() {
    let target = target("pods", "p");
    let pod = |uid: &str, on: &str| json!({"metadata": {"name": "p", "uid": uid}, "spec": {"nodeName": on}});
    let status = |new: Value, old: Value| update(&User::node("a"), &target, Part::Status, &new, &old);
    assert!(status(pod("u", "a"), pod("u", "a")).is_ok());
    assert!(status(pod("u", "b"), pod("u", "b")).is_err());
    assert!(status(pod("", "b"), pod("u", "b")).is_err());
    assert!(status(pod("gone", "a"), pod("u", "b")).is_ok(), "a conflict follows");
    for (field, words) in [("labels", "cannot update labels"), ("annotations", "cannot update annotations")] {
        let mut new = pod("u", "a");
        new["metadata"][field] = json!({"k": "v"});
        let refused = status(new, pod("u", "a")).unwrap_err().status();
        assert!(refused["message"].as_str().unwrap().contains(words), "{refused}");
    }
    let mut new = pod("u", "a");
    new["status"] = json!({"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "x"}]});
    assert!(status(new, pod("u", "a")).is_err());
}

#[test]
fn of_a_machine_a_node_reports_what_it_alone_knows() {
    let machine = |name: &str, status: Value| json!({"metadata": {"name": name}, "status": status});
    let old = machine("a", json!({"seen": {"state": "success"}, "validated": {"state": "success"}}));
    let judged = |name: &str, part: Part, new: &Value| {
        update(&User::node("a"), &target("machines", name), part, new, &old)
            .map_err(|refused| refused.status()["message"].as_str().unwrap_or_default().to_owned())
    };
    let own = machine("a", json!({"seen": {"state": "success"}, "validated": {"state": "failed"}, "version": {}}));
    assert_eq!(judged("a", Part::Status, &own), Ok(()));
    for (name, part, new, words) in [
        ("b", Part::Status, own.clone(), "node \"a\" is not allowed to modify machine \"b\""),
        ("a", Part::Main, own.clone(), "node \"a\" is not allowed to modify machine \"a\""),
        (
            "a",
            Part::Status,
            machine("a", json!({"seen": {"state": "failed"}})),
            "cannot update status.seen of a machine",
        ),
        ("a", Part::Status, machine("a", json!({})), "cannot update status.seen of a machine"),
        (
            "a",
            Part::Status,
            machine("a", json!({"seen": {"state": "success"}, "conditions": [{"type": "Accounted"}]})),
            "cannot update status.conditions of a machine",
        ),
    ] {
        let why = judged(name, part, &new).unwrap_err();
        assert!(why.contains(words), "{why}");
    }
    let mut labelled = own;
    labelled["metadata"]["labels"] = json!({"wave": "canary"});
    let why = judged("a", Part::Status, &labelled).unwrap_err();
    assert!(why.contains("cannot update labels through the status"), "{why}");
}

#[test]
fn of_a_machine_file_a_node_reports_on_its_own_alone() {
    let file = |on: &str, status: Value| json!({"metadata": {"name": "f", "uid": "u"}, "spec": {"nodeName": on}, "status": status});
    let judged = |part: Part, new: &Value, old: &Value| {
        update(&User::node("a"), &target("machinefiles", "f"), part, new, old)
            .map_err(|refused| refused.status()["message"].as_str().unwrap_or_default().to_owned())
    };
    let written = json!({"version": "0123456789"});
    assert_eq!(judged(Part::Status, &file("a", written.clone()), &file("a", json!({}))), Ok(()));
    let words = "can only update the status of machine files with spec.nodeName set to itself";
    let why = judged(Part::Status, &file("b", written.clone()), &file("b", json!({}))).unwrap_err();
    assert!(why.contains(words), "{why}");
    let why = judged(Part::Main, &file("a", written.clone()), &file("a", json!({}))).unwrap_err();
    assert!(why.contains(words), "{why}");
    let mut labelled = file("a", written);
    labelled["metadata"]["labels"] = json!({"x": "y"});
    let why = judged(Part::Status, &labelled, &file("a", json!({}))).unwrap_err();
    assert!(why.contains("cannot update labels through the status of a machine file"), "{why}");
}

#[test]
fn of_a_volume_a_node_says_no_more_than_that_it_is_there() {
    let volume = |finalizers: &[&str], version: &str, path: &str| json!({"metadata": {"finalizers": finalizers, "resourceVersion": version}, "spec": {"local": {"path": path}}});
    let old = volume(&["kubernetes.io/pv-protection"], "1", "/a");
    assert!(only_marks(&volume(&["kubernetes.io/pv-protection", ON_DISK], "2", "/a"), &old));
    assert!(!only_marks(&volume(&["kubernetes.io/pv-protection"], "2", "/b"), &old));
    assert!(!only_marks(&volume(&[], "2", "/a"), &old));
    let bare = json!({"metadata": {}, "spec": {}});
    assert!(only_marks(&bare, &json!({"metadata": {"finalizers": [ON_DISK]}, "spec": {}})));
}

#[test]
fn a_node_writes_its_own_lease_and_places_of_restart_budgets_in_its_name() {
    let own = json!({"metadata": {"annotations": {heal::NODE_ANNOTATION: "a"}}});
    let none = json!({});
    assert_eq!(set_lease("a", Some(NODE_LEASES), "a", &none), Ok(None));
    assert!(set_lease("a", Some(NODE_LEASES), "b", &own).is_err());
    assert_eq!(set_lease("a", Some("shop"), "heal-u-1-0", &own), Ok(Some("u-1")));
    assert!(set_lease("a", Some("shop"), "heal-u-1-0", &none).is_err());
    assert!(set_lease("b", Some("shop"), "heal-u-1-0", &own).is_err());
    assert!(set_lease("a", Some("shop"), "leader", &own).is_err());
    let own = json!({"metadata": {"annotations": {mainstay_api::exclusive::NODE_ANNOTATION: "a"}}});
    assert_eq!(set_lease("a", Some("shop"), "drain-u-1", &own), Ok(Some("u-1")));
    assert!(set_lease("b", Some("shop"), "drain-u-1", &own).is_err());
    assert!(set_lease("a", Some("shop"), "heal-u-1-0", &own).is_err());
}

#[test]
fn a_node_writes_the_endpoints_of_its_own_machine_alone() {
    let slice = |node: &str| {
        json!({
            "metadata": {
                "labels": {
                    host_service::MANAGED_BY: host_service::MANAGER, host_service::NODE: node,
                    "kubernetes.io/service-name": "mysql",
                },
                "annotations": {host_service::ID: "mysql"},
            },
            "endpoints": [{"addresses": ["10.0.0.1"], "nodeName": node}],
        })
    };
    let name = host_service::slice_name("mysql", "a", "mysql");
    let target = Target { namespace: Some(host_service::NAMESPACE.into()), ..target("endpointslices", &name) };
    let node = User::node("a");
    let updated = |new: &Value, old: &Value| update(&node, &target, Part::Main, new, old);
    assert_eq!(delete("a", &target, &slice("a")), Ok(()));
    assert!(updated(&slice("a"), &slice("a")).is_ok());
    assert!(delete("b", &target, &slice("a")).is_err());
    assert!(updated(&slice("b"), &slice("a")).is_err(), "it cannot be given away");
    assert!(updated(&slice("a"), &slice("b")).is_err(), "nor taken over");
    assert!(updated(&slice("a"), &json!({"metadata": {"labels": {}}})).is_err());
}

#[test]
fn a_node_makes_the_namespace_of_its_services_and_no_other() {
    let bare = json!({"metadata": {"name": "host-services", "labels": {NAMESPACE_NAME: "host-services"}}});
    assert_eq!(services_namespace("a", "host-services", &bare), Ok(()));
    assert!(services_namespace("a", "shop", &bare).is_err());
    let label = json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "privileged"}}});
    assert!(services_namespace("a", "host-services", &label).is_err());
    assert!(services_namespace("a", "host-services", &json!({"metadata": {"finalizers": ["x"]}})).is_err());
}
