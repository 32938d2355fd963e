//! A disk that pods fill: what is evicted, what comes back, and what still works meanwhile.

use crate::{
    harness::{Kubectl, SmallDisk, Version, eventually},
    restarts::{pod, until},
};

const MIB: u64 = 1 << 20;
const REASON: &str = "{.status.reason}";
const PHASE: &str = "{.status.phase}";
const DISK_PRESSURE: &str = "{.status.conditions[?(@.type==\"DiskPressure\")].status}";

fn on_small_disk(flags: &[&str]) -> Kubectl {
    Kubectl::with_pods_on_disk(Version::V1_32, "500m", flags)
}

fn disk(k: &Kubectl) -> &SmallDisk {
    k.cluster.disk().expect("a small disk")
}

#[track_caller]
fn until_available(k: &Kubectl, bytes: u64) {
    eventually(&format!("{bytes} bytes are free again"), || (disk(k).available() >= bytes).then_some(()));
}

#[test]
fn a_pod_that_fills_the_disk_is_evicted_and_its_space_comes_back() {
    let k = on_small_disk(&[]);
    k.create(&pod("modest", "sleep 1000", "", ""));
    until(&k, "pod modest", PHASE, "Running");
    // Into the writable layer, into a volume, and by a container that ends when it has done so.
    let volume = "volumes: [{name: v, emptyDir: {}}]";
    let fillers = [
        ("layer", "cat /dev/zero > /var/big; sleep 1000", "restartPolicy: Never", ""),
        ("volume", "cat /dev/zero > /v/big; sleep 1000", volume, "volumeMounts: [{name: v, mountPath: /v}]"),
        ("restarting", "cat /dev/zero > /var/big; exit 1", "restartPolicy: Always", ""),
    ];
    for (name, script, spec, container) in fillers {
        // The pressure is reported for minutes after it has gone, so that pods do not come back at once.
        let tolerant = format!("tolerations: [{{operator: Exists}}]\n  {spec}");
        k.create(&pod(name, script, &tolerant, container));
        until(&k, &format!("pod {name}"), REASON, "Evicted");
        until(&k, &format!("pod {name}"), PHASE, "Failed");
        until(&k, "node here", DISK_PRESSURE, "True");
        until_available(&k, 400 * MIB);
        assert_eq!(k.value("pod modest", PHASE), "Running", "after {name}");
    }
    let tainted = "{.spec.taints[?(@.key==\"node.kubernetes.io/disk-pressure\")].effect}";
    until(&k, "node here", tainted, "NoSchedule");
    k.create(&pod("later", "sleep 1000", "tolerations: [{operator: Exists}]", ""));
    until(&k, "pod later", PHASE, "Running");
    k.ok("delete pod layer volume restarting modest later --grace-period=1");
}

#[test]
fn a_machine_killed_on_a_full_disk_starts_again_deletes_pods_and_goes_down() {
    let mut k = on_small_disk(&["--evict-disk", "0"]);
    k.create(&pod("first", "sleep 1000", "", ""));
    k.create(&pod("second", "sleep 1000", "", ""));
    until(&k, "pod first", PHASE, "Running");
    until(&k, "pod second", PHASE, "Running");
    disk(&k).fill();
    k.cluster.kill();
    disk(&k).fill();
    k.cluster.start_again();
    let refused = k.run("create configmap refused --from-literal=key=value");
    assert!(refused.code != 0 && refused.stderr.contains("no space left on the store's disk"), "{refused}");
    k.ok("delete pod first --timeout=30s");
    disk(&k).fill();
    let stopped = k.cluster.mainstay_alone("stop");
    assert!(stopped.code == 0 && stopped.stdout.contains("Stopped"), "{stopped}");
    let down = k.cluster.mainstay_alone("down");
    assert!(down.code == 0 && down.stdout.contains("Ended 1 pods"), "{down}");
}

#[test]
fn a_termination_message_without_end_gives_its_space_back() {
    let k = on_small_disk(&[]);
    let script = "head -c 314572800 /dev/zero | tr '\\0' x > /dev/termination-log; echo -n end >> /dev/termination-log";
    let script = format!("{script}; while [ ! -e /go/on ]; do sleep 0.1; done; exit 7");
    let volume = "restartPolicy: Never\n  volumes: [{name: go, emptyDir: {}}]";
    k.create(&pod("talkative", &script, volume, "volumeMounts: [{name: go, mountPath: /go}]"));
    eventually("the message is written", || (disk(&k).available() < 250 * MIB).then_some(()));
    until_available(&k, 400 * MIB);
    k.ok("exec talkative -- touch /go/on");
    until(&k, "pod talkative", PHASE, "Failed");
    assert_eq!(k.value("pod talkative", REASON), "", "it is not evicted");
    let message = k.value("pod talkative", "{.status.containerStatuses[0].state.terminated.message}");
    assert!(message.len() == 4096 && message.starts_with('x') && message.ends_with("xend"), "{} bytes", message.len());
}
