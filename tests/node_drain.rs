//! Machines that leave in order: `mainstay drain` and `--drain-on-stop`. Takes root.

use std::{process::Command, time::Duration};

use serde_json::json;

use crate::{
    harness::{
        FakeLogind, Following, Machines,
        command::{Output, run},
        eventually,
    },
    services::lab::{Lab, set, signal},
};

/// Longer than any drain here takes.
const PATIENCE: Duration = Duration::from_secs(120);

fn drain(lab: &Lab, arguments: &[&str]) -> Output {
    run(drain_command(lab, arguments), "mainstay drain", "", PATIENCE)
}

fn drain_command(lab: &Lab, arguments: &[&str]) -> Command {
    lab.machines.mainstay("server", &[&["drain"], arguments].concat())
}

fn node_of(lab: &Lab, pod: &str) -> String {
    lab.value(&format!("pod {pod}"), "{.spec.nodeName}")
}

#[test]
fn a_drained_node_has_no_pods_and_their_replacements_were_ready_before() {
    let lab = Lab::of(Machines::joined(&["a", "b"]));
    lab.kubectl("cordon b");
    lab.start_web("web", 2);
    lab.kubectl("uncordon b");
    let before = lab.pods("web");
    assert!(before.iter().all(|pod| node_of(&lab, pod) == "a"));
    let mut watched = lab.machines.on("server", &crate::harness::tool("bin/kubectl-1.32"));
    watched.arg("--kubeconfig").arg(lab.machines.data("server").join("admin.kubeconfig"));
    watched.args(["get", "deployment", "web", "--watch", "-o", r"jsonpath={.status.availableReplicas}{'\n'}"]);
    let mut watched = Following::start(watched, "kubectl get deployment --watch");
    watched.until("both are available", |line| line == "2");
    let said = drain(&lab, &["a", "--timeout", "90s"]).ok();
    assert!(said.contains("node/a cordoned") && said.contains("node/a drained: 2 pods evicted"), "{said}");
    for pod in &before {
        let line = |what: &str| said.contains(&format!("pod default/{pod} {what}"));
        assert!(line("waits for its replacement") && line("evicted") && line("is gone after"), "{said}");
    }
    let after = lab.serves("web", 2);
    assert!(after.iter().all(|pod| !before.contains(pod) && node_of(&lab, pod) == "b"), "{after:?}");
    let available = lab.value("deployment web", "{.status.availableReplicas}");
    assert_eq!(available, "2");
    assert!(drain(&lab, &["a", "--undo"]).ok().contains("node/a uncordoned"));
    assert_eq!(lab.value("node a", "{.spec.unschedulable}"), "");
}

#[test]
fn a_budget_blocks_a_drain_by_name_until_it_allows_it() {
    let lab = Lab::of(Machines::joined(&["a", "b"]));
    lab.kubectl("cordon b");
    let pod = lab.container(&["sleep", "1000"].map(str::to_owned));
    let mut once = set("StatefulSet", "db", 1, pod);
    once["spec"]["serviceName"] = "db".into();
    lab.create(&once);
    lab.serves("db", 1);
    let budget = json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": { "name": "keep-db" },
        "spec": { "minAvailable": 1, "selector": { "matchLabels": { "app": "db" } } },
    });
    lab.create(&budget);
    lab.kubectl("uncordon b");
    let blocked = drain(&lab, &["a", "--timeout", "4s"]);
    assert_eq!(blocked.code, 1, "{blocked}");
    let why = "default/db-0: The disruption budget keep-db needs 1 healthy pods and has 1 currently";
    assert!(blocked.stderr.contains(why) && blocked.stdout.contains("may not go yet"), "{blocked}");
    assert_eq!(node_of(&lab, "db-0"), "a");
    let mut going = Following::start(drain_command(&lab, &["a"]), "mainstay drain a");
    going.until("it is blocked", |line| line.contains("keep-db"));
    lab.kubectl("delete pdb keep-db");
    going.until("it goes on", |line| line.contains("node/a drained"));
    eventually("it runs on the other node", || {
        (lab.ready_pods("db") == ["db-0"] && node_of(&lab, "db-0") == "b").then_some(())
    });
}

