//! Healing beyond one machine: what keeps failing on one runs on another, and what crashes is restarted without the API.

use std::fs;

use mainstay_testing::eventually;
use serde_json::{Value, json};

use crate::{
    harness::{Machines, host},
    services::lab::{Lab, program, set, signal},
};

/// A pod that would rather run on machine `a`, with this script.
fn prefers_a(lab: &Lab, script: &str) -> Value {
    let mut pod = lab.container(&["sh", "-c", script].map(str::to_owned));
    let named_a = json!({ "key": "metadata.name", "operator": "In", "values": ["a"] });
    let preferred = json!([{ "weight": 100, "preference": { "matchFields": [named_a] } }]);
    pod["affinity"] = json!({ "nodeAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": preferred } });
    pod["terminationGracePeriodSeconds"] = 1.into();
    pod
}

fn deployment(app: &str, heal: &str, pod: Value) -> Value {
    let mut deployment = set("Deployment", app, 1, pod);
    deployment["spec"]["template"]["metadata"]["annotations"] = json!({ "mainstay.dev/heal": heal });
    deployment
}

/// The name of the one pod of an app that is ready, and its machine.
fn ready_on(lab: &Lab, app: &str) -> Option<(String, String)> {
    let pod = lab.ready_pods(app).into_iter().next()?;
    let node = lab.try_kubectl(&format!("get pod {pod} -o jsonpath={{.spec.nodeName}}"));
    (node.code == 0).then(|| (pod, node.stdout.trim().to_owned()))
}

fn refused_by(lab: &Lab, pod: &str) -> String {
    lab.value(&format!("pod {pod}"), r"{.metadata.annotations.mainstay\.dev/refused-by}")
}

#[test]
fn a_pod_that_keeps_failing_on_one_machine_is_moved_to_another() {
    let lab = Lab::of(Machines::joined(&["a", "b"]));
    lab.kubectl("cordon b");
    let script = r#"test "$NODE" != a || exit 1; touch /up; exec sleep 1000"#;
    let mut pod = prefers_a(&lab, script);
    // Never ready for the moment that it runs on the machine where it fails.
    pod["containers"][0]["readinessProbe"] =
        json!({ "exec": { "command": ["test", "-e", "/up"] }, "periodSeconds": 1 });
    lab.create(&deployment("web", "restarts=1/10m, recreate=1/10m", pod));
    let first = eventually("it fails on a", || {
        let pod = lab.pods("web").into_iter().next()?;
        let restarts =
            lab.try_kubectl(&format!("get pod {pod} -o jsonpath={{.status.containerStatuses[0].restartCount}}"));
        restarts.stdout.trim().parse::<u32>().is_ok_and(|count| count > 0).then_some(pod)
    });
    assert_eq!(lab.value(&format!("pod {first}"), "{.spec.nodeName}"), "a");
    lab.kubectl("uncordon b");

    let (second, node) = eventually("another pod is ready", || ready_on(&lab, "web"));
    assert_ne!(second, first);
    assert_eq!(node, "b");
    assert_eq!(refused_by(&lab, &second), "a", "the scheduler preferred a, and a knew better");
    let moved = lab.kubectl("get events --field-selector reason=HealMove -o jsonpath={.items[*].message}");
    assert!(moved.starts_with("Moving the pod to another machine: container c ended with exit code 1"), "{moved}");
    let refusals = lab.kubectl(&format!("get events --field-selector involvedObject.name={second}"));
    assert!(refusals.contains("FailedHere"), "{refusals}");
}

#[test]
fn a_machine_on_which_several_owners_fail_is_avoided() {
    let lab = Lab::of(Machines::joined(&["a", "b"]));
    for name in ["one", "two", "three"] {
        let mut spec = lab.container(&["false".to_owned()]);
        spec["nodeName"] = "a".into();
        let heal = json!({ "mainstay.dev/heal": "restarts=1/10m, recreate=unlimited, move=off" });
        let meta = json!({ "name": name, "annotations": heal });
        lab.create(&json!({ "apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec }));
    }
    let suspect = || lab.value("node a", r#"{.status.conditions[?(@.type=="Suspect")].status}"#);
    eventually("the machine is suspect", || suspect() == "True");
    lab.create(&deployment("web", "move=on", prefers_a(&lab, "exec sleep 1000")));
    let (pod, node) = eventually("the pod is ready", || ready_on(&lab, "web"));
    assert_eq!(node, "b");
    assert_eq!(refused_by(&lab, &pod), "a");
    // Somebody who may not move runs there all the same.
    lab.create(&deployment("stays", "move=off", prefers_a(&lab, "exec sleep 1000")));
    let (_, node) = eventually("the pod is ready", || ready_on(&lab, "stays"));
    assert_eq!(node, "a");
}

#[test]
fn a_crashed_container_is_restarted_while_packets_to_the_server_are_lost() {
    let lab = Lab::of(Machines::joined(&["a"]));
    lab.create(&set(
        "Deployment",
        "web",
        1,
        lab.container(&["sh", "-c", "echo >> /shared/starts; exec sleep 4242"].map(str::to_owned)),
    ));
    let starts = || fs::read_to_string(lab.shared.join("starts")).unwrap_or_default().lines().count();
    eventually("it runs", || starts() == 1 && ready_on(&lab, "web").is_some());

    let nft = program("nftables", "usr/sbin/nft");
    let drops = "add table inet lost; add chain inet lost input { type filter hook input priority -500; }; \
        add rule inet lost input ip saddr 198.51.100.1 drop";
    lab.on("a", &format!("{nft} '{drops}'")).ok();
    for count in [2, 3] {
        let container = eventually("the container runs", || {
            let sleeps =
                |pid: &u32| fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line == b"sleep\x004242\0");
            host::of_instance(&lab.machines.data("a")).into_iter().find(sleeps)
        });
        signal("KILL", &[container]);
        eventually("it is started anew", || starts() == count);
    }
    lab.on("a", &format!("{nft} delete table inet lost")).ok();
    eventually("the API hears of it", || {
        lab.value("pods", "{.items[*].status.containerStatuses[0].restartCount}") == "2"
    });
}
