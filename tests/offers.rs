//! Machines offer what they have left, take what fits and give back what does not; host ports lead into pods.

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    process::Command,
    time::Duration,
};

use mainstay_api::quantity::Quantity;
use mainstay_testing::Daemon;
use serde_json::{Value, json};

use crate::{
    harness::{Cluster, Kubectl, Version, eventually, tool},
    restarts::{pod, until},
};

const SCHEDULED: &str = "{.status.conditions[?(@.type==\"PodScheduled\")]";

fn free_millis(k: &Kubectl) -> i128 {
    Quantity::parse(&k.value("offers here", "{.spec.free.cpu}")).expect("a quantity").as_milli()
}

fn offered(k: &Kubectl) {
    eventually("the machine offers", || k.run("get offers here").stdout.contains("here").then_some(()));
}

/// Places a pod that is for a scheduler that does not exist.
fn place(k: &Kubectl, name: &str, annotations: Value) -> Value {
    let uid = k.value(&format!("pod {name}"), "{.metadata.uid}");
    let item = json!({
        "metadata": {"namespace": "default", "name": name, "uid": uid, "annotations": annotations}, "node": "here",
        "message": format!("Successfully assigned default/{name} to here"),
    });
    let list = json!({"apiVersion": "mainstay.dev/v1", "kind": "PlacementList", "items": [item]});
    let printed = k.run_with("create --raw /apis/mainstay.dev/v1/placements -f -", &list.to_string()).ok();
    serde_json::from_str::<Value>(&printed).expect("results")["items"][0].clone()
}

fn offers_are_shown_and_explained(k: &Kubectl) {
    offered(k);
    let shown = k.ok("get of");
    let header: Vec<&str> = shown.lines().next().expect("a header").split_whitespace().collect();
    assert_eq!(header, ["NAME", "CPU", "MEMORY", "PODS", "PORTS", "POOLS", "TTL", "AGE"], "{shown}");
    assert!(shown.contains("31000-32000") && shown.contains("5s"), "{shown}");
    assert!(k.ok("get offers -o wide").contains("1-65535"));
    let yaml = k.ok("get offers.mainstay.dev here -o yaml");
    for line in ["apiVersion: mainstay.dev/v1", "kind: Offer", "  ttlSeconds: 5", "    pods: \"250\"", "- 1-65535"] {
        assert!(yaml.contains(line), "{line} is missing:\n{yaml}");
    }
    let explained = k.ok("explain offer.spec.free");
    assert!(explained.contains("ephemeral-storage, pods and extended resources"), "{explained}");
    assert!(k.ok("explain offer").contains("what a machine can take right now"));
    assert!(k.ok("api-resources --api-group mainstay.dev").contains("Offer"));
    let wrong = json!({
        "apiVersion": "mainstay.dev/v1", "kind": "Offer", "metadata": {"name": "x"},
        "spec": {"free": {"cpu": "-1"}, "automaticPorts": ["9-8"], "ttlSeconds": 0},
    });
    let refused = k.run_with("create -f -", &wrong.to_string()).refused();
    for words in ["spec.free[cpu]", "spec.automaticPorts[0]", "spec.ttlSeconds"] {
        assert!(refused.contains(words), "{refused}");
    }
}

#[test]
fn offers_are_shown_and_explained_to_kubectl_1_20() {
    offers_are_shown_and_explained(&Kubectl::with_pods(Version::V1_20));
}

#[test]
fn offers_are_shown_and_explained_to_kubectl_1_32() {
    offers_are_shown_and_explained(&Kubectl::with_pods(Version::V1_32));
}

