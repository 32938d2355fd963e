use serde_json::json;

use super::*;
use crate::table::testing::{heads, odd_row, row};

fn with(spec: Value, status: Value) -> Value {
    json!({"spec": spec, "status": status})
}

/// Ready, status and restarts.
fn shown(pod: Value) -> [String; 3] {
    let row = row(&PODS, pod);
    [1, 2, 3].map(|i| row[i].as_str().unwrap().to_owned())
}

#[test]
fn a_running_pod_shows_everything_about_it() {
    let pod = with(
        json!({
            "nodeName": "n1",
            "containers": [{"name": "a"}, {"name": "b"}],
            "readinessGates": [{"conditionType": "lb"}, {"conditionType": "dns"}],
        }),
        json!({
            "phase": "Running",
            "podIP": "10.0.0.1",
            "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}],
            "nominatedNodeName": "n2",
            "conditions": [{"type": "lb", "status": "True"}, {"type": "dns", "status": "False"}],
            "containerStatuses": [
                {"name": "a", "ready": true, "restartCount": 1, "state": {"running": {}},
                 "lastState": {"terminated": {"finishedAt": "2025-01-01T23:00:00Z"}}},
                {"name": "b", "ready": true, "restartCount": 2, "state": {"running": {}},
                 "lastState": {"terminated": {"finishedAt": "2025-01-01T23:55:00Z"}}},
            ],
        }),
    );
    assert_eq!(row(&PODS, pod), json!(["x", "2/2", "Running", "3 (5m ago)", "5m", "10.0.0.1", "n1", "n2", "1/2"]));
    assert_eq!(
        heads(&PODS),
        "Name:string | Ready:string | Status:string | Restarts:string | Age:string | +IP:string | +Node:string | \
         +Nominated Node:string | +Readiness Gates:string"
    );
}

#[test]
fn a_new_pod_shows_that_nothing_is_known() {
    let pod = with(json!({"containers": [{"name": "a"}]}), json!({"phase": "Pending"}));
    assert_eq!(row(&PODS, pod), json!(["x", "0/1", "Pending", "0", "5m", "<none>", "<none>", "<none>", "<none>"]));
}

#[test]
fn the_first_container_that_does_not_run_speaks_for_all() {
    let running = json!({"ready": true, "state": {"running": {}}});
    let waiting = |reason: &str| json!({"state": {"waiting": {"reason": reason}}, "restartCount": 3});
    let ended = |end: Value| json!({"state": {"terminated": end}});
    let cases = [
        (json!([running, waiting("CrashLoopBackOff")]), "Running", ["1/2", "CrashLoopBackOff", "3"]),
        (
            json!([waiting("ImagePullBackOff"), waiting("CrashLoopBackOff")]),
            "Running",
            ["0/2", "ImagePullBackOff", "6"],
        ),
        (json!([ended(json!({"reason": "Error", "exitCode": 1})), running]), "Running", ["1/2", "Error", "0"]),
        (json!([ended(json!({"exitCode": 3})), running]), "Running", ["1/2", "ExitCode:3", "0"]),
        (json!([ended(json!({"signal": 9, "exitCode": 137})), running]), "Running", ["1/2", "Signal:9", "0"]),
        (
            json!([ended(json!({"reason": "Completed"})), ended(json!({"reason": "Completed"}))]),
            "Succeeded",
            ["0/2", "Completed", "0"],
        ),
        (json!([ended(json!({"reason": "Completed"})), running]), "Running", ["1/2", "NotReady", "0"]),
        (json!([waiting(""), running]), "Pending", ["1/2", "Pending", "3"]),
        (json!([{"ready": false, "state": {"running": {}}}, running]), "Running", ["1/2", "Running", "0"]),
    ];
    for (statuses, phase, expected) in cases {
        let spec = json!({"containers": [{"name": "a"}, {"name": "b"}]});
        let pod = with(spec, json!({"phase": phase, "containerStatuses": statuses}));
        assert_eq!(shown(pod), expected, "{statuses}");
    }
}

#[test]
fn a_ready_pod_of_which_one_container_completed_runs() {
    let pod = with(
        json!({"containers": [{"name": "a"}, {"name": "b"}]}),
        json!({
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [
                {"state": {"terminated": {"reason": "Completed"}}},
                {"ready": true, "state": {"running": {}}},
            ],
        }),
    );
    assert_eq!(shown(pod), ["1/2", "Running", "0"]);
}

