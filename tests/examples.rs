//! The manifests in `examples/`, applied as they are.

use std::{collections::BTreeMap, fs, path::Path};

use crate::harness::{Kubectl, Version, eventually};

fn directory() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples"))
}

#[test]
fn every_example_is_applied_and_becomes_ready() {
    let k = Kubectl::with_pods(Version::V1_32);
    let entries = fs::read_dir(directory()).expect("list the examples").map(|entry| entry.expect("an entry").path());
    let mut manifests: Vec<_> = entries.filter(|path| path.extension().is_some_and(|ext| ext == "yaml")).collect();
    manifests.sort();
    assert!(manifests.len() >= 4, "{manifests:?}");
    for manifest in &manifests {
        k.ok(&format!("apply -f {}", manifest.display()));
    }
    for (object, path, value) in [
        ("deployment web", "{.status.readyReplicas}", "3"),
        ("deployment flaky", "{.status.readyReplicas}", "1"),
        ("statefulset counter", "{.status.readyReplicas}", "2"),
        ("job greeting", "{.status.succeeded}", "1"),
        ("deployment balancer", "{.status.readyReplicas}", "1"),
        ("deployment controller", "{.status.readyReplicas}", "2"),
    ] {
        eventually(&format!("{object} has {path} = {value}"), || (k.value(object, path) == value).then_some(()));
    }
    assert_eq!(k.ok("logs job/greeting").trim(), "hello, world");
}

/// Name and time of every Deployment's pod of `ccf`, by this JSON path.
fn times(k: &Kubectl, path: &str) -> BTreeMap<String, String> {
    let lines = k.ok(&format!(
        r#"get pods -n ccf -o jsonpath='{{range .items[*]}}{{.metadata.labels.app}} {{{path}}}{{"\n"}}{{end}}'"#
    ));
    let pairs = lines.lines().filter_map(|line| line.split_once(' '));
    pairs.map(|(app, time)| (app.to_owned(), time.trim().to_owned())).collect()
}

#[test]
fn the_components_of_cloud_foundry_start_in_the_order_of_their_needs_whatever_the_order_of_creation() {
    let k = Kubectl::with_pods(Version::V1_32);
    let base = directory().join("containercf/base");
    k.ok(&format!("apply -f {}", base.join("namespace.yaml").display()));
    // Those who need most come first, and what all of them need last.
    let mut files: Vec<_> =
        fs::read_dir(&base).expect("list the components").map(|entry| entry.expect("an entry").path()).collect();
    files.retain(|path| !["namespace.yaml", "kustomization.yaml"].iter().any(|other| path.ends_with(other)));
    files.sort_by_key(|path| (path.ends_with("consul.yaml"), path.ends_with("stand-in.yaml"), path.clone()));
    let all: Vec<String> = files.iter().map(|path| format!("-f {}", path.display())).collect();
    assert_eq!(all.len(), 16, "fifteen components and their program");
    k.ok(&format!("apply -n ccf {}", all.join(" ")));
    let until_ready = |count: usize| {
        eventually(&format!("{count} pods are ready"), || {
            let ready = times(&k, r#".status.conditions[?(@.type=="Ready")].status"#);
            (ready.len() == count && ready.values().all(|status| status == "True")).then_some(())
        });
    };
    until_ready(15);
    let ready = times(&k, r#".status.conditions[?(@.type=="Ready")].lastTransitionTime"#);
    let started = times(&k, ".status.containerStatuses[0].state.running.startedAt");
    for (app, needs) in [
        ("nats", &["consul"][..]),
        ("router", &["consul", "nats"]),
        ("uaa", &["postgres", "router"]),
        ("api", &["postgres", "router", "nats"]),
        ("dea", &["api", "nats", "router"]),
        ("diego-cell", &["diego"]),
    ] {
        for needed in needs {
            assert!(started[app] >= ready[*needed], "{app} started before {needed} was ready: {started:?} {ready:?}");
        }
    }

    k.ok("delete pod -n ccf -l app=nats");
    until_ready(15);
    let restarts = times(&k, ".status.containerStatuses[0].restartCount");
    assert!(restarts.values().all(|count| count == "0"), "nobody is restarted for NATS: {restarts:?}");

    // The switch to Diego takes away what only DEAs need.
    k.ok(&format!("apply -k {}", directory().join("containercf/overlays/diego").display()));
    eventually("the overlay's numbers are there", || {
        let counts = ["diego", "diego-cell", "dea", "hm9000"]
            .map(|name| k.value(&format!("deployment -n ccf {name}"), "{.spec.replicas}/{.status.readyReplicas}"));
        (counts == ["1/1", "2/2", "0/", "0/"]).then_some(())
    });
}