#[test]
fn an_offer_follows_what_runs_and_a_lie_does_not_last() {
    let k = Kubectl::with_pods(Version::V1_32);
    offered(&k);
    let before = free_millis(&k);
    k.create(&pod("p", "exec sleep 1000", "", "resources: {requests: {cpu: 150m}}"));
    until(&k, "pod p", "{.status.phase}", "Running");
    eventually("the offer shrinks", || (free_millis(&k) == before - 150).then_some(()));
    let bound = k.value("events --field-selector reason=Scheduled", "{.items[0].message}");
    assert_eq!(bound, "Successfully assigned default/p to here");
    k.ok(r#"patch offer here --type merge -p '{"spec": {"free": {"cpu": "6400"}}}'"#);
    eventually("the machine says it as it is", || (free_millis(&k) == before - 150).then_some(()));
    k.ok("delete pod p");
    eventually("the offer grows back", || (free_millis(&k) == before).then_some(()));
}

#[test]
fn what_does_not_fit_is_given_back_and_says_why() {
    let k = Kubectl::with_pods(Version::V1_32);
    offered(&k);
    let large = "resources: {requests: {cpu: 5000}}";
    k.create(&pod("large", "exec sleep 1000", "schedulerName: nobody", large));
    assert_eq!(place(&k, "large", json!({}))["code"], 201, "an offer that lies would let it through");
    until(&k, "pod large", &format!("{SCHEDULED}.reason}}"), "Refused");
    let printed = k.value("pod large", &format!("{SCHEDULED}.message}}"));
    assert!(printed.starts_with("node here refused: OutOfcpu: Node didn't have enough resource: cpu"), "{printed}");
    assert_eq!(k.value("pod large", "{.spec.nodeName}"), "");
    assert_eq!(k.value("pod large", "{.status.phase}"), "Pending");
    assert_eq!(k.value("pod large", "{.metadata.annotations.mainstay\\.dev/refused-by}"), "here");
    let events = k.ok("get events --field-selector involvedObject.name=large");
    assert!(events.contains("Refused") && events.contains("Scheduled"), "{events}");
    // It can be placed again, and is refused again.
    assert_eq!(place(&k, "large", json!({}))["code"], 201);
    eventually("it is given back again", || k.value("pod large", "{.spec.nodeName}").is_empty().then_some(()));

    // Whoever names the machine gets it or fails there, as upstream has it.
    k.create(&pod("own", "exec sleep 1000", "nodeName: here", large));
    until(&k, "pod own", "{.status.phase}", "Failed");
    assert_eq!(k.value("pod own", "{.status.reason}"), "OutOfcpu");
    let printed = k.value("pod own", "{.status.message}");
    assert!(
        printed.starts_with("Pod was rejected: Node didn't have enough resource: cpu, requested: 5000000"),
        "{printed}"
    );
}

#[test]
fn what_runs_is_not_refused_by_an_agent_that_starts_again() {
    let mut k = Kubectl::with_pods(Version::V1_32);
    offered(&k);
    let most = format!("resources: {{requests: {{cpu: {}m}}}}", free_millis(&k));
    k.create(&pod("most", "exec sleep 1000", "", &most));
    until(&k, "pod most", "{.status.phase}", "Running");
    k.cluster.kill();
    k.cluster.start_again();
    eventually("all is taken again", || (k.run("get offers here").code == 0 && free_millis(&k) == 0).then_some(()));
    assert_eq!(k.value("pod most", "{.status.phase}"), "Running");
    assert_eq!(k.value("pod most", "{.status.containerStatuses[0].restartCount}"), "0");
}

#[test]
fn chosen_ports_lead_into_the_pod_and_are_known_inside() {
    let k = Kubectl::with_pods(Version::V1_32);
    offered(&k);
    let busybox = fs::canonicalize(tool("busybox/bin/busybox")).expect("busybox");
    let script = "mkdir /www && echo it is $HOST_PORT_WEB > /www/index.html && exec /busybox httpd -f -p 8080 -h /www";
    let volume = format!("volumes: [{{name: b, hostPath: {{path: {busybox:?}, type: File}}}}]");
    let spec = format!("schedulerName: nobody\n  {volume}");
    let ports = "ports: [{name: web, containerPort: 8080}]\n    volumeMounts: [{name: b, mountPath: /busybox}]";
    k.create(&pod("web", script, &spec, ports));
    // Not to meet other clusters on this machine.
    let port = 31_000 + std::process::id() % 1_000;
    let annotations = json!({
        "k8s.mesosphere.io/port_TCP_8080": port.to_string(), "k8s.mesosphere.io/portName_TCP_web": port.to_string(),
    });
    assert_eq!(place(&k, "web", annotations)["code"], 201);
    until(&k, "pod web", "{.status.phase}", "Running");
    assert_eq!(k.ok("exec web -- printenv HOST_PORT_TCP_8080"), port.to_string());
    assert_eq!(k.ok("exec web -- printenv HOST_PORT_WEB"), port.to_string());
    let address = k.value("node here", "{.status.addresses[?(@.type==\"InternalIP\")].address}");
    eventually("the port leads into the pod", || {
        let mut stream = TcpStream::connect((address.as_str(), u16::try_from(port).ok()?)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(2))).ok()?;
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        answer.contains(&format!("it is {port}")).then_some(())
    });
    let free = k.value("offers here", "{.spec.automaticPorts}");
    assert!(
        free.contains(&format!("-{}\"", port - 1)) || free.contains(&format!("\"{}\"", port - 1)) || port == 31_000,
        "{free}"
    );

    // Another pod that was given the same port is refused.
    k.create(&pod("rival", "exec sleep 1000", "schedulerName: nobody", "ports: [{containerPort: 8080}]"));
    let same = json!({"k8s.mesosphere.io/port_TCP_8080": port.to_string()});
    assert_eq!(place(&k, "rival", same)["code"], 201);
    until(&k, "pod rival", &format!("{SCHEDULED}.reason}}"), "Refused");
    let printed = k.value("pod rival", &format!("{SCHEDULED}.message}}"));
    assert!(printed.contains("NodePorts") && printed.contains(&format!("TCP {port}")), "{printed}");
    assert_eq!(k.value("pod rival", "{.metadata.annotations.k8s\\.mesosphere\\.io/port_TCP_8080}"), "");
}

