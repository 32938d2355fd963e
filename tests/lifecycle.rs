//! Hooks, probes and events in the life of a pod, from its first container to its deletion.

use std::net::TcpListener;

use crate::{
    harness::{Kubectl, Version, eventually},
    restarts::{pod, until},
};

fn events(k: &Kubectl, name: &str) -> String {
    k.ok(&format!("get events --field-selector involvedObject.name={name} -o custom-columns=R:.reason,M:.message"))
}

fn until_event(k: &Kubectl, name: &str, text: &str) {
    eventually(&format!("an event of {name} contains {text:?}"), || events(k, name).contains(text).then_some(()));
}

#[test]
fn a_post_start_hook_runs_and_a_failing_one_kills_its_container() {
    let k = Kubectl::with_pods(Version::V1_32);
    let hook = |command: &str| format!("lifecycle: {{postStart: {{exec: {{command: [sh, -c, {command:?}]}}}}}}");
    let waits = "until test -e /hooked; do sleep 0.1; done; echo hooked; exec sleep 1000";
    k.create(&pod("good", waits, "", &hook("touch /hooked")));
    k.create(&pod("bad", "exec sleep 1000", "", &hook("echo no database >&2; exit 3")));
    eventually("the hook has run", || k.run("logs good").stdout.contains("hooked").then_some(()));
    until_event(&k, "bad", "FailedPostStartHook");
    let reported = events(&k, "bad");
    assert!(reported.contains("exited with 3: no database"), "{reported}");
    eventually("the container is started again", || {
        (k.value("pod bad", "{.status.containerStatuses[0].restartCount}") != "0").then_some(())
    });
}

#[test]
fn a_pod_can_be_deleted_while_its_hook_hangs_and_while_its_image_is_pulled() {
    let k = Kubectl::with_pods(Version::V1_32);
    let hangs = "lifecycle: {postStart: {exec: {command: [sleep, '1000']}}}";
    k.create(&pod("hook", "exec sleep 1000", "", hangs));
    // A registry that takes connections and never says a word.
    let registry = TcpListener::bind("127.0.0.1:0").unwrap();
    let image = format!("image: 127.0.0.1:{}/web:1", registry.local_addr().unwrap().port());
    k.create(&pod("pull", "exec sleep 1000", "", "").replace("image: host", &image));
    eventually("the hook's container runs", || events(&k, "hook").contains("Started").then_some(()));
    until_event(&k, "pull", "Pulling");
    k.ok("delete pod hook pull --timeout=20s");
}

#[test]
fn events_name_the_probe_that_failed_and_the_back_off_as_kubernetes_does() {
    let k = Kubectl::with_pods(Version::V1_32);
    let startup = "startupProbe: {exec: {command: ['false']}, periodSeconds: 1, failureThreshold: 2}";
    k.create(&pod("starts-never", "exec sleep 1000", "", startup));
    k.create(&pod("crashes", "exit 1", "", ""));
    k.create(&pod("fails-once", "exit 1", "restartPolicy: Never", ""));
    until_event(&k, "starts-never", "Container c failed startup probe, will be restarted");
    until_event(&k, "crashes", "Back-off restarting failed container c in pod crashes_default(");
    until(&k, "pod fails-once", "{.status.phase}", "Failed");
    let reported = events(&k, "fails-once");
    assert!(reported.contains("Started") && !reported.contains("Heal"), "{reported}");
}

#[test]
fn a_container_that_printed_nothing_has_an_empty_log() {
    let k = Kubectl::with_pods(Version::V1_32);
    k.create(&pod("silent", "true", "restartPolicy: Never", ""));
    until(&k, "pod silent", "{.status.phase}", "Succeeded");
    assert_eq!(k.ok("logs silent"), "");
}
