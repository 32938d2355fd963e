//! Services as kubectl sees them: who stands behind them follows the pods' status, which these tests write themselves.

use serde_json::{Value, json};

use crate::{
    harness::{Kubectl, Version, eventually},
    with_each_kubectl,
};

with_each_kubectl!(
    an_exposed_deployment_gets_endpoints,
    endpoints_follow_readiness_and_what_is_published,
    headless_services_and_names_for_elsewhere,
    endpoints_by_hand_are_repeated_in_slices,
    what_cannot_be_had_is_refused_by_field,
);

/// What begins with a brace would be taken for JSON.
fn apply(k: &Kubectl, flow: &str) {
    k.apply(&format!("---\n{flow}"));
}

fn machine(k: &Kubectl) {
    apply(k, "{apiVersion: v1, kind: Node, metadata: {name: m1, labels: {topology.kubernetes.io/zone: z1}}}");
}

/// A pod on the machine, as an agent would report it.
fn pod(k: &Kubectl, name: &str, address: &str, ready: bool) {
    apply(
        k,
        &format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, labels: {{app: web}}}}, spec: {{nodeName: m1, \
         hostname: {name}, subdomain: web, containers: [{{name: c, image: i, ports: [{{name: http, containerPort: 8080}}]}}]}}}}"
        ),
    );
    status(k, name, address, ready);
}

fn status(k: &Kubectl, name: &str, address: &str, ready: bool) {
    let path = format!("/api/v1/namespaces/default/pods/{name}");
    let mut pod: Value = serde_json::from_str(&k.ok(&format!("get --raw {path}"))).unwrap();
    let reported = json!({
        "phase": "Running", "podIP": address, "podIPs": [{"ip": address}], "hostIP": "192.168.0.1",
        "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}],
    });
    pod["status"].as_object_mut().unwrap().extend(reported.as_object().unwrap().clone());
    k.run_with(&format!("replace --raw {path}/status -f -"), &pod.to_string()).ok();
}

#[track_caller]
fn shown(k: &Kubectl, service: &str, endpoints: &str) {
    eventually(&format!("{service} ends at {endpoints}"), || {
        let line = k.ok(&format!("get endpoints {service} --no-headers"));
        (line.split_whitespace().nth(1) == Some(endpoints)).then_some(())
    });
}

fn slices(k: &Kubectl, service: &str) -> Vec<Value> {
    let list = k.json(&format!("get endpointslices -l kubernetes.io/service-name={service} -o json"));
    list["items"].as_array().cloned().unwrap_or_default()
}

fn an_exposed_deployment_gets_endpoints(k: &Kubectl) {
    machine(k);
    k.ok("create deployment web --image i");
    k.ok("scale deployment web --replicas 0");
    k.ok("expose deployment web --port 80 --target-port 8080");
    shown(k, "web", "<none>");
    pod(k, "a", "10.1.0.1", true);
    pod(k, "b", "10.1.0.2", true);
    shown(k, "web", "10.1.0.1:8080,10.1.0.2:8080");
    let output = k.ok("describe service web").split_whitespace().collect::<Vec<_>>().join(" ");
    for part in ["Selector: app=web", "TargetPort: 8080/TCP", "Endpoints: 10.1.0.1:8080,10.1.0.2:8080"] {
        assert!(output.contains(part), "{part:?} is not in {output}");
    }
    let slices = slices(k, "web");
    let endpoint = &slices[0]["endpoints"][0];
    assert_eq!((slices.len(), &endpoint["zone"], &endpoint["nodeName"]), (1, &json!("z1"), &json!("m1")));
    let listed = k.ok("get endpointslices --no-headers");
    assert!(listed.contains("8080") && listed.contains("10.1.0.1,10.1.0.2"), "{listed}");
    k.ok("delete service web");
    eventually("nothing is left of it", || (k.run("get endpoints web").code != 0).then_some(()));
    eventually("slices neither", || self::slices(k, "web").is_empty().then_some(()));
}

