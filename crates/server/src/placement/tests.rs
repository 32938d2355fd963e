use proptest::prelude::*;

use super::*;

fn pod(extra: Value) -> Value {
    let mut pod = json!({
        "kind": "Pod", "apiVersion": "v1",
        "metadata": {"name": "p", "namespace": "default", "uid": "u", "labels": {"a": "b"}},
        "spec": {"containers": [{"name": "c", "image": "i", "env": [{"name": "X", "value": "\"}{,"}]}], "tolerations": []},
        "status": {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False"}, {"type": "Ready", "status": "False"}]},
    });
    mainstay_api::patch::merge(&mut pod, &extra);
    pod
}

fn stored(pod: &Value) -> Bytes {
    Wire::encode(pod).json().clone()
}

fn on(node: &'static str) -> Placement<'static> {
    Placement { uid: "u", node, annotations: &[], labels: &[] }
}

#[test]
fn a_pod_gets_its_machine_and_the_condition_that_says_so() {
    let node = json!({"metadata": {"labels": {"topology.kubernetes.io/zone": "z1", "team": "x"}}});
    let labels = topology_labels(&node);
    let placement = Placement { annotations: &[("a", "b")], labels: &labels, ..on("n") };
    let bytes = placed_bytes(&stored(&pod(json!({}))), &placement, "now").unwrap();
    let bound: Value = serde_json::from_slice(&bytes).unwrap();
    assert_eq!(bound["spec"]["nodeName"], "n");
    assert_eq!(bound["metadata"]["annotations"], json!({"a": "b"}));
    assert_eq!(bound["metadata"]["labels"], json!({"a": "b", "topology.kubernetes.io/zone": "z1"}));
    let types: Vec<_> = bound["status"]["conditions"].as_array().unwrap().iter().map(|c| &c["type"]).collect();
    assert_eq!(types, ["Ready", "PodScheduled"]);
    assert_eq!(bound["status"]["conditions"][1]["status"], "True");
}

#[test]
fn a_pod_that_has_a_machine_is_gated_going_or_another_gets_none() {
    let refused = |extra| placed_bytes(&stored(&pod(extra)), &on("n"), "now").unwrap_err().to_string();
    assert_eq!(refused(json!({"spec": {"nodeName": "m"}})), "pod p is already assigned to node \"m\"");
    assert_eq!(
        refused(json!({"metadata": {"deletionTimestamp": "t"}})),
        "pod p is being deleted, cannot be assigned to a host"
    );
    assert_eq!(
        refused(json!({"spec": {"schedulingGates": [{"name": "g"}]}})),
        "pod p has non-empty .spec.schedulingGates"
    );
    assert_eq!(
        refused(json!({"metadata": {"uid": "v"}})),
        "Precondition failed: UID in precondition: u, UID in object meta: v"
    );
}

#[test]
fn odd_layouts_are_understood_as_well() {
    let same = |bytes: &[u8]| {
        let bytes = Bytes::copy_from_slice(bytes);
        let value: Value = serde_json::from_slice(&bytes).unwrap();
        let short: Value = serde_json::from_slice(&placed_bytes(&bytes, &on("n"), "now").unwrap()).unwrap();
        assert_eq!(short, with_node(&value, &on("n"), "now").unwrap());
    };
    same(&serde_json::to_vec_pretty(&pod(json!({}))).unwrap());
    same(&stored(&pod(json!({"spec": {"nodeName": "", "schedulingGates": []}, "status": null}))));
    same(&stored(&pod(json!({"metadata": {"name": "p\u{7f}\"", "deletionTimestamp": null}, "extra": 1}))));
}

fn annotations() -> impl Strategy<Value = Vec<(String, String)>> {
    prop::collection::vec(("[a-z./]{1,8}", ".{0,8}"), 0..4)
}

proptest! {
    #[test]
    fn splicing_gives_the_bytes_that_the_long_way_gives(
        has in annotations(),
        adds in annotations(),
        labels in annotations(),
        node in "[a-z0-9.-]{1,20}",
        image in ".{0,20}",
        name in "[a-z]{1,12}",
        status in prop::option::of(Just(json!({"phase": "Pending"}))),
    ) {
        let mut pod = pod(json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": image}]}}));
        if !has.is_empty() {
            pod["metadata"]["annotations"] = has.into_iter().map(|(k, v)| (k, json!(v))).collect::<Map<_, _>>().into();
        }
        match status {
            Some(status) => pod["status"] = status,
            None => drop(pod.as_object_mut().unwrap().remove("status")),
        }
        let adds: Vec<_> = adds.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        let labels: Vec<_> = labels.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        let placement = Placement { uid: "u", node: &node, annotations: &adds, labels: &labels };
        let long = stored(&with_node(&pod, &placement, "now").unwrap());
        let short = splice_node(&stored(&pod), &placement, "now").expect("our own layout").unwrap();
        prop_assert_eq!(short, long);
    }
}

fn bound() -> Value {
    pod(json!({
        "metadata": {
            "annotations": {"k8s.mesosphere.io/port_TCP_80": "31000", "keep": "me"},
            "labels": {"topology.kubernetes.io/zone": "z1"},
        },
        "spec": {"nodeName": "n"}, "status": {"conditions": [{"type": "PodScheduled", "status": "True"}]},
    }))
}

fn refusal() -> Refusal {
    Refusal { uid: "u".into(), reason: "OutOfcpu".into(), message: "wants 4, has 2".into() }
}

#[test]
fn a_refused_pod_has_no_machine_and_says_why() {
    let back = without_node(&bound(), &refusal(), Some("n"), "now").unwrap();
    assert_eq!(back["spec"].get("nodeName"), None);
    assert_eq!(back["metadata"]["annotations"], json!({"keep": "me", "mainstay.dev/refused-by": "n"}));
    assert_eq!(back["metadata"]["labels"], json!({"a": "b"}), "where it is not");
    let condition = &back["status"]["conditions"][0];
    assert_eq!((&condition["status"], &condition["reason"]), (&json!("False"), &json!("Refused")));
    assert_eq!(condition["message"], "node n refused: OutOfcpu: wants 4, has 2");
    assert!(with_node(&back, &on("m"), "later").is_ok(), "it can be placed again");
}

#[test]
fn what_is_elsewhere_another_or_started_is_not_given_back() {
    let with = |extra| {
        let mut pod = bound();
        mainstay_api::patch::merge(&mut pod, &extra);
        without_node(&pod, &refusal(), Some("n"), "now").unwrap_err()
    };
    let name = || "p".to_owned();
    assert_eq!(with(json!({"status": {"startTime": "t"}})), RefusalError::Started { name: name() });
    assert_eq!(with(json!({"status": {"containerStatuses": [{}]}})), RefusalError::Started { name: name() });
    assert_eq!(with(json!({"spec": {"nodeName": "m"}})), RefusalError::Elsewhere { name: name(), node: "n".into() });
    assert_eq!(with(json!({"spec": {"nodeName": null}})), RefusalError::Elsewhere { name: name(), node: "n".into() });
    assert_eq!(with(json!({"metadata": {"deletionTimestamp": "t"}})), RefusalError::Going { name: name() });
    assert!(matches!(with(json!({"metadata": {"uid": "v"}})), RefusalError::Another { .. }));
}