#[test]
fn what_would_be_lost_stops_a_drain_before_anything_is_evicted() {
    let lab = Lab::of(Machines::joined(&["a"]));
    let container = lab.container(&["sleep", "1000"].map(str::to_owned));
    lab.create(&json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "bare" }, "spec": container }));
    let mut data = container.clone();
    data["volumes"].as_array_mut().unwrap().push(json!({ "name": "d", "emptyDir": {} }));
    lab.create(&set("Deployment", "data", 1, data));
    let mut everywhere = set("DaemonSet", "everywhere", 1, container);
    everywhere["spec"].as_object_mut().unwrap().remove("replicas");
    lab.create(&everywhere);
    lab.serves("everywhere", 1);
    lab.serves("data", 1);
    eventually("the bare pod runs", || (lab.value("pod bare", "{.status.phase}") == "Running").then_some(()));
    let refused = drain(&lab, &["a"]);
    assert_eq!(refused.code, 1, "{refused}");
    assert!(refused.stderr.contains("default/bare: nobody would replace it (use --force"), "{refused}");
    assert!(refused.stderr.contains("emptyDir volume (use --delete-emptydir-data"), "{refused}");
    assert!(refused.stdout.contains("stays: of a DaemonSet"), "{refused}");
    assert_eq!(lab.serves("data", 1).len(), 1);
    drain(&lab, &["a", "--force", "--delete-emptydir-data", "--grace-period", "1", "--timeout", "30s"]).ok();
    assert_ne!(lab.try_kubectl("get pod bare").code, 0, "it is gone");
    assert_eq!(lab.serves("everywhere", 1).len(), 1, "those of DaemonSets stay");
    assert_eq!(drain(&lab, &["nowhere"]).refused().lines().count(), 1);
}

#[test]
fn an_agent_that_drains_when_it_stops_leaves_none_of_its_pods_and_offers_again_when_it_starts() {
    let mut lab = Lab::of(Machines::joined_with(&["a", "b"], &["--drain-on-stop"]));
    lab.kubectl("cordon b");
    lab.start_web("web", 2);
    lab.kubectl("uncordon b");
    signal("TERM", &[lab.machines.pid("a")]);
    eventually("all serve from the other node", || {
        let ready = lab.ready_pods("web");
        (ready.len() == 2 && ready.iter().all(|pod| node_of(&lab, pod) == "b")).then_some(())
    });
    lab.serves("web", 2);
    lab.machines.start_agent("a");
    lab.kubectl("cordon b");
    lab.kubectl("scale deployment web --replicas=3");
    let third = eventually("a third one serves", || (lab.ready_pods("web").len() == 3).then(|| lab.ready_pods("web")));
    assert_eq!(third.iter().filter(|pod| node_of(&lab, pod) == "a").count(), 1);
}

#[test]
fn a_machine_that_shuts_down_is_held_up_until_its_pods_run_elsewhere() {
    let logind = FakeLogind::start();
    let mut machines = Machines::wired(&["a", "b"]);
    machines.start_server();
    machines.set_environment(Some(("DBUS_SYSTEM_BUS_ADDRESS", logind.address())));
    machines.start_agent_with("a", &["--drain-on-stop"]);
    machines.set_environment(None);
    machines.start_agent("b");
    machines.all_ready();
    let lab = Lab::of(machines);
    eventually("the shutdown is inhibited", || (logind.locks() == 1).then_some(()));
    let log = lab.machines.log("a");
    assert!(log.contains("InhibitDelayMaxSec"), "5 s are too short for a drain: {log}");
    lab.kubectl("cordon b");
    lab.start_web("web", 2);
    lab.kubectl("uncordon b");
    logind.shut_down();
    eventually("all serve from the other node", || {
        let ready = lab.ready_pods("web");
        (ready.len() == 2 && ready.iter().all(|pod| node_of(&lab, pod) == "b")).then_some(())
    });
    eventually("the machine may go down", || (logind.locks() == 0).then_some(()));
    let log = lab.machines.log("a");
    assert!(log.contains("the machine shuts down; stopping"), "{log}");
}
