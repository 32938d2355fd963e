//! `dryRun=All`: the full answer, and nothing behind it.

use std::time::Duration;

use serde_json::{Value, json};

use super::support::{
    Client, Server,
    objects::{CONFIG_MAPS, DEPLOYMENTS, config_map, deployment, version},
};
use crate::harness::eventually;

/// What is there, and at which revision.
#[track_caller]
fn snapshot(client: &mut Client) -> (Value, Value, u64) {
    let maps = client.get(CONFIG_MAPS).granted();
    let deployments = client.get(DEPLOYMENTS).granted();
    (maps["items"].clone(), deployments["items"].clone(), version(&client.get(CONFIG_MAPS).granted()))
}

/// The same, once whatever the server does by itself after its start is done.
#[track_caller]
fn settled(client: &mut Client) -> (Value, Value, u64) {
    let mut last = snapshot(client);
    eventually("the server comes to rest", || {
        std::thread::sleep(Duration::from_millis(500));
        let now = snapshot(client);
        let rests = now == last;
        last = now;
        rests.then_some(())
    });
    last
}

#[test]
fn a_dry_run_of_any_verb_answers_in_full_and_leaves_nothing_behind() {
    let server = Server::start();
    let mut client = server.client();
    client.post(CONFIG_MAPS, &config_map("there")).granted();
    client.post(DEPLOYMENTS, &deployment("web")).granted();
    let before = settled(&mut client);

    let created = client.post(&format!("{CONFIG_MAPS}?dryRun=All"), &config_map("new"));
    assert_eq!(created.code, 201);
    assert_eq!(created.granted()["metadata"]["name"], "new");
    client.post(&format!("{CONFIG_MAPS}?dryRun=All"), &config_map("there")).refused(409, "AlreadyExists");
    assert_eq!(client.post(&format!("{CONFIG_MAPS}?dryRun=All"), &config_map("BAD")).invalid_field(), "metadata.name");

    let mut changed = config_map("there");
    changed["data"]["key"] = json!("changed");
    let put = client.put(&format!("{CONFIG_MAPS}/there?dryRun=All"), &changed).granted();
    assert_eq!(put["data"]["key"], "changed");
    let patch = json!({"data": {"key": "patched"}});
    let patched = client.patch(&format!("{CONFIG_MAPS}/there?dryRun=All"), "merge-patch+json", &patch).granted();
    assert_eq!(patched["data"]["key"], "patched");
    let operations = json!([{"op": "add", "path": "/data/more", "value": "x"}]);
    client.patch(&format!("{CONFIG_MAPS}/there?dryRun=All"), "json-patch+json", &operations).granted();
    client.patch(&format!("{CONFIG_MAPS}/there?dryRun=All"), "strategic-merge-patch+json", &patch).granted();

    let scale = json!({"spec": {"replicas": 7}});
    let scaled = client.patch(&format!("{DEPLOYMENTS}/web/scale?dryRun=All"), "merge-patch+json", &scale).granted();
    assert_eq!(scaled["spec"]["replicas"], 7);
    let status = json!({"status": {"replicas": 3}});
    client.patch(&format!("{DEPLOYMENTS}/web/status?dryRun=All"), "merge-patch+json", &status).granted();

    client.delete(&format!("{CONFIG_MAPS}/there?dryRun=All")).granted();
    let options = json!({"apiVersion": "v1", "kind": "DeleteOptions", "dryRun": ["All"]}).to_string();
    client.send("DELETE", &format!("{CONFIG_MAPS}/there"), "application/json", options.as_bytes()).granted();
    client.delete(&format!("{CONFIG_MAPS}?dryRun=All")).granted();
    client.delete("/api/v1/namespaces/default?dryRun=All").refused(403, "Forbidden");

    assert_eq!(snapshot(&mut client), before);
}

#[test]
fn a_dry_run_takes_no_address_or_port() {
    let server = Server::start();
    let mut client = server.client();
    let services = "/api/v1/namespaces/default/services";
    let service = |name: &str| {
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
            "spec": {"type": "NodePort", "ports": [{"port": 80, "nodePort": 30123}], "clusterIP": "10.96.7.7"},
        })
    };
    for name in ["a", "b"] {
        client.post(&format!("{services}?dryRun=All"), &service(name)).granted();
    }
    client.post(services, &service("c")).granted();
    let taken = client.post(&format!("{services}?dryRun=All"), &service("d"));
    taken.refused(422, "Invalid");
}
