//! Redis behind a Service: whoever calls while its only pod is replaced waits instead of being refused.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use serde_json::json;

use super::lab::{Lab, curl, now, program, set};
use crate::harness::{eventually, tool};

fn redis(lab: &Lab) -> serde_json::Value {
    let server = tool("redis/usr/bin/redis-server").display().to_string();
    let arguments = ["--port", "6379", "--dir", "/data", "--appendonly", "yes", "--protected-mode", "no"];
    let command = [&[server], &arguments.map(str::to_owned)[..]].concat();
    let mut pod = lab.container(&command);
    let libraries = tool("redis").join("libraries");
    let container = &mut pod["containers"][0];
    container["env"].as_array_mut().unwrap().push(json!({ "name": "LD_LIBRARY_PATH", "value": libraries }));
    container["volumeMounts"].as_array_mut().unwrap().push(json!({ "name": "data", "mountPath": "/data" }));
    // It listens before it has read its file, and answers LOADING until then.
    let ping = json!([tool("redis/usr/bin/redis-cli"), "-e", "ping"]);
    container["readinessProbe"] = json!({ "exec": { "command": ping }, "periodSeconds": 1 });
    let mut set = set("StatefulSet", "redis", 1, pod);
    set["spec"]["serviceName"] = "redis".into();
    set["spec"]["volumeClaimTemplates"] = json!([{
        "metadata": { "name": "data" },
        "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Mi" } } },
    }]);
    set
}

#[test]
fn callers_of_redis_wait_while_its_only_pod_is_replaced_and_lose_nothing() {
    let lab = Lab::new(&["a", "b"]);
    // Longer than replacing a pod takes on a machine with much else to do.
    let hold = json!({ "mainstay.dev/hold": "60s" });
    let address = lab.start_service_with("redis", json!({ "ports": [{ "port": 6379 }] }), hold);
    lab.create(&redis(&lab));
    lab.serves("redis", 1);
    lab.start_client("b");
    let cli = format!("{} -h {address}", program("redis", "usr/bin/redis-cli"));
    eventually("it answers", || (lab.by_client(&format!("{cli} ping")).stdout == "PONG\n").then_some(()));

    // Each call is a connection of its own, and counts one up; the numbers tell what was lost.
    let over = AtomicBool::new(false);
    let counted = thread::scope(|scope| {
        let calls = scope.spawn(|| {
            let mut counted = Vec::new();
            while !over.load(Ordering::Relaxed) {
                let line = format!("for n in 1 2 3 4 5 6 7 8 9 10; do {cli} incr calls || exit; done");
                counted.extend(lab.by_client(&line).ok().lines().map(str::to_owned));
            }
            counted
        });
        for _ in 0..3 {
            let uid = lab.value("pod redis-0", "{.metadata.uid}");
            lab.kubectl("delete pod redis-0 --wait=false");
            eventually("another takes its place", || {
                let ready = lab.ready_pods("redis") == ["redis-0"];
                (ready && lab.value("pod redis-0", "{.metadata.uid}") != uid).then_some(())
            });
        }
        over.store(true, Ordering::Relaxed);
        calls.join().expect("every call was answered")
    });
    let expected: Vec<String> = (1..=counted.len()).map(|n| n.to_string()).collect();
    assert_eq!(counted, expected, "all calls were answered, and none counted twice");
}

#[test]
fn nobody_waits_at_a_service_that_does_not_hold_and_others_wait_as_long_as_it_says() {
    let lab = Lab::new(&["a"]);
    let held = |time: &str| json!({ "mainstay.dev/hold": time });
    let refusing = lab.start_service_with("refusing", json!({}), held("0"));
    let holding = lab.start_service_with("holding", json!({}), held("2s"));
    lab.start_client("a");
    let call = |address: &str| {
        let began = now();
        let code = lab.by_client(&format!("{} http://{address}/", curl())).code;
        (code, now() - began)
    };
    eventually("it refuses at once", || {
        let (code, took) = call(&refusing);
        (code == 7 && took < 1.0).then_some(())
    });
    let (code, took) = call(&holding);
    assert!(code != 0 && took >= 1.9, "{code} after {took} s");
    // Whoever waits gets the first pod that comes.
    thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let url = format!("http://{holding}/");
            lab.by_client(&format!("for n in $(seq 30); do {} {url} && exit; done; exit 1", curl())).ok()
        });
        lab.start_web("holding", 1);
        assert!(waits.join().expect("it was answered").starts_with("holding-"));
    });
}
