//! Several machines, each a network namespace: they join, run pods, and are reached through the server.

use std::{fs, path::Path};

use serde_json::json;

use crate::harness::{Machines, PATIENCE, command::run, eventually, tool};

/// Serves its own machine's name.
fn web(name: &str, busybox: &Path) -> String {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "web", "image": "host",
                "env": [{ "name": "NODE", "valueFrom": { "fieldRef": { "fieldPath": "spec.nodeName" } } }],
                "command": ["sh", "-c", "mkdir /www && echo on $NODE | tee /www/index.html && exec /busybox httpd -f -p 80 -h /www"],
                "volumeMounts": [{ "name": "busybox", "mountPath": "/busybox" }],
            }],
            "volumes": [{ "name": "busybox", "hostPath": { "path": busybox, "type": "File" } }],
        },
    })
    .to_string()
}

#[test]
fn machines_join_run_pods_reach_each_other_and_are_reached_through_the_server() {
    let machines = Machines::joined(&["a", "b"]);
    let busybox = fs::canonicalize(tool("busybox/bin/busybox")).expect("busybox");
    for name in ["one", "two"] {
        machines.kubectl(&["create", "-f", "-"], &web(name, &busybox)).ok();
    }
    machines.kubectl(&["wait", "--for=condition=Ready", "pod/one", "pod/two", "--timeout=25s"], "").ok();
    let value =
        |pod: &str, path: &str| machines.kubectl(&["get", "pod", pod, "-o", &format!("jsonpath={path}")], "").ok();
    let nodes = [value("one", "{.spec.nodeName}"), value("two", "{.spec.nodeName}")];
    assert_ne!(nodes[0], nodes[1], "two pods go to two machines");
    for (pod, node) in ["one", "two"].into_iter().zip(&nodes) {
        assert_eq!(machines.kubectl(&["logs", pod], "").ok(), format!("on {node}\n"));
        assert_eq!(machines.kubectl(&["exec", pod, "--", "hostname"], "").ok(), format!("{pod}\n"));
    }
    let from_other = |pod: &str, url: &str| machines.kubectl(&["exec", pod, "--", "/busybox", "wget", "-qO-", url], "");
    let two = format!("http://{}/", value("two", "{.status.podIP}"));
    eventually("a pod reaches a pod on the other machine", || {
        (from_other("one", &two).stdout == format!("on {}\n", nodes[1])).then_some(())
    });

    // The name of a member is taken, whoever holds a token.
    let stranger = machines.dir().join("stranger");
    let mut second = machines.on("b", Path::new(env!("CARGO_BIN_EXE_mainstay")));
    second.args(["agent", "--server", "https://198.51.100.1:6443", "--token", machines.token(), "--node-name", "a"]);
    second.args(["--node-ip", "198.51.100.3", "--agent-port", "0", "--data-dir"]).arg(&stranger);
    let refused = run(second, "mainstay agent", "", PATIENCE).refused();
    assert!(refused.contains("\"a\"") || refused.contains("node a"), "{refused}");

    machines.kubectl(&["delete", "pod", "one", "two"], "").ok();
}
