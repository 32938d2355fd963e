//! `mainstay why` on real objects: the cause is in the first line.

use serde_json::json;

use crate::harness::{Kubectl, Version, eventually};

/// What it prints, once its first line has all of these in it.
#[track_caller]
fn why(k: &Kubectl, target: &str, words: &[&str]) -> String {
    let mut last = String::new();
    let patience = std::time::Instant::now() + crate::harness::PATIENCE;
    loop {
        let output = k.cluster.mainstay("why", target);
        if output.code == 0 {
            last = output.stdout;
            let headline = last.lines().next().unwrap_or_default();
            if words.iter().all(|word| headline.contains(word)) {
                return last;
            }
        }
        assert!(std::time::Instant::now() < patience, "no {words:?} in the first line of why {target}:\n{last}");
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
}

fn pod(name: &str, script: &str, container: serde_json::Value) -> String {
    let mut own = json!({ "name": "c", "image": "host", "command": ["sh", "-c", script] });
    own.as_object_mut().unwrap().extend(container.as_object().unwrap().clone());
    let spec = json!({ "terminationGracePeriodSeconds": 1, "containers": [own] });
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "labels": { "app": name } }, "spec": spec })
        .to_string()
}

#[test]
fn pods_that_cannot_run_say_why_in_the_first_line() {
    let k = Kubectl::with_pods(Version::V1_32);
    k.create(&pod("crash", "echo cannot open database; exit 3", json!({})));
    k.create(&pod("hungry", "exec tail /dev/zero", json!({ "resources": { "limits": { "memory": "50Mi" } } })));
    let secret =
        json!({ "env": [{ "name": "A", "valueFrom": { "secretKeyRef": { "name": "nothere", "key": "a" } } }] });
    k.create(&pod("needy", "exec sleep 1000", secret));

    let text = why(&k, "pod/crash", &["container c ended with exit code 3", ": cannot open database"]);
    assert!(text.contains("next: kubectl -n default logs crash -c c"), "{text}");
    let text = why(&k, "hungry", &["container c ran out of memory (limit 50Mi)"]);
    assert!(text.contains("raise resources.limits.memory of container c"), "{text}");
    let text = why(&k, "needy", &["cannot start: container c: secret \"nothere\" not found"]);
    assert!(text.contains("next: kubectl -n default create secret generic nothere"), "{text}");
    assert!(!text.contains("ContainersReady is False"), "nothing is said twice: {text}");

    let job = json!({ "backoffLimit": 0, "template": { "spec": { "restartPolicy": "Never",
        "containers": [{ "name": "c", "image": "host", "command": ["sh", "-c", "echo no such table; exit 4"] }] } } });
    k.create(
        &json!({ "apiVersion": "batch/v1", "kind": "Job", "metadata": { "name": "once" }, "spec": job }).to_string(),
    );
    why(&k, "job/once", &["failed: BackoffLimitExceeded", "exit code 4: no such table"]);
}

#[test]
fn pods_of_a_workload_are_those_it_owns() {
    let k = Kubectl::with_pods(Version::V1_32);
    let template = json!({ "metadata": { "labels": { "app": "web" } }, "spec": { "terminationGracePeriodSeconds": 1,
        "containers": [{ "name": "c", "image": "host", "command": ["sleep", "1000"] }] } });
    let selector = json!({ "matchLabels": { "app": "web" } });
    let spec = json!({ "replicas": 1, "selector": selector, "template": template });
    k.create(&pod("web", "exec sleep 1000", json!({}))); // has the labels, and is nobody's
    k.create(
        &json!({ "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "web" }, "spec": spec })
            .to_string(),
    );
    why(&k, "deployment/web", &["deployment default/web has 1 of 1 pod ready"]);
    why(&k, "node/here", &["node here is ready"]);
}

#[test]
fn services_claims_schedulers_and_namespaces_name_what_is_missing() {
    let k = Kubectl::start(Version::V1_32);
    let service = json!({ "selector": { "app": "wbe" }, "ports": [{ "port": 80 }] });
    k.create(
        &json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": "web" }, "spec": service }).to_string(),
    );
    k.create(&pod("web", "exec sleep 1000", json!({})));
    let text = why(&k, "svc/web", &["has no endpoints: no pod has the labels app=wbe"]);
    assert!(text.contains("pods here have app=web"), "{text}");

    let spec = json!({ "storageClassName": "gp3", "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } });
    k.create(
        &json!({ "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": "data" }, "spec": spec })
            .to_string(),
    );
    why(&k, "pvc/data", &["is not bound: storage class \"gp3\" does not exist (there are: local-path)"]);

    let mut foreign: serde_json::Value = serde_json::from_str(&pod("foreign", "true", json!({}))).unwrap();
    foreign["spec"]["schedulerName"] = json!("mine");
    k.create(&foreign.to_string());
    why(&k, "pod/foreign", &["waits for scheduler \"mine\"", "the built-in one is \"default-scheduler\""]);

    k.ok("create namespace going");
    let meta = json!({ "name": "kept", "namespace": "going", "finalizers": ["example.com/hold"] });
    k.create(&json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": meta }).to_string());
    k.ok("delete namespace going --wait=false");
    let text = why(&k, "ns/going", &["is Terminating", "configmaps/kept has finalizer example.com/hold"]);
    assert!(text.contains("next: kubectl -n going patch configmaps kept"), "{text}");

    let schedule = json!({ "schedule": "0 3 * * *", "suspend": true, "jobTemplate": { "spec": { "template": { "spec": {
        "restartPolicy": "Never", "containers": [{ "name": "c", "image": "host" }] } } } } });
    k.create(
        &json!({ "apiVersion": "batch/v1", "kind": "CronJob", "metadata": { "name": "nightly" }, "spec": schedule })
            .to_string(),
    );
    why(&k, "cronjob/nightly", &["is suspended"]);
    eventually("an unknown object is refused", || {
        let output = k.cluster.mainstay("why", "svc/none");
        (output.code == 1 && output.stderr.contains("there is no service \"none\" in namespace \"default\""))
            .then_some(())
    });
}
