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

/// What the routers of `ccf` loaded and refused, all of them together.
fn router_log(k: &Kubectl) -> String {
    let pods = k.ok("get pods -n ccf -l app=router -o name");
    pods.lines().map(|pod| k.ok(&format!("logs -n ccf {pod}"))).collect()
}

fn a_bad_value_reaches_one_router_and_is_taken_back(k: &Kubectl) {
    let current = |reason: &str| {
        eventually(&format!("the routers' configuration is {reason}"), || {
            let path = r#"{.status.conditions[?(@.type=="Current")].reason}"#;
            (k.value("configtemplate -n ccf gorouter", path) == reason).then_some(())
        });
    };
    let set = |domain: &str| {
        k.ok(&format!(r#"patch configmap -n ccf cloud-foundry --type=merge -p '{{"data":{{"domain":"{domain}"}}}}'"#));
    };
    current("Current");
    assert_eq!(router_log(k).matches("loaded").count(), 2, "each at its start: nothing changes with NATS' pod");
    set("no domain");
    current("RolledBack");
    eventually("the one that refused it has the last good one again", || {
        let log = router_log(k);
        (log.matches("refused").count() == 1 && log.matches("loaded").count() == 3).then_some(())
    });
    let said = k.cluster.mainstay_with(&["config", "status", "-n", "ccf", "gorouter"]).ok();
    assert!(said.contains("RolledBack") && said.contains("POST :8888/reload was answered with 500"), "{said}");
    eventually("an event says so", || k.ok("get events -n ccf").contains("ConfigurationRolledBack").then_some(()));
    let restarts = values(k, ".status.containerStatuses[0].restartCount");
    assert!(restarts.iter().all(|(_, count)| count == "0"), "none of it is a failure of a container: {restarts:?}");
    set("example.org");
    eventually("both have a good one", || {
        (router_log(k).matches("loaded domain: example.org").count() == 2).then_some(())
    });
    current("Current");
}

/// The app of every pod of `ccf`, and what is at this JSON path.
fn values(k: &Kubectl, path: &str) -> Vec<(String, String)> {
    let lines = k.ok(&format!(
        r#"get pods -n ccf -o jsonpath='{{range .items[*]}}{{.metadata.labels.app}} {{{path}}}{{"\n"}}{{end}}'"#
    ));
    let pairs = lines.lines().filter_map(|line| line.split_once(' '));
    pairs.map(|(app, time)| (app.to_owned(), time.trim().to_owned())).collect()
}

/// The same of the first pod of each app.
fn first_times(k: &Kubectl, path: &str) -> BTreeMap<String, String> {
    let mut first = BTreeMap::new();
    for (app, time) in values(k, path) {
        let known = first.entry(app).or_insert_with(|| time.clone());
        if time < *known {
            *known = time;
        }
    }
    first
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
    assert_eq!(all.len(), 17, "fifteen components, their program and their configuration");
    k.ok(&format!("apply -n ccf {}", all.join(" ")));
    let until_ready = |count: usize| {
        eventually(&format!("{count} pods are ready"), || {
            let ready = values(&k, r#".status.conditions[?(@.type=="Ready")].status"#);
            (ready.len() == count && ready.iter().all(|(_, status)| status == "True")).then_some(())
        });
    };
    until_ready(16);
    let ready = first_times(&k, r#".status.conditions[?(@.type=="Ready")].lastTransitionTime"#);
    let started = first_times(&k, ".status.containerStatuses[0].state.running.startedAt");
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
    until_ready(16);
    let restarts = values(&k, ".status.containerStatuses[0].restartCount");
    assert!(restarts.iter().all(|(_, count)| count == "0"), "nobody is restarted for NATS: {restarts:?}");

    a_bad_value_reaches_one_router_and_is_taken_back(&k);
    until_ready(16);

    // The switch to Diego takes away what only DEAs need.
    k.ok(&format!("apply -k {}", directory().join("containercf/overlays/diego").display()));
    eventually("the overlay's numbers are there", || {
        let counts = ["diego", "diego-cell", "dea", "hm9000"]
            .map(|name| k.value(&format!("deployment -n ccf {name}"), "{.spec.replicas}/{.status.readyReplicas}"));
        (counts == ["1/1", "2/2", "0/", "0/"]).then_some(())
    });
}

#[test]
fn the_ready_made_templates_list_the_services_of_pods_and_of_machines() {
    let k = Kubectl::start(Version::V1_32);
    for name in ["hiera-services", "catalogue"] {
        k.ok(&format!("apply -f {}", directory().join(format!("config/{name}.yaml")).display()));
    }
    k.ok("create namespace host-services");
    let slice = |namespace: &str, service: &str, address: &str, more: &str| {
        k.create(&format!(
            r#"
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: {service}, namespace: {namespace}, labels: {{kubernetes.io/service-name: {service}{more}}}, annotations: {{mainstay.dev/host-service-interfaces: "eth0={address},eth1=10.9.9.9"}}}}
addressType: IPv4
endpoints: [{{addresses: [{address}], conditions: {{ready: true}}}}]
ports: [{{name: "", port: 80}}]
"#
        ));
    };
    let service = |namespace: &str, name: &str, labels: &str| {
        k.create(&format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: {namespace}, labels: {{{labels}}}}}\nspec: {{clusterIP: None, ports: [{{port: 80}}]}}\n"
        ));
    };
    k.ok("create namespace other");
    service("default", "web", "role: frontend");
    service("other", "web", "role: frontend");
    service("default", "api", "role: backend, interface: eth1");
    service("default", "unlisted", "app: x");
    service("host-services", "mysql", "");
    slice("default", "web", "10.0.0.2", "");
    slice("other", "web", "10.0.0.1", "");
    slice("default", "api", "10.0.0.3", "");
    slice("host-services", "mysql", "10.0.0.4", ", endpointslice.kubernetes.io/managed-by: host-services.mainstay.dev");
    let expected = r#"---
services::mysql::eth0: ["10.0.0.4"]
services::mysql::eth1: ["10.9.9.9"]
services::backend::eth1: ["10.0.0.3"]
services::frontend::default: ["10.0.0.2", "10.0.0.1"]
"#;
    let shown = || k.run(r"get configmap hiera-services -o jsonpath={.data.services\.yaml}").stdout;
    eventually("services.yaml has all addresses", || (shown().trim() == expected.trim()).then_some(()));
    eventually("so has the catalogue", || {
        let text = k.run(r"get configmap catalogue -o jsonpath={.data.catalogue\.json}").stdout;
        let catalogue: serde_json::Value = serde_json::from_str(&text).ok()?;
        let services = catalogue["services"].as_array()?;
        let ready = |name: &str| services.iter().find(|own| own["name"] == name).map(|own| own["ready"].clone());
        let has_all = ready("api")? == serde_json::json!(["10.0.0.3"])
            && ready("mysql")? == serde_json::json!(["10.0.0.4"])
            && ready("unlisted")? == serde_json::json!([]);
        (has_all && catalogue["nodes"].is_array()).then_some(())
    });
}