fn endpoints_follow_readiness_and_what_is_published(k: &Kubectl) {
    machine(k);
    apply(
        k,
        "{apiVersion: v1, kind: Service, metadata: {name: web}, spec: {selector: {app: web}, ports: [{port: 80, \
         targetPort: http}]}}",
    );
    apply(
        k,
        "{apiVersion: v1, kind: Service, metadata: {name: open}, spec: {selector: {app: web}, \
         publishNotReadyAddresses: true, ports: [{port: 80, targetPort: 9999}]}}",
    );
    pod(k, "a", "10.1.0.1", false);
    shown(k, "open", "10.1.0.1:9999");
    eventually("it is not ready", || {
        let ready = k.value("endpoints web", "{.subsets[0].addresses}");
        let others = k.value("endpoints web", "{.subsets[0].notReadyAddresses[0].ip}");
        (ready.is_empty() && others == "10.1.0.1").then_some(())
    });
    status(k, "a", "10.1.0.1", true);
    shown(k, "web", "10.1.0.1:8080");
    k.ok("delete pod a --wait=false");
    shown(k, "web", "<none>");
    eventually("it is going, and still serves", || {
        let slices = slices(k, "web");
        (slices[0]["endpoints"][0]["conditions"] == json!({"ready": false, "serving": true, "terminating": true}))
            .then_some(())
    });
    eventually("nobody sends to it", || {
        let drained = k.value("pod a", "{.status.conditions[?(@.type==\"mainstay.dev/Drained\")].reason}");
        (drained == "RemovedFromAllNodes").then_some(())
    });
}

fn headless_services_and_names_for_elsewhere(k: &Kubectl) {
    machine(k);
    apply(k, "{apiVersion: v1, kind: Service, metadata: {name: web}, spec: {clusterIP: None, selector: {app: web}}}");
    k.ok("create service externalname other --external-name example.org");
    pod(k, "a", "10.1.0.1", true);
    eventually("the pod has a name below it", || {
        let slices = slices(k, "web");
        (slices.first()?["endpoints"][0]["hostname"] == "a").then_some(())
    });
    let slice = &slices(k, "web")[0];
    assert_eq!(slice["metadata"]["labels"]["service.kubernetes.io/headless"], "");
    assert_eq!(k.value("endpoints web", "{.subsets[0].addresses[0].hostname}"), "a");
    assert!(slices(k, "other").is_empty());
    assert_ne!(k.run("get endpoints other").code, 0);
}

fn endpoints_by_hand_are_repeated_in_slices(k: &Kubectl) {
    apply(k, "{apiVersion: v1, kind: Service, metadata: {name: db}, spec: {ports: [{port: 5432}]}}");
    apply(
        k,
        "{apiVersion: v1, kind: Endpoints, metadata: {name: db}, subsets: [{addresses: [{ip: 10.9.0.1}, {ip: 10.9.0.2}], \
         ports: [{port: 5432}]}]}",
    );
    shown(k, "db", "10.9.0.1:5432,10.9.0.2:5432");
    let slice = eventually("they are repeated", || slices(k, "db").pop());
    let by = &slice["metadata"]["labels"]["endpointslice.kubernetes.io/managed-by"];
    assert_eq!(by, "endpointslicemirroring-controller.k8s.io");
    assert_eq!(slice["endpoints"].as_array().map(Vec::len), Some(2));
    k.ok("label endpoints db endpointslice.kubernetes.io/skip-mirror=true");
    eventually("or not", || slices(k, "db").is_empty().then_some(()));
}

fn what_cannot_be_had_is_refused_by_field(k: &Kubectl) {
    k.ok("create service nodeport one --tcp 80:80 --node-port 30123");
    let refused = k.refused("create service nodeport two --tcp 80:80 --node-port 30123");
    assert!(
        refused.contains("spec.ports[0].nodePort: Invalid value: 30123: provided port is already allocated"),
        "{refused}"
    );
    let refused = k.refused("create service clusterip my_app --tcp 80:80");
    assert!(refused.contains("metadata.name: Invalid value: \"my_app\""), "{refused}");
    assert_eq!(k.value("service kube-dns -n kube-system", "{.spec.clusterIP}"), "10.96.0.10");
    k.ok("delete service kube-dns -n kube-system");
    eventually("DNS comes back", || (k.run("get service kube-dns -n kube-system").code == 0).then_some(()));
}

#[test]
fn the_range_of_services_is_a_ready_service_cidr() {
    let k = Kubectl::start(Version::V1_32);
    let path = "{.spec.cidrs[0]} {range .status.conditions[*]}{.type}={.status}: {.message}{end}";
    let expected = "10.96.0.0/16 Ready=True: Kubernetes default Service CIDR is ready";
    eventually("it says so", || (k.value("servicecidr kubernetes", path) == expected).then_some(()));
}
