//! A real etcd as the store, and what its faults look like to clients.

use std::process::Command;

use serde_json::{Value, json};

use super::support::{
    Client, Server,
    objects::{CONFIG_MAPS, PODS, config_map, pod, version},
};
use crate::harness::{Etcd, eventually, tool};

fn server(etcd: &Etcd) -> Server {
    Server::start_with(&["--store", &etcd.flag(), "--encryption-provider-config", &etcd.key_file()])
}

/// Makes a test per version of etcd.
macro_rules! with_each_etcd {
    ($($name:ident),+ $(,)?) => {
        mod v3_4 { $(#[test] fn $name() { super::$name("bin/etcd-3.4") })+ }
        mod v3_5 { $(#[test] fn $name() { super::$name("bin/etcd-3.5") })+ }
    };
}

with_each_etcd! {
    objects_are_served_from_etcd,
    values_lie_in_upstreams_layout,
    two_servers_see_each_others_writes,
    a_frozen_etcd_fails_requests_in_time_and_everything_resumes,
    a_killed_etcd_fails_requests_in_time_and_everything_resumes,
}

fn objects_are_served_from_etcd(program: &'static str) {
    let etcd = Etcd::start(program);
    let mut server = server(&etcd);
    let mut client = server.client();
    let mut events = client.watch(&format!("{CONFIG_MAPS}?watch=1"));
    let mut created = client.post(CONFIG_MAPS, &config_map("c")).granted();
    client.post(CONFIG_MAPS, &config_map("c")).refused(409, "AlreadyExists");
    created["data"]["key"] = json!("other");
    let updated = client.put(&format!("{CONFIG_MAPS}/c"), &created).granted();
    assert!(version(&updated) > version(&created));
    client.put(&format!("{CONFIG_MAPS}/c"), &created).refused(409, "Conflict");
    assert_eq!(client.get(&format!("{CONFIG_MAPS}/c")).granted()["data"]["key"], "other");
    client.delete(&format!("{CONFIG_MAPS}/c")).granted();
    client.get(&format!("{CONFIG_MAPS}/c")).refused(404, "NotFound");
    let kinds: Vec<Value> = (0..3).map(|_| events.about("c")["type"].clone()).collect();
    assert_eq!(kinds, ["ADDED", "MODIFIED", "DELETED"]);
    let future = client.get(&format!("{CONFIG_MAPS}?resourceVersion=999999999&resourceVersionMatch=Exact"));
    future.refused(504, "Timeout");

    client.post(PODS, &pod("web")).granted();
    let printed = Command::new(tool("bin/kubectl-1.32"))
        .args(["get", "pods", "-o", "name", "--kubeconfig"])
        .arg(server.data().join("admin.kubeconfig"))
        .env("HOME", server.data())
        .output()
        .expect("run kubectl");
    assert_eq!(String::from_utf8_lossy(&printed.stdout), "pod/web\n", "{}", String::from_utf8_lossy(&printed.stderr));
    client.get("/backup").refused(501, "NotImplemented");
    server.kill();
    server.start_again();
    client.get(&format!("{PODS}/web")).granted();
}

#[track_caller]
fn stored(etcd: &Etcd, key: &str) -> Value {
    let text = etcd.ctl(&["get", key, "--print-value-only"]).expect("etcdctl answers");
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{key}: {error}: {text:?}"))
}

fn values_lie_in_upstreams_layout(program: &'static str) {
    let etcd = Etcd::start(program);
    let server = server(&etcd);
    let mut client = server.client();
    client.post(PODS, &pod("web")).granted();
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "front"}, "spec": {"ports": [{"port": 80}]},
    });
    client.post("/api/v1/namespaces/default/services", &service).granted();
    client.post("/api/v1/nodes", &json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})).granted();
    let deployment = super::support::objects::deployment("web");
    client.post("/apis/apps/v1/namespaces/default/deployments", &deployment).granted();
    for (key, version, kind) in [
        ("/registry/pods/default/web", "v1", "Pod"),
        ("/registry/services/specs/default/front", "v1", "Service"),
        ("/registry/minions/n1", "v1", "Node"),
        ("/registry/namespaces/default", "v1", "Namespace"),
        ("/registry/deployments/default/web", "apps/v1", "Deployment"),
    ] {
        let value = stored(&etcd, key);
        assert_eq!((&value["apiVersion"], &value["kind"]), (&json!(version), &json!(kind)), "{key}");
        assert_eq!(value["metadata"].get("resourceVersion"), None, "{key}");
        assert!(value["metadata"]["uid"].is_string(), "{key}");
    }
}

