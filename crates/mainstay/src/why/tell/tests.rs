use serde_json::json;

use super::*;

fn now() -> Timestamp {
    "2026-01-01T01:00:00Z".parse().unwrap()
}

fn told(spec: Value, status: Value, events: Value) -> String {
    let object: Pod = serde_json::from_value(json!({
        "metadata": { "name": "p", "namespace": "ns", "uid": "u", "creationTimestamp": "2026-01-01T00:57:50Z" },
        "spec": spec, "status": status,
    }))
    .unwrap();
    let events: Vec<Event> = serde_json::from_value(events).unwrap();
    pod(&object, &events, now())
}

#[test]
fn an_unplaced_pod_is_explained_reason_by_reason() {
    let message = "0/3 nodes are available: 1 Insufficient cpu, 2 node(s) had untolerated taint {x: }. \
                   n1 lacks 500m of cpu. It fits when others go.";
    let text = told(
        json!({ "containers": [] }),
        json!({ "phase": "Pending", "conditions": [
            { "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message },
        ] }),
        json!([
            { "metadata": {}, "involvedObject": {}, "reason": "FailedScheduling", "message": "later", "count": 3,
              "firstTimestamp": "2026-01-01T00:59:00Z" },
            { "metadata": {}, "involvedObject": {}, "reason": "Refused", "message": "machine n1 refused: full",
              "eventTime": "2026-01-01T00:58:00.000000Z" },
        ]),
    );
    let expected = "\
pod ns/p fits on no machine; created 2m10s ago
  0/3 machines can take it:
      1  Insufficient cpu
      2  node(s) had untolerated taint {x: }
  n1 lacks 500m of cpu.
  It fits when others go.
  history, oldest first:
      2m0s ago  Refused: machine n1 refused: full
      1m0s ago  FailedScheduling (3 times): later
";
    assert_eq!(text, expected);
}

#[test]
fn a_running_pod_tells_where_it_is_and_what_broke() {
    let text = told(
        json!({ "containers": [], "nodeName": "n1" }),
        json!({
            "phase": "Running", "podIP": "10.244.0.7", "startTime": "2026-01-01T00:58:00Z",
            "conditions": [
                { "type": "PodScheduled", "status": "True" },
                { "type": "Ready", "status": "False", "reason": "ContainersNotReady", "message": "containers with unready status: [c]",
                  "lastTransitionTime": "2026-01-01T00:59:30Z" },
            ],
            "containerStatuses": [{
                "name": "c", "ready": false, "restartCount": 2, "image": "i", "imageID": "",
                "state": { "waiting": { "reason": "CrashLoopBackOff" } },
                "lastState": { "terminated": { "exitCode": 137, "reason": "OOMKilled", "finishedAt": "2026-01-01T00:59:50Z" } },
            }],
        }),
        json!([]),
    );
    let expected = "\
pod ns/p runs on n1 at 10.244.0.7 for 2m0s, not ready
  container c: waits, CrashLoopBackOff, restarted 2 times
    before that: OOMKilled, exit code 137 10s ago
  Ready is False for 30s: ContainersNotReady: containers with unready status: [c]
";
    assert_eq!(text, expected);
}

#[test]
fn every_other_state_has_its_sentence() {
    let first = |spec: Value, status: Value| told(spec, status, json!([])).lines().next().unwrap().to_owned();
    let empty = json!({ "containers": [] });
    assert_eq!(first(empty.clone(), json!({})), "pod ns/p waits to be placed; created 2m10s ago");
    assert_eq!(
        first(json!({ "containers": [], "schedulingGates": [{ "name": "a.b/c" }] }), json!({})),
        "pod ns/p is not to be placed yet: it is held by a.b/c"
    );
    assert_eq!(
        first(empty, json!({ "nominatedNodeName": "n2" })),
        "pod ns/p waits for room on n2, where others make way; created 2m10s ago"
    );
    let on = json!({ "containers": [], "nodeName": "n1" });
    assert_eq!(first(on.clone(), json!({ "phase": "Pending" })), "pod ns/p is on n1 and starts; created 2m10s ago");
    assert_eq!(
        first(on, json!({ "phase": "Failed", "reason": "Evicted", "message": "no disk" })),
        "pod ns/p ended (Failed) on n1: Evicted: no disk"
    );
}

#[test]
fn a_message_of_another_shape_is_told_as_it_is() {
    assert_eq!(reasons("no nodes available to schedule pods"), "  no nodes available to schedule pods\n");
}

#[test]
fn workloads_name_their_pods() {
    let labels = |selector: Value| super::selector(&json!({ "spec": { "selector": selector } }));
    assert_eq!(labels(json!({ "matchLabels": { "app": "web" } })).as_deref(), Some("app=web"));
    assert_eq!(labels(json!({ "app": "web" })).as_deref(), Some("app=web"));
    let mixed = json!({ "matchExpressions": [
        { "key": "a", "operator": "In", "values": ["1", "2"] }, { "key": "b", "operator": "DoesNotExist" },
    ] });
    assert_eq!(labels(mixed).as_deref(), Some("a in (1,2),!b"));
    assert_eq!(labels(json!({})), None);
}
