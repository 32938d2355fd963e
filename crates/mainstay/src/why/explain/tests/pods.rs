use k8s_openapi::api::core::v1::Node;

use super::*;
use crate::why::explain::{
    AssignedNode, ClaimFacts, LocalVolume, OwnerName, PodFacts, RemovedPodFacts, explain_pod, explain_removed_pod,
};

fn pod_facts(spec: Value, status: Value) -> PodFacts {
    let meta = json!({ "name": "p", "namespace": "ns", "uid": "u", "creationTimestamp": "2026-01-01T00:57:50Z" });
    PodFacts { pod: object(json!({ "metadata": meta, "spec": spec, "status": status })), ..PodFacts::default() }
}

fn headline(facts: &PodFacts) -> String {
    explain_pod(facts, now()).headline
}

fn next(facts: &PodFacts) -> Vec<String> {
    explain_pod(facts, now()).next.into_iter().map(|step| step.command).collect()
}

/// A pod on node n1 with one container in this state.
fn with_container(container: Value, status: Value) -> PodFacts {
    let mut own = json!({ "name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 0 });
    own.as_object_mut().unwrap().extend(status.as_object().unwrap().clone());
    let mut spec = json!({ "name": "c", "image": "i" });
    spec.as_object_mut().unwrap().extend(container.as_object().unwrap().clone());
    let conditions = json!([
        { "type": "Ready", "status": "False", "reason": "ContainersNotReady", "message": "containers with unready status: [c]" },
        { "type": "ContainersReady", "status": "False", "reason": "ContainersNotReady" },
    ]);
    let status = json!({ "phase": "Running", "conditions": conditions, "containerStatuses": [own] });
    pod_facts(json!({ "nodeName": "n1", "containers": [spec] }), status)
}

fn crash_loop(exit: Value) -> PodFacts {
    with_container(
        json!({ "resources": { "limits": { "memory": "50Mi" } } }),
        json!({ "restartCount": 4, "state": { "waiting": { "reason": "CrashLoopBackOff", "message": "back-off" } },
                "lastState": { "terminated": exit } }),
    )
}

fn unschedulable(spec: Value, message: &str) -> PodFacts {
    let condition = json!({ "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message });
    pod_facts(spec, json!({ "phase": "Pending", "conditions": [condition] }))
}

#[test]
fn a_crash_is_explained_by_the_last_line_of_the_log() {
    let mut facts = crash_loop(json!({ "exitCode": 3, "reason": "Error", "finishedAt": "2026-01-01T00:59:50Z" }));
    facts.last_lines.insert("c".to_owned(), "cannot open database".to_owned());
    let expected = "\
pod ns/p crashes: container c ended with exit code 3, restarted 4 times: cannot open database
  container c: waits, CrashLoopBackOff, restarted 4 times
    previous run: Error, exit code 3, 10s ago
  next: kubectl -n ns logs p -c c --previous   # all it printed before it ended
";
    assert_eq!(explain_pod(&facts, now()).to_string(), expected);
}

#[test]
fn a_container_that_ran_out_of_memory_names_its_limit_and_what_to_edit() {
    let mut facts = crash_loop(json!({ "exitCode": 137, "reason": "OOMKilled" }));
    assert_eq!(headline(&facts), "crashes: container c ran out of memory (limit 50Mi), restarted 4 times");
    assert_eq!(next(&facts), ["kubectl -n ns get pod p -o yaml"]);
    facts.owner = Some(OwnerName { kind: "deployment".to_owned(), name: "web".to_owned() });
    assert_eq!(next(&facts), ["kubectl -n ns edit deployment/web"]);
}

#[test]
fn the_reason_of_a_failed_start_outlives_its_back_off() {
    let exit = json!({ "exitCode": 128, "reason": "StartError", "message": "exec: \"/no/such\": no such file" });
    let expected = "crashes: container c cannot be started: exec: \"/no/such\": no such file, restarted 4 times";
    assert_eq!(headline(&crash_loop(exit)), expected);
}

#[test]
fn signals_are_named_and_successful_ends_are_no_crashes() {
    let killed = crash_loop(json!({ "exitCode": 143, "reason": "Error" }));
    assert_eq!(headline(&killed), "crashes: container c ended with exit code 143 (SIGTERM), restarted 4 times");
    let done = crash_loop(json!({ "exitCode": 0, "reason": "Completed" }));
    assert!(headline(&done).contains("ends by itself with exit code 0 and restartPolicy is Always"));
}

#[test]
fn what_a_pod_needs_and_does_not_find_is_the_headline() {
    let waiting = |reason: &str, message: &str| {
        with_container(json!({}), json!({ "state": { "waiting": { "reason": reason, "message": message } } }))
    };
    let mut facts = waiting("CreateContainerConfigError", "secret \"nothere\" not found");
    facts.events.push(event("Failed", "Error: secret \"nothere\" not found", 6));
    assert_eq!(headline(&facts), "cannot start: container c: secret \"nothere\" not found (6 attempts in 40s)");
    assert_eq!(next(&facts), ["kubectl -n ns create secret generic nothere --from-literal=KEY=VALUE"]);

    let message = "Back-off pulling image \"i\": ErrImagePull: failed to pull image \"i\": no such host";
    let facts = waiting("ImagePullBackOff", message);
    assert_eq!(headline(&facts), "cannot pull image i: no such host");
    assert_eq!(next(&facts), ["mainstay image pull i"]);

    let present = "no such host; image \"i\" is on this machine; imagePullPolicy IfNotPresent would use it";
    assert_eq!(next(&waiting("ErrImagePull", present)), ["kubectl -n ns get pod p -o yaml"]);
}

#[test]
fn a_volume_that_cannot_be_mounted_is_the_headline() {
    let creating = json!({ "state": { "waiting": { "reason": "ContainerCreating" } } });
    let mut facts = with_container(json!({}), creating);
    facts.pod.status.as_mut().unwrap().phase = Some("Pending".to_owned());
    assert_eq!(headline(&facts), "starts on n1; created 2m10s ago");
    facts.events.push(event("FailedMount", "MountVolume.SetUp failed: configmap \"conf\" not found", 3));
    assert_eq!(
        headline(&facts),
        "cannot start on n1: MountVolume.SetUp failed: configmap \"conf\" not found (3 attempts in 40s)"
    );
    assert_eq!(next(&facts), ["kubectl -n ns create configmap conf --from-literal=KEY=VALUE"]);
}

#[test]
fn a_failing_probe_is_the_headline_and_its_conditions_are_not_repeated() {
    let running = json!({ "state": { "running": { "startedAt": "2026-01-01T00:58:00Z" } } });
    let mut facts = with_container(json!({}), running);
    facts.events.push(event("Unhealthy", "Readiness probe failed: HTTP probe failed with statuscode: 503", 9));
    let explanation = explain_pod(&facts, now());
    assert_eq!(
        explanation.headline,
        "runs on n1, but container c is not ready: Readiness probe failed: HTTP probe failed with statuscode: 503"
    );
    assert_eq!(explanation.details, ["container c: runs for 2m0s, not ready"]);
}

#[test]
fn an_unschedulable_pod_lists_its_reasons_and_history() {
    let message = "0/3 nodes are available: 1 Insufficient cpu, 2 node(s) had untolerated taint {x: }. preemption: No \
                   preemption victims found for incoming pod. closest: n1 lacks 500m of cpu; would fit when pods leave.";
    let mut facts = unschedulable(json!({ "containers": [] }), message);
    facts.events.push(event("FailedScheduling", "later", 3));
    let expected = "\
pod ns/p fits on no node: 1 Insufficient cpu, 2 had untolerated taint {x: }
  n1 lacks 500m of cpu; would fit when pods leave.
  history, oldest first:
       40s ago  FailedScheduling (3 times): later
  next: kubectl get offers   # what each node can still take
";
    assert_eq!(explain_pod(&facts, now()).to_string(), expected);
}

#[test]
fn a_missing_node_label_is_named() {
    let message = "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector. cannot fit until x.";
    let facts = unschedulable(json!({ "containers": [], "nodeSelector": { "disktype": "ssd" } }), message);
    assert_eq!(headline(&facts), "fits on no node: no node has the label disktype=ssd");
    assert_eq!(next(&facts), ["kubectl label node NODE disktype=ssd"]);
    let term = json!({ "matchExpressions": [{ "key": "zone", "operator": "In", "values": ["a", "b"] }] });
    let required = json!({ "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [term] } });
    let facts = unschedulable(json!({ "containers": [], "affinity": { "nodeAffinity": required } }), message);
    assert_eq!(headline(&facts), "fits on no node: no node has the label zone in (a,b)");
}

#[test]
fn an_unbound_claim_and_its_storage_class_are_named() {
    let message = "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims. will be scheduled when that exists.";
    let mut facts = unschedulable(json!({ "containers": [] }), message);
    let claim =
        object(json!({ "metadata": { "name": "data", "namespace": "ns" }, "spec": { "storageClassName": "gp3" } }));
    facts.unbound_claims.push(("data".to_owned(), Some(ClaimFacts { claim, ..ClaimFacts::default() })));
    let expected = "waits for claim \"data\", which is not bound: storage class \"gp3\" does not exist (there is none)";
    assert_eq!(headline(&facts), expected);
    facts.unbound_claims = vec![("data".to_owned(), None)];
    assert_eq!(headline(&facts), "waits for claim \"data\", which does not exist");
}

#[test]
fn schedulers_and_nodes_that_do_not_exist_are_named() {
    let facts = pod_facts(json!({ "containers": [], "schedulerName": "mine" }), json!({}));
    assert_eq!(
        headline(&facts),
        "waits for scheduler \"mine\", which has done nothing about it for 2m10s; the built-in one is \"default-scheduler\""
    );
    let mut facts = pod_facts(json!({ "containers": [], "nodeName": "nowhere" }), json!({ "phase": "Pending" }));
    facts.node = AssignedNode::Missing;
    assert_eq!(headline(&facts), "cannot run: it is bound to node nowhere, which does not exist");
}

#[test]
fn a_pod_on_a_silent_node_points_to_the_node() {
    let ready = json!({ "type": "Ready", "status": "Unknown", "lastTransitionTime": "2026-01-01T00:59:00Z" });
    let node: Node = object(json!({ "metadata": { "name": "n1" }, "status": { "conditions": [ready] } }));
    let mut facts = pod_facts(json!({ "containers": [], "nodeName": "n1" }), json!({ "phase": "Running" }));
    facts.node = AssignedNode::Found(Box::new(node));
    assert_eq!(headline(&facts), "is on node n1, which is not ready: its agent has been silent for 1m0s");
    assert_eq!(next(&facts), ["mainstay why node/n1"]);
    facts.pod.metadata.deletion_timestamp = Some(object(json!("2026-01-01T00:59:00Z")));
    assert!(headline(&facts).contains("so nobody confirms that it stopped"), "{}", headline(&facts));
    assert_eq!(next(&facts), ["kubectl -n ns delete pod p --force --grace-period=0"]);
}

fn lost_node() -> Node {
    let ready = json!({ "type": "Ready", "status": "Unknown", "lastTransitionTime": "2026-01-01T00:59:00Z" });
    let taint = json!({ "key": "node.kubernetes.io/unreachable", "effect": "NoExecute" });
    let (spec, status) = (json!({ "taints": [taint] }), json!({ "conditions": [ready] }));
    object(json!({ "metadata": { "name": "n1" }, "spec": spec, "status": status }))
}

#[test]
fn a_pod_on_a_lost_node_says_what_becomes_of_it() {
    let mut facts = pod_facts(json!({ "containers": [], "nodeName": "n1" }), json!({ "phase": "Running" }));
    facts.node = AssignedNode::Found(Box::new(lost_node()));
    let details = |facts: &PodFacts| explain_pod(facts, now()).details.join("; ");
    assert!(details(&facts).contains("it is failed"), "{}", details(&facts));
    facts.owner = Some(OwnerName { kind: "deployment".to_owned(), name: "web".to_owned() });
    assert!(details(&facts).contains("it is replaced elsewhere"), "{}", details(&facts));
    facts.pod.metadata.annotations = Some([("mainstay.dev/unique".to_owned(), "true".to_owned())].into());
    assert!(details(&facts).contains("it must never run twice"), "{}", details(&facts));
    assert_eq!(next(&facts)[0], "kubectl -n ns delete pod p --force --grace-period=0");
}

#[test]
fn a_pod_that_waits_for_a_volume_on_a_lost_node_names_both_and_what_to_do() {
    let mut facts = unschedulable(
        json!({ "containers": [] }),
        "0/2 nodes are available: 1 node(s) had volume node affinity conflict, 1 node(s) had untolerated taint {x: }.",
    );
    facts.local_volumes = vec![LocalVolume {
        claim: "data".to_owned(),
        volume: "pvc-1".to_owned(),
        node: "n1".to_owned(),
        found: Some(Box::new(lost_node())),
    }];
    let expected = "cannot move: its claim \"data\" is volume pvc-1 on node n1, which is not ready: its agent has been \
                    silent for 1m0s";
    assert_eq!(headline(&facts), expected);
    assert_eq!(next(&facts)[0], "mainstay why node/n1");
    assert!(next(&facts)[1].contains("delete pvc data"), "{:?}", next(&facts));
}

#[test]
fn a_pod_that_was_removed_with_its_node_says_where_its_successor_runs() {
    let successor = json!({
        "metadata": { "name": "web-2" }, "spec": { "containers": [], "nodeName": "n2" },
        "status": { "conditions": [{ "type": "Ready", "status": "True" }] },
    });
    let mut facts = RemovedPodFacts {
        namespace: "ns".to_owned(),
        name: "web-1".to_owned(),
        siblings: vec![object(successor)],
        ..RemovedPodFacts::default()
    };
    assert_eq!(explain_removed_pod(&facts, now()), None, "nothing tells of it");
    let message = "Removed: its node n1 has been silent since 2026-01-01T00:59:00Z";
    facts.events = vec![object(json!({
        "metadata": { "name": "e" }, "involvedObject": {}, "reason": "NodeLost", "message": message, "type": "Warning",
        "lastTimestamp": "2026-01-01T00:59:13Z",
    }))];
    let text = explain_removed_pod(&facts, now()).unwrap().to_string();
    assert!(text.starts_with(&format!("pod ns/web-1 is gone. {message}")), "{text}");
    assert!(text.contains("pod web-2 runs on n2"), "{text}");
}

#[test]
fn every_other_state_has_its_sentence() {
    let empty = json!({ "containers": [] });
    assert_eq!(headline(&pod_facts(empty.clone(), json!({}))), "waits to be scheduled; created 2m10s ago");
    let gated = json!({ "containers": [], "schedulingGates": [{ "name": "a.b/c" }] });
    let expected = "is not scheduled yet: scheduling gate a.b/c must be removed first";
    assert_eq!(headline(&pod_facts(gated, json!({}))), expected);
    let nominated = pod_facts(empty, json!({ "nominatedNodeName": "n2" }));
    assert_eq!(headline(&nominated), "waits for room on node n2, where pods of lower priority are being deleted");
    let on = json!({ "containers": [], "nodeName": "n1" });
    let evicted = pod_facts(on.clone(), json!({ "phase": "Failed", "reason": "Evicted", "message": "no disk" }));
    assert_eq!(headline(&evicted), "failed on n1: Evicted: no disk");
    let ready = json!([{ "type": "Ready", "status": "True" }]);
    let status =
        json!({ "phase": "Running", "podIP": "10.244.0.7", "startTime": "2026-01-01T00:58:00Z", "conditions": ready });
    assert_eq!(headline(&pod_facts(on.clone(), status)), "runs on n1 at 10.244.0.7 for 2m0s, ready");
    let mut leaving = pod_facts(on, json!({ "phase": "Running" }));
    leaving.pod.metadata.deletion_timestamp = Some(object(json!("2026-01-01T00:59:00Z")));
    leaving.pod.metadata.finalizers = Some(vec!["example.com/hold".to_owned()]);
    let expected = "is being deleted, but finalizer example.com/hold is not removed; its grace period ended 1m0s ago";
    assert_eq!(headline(&leaving), expected);
}

#[test]
fn a_message_of_another_shape_stays_as_it_is() {
    let facts = unschedulable(
        json!({ "containers": [] }),
        "no nodes available to schedule pods; cannot fit until a node joins.",
    );
    assert_eq!(headline(&facts), "fits on no node: no nodes available to schedule pods; cannot fit until a node joins");
}
