//! Resizing in place: new limits reach the cgroup of the running container.

use std::{fs, path::PathBuf};

use serde_json::{Value, json};

use super::{container, manifest, until_running};
use crate::{
    harness::{Kubectl, Version, eventually, host},
    restarts::until,
};

/// Where a process's limits of one controller lie, and whether that is in the unified hierarchy.
fn cgroup(pid: u32, controller: &str) -> Option<(PathBuf, bool)> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let line = |wanted: &dyn Fn(&str) -> bool| {
        let found = text.lines().map(|line| line.splitn(3, ':').collect::<Vec<_>>()).find(|parts| wanted(parts[1]))?;
        Some(found[2].trim_start_matches('/').to_owned())
    };
    match line(&|controllers| controllers.split(',').any(|name| name == controller)) {
        Some(path) => Some((PathBuf::from("/sys/fs/cgroup").join(controller).join(path), false)),
        None => Some((PathBuf::from("/sys/fs/cgroup").join(line(&str::is_empty)?), true)),
    }
}

/// Thousandths of a cpu that a process may use, and bytes.
fn limits(pid: u32) -> Option<(u64, u64)> {
    let number = |path: PathBuf| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let (cpu, unified) = cgroup(pid, "cpu")?;
    let (quota, period) = if unified {
        let text = fs::read_to_string(cpu.join("cpu.max")).ok()?;
        let (quota, period) = text.trim().split_once(' ')?;
        (quota.parse().ok()?, period.parse().ok()?)
    } else {
        (number(cpu.join("cpu.cfs_quota_us"))?, number(cpu.join("cpu.cfs_period_us"))?)
    };
    Some((quota * 1000 / period, cgroup_memory(pid)?))
}