fn two_servers_see_each_others_writes(program: &'static str) {
    let etcd = Etcd::start(program);
    let (one, two) = (server(&etcd), server(&etcd));
    let (mut first, mut second) = (one.client(), two.client());
    let mut from_first = first.watch(&format!("{CONFIG_MAPS}?watch=1"));
    let mut from_second = second.watch(&format!("{CONFIG_MAPS}?watch=1"));
    let by_first = first.post(CONFIG_MAPS, &config_map("by-first")).granted();
    let by_second = second.post(CONFIG_MAPS, &config_map("by-second")).granted();
    for events in [&mut from_first, &mut from_second] {
        assert_eq!(events.about("by-first")["object"], by_first);
        assert_eq!(events.about("by-second")["object"], by_second);
    }
    assert_eq!(second.get(&format!("{CONFIG_MAPS}/by-first")).granted(), by_first);
    second.post(CONFIG_MAPS, &config_map("by-first")).refused(409, "AlreadyExists");
    // Addresses are given out once, whoever gives them.
    let service = |name: &str| {
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
            "spec": {"clusterIP": "10.96.9.9", "ports": [{"port": 80}]}})
    };
    first.post("/api/v1/namespaces/default/services", &service("a")).granted();
    second.post("/api/v1/namespaces/default/services", &service("b")).refused(422, "Invalid");
}

/// Everything that needs etcd fails in time with a proper answer; what does not need it is served.
#[track_caller]
fn assert_cut_off(client: &mut Client) {
    for (method, body) in [("GET", Value::Null), ("POST", config_map("lost"))] {
        let content = if method == "POST" { body.to_string() } else { String::new() };
        let answer = client.send(method, CONFIG_MAPS, "application/json", content.as_bytes());
        match answer.code {
            503 => answer.refused_saying(503, "ServiceUnavailable", "etcd at 127.0.0.1"),
            _ => panic!("{} {}", answer.code, answer.text()),
        };
    }
    let watch = client.get(&format!("{CONFIG_MAPS}?watch=1"));
    assert!(watch.code == 503, "{} {}", watch.code, watch.text());
    let ready = client.get("/readyz");
    assert_eq!(ready.code, 500);
    assert!(ready.text().contains("[-]store failed"), "{}", ready.text());
    assert_eq!(client.get("/livez").code, 200);
    client.get("/version").granted();
}

#[track_caller]
fn assert_resumed(client: &mut Client, name: &str) {
    eventually("requests are served again", || (client.get("/readyz").code == 200).then_some(()));
    eventually("writes are served again", || {
        let code = client.post(CONFIG_MAPS, &config_map(name)).code;
        matches!(code, 201 | 409).then_some(())
    });
}

fn a_frozen_etcd_fails_requests_in_time_and_everything_resumes(program: &'static str) {
    let etcd = Etcd::start(program);
    let mut server = server(&etcd);
    let mut client = server.client();
    let mut events = client.watch(&format!("{CONFIG_MAPS}?watch=1"));
    client.post(CONFIG_MAPS, &config_map("before")).granted();
    assert_eq!(events.about("before")["type"], "ADDED");
    etcd.signal("STOP");
    assert_cut_off(&mut client);
    etcd.signal("CONT");
    assert_resumed(&mut client, "after");
    assert_eq!(events.about("after")["type"], "ADDED");
    server.assert_well();
}

fn a_killed_etcd_fails_requests_in_time_and_everything_resumes(program: &'static str) {
    let mut etcd = Etcd::start(program);
    let mut server = server(&etcd);
    let mut client = server.client();
    let mut events = client.watch(&format!("{CONFIG_MAPS}?watch=1"));
    client.post(CONFIG_MAPS, &config_map("before")).granted();
    assert_eq!(events.about("before")["type"], "ADDED");
    etcd.kill();
    assert_cut_off(&mut client);
    etcd.start_again();
    assert_resumed(&mut client, "after");
    assert_eq!(events.about("after")["type"], "ADDED");
    server.assert_well();
}

#[test]
fn an_etcd_that_is_not_there_keeps_it_from_starting_and_is_named() {
    let dir = super::support::data_dir();
    let output = super::support::mainstay(&[
        "server",
        "--listen",
        "127.0.0.1:0",
        "--store",
        "etcd://127.0.0.1:1",
        "--data-dir",
        dir.path().to_str().expect("UTF-8"),
    ]);
    assert_eq!(output.code, 2, "{output}");
    assert!(output.stderr.contains("--store etcd://127.0.0.1:1"), "{output}");
}
