//! Which of the kernel's namespaces a pod shares with the machine, and its containers with each other; and sysctls.

use std::fs;

use serde_json::{Value, json};

use super::{container, manifest, once, printed, shell, until_running};
use crate::harness::{Kubectl, Version, eventually};

const KINDS: [&str; 4] = ["pid", "ipc", "net", "uts"];

/// Which namespaces are the test's own.
fn shared(log: &str) -> Vec<&'static str> {
    let own = |kind: &str| fs::read_link(format!("/proc/self/ns/{kind}")).expect("a namespace").display().to_string();
    KINDS.into_iter().filter(|kind| log.lines().any(|line| line == own(kind))).collect()
}

#[test]
fn a_pod_shares_exactly_the_namespaces_it_asks_for() {
    let k = Kubectl::with_pods(Version::V1_32);
    let script = "for kind in pid ipc net uts; do readlink /proc/self/ns/$kind; done";
    let cases: [(&str, Value, &[&str]); 4] = [
        ("own", json!({}), &[]),
        ("host-pid", json!({"hostPID": true}), &["pid"]),
        ("host-ipc", json!({"hostIPC": true}), &["ipc"]),
        ("host-network", json!({"hostNetwork": true}), &["net", "uts"]),
    ];
    for (name, spec, _) in &cases {
        k.create(&once(name, script, json!({}), spec.clone()));
    }
    let mark = format!("200000.{}", std::process::id());
    let sleeps = |name: &str| container(name, &format!("exec sleep {mark}"), json!({}));
    let two = |share: bool| json!({"shareProcessNamespace": share, "containers": [sleeps("a"), sleeps("b")]});
    k.create(&manifest("together", two(true)));
    k.create(&manifest("apart", two(false)));
    let sysctls = json!([
        {"name": "net.ipv4.ip_unprivileged_port_start", "value": "23"},
        {"name": "kernel.shm_rmid_forced", "value": "1"},
    ]);
    let read = "cat /proc/sys/net/ipv4/ip_unprivileged_port_start /proc/sys/kernel/shm_rmid_forced";
    k.create(&once("sysctls", read, json!({}), json!({"securityContext": {"sysctls": sysctls}})));
    let unsafe_one = json!([{"name": "kernel.msgmax", "value": "65536"}]);
    k.create(&once("unsafe", "true", json!({}), json!({"securityContext": {"sysctls": unsafe_one}})));

    for (name, _, expected) in cases {
        let log = printed(&k, name);
        assert_eq!(log.lines().count(), KINDS.len(), "{log}");
        assert_eq!(shared(&log), expected, "{name}");
    }
    let sleepers = format!(
        "n=0; for p in /proc/[0-9]*; do grep -q {mark} $p/cmdline 2>/dev/null && test $(cat $p/comm) = sleep && n=$((n+1)); \
         done; echo $n; cat /proc/1/comm"
    );
    for (name, expected) in [("together", "2"), ("apart", "1")] {
        until_running(&k, name);
        let found = eventually("its processes", || {
            let output = shell(&k, name, &sleepers);
            output.starts_with(expected).then_some(output)
        });
        let first = found.lines().nth(1).expect("the first process");
        assert_eq!(first == "sleep", name == "apart", "the first process of {name} is {first}");
    }
    assert_eq!(printed(&k, "sysctls"), "23\n1");
    let own = fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start").expect("our own");
    assert_ne!(own.trim(), "23", "the machine's own is as it was");
    eventually("an unsafe sysctl is refused as upstream does", || {
        (k.value("pod unsafe", "{.status.phase} {.status.reason}") == "Failed SysctlForbidden").then_some(())
    });
}