/// Bytes that a process may use together with the others of its container.
fn cgroup_memory(pid: u32) -> Option<u64> {
    let (memory, unified) = cgroup(pid, "memory")?;
    let file = memory.join(if unified { "memory.max" } else { "memory.limit_in_bytes" });
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// Bytes that the pod of a process may use, all its containers together.
fn pod_memory(pid: u32) -> Option<u64> {
    let (memory, unified) = cgroup(pid, "memory")?;
    let is_pod =
        |path: &&std::path::Path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("pod"));
    let file = memory.ancestors().find(is_pod)?.join(if unified { "memory.max" } else { "memory.limit_in_bytes" });
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

fn resources(cpu: &str, memory: &str) -> Value {
    let quantities = json!({"cpu": cpu, "memory": memory});
    json!({"requests": quantities, "limits": quantities})
}

#[test]
fn a_resize_reaches_the_cgroup_and_restarts_only_for_the_resource_whose_policy_says_so() {
    let k = Kubectl::with_pods(Version::V1_32);
    let mark = |number: u32| format!("{}.{}", 300_000 + number, std::process::id());
    let create = |name: &str, number: u32, policy: Value| {
        let fields = json!({"resources": resources("100m", "64Mi"), "resizePolicy": policy});
        let c = container("c", &format!("exec sleep {}", mark(number)), fields);
        k.create(&manifest(name, json!({"containers": [c]})));
        until_running(&k, name);
    };
    let restarts_for_memory = json!([
        {"resourceName": "cpu", "restartPolicy": "NotRequired"},
        {"resourceName": "memory", "restartPolicy": "RestartContainer"},
    ]);
    create("gentle", 1, json!([]));
    create("strict", 2, restarts_for_memory);
    let process = |number: u32| eventually("its process", || host::pids(&mark(number)).first().copied());
    let resize = |name: &str, cpu: &str, memory: &str| {
        let patch = json!({"spec": {"containers": [{"name": "c", "resources": resources(cpu, memory)}]}});
        k.ok(&format!("patch pod {name} --subresource=resize -p '{patch}'"));
    };
    let (gentle, strict) = (process(1), process(2));
    assert_eq!(limits(gentle), Some((100, 64 << 20)));

    resize("gentle", "200m", "128Mi");
    eventually("larger limits", || (limits(gentle) == Some((200, 128 << 20))).then_some(()));
    resize("gentle", "50m", "128Mi");
    eventually("less cpu", || (limits(gentle) == Some((50, 128 << 20))).then_some(()));
    until(&k, "pod gentle", "{.status.containerStatuses[0].resources.limits.memory}", "128Mi");
    assert_eq!(k.value("pod gentle", "{.status.containerStatuses[0].allocatedResources.cpu}"), "50m");
    resize("gentle", "50m", "32Mi");
    eventually("less memory", || {
        (limits(gentle) == Some((50, 32 << 20)) && pod_memory(gentle) == Some(32 << 20)).then_some(())
    });
    until(&k, "pod gentle", "{.status.containerStatuses[0].resources.limits.memory}", "32Mi");
    assert_eq!(host::pids(&mark(1)), [gentle], "the same process");
    assert_eq!(k.value("pod gentle", "{.status.containerStatuses[0].restartCount}"), "0");

    resize("strict", "200m", "64Mi");
    eventually("more cpu without a restart", || (limits(strict) == Some((200, 64 << 20))).then_some(()));
    assert_eq!(host::pids(&mark(2)), [strict], "the same process");
    resize("strict", "200m", "96Mi");
    until(&k, "pod strict", "{.status.containerStatuses[0].restartCount}", "1");
    eventually("more memory for a new process", || {
        let pid = host::pids(&mark(2)).first().copied().filter(|pid| *pid != strict)?;
        (limits(pid) == Some((200, 96 << 20)) && pod_memory(pid) == Some(96 << 20)).then_some(())
    });
    resize("strict", "200m", "48Mi");
    until(&k, "pod strict", "{.status.containerStatuses[0].restartCount}", "2");
    eventually("less memory for a new process and its pod", || {
        let pid = host::pids(&mark(2)).first().copied()?;
        (limits(pid) == Some((200, 48 << 20)) && pod_memory(pid) == Some(48 << 20)).then_some(())
    });
}

#[test]
fn a_memory_limit_is_added_in_place_and_not_lowered_below_what_is_used() {
    let k = Kubectl::with_pods(Version::V1_32);
    let mark = format!("{}.{}", 300_003, std::process::id());
    // Held in memory by the shell's variable.
    let script = format!("x=$(head -c 40000000 /dev/zero | tr '\\0' x); echo ${{#x}}; sleep {mark}");
    let fields = json!({"resources": {"requests": {"memory": "16Mi"}}});
    k.create(&manifest("p", json!({"containers": [container("c", &script, fields)]})));
    until_running(&k, "p");
    eventually("it uses 40 MB", || (k.run("logs p").stdout.trim() == "40000000").then_some(()));
    let process = eventually("its process", || host::pids(&mark).first().copied());
    let limit = || cgroup_memory(process);
    let resize = |memory: &str| {
        let resources = json!({"limits": {"memory": memory}});
        let patch = json!({"spec": {"containers": [{"name": "c", "resources": resources}]}});
        k.ok(&format!("patch pod p --subresource=resize -p '{patch}'"));
    };
    resize("256Mi");
    eventually("a limit where there was none", || (limit() == Some(256 << 20)).then_some(()));
    resize("17Mi");
    let condition =
        |field: &str| k.value("pod p", &format!(r#"{{.status.conditions[?(@.type=="PodResizeInProgress")].{field}}}"#));
    eventually("the resize is refused", || (condition("reason") == "Error").then_some(()));
    let message = condition("message");
    assert!(
        message.contains(r#"attempting to set container "c" memory limit (17825792) below current usage ("#),
        "{message}"
    );
    assert_eq!((limit(), host::pids(&mark).first()), (Some(256 << 20), Some(&process)));
    resize("128Mi");
    eventually("less than before and more than is used", || (limit() == Some(128 << 20)).then_some(()));
    until(&k, "pod p", r#"{.status.conditions[?(@.type=="PodResizeInProgress")].status}"#, "");
    assert_eq!(k.value("pod p", "{.status.containerStatuses[0].restartCount}"), "0");
}

#[test]
fn a_resize_that_does_not_fit_is_pending_with_upstreams_reason_and_happens_once_it_fits() {
    let k = Kubectl::with_pods(Version::V1_32);
    let create = |name: &str, cpu: &str| {
        let fields = json!({"resources": {"requests": {"cpu": cpu, "memory": "16Mi"}}});
        k.create(&manifest(name, json!({"containers": [container("c", "exec sleep 1000", fields)]})));
        until_running(&k, name);
    };
    let resize = |name: &str, cpu: &str| {
        let resources = json!({"requests": {"cpu": cpu, "memory": "16Mi"}});
        let patch = json!({"spec": {"containers": [{"name": "c", "resources": resources}]}});
        k.ok(&format!("patch pod {name} --subresource=resize -p '{patch}'"));
    };
    let cpus =
        eventually("the node's cpus", || k.value("nodes", "{.items[*].status.capacity.cpu}").parse::<u32>().ok());
    create("p", "100m");
    create("neighbour", &format!("{}m", cpus * 1000 - 600));
    let pending = r#"{.status.conditions[?(@.type=="PodResizePending")].reason}"#;
    resize("p", "1000");
    until(&k, "pod p", pending, "Infeasible");
    let message = k.value("pod p", r#"{.status.conditions[?(@.type=="PodResizePending")].message}"#);
    assert!(message.starts_with("Node didn't have enough capacity: cpu, requested: 1000000, capacity: "), "{message}");
    assert_eq!(k.value("pod p", "{.status.containerStatuses[0].allocatedResources.cpu}"), "100m");
    resize("p", "700m");
    until(&k, "pod p", pending, "Deferred");
    k.ok("delete pod neighbour");
    until(&k, "pod p", "{.status.containerStatuses[0].allocatedResources.cpu}", "700m");
    until(&k, "pod p", pending, "");
    until(&k, "pod p", r#"{.status.conditions[?(@.type=="PodResizeInProgress")].status}"#, "");
    assert_eq!(k.value("pod p", "{.status.containerStatuses[0].restartCount}"), "0");
}
