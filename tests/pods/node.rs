//! The Node that an agent reports, beside what others write to it, and what the agent's own port serves.

use serde_json::json;

use super::{container, manifest, merged, until_running};
use crate::{
    harness::{Kubectl, Version, eventually},
    restarts::until,
};

fn node(k: &Kubectl) -> String {
    eventually("the node", || Some(k.value("nodes", "{.items[*].metadata.name}")).filter(|name| !name.is_empty()))
}

fn sleeper(name: &str, fields: serde_json::Value) -> String {
    manifest(name, json!({"containers": [container("c", "exec sleep 1000", fields)]}))
}

#[test]
fn an_extended_resource_that_somebody_sets_is_allocatable_and_counted() {
    let k = Kubectl::with_pods(Version::V1_32);
    let node = format!("node {}", node(&k));
    until(&k, &node, r#"{.status.conditions[?(@.type=="Ready")].status}"#, "True");
    k.ok(&format!(
        r#"patch {node} --subresource=status -p '{{"status":{{"capacity":{{"example.com/dongle":"3"}}}}}}'"#
    ));
    until(&k, &node, r"{.status.allocatable.example\.com/dongle}", "3");
    let asks = |count: &str| {
        let resources = json!({"example.com/dongle": count});
        json!({"resources": {"requests": resources, "limits": resources}})
    };
    k.create(&sleeper("first", asks("2")));
    until_running(&k, "first");
    k.create(&sleeper("second", asks("2")));
    let pending = r#"{.status.conditions[?(@.type=="PodScheduled")].message}"#;
    let why =
        eventually("the second does not fit", || Some(k.value("pod second", pending)).filter(|why| !why.is_empty()));
    assert!(why.contains("example.com/dongle"), "{why}");
    k.ok("delete pod first");
    until_running(&k, "second");
    assert_eq!(k.value(&node, r"{.status.capacity.example\.com/dongle}"), "3");
}

#[test]
fn a_pod_that_somebody_sets_to_failed_is_stopped_and_stays_failed() {
    let k = Kubectl::with_pods(Version::V1_32);
    k.create(&sleeper("p", json!({})));
    until_running(&k, "p");
    k.ok(r#"patch pod p --subresource=status -p '{"status":{"phase":"Failed","reason":"ByHand"}}'"#);
    // The first process of a container is deaf to SIGTERM unless it handles it.
    until(&k, "pod p", "{.status.containerStatuses[0].state.terminated.exitCode}", "137");
    assert_eq!(k.value("pod p", "{.status.phase} {.status.reason}"), "Failed ByHand");
    assert_eq!(k.value("pod p", "{.status.containerStatuses[0].restartCount}"), "0");
}

#[test]
fn labels_from_flags_follow_a_restart_and_those_that_users_changed_stay() {
    let mut k = Kubectl::with_pods_and(Version::V1_32, &["--node-label", "rack=1,zone-hint=a,gone=x"]);
    let node = format!("node {}", node(&k));
    let label = |k: &Kubectl, name: &str| k.value(&node, &format!("{{.metadata.labels.{name}}}"));
    assert_eq!([label(&k, "rack"), label(&k, "zone-hint"), label(&k, "gone")], ["1", "a", "x"]);
    k.ok(&format!("label {node} zone-hint- mine=yes"));
    k.cluster.terminate();
    k.cluster.set_flag("--node-label", "rack=2,zone-hint=a");
    k.cluster.start_again();
    eventually("the label follows its flag", || (label(&k, "rack") == "2").then_some(()));
    assert_eq!([label(&k, "zone-hint"), label(&k, "gone"), label(&k, "mine")], ["", "", "yes"]);
}

#[test]
fn the_agents_port_serves_what_a_kubelets_does() {
    let k = Kubectl::with_pods(Version::V1_32);
    let node = node(&k);
    k.create(&sleeper("p", json!({})));
    until_running(&k, "p");
    let get = |path: &str| k.ok(&format!("get --raw /api/v1/nodes/{node}/proxy{path}"));
    let metrics = get("/metrics/cadvisor");
    let sample = |name: &str, container: &str| {
        let (container, pod) = (format!("container=\"{container}\""), "namespace=\"default\",pod=\"p\"");
        metrics
            .lines()
            .any(|line| line.starts_with(&format!("{name}{{")) && line.contains(&container) && line.contains(pod))
    };
    for name in
        ["container_cpu_usage_seconds_total", "container_memory_working_set_bytes", "container_memory_usage_bytes"]
    {
        assert!(sample(name, "c") && sample(name, ""), "{name} in\n{metrics}");
    }
    for name in ["container_network_receive_bytes_total", "container_network_transmit_bytes_total"] {
        assert!(sample(name, ""), "{name} in\n{metrics}");
    }
    let running: serde_json::Value = serde_json::from_str(&get("/runningpods/")).expect("JSON");
    assert_eq!(running["items"][0]["spec"]["containers"], json!([{"name": "c", "image": "host"}]));
    let config: serde_json::Value = serde_json::from_str(&get("/configz")).expect("JSON");
    assert_eq!(config["kubeletconfig"]["clusterDomain"], json!("cluster.local"));
    assert!(get("/logs/").starts_with("<pre>"));
    k.refused(&format!("get --raw /api/v1/nodes/{node}/proxy/logs/..%2f..%2fetc%2fpasswd"));
}

#[test]
fn what_a_container_printed_or_not_is_reported_as_it_was() {
    let k = Kubectl::with_pods(Version::V1_32);
    let ends = |name: &str, script: &str, fields: serde_json::Value| {
        let c = merged(container("c", script, json!({})), fields);
        k.create(&manifest(name, json!({"restartPolicy": "Never", "containers": [c]})));
    };
    ends("silent", "exit 0", json!({}));
    ends("unfinished", "printf 'one\\nDONE'; exit 1", json!({"terminationMessagePolicy": "FallbackToLogsOnError"}));
    until(&k, "pod silent", "{.status.phase}", "Succeeded");
    let logs = k.run("logs silent");
    assert_eq!((logs.stdout.as_str(), logs.code), ("", 0));
    until(&k, "pod unfinished", "{.status.phase}", "Failed");
    assert_eq!(k.value("pod unfinished", "{.status.containerStatuses[0].state.terminated.message}"), "one\nDONE");
    assert_eq!(k.run("logs unfinished").stdout, "one\nDONE");
}

#[test]
fn a_failed_startup_probe_is_called_startup() {
    let k = Kubectl::with_pods(Version::V1_32);
    let probe = json!({"exec": {"command": ["false"]}, "periodSeconds": 1, "failureThreshold": 1});
    k.create(&sleeper("p", json!({"startupProbe": probe})));
    let killing = || k.value("events --field-selector involvedObject.name=p,reason=Killing", "{.items[*].message}");
    let text = eventually("it is killed", || Some(killing()).filter(|text| !text.is_empty()));
    assert_eq!(text, "Container c failed startup probe, will be restarted");
}

#[test]
fn run_attaches_to_a_pipe_and_leaves_standard_input_open() {
    let k = Kubectl::with_pods(Version::V1_32);
    let line = "run p --image=host --restart=Never --attach --stdin --leave-stdin-open --command -- sh -c 'read line; echo got $line'";
    let output = k.run_with(line, "hello\n");
    assert!(output.stdout.contains("got hello"), "{output}");
    until(&k, "pod p", "{.status.phase}", "Succeeded");
}