#[test]
fn a_port_that_is_taken_keeps_the_next_pod_waiting() {
    let k = Kubectl::with_pods(Version::V1_32);
    offered(&k);
    let port = 32_100 + std::process::id() % 10_000;
    let ports = format!("ports: [{{containerPort: 80, hostPort: {port}}}]");
    k.create(&pod("first", "exec sleep 1000", "", &ports));
    until(&k, "pod first", "{.status.phase}", "Running");
    k.create(&pod("second", "exec sleep 1000", "", &ports));
    eventually("the second one waits and says why", || {
        k.value("pod second", &format!("{SCHEDULED}.message}}")).contains("free ports").then_some(())
    });
    assert_eq!(k.value("pod second", "{.spec.nodeName}"), "");
    let twice = format!("ports: [{{containerPort: 80, hostPort: {port}}}, {{containerPort: 81, hostPort: {port}}}]");
    let refused = k.run_with("create -f -", &pod("twice", "true", "", &twice)).refused();
    assert!(refused.contains("Duplicate value"), "{refused}");
    k.ok("delete pod first");
    until(&k, "pod second", "{.status.phase}", "Running");
}

#[test]
fn who_stops_offers_nothing() {
    let cluster = Cluster::start();
    let token = cluster.mainstay("token", "create").ok().trim().to_owned();
    let data = cluster.home().join("machine");
    let mut agent = Command::new(env!("CARGO_BIN_EXE_mainstay"));
    agent.args(["agent", "--server", cluster.url(), "--token", &token, "--node-name", "m", "--agent-port", "0"]);
    agent.args(["--evict-disk", "0", "--offer-ttl", "60", "--host-ports", "none", "--data-dir"]).arg(&data);
    let mut agent = Daemon::spawn(agent, &cluster.home().join("agent.log"));
    let offers = || {
        let mut kubectl = Command::new(tool("bin/kubectl-1.32"));
        kubectl.arg("--kubeconfig").arg(cluster.kubeconfig()).args(["get", "offers"]).env("HOME", cluster.home());
        String::from_utf8_lossy(&kubectl.output().expect("run kubectl").stdout).into_owned()
    };
    let shown = eventually("it offers", || Some(offers()).filter(|shown| shown.contains("60s")));
    assert!(shown.contains("<none>"), "{shown}");
    agent.signal("TERM");
    agent.wait();
    assert_eq!(offers(), "", "its offer would have been good for a minute");
    let down = Command::new(env!("CARGO_BIN_EXE_mainstay")).arg("down").arg("--data-dir").arg(&data).output();
    assert!(down.expect("run down").status.success());

    for (flag, value, words) in [
        ("--host-ports", "9-8", "\"9-8\" must be a port or a range of ports"),
        ("--explicit-host-ports", "0", "between 1 and 65535"),
        ("--offer-ttl", "0", "must be whole seconds, at least 1s"),
    ] {
        let printed =
            Command::new(env!("CARGO_BIN_EXE_mainstay")).args(["agent", flag, value]).output().expect("run it");
        let text = String::from_utf8_lossy(&printed.stderr).into_owned();
        assert!(printed.status.code() == Some(64) && text.contains(words) && text.contains(flag), "{text}");
    }
}
