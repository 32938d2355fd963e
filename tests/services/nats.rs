//! One NATS with fifty dependents, whose only pod is killed.

use std::fs;

use serde::Deserialize;
use serde_json::json;

use super::lab::{Lab, set, signal};
use crate::harness::{eventually, host, tool};

const PODS: usize = 5;
const DEPENDENTS: usize = 50;

#[derive(Clone, Deserialize)]
struct Dependent {
    received: u64,
    reconnects: u64,
    addresses: Vec<String>,
}

fn dependents(lab: &Lab) -> Vec<Dependent> {
    let files = (0..PODS).map(|n| fs::read_to_string(lab.shared.join(format!("dependents-{n}"))).unwrap_or_default());
    files.flat_map(|text| serde_json::from_str::<Vec<Dependent>>(&text).unwrap_or_default()).collect()
}

/// Waits until all have reconnected so often and hear something after that.
#[track_caller]
fn all_receive(lab: &Lab, reconnects: u64) {
    let again = eventually("all dependents have reconnected", || {
        let now = dependents(lab);
        (now.len() == DEPENDENTS && now.iter().all(|one| one.reconnects >= reconnects)).then_some(now)
    });
    eventually("all dependents hear again", || {
        let now = dependents(lab);
        let has_progressed = |(now, then): (&Dependent, &Dependent)| now.received > then.received;
        (now.len() == DEPENDENTS && now.iter().zip(&again).all(has_progressed)).then_some(())
    });
}

#[test]
fn fifty_dependents_of_one_nats_outlive_its_only_pod_and_find_the_next_at_the_same_address() {
    let lab = Lab::new(&["a", "b"]);
    let port = json!([{ "port": 4222 }]);
    let address = lab.start_service("nats", json!({ "ports": port }));
    let server = tool("nats/usr/sbin/nats-server").display().to_string();
    let mut pod = lab.container(&[server, "-p".into(), "4222".into()]);
    pod["containers"][0]["readinessProbe"] = json!({ "tcpSocket": { "port": 4222 }, "periodSeconds": 1 });
    lab.create(&set("Deployment", "nats", 1, pod));
    let nats = lab.serves("nats", 1).remove(0);
    for n in 0..PODS {
        let (file, count) = (format!("/shared/dependents-{n}"), (DEPENDENTS / PODS).to_string());
        let spec = lab.pod("dependents.py", &[&file, &count, "nats://nats.default.svc.cluster.local:4222"]);
        let machine = if n % 2 == 0 { "a" } else { "b" };
        lab.start_pod(&format!("dependents-{n}"), machine, spec);
    }
    all_receive(&lab, 0);

    // The pod is deleted: another takes its place, at the same address.
    lab.kubectl(&format!("delete pod {nats} --wait=false"));
    let next = eventually("another takes its place", || lab.ready_pods("nats").into_iter().find(|pod| *pod != nats));
    all_receive(&lab, 1);

    // Its process is killed: the same pod comes back.
    let node = lab.value(&format!("pod {next}"), "{.spec.nodeName}");
    let pids = host::of_instance(&lab.machines.data(&node));
    let is_nats =
        |pid: &u32| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.starts_with("nats"));
    signal("KILL", &pids.into_iter().filter(is_nats).collect::<Vec<_>>());
    all_receive(&lab, 2);

    let all = dependents(&lab);
    assert!(all.iter().all(|one| one.addresses == [address.as_str()]), "never another address");
    let restarts = "jsonpath={.items[*].status.containerStatuses[0].restartCount}";
    let output = lab.kubectl(&format!("get pods -l app!=nats -o {restarts}"));
    assert_eq!(output.split(' ').collect::<Vec<_>>(), ["0"; PODS], "no dependent was restarted");
}