#[test]
fn an_init_container_that_is_not_done_speaks_first() {
    let cases = [
        (json!([{"name": "i", "state": {"running": {}}}]), "Init:0/2"),
        (json!([{"name": "i", "state": {"waiting": {"reason": "PodInitializing"}}}]), "Init:0/2"),
        (json!([{"name": "i", "state": {"waiting": {"reason": "CrashLoopBackOff"}}}]), "Init:CrashLoopBackOff"),
        (json!([{"name": "i", "state": {"terminated": {"exitCode": 1, "reason": "Error"}}}]), "Init:Error"),
        (json!([{"name": "i", "state": {"terminated": {"exitCode": 2}}}]), "Init:ExitCode:2"),
        (json!([{"name": "i", "state": {"terminated": {"exitCode": 137, "signal": 9}}}]), "Init:Signal:9"),
        (json!([{"name": "i", "state": {"terminated": {"exitCode": 0}}}, {"name": "j", "state": {}}]), "Init:1/2"),
        (json!([{"name": "i", "state": {"terminated": {"exitCode": 0}}}]), "PodInitializing"),
    ];
    for (statuses, expected) in cases {
        let spec = json!({"containers": [{"name": "a"}], "initContainers": [{"name": "i"}, {"name": "j"}]});
        let waiting = json!([{"state": {"waiting": {"reason": "PodInitializing"}}}]);
        let status = json!({"phase": "Pending", "initContainerStatuses": statuses, "containerStatuses": waiting});
        assert_eq!(shown(with(spec, status)), ["0/1", expected, "0"], "{statuses}");
    }
}

#[test]
fn restarts_of_init_containers_are_forgotten_once_the_pod_is_initialised() {
    let spec = json!({"containers": [{"name": "a"}], "initContainers": [{"name": "i"}]});
    let init = |state: Value| {
        json!([{"name": "i", "restartCount": 2, "state": state,
                "lastState": {"terminated": {"finishedAt": "2025-01-01T23:59:40Z"}}}])
    };
    let app = json!([{"ready": true, "restartCount": 4, "state": {"running": {}},
                      "lastState": {"terminated": {"finishedAt": "2025-01-01T23:59:00Z"}}}]);
    let initialising = json!({"phase": "Pending", "initContainerStatuses": init(json!({"running": {}}))});
    assert_eq!(shown(with(spec.clone(), initialising)), ["0/1", "Init:0/1", "2 (20s ago)"]);
    let done = init(json!({"terminated": {"exitCode": 0}}));
    let running = json!({"phase": "Running", "initContainerStatuses": done, "containerStatuses": app});
    assert_eq!(shown(with(spec, running)), ["1/1", "Running", "4 (60s ago)"]);
}

#[test]
fn sidecars_count_among_the_containers_that_keep_running() {
    let spec = json!({
        "containers": [{"name": "a"}],
        "initContainers": [{"name": "s", "restartPolicy": "Always"}, {"name": "i"}],
    });
    let sidecar = |started: bool| json!({"name": "s", "started": started, "ready": started, "restartCount": 3, "state": {"running": {}}});
    let init = |state: Value| json!({"name": "i", "state": state});
    let app = json!([{"ready": true, "state": {"running": {}}}]);
    let cases = [
        (json!([sidecar(false), init(json!({}))]), json!([]), "Pending", ["0/2", "Init:0/2", "3"]),
        (json!([sidecar(true), init(json!({"running": {}}))]), json!([]), "Pending", ["1/2", "Init:1/2", "3"]),
        (json!([sidecar(true), init(json!({"terminated": {"exitCode": 0}}))]), app, "Running", ["2/2", "Running", "3"]),
    ];
    for (inits, apps, phase, expected) in cases {
        let status = json!({"phase": phase, "initContainerStatuses": inits, "containerStatuses": apps});
        assert_eq!(shown(with(spec.clone(), status)), expected, "{inits}");
    }
}

#[test]
fn an_initialised_pod_whose_sidecar_crashes_still_counts_its_containers() {
    let spec = json!({"containers": [{"name": "a"}], "initContainers": [{"name": "s", "restartPolicy": "Always"}]});
    let status = json!({
        "phase": "Running",
        "conditions": [{"type": "Initialized", "status": "True"}],
        "initContainerStatuses": [{"name": "s", "started": false, "restartCount": 1, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}],
        "containerStatuses": [{"ready": true, "state": {"running": {}}}],
    });
    assert_eq!(shown(with(spec, status)), ["1/2", "Init:CrashLoopBackOff", "1"]);
}

#[test]
fn deletion_overrules_all_but_the_end() {
    let cases = [
        (json!({"phase": "Running"}), "Terminating"),
        (json!({"phase": "Running", "reason": "NodeLost"}), "Unknown"),
        (json!({"phase": "Succeeded"}), "Succeeded"),
        (json!({"phase": "Failed", "reason": "Evicted"}), "Evicted"),
    ];
    for (status, expected) in cases {
        let mut pod = with(json!({}), status);
        pod["metadata"] = json!({"deletionTimestamp": "2025-01-01T23:59:00Z"});
        assert_eq!(shown(pod)[1], expected);
    }
}

#[test]
fn reasons_come_before_phases_and_gates_before_both() {
    assert_eq!(shown(with(json!({}), json!({"phase": "Failed", "reason": "Evicted"})))[1], "Evicted");
    let gated = json!({
        "phase": "Pending",
        "conditions": [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}],
    });
    assert_eq!(shown(with(json!({}), gated))[1], "SchedulingGated");
}

#[test]
fn strange_fields_do_not_hide_the_rest() {
    let pod = with(
        json!({"containers": "many"}),
        json!({"containerStatuses": [1, null, {"restartCount": "x"}], "podIPs": {}}),
    );
    let row = odd_row(&PODS, pod);
    assert_eq!(row, json!(["x", "0/0", "", "0", "5m", "<none>", "<none>", "<none>", "<none>"]));
}
