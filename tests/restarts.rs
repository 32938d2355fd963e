//! What ends is started again or not, as it was asked for; always from its image, and with its true exit code.

use std::time::{Duration, Instant};

use crate::harness::{Kubectl, Version, eventually};

/// A pod of the machine's own programs that runs one shell script.
pub fn pod(name: &str, script: &str, spec: &str, container: &str) -> String {
    format!(
        "
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  terminationGracePeriodSeconds: 1
  {spec}
  containers:
  - name: c
    image: host
    command: [sh, -c, {script:?}]
    {container}
"
    )
}

pub fn until(k: &Kubectl, what: &str, path: &str, wanted: &str) {
    eventually(&format!("{what} {path} is {wanted}"), || (k.value(what, path) == wanted).then_some(()));
}

const RESTARTS: &str = "{.status.containerStatuses[0].restartCount}";
const LAST: &str = "{.status.containerStatuses[0].lastState.terminated.exitCode}";

#[test]
fn an_end_is_success_or_failure_by_its_code() {
    let k = Kubectl::with_pods(Version::V1_32);
    k.create(&pod("well", "exit 0", "restartPolicy: OnFailure", ""));
    k.create(&pod("ill", "exit 1", "restartPolicy: OnFailure", ""));
    k.create(&pod("once", "exit 3", "restartPolicy: Never", ""));
    until(&k, "pod well", "{.status.phase}", "Succeeded");
    assert_eq!(k.value("pod well", "{.status.containerStatuses[0].state.terminated.reason}"), "Completed");
    until(&k, "pod once", "{.status.phase}", "Failed");
    assert_eq!(k.value("pod once", "{.status.containerStatuses[0].state.terminated.exitCode}"), "3");
    assert_eq!(k.value("pod once", RESTARTS), "0");
    eventually("ill is started again", || (k.value("pod ill", RESTARTS).parse::<u32>().ok()? >= 2).then_some(()));
    assert_eq!(k.value("pod ill", LAST), "1");
    assert_eq!(k.value("pod well", RESTARTS), "0");
}

#[test]
fn stopping_is_asked_for_first_and_enforced_after_the_grace() {
    let k = Kubectl::with_pods(Version::V1_32);
    // Finalizers hold what would otherwise be gone before one can look.
    let held = |manifest: String| manifest.replace("metadata: {", "metadata: {finalizers: [example.org/look], ");
    let grace =
        |manifest: String| manifest.replace("terminationGracePeriodSeconds: 1", "terminationGracePeriodSeconds: 10");
    k.create(&held(grace(pod("polite", "trap 'exit 0' TERM; while :; do sleep 0.1; done", "", ""))));
    k.create(&held(grace(pod("deaf", "trap '' TERM; while :; do sleep 0.1; done", "", ""))));
    let ended = "{.status.containerStatuses[0].state.terminated.exitCode}";
    // Its exit code tells that the polite one was not killed.
    for (name, code, least) in [("polite", "0", 0), ("deaf", "137", 9)] {
        until(&k, &format!("pod {name}"), "{.status.phase}", "Running");
        let began = Instant::now();
        k.ok(&format!("delete pod {name} --wait=false"));
        until(&k, &format!("pod {name}"), ended, code);
        let took = began.elapsed().as_secs();
        assert!(took >= least, "{name} was killed after {took} s");
    }
    k.ok(r#"patch pod polite deaf -p '{"metadata":{"finalizers":null}}'"#);
    eventually("both are gone", || k.ok("get pods -o name").is_empty().then_some(()));
}

/// The process of this machine whose arguments are these.
fn process(arguments: &[&str]) -> Option<i32> {
    let wanted: Vec<u8> = arguments.iter().flat_map(|a| a.bytes().chain([0])).collect();
    std::fs::read_dir("/proc").ok()?.flatten().find_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        (std::fs::read(entry.path().join("cmdline")).ok()? == wanted).then_some(pid)
    })
}

#[test]
fn a_killed_process_has_failed_and_is_started_again_until_the_pod_is_deleted() {
    let k = Kubectl::with_pods(Version::V1_32);
    let time = format!("{}", 100_000 + std::process::id());
    k.create(&pod("p", &format!("exec sleep {time}"), "", ""));
    until(&k, "pod p", "{.status.phase}", "Running");
    let first = k.value("pod p", "{.status.containerStatuses[0].containerID}");
    let pid = eventually("its process", || process(&["sleep", &time]));
    std::process::Command::new("kill").args(["-9", &pid.to_string()]).status().expect("kill");
    until(&k, "pod p", RESTARTS, "1");
    until(&k, "pod p", "{.status.containerStatuses[0].ready}", "true");
    assert_eq!(k.value("pod p", LAST), "137");
    assert_ne!(k.value("pod p", "{.status.containerStatuses[0].containerID}"), first);
    eventually("its process anew", || process(&["sleep", &time]));
    k.ok("delete pod p");
    assert_eq!(process(&["sleep", &time]), None);
    std::thread::sleep(Duration::from_secs(2)); // longer than the first restart takes
    assert_eq!(process(&["sleep", &time]), None);
    assert_eq!(k.ok("get pods -o name"), "");
}

#[test]
fn a_restart_begins_from_the_image_and_keeps_the_volumes() {
    let k = Kubectl::with_pods(Version::V1_32);
    let script = "ls /marker /data/marker 2>/dev/null; test -e /data/marker && exec sleep 1000; touch /marker /data/marker; exit 1";
    let volume = "volumes: [{name: d, emptyDir: {}}]";
    k.create(&pod("p", script, volume, "volumeMounts: [{name: d, mountPath: /data}]"));
    until(&k, "pod p", RESTARTS, "1");
    until(&k, "pod p", "{.status.phase}", "Running");
    eventually("what the second one found", || (k.ok("logs p") == "/data/marker").then_some(()));
}

#[test]
fn restarts_wait_longer_and_longer_each_with_a_container_of_its_own() {
    let k = Kubectl::with_pods(Version::V1_32);
    let of = ".status.containerStatuses[0]";
    let columns = format!("N:{of}.restartCount,ID:{of}.lastState.terminated.containerID,WHY:{of}.state.waiting.reason");
    let mut changes = k.follow(&format!("get pods -w --no-headers -o custom-columns={columns}"));
    k.create(&pod("p", "date +%s.%N; exit 1", "", ""));
    let (mut ids, mut waited, mut restarts) = (std::collections::BTreeSet::new(), false, 0);
    while restarts < 4 {
        let change = changes.until("what became of the container", |line| !line.starts_with("<none>"));
        let words: Vec<&str> = change.split_whitespace().collect();
        let [count, id, reason] = words[..] else { panic!("{change}") };
        restarts = count.parse().expect("a number of restarts");
        ids.insert(id.to_owned());
        waited |= reason == "CrashLoopBackOff";
    }
    ids.remove("<none>");
    assert!(waited, "nobody was told that it waits");
    assert!(ids.len() >= 3, "{ids:?}");
}
