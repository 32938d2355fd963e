//! Requests in flight: as many as allowed, and an honest answer to the rest.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Instant,
};

use serde_json::json;

use super::support::{
    Client, HttpResponse, Identity, Server,
    objects::{CONFIG_MAPS, config_map},
};
use crate::harness::{PATIENCE, eventually};

#[track_caller]
fn assert_busy(answer: &HttpResponse) {
    let status = answer.refused_saying(429, "TooManyRequests", "too many requests, please try again later");
    assert_eq!(status["details"]["retryAfterSeconds"], 1);
    assert_eq!(answer.header("retry-after"), Some("1"));
}

/// A user who may do everything, one request at a time: administrators are exempt from limits, and others wait in queues.
fn limited_user(server: &Server) -> Identity {
    let (ann, mut admin) = (server.authority().client("ann", &[]), server.client());
    let binding = json!({
        "metadata": { "name": "ann" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin" },
        "subjects": [{ "kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "ann" }],
    });
    admin.post("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", &binding).granted();
    let limited = json!({
        "nominalConcurrencyShares": 1, "lendablePercent": 0, "borrowingLimitPercent": 0, "limitResponse": { "type": "Reject" },
    });
    let level = json!({ "metadata": { "name": "narrow" }, "spec": { "type": "Limited", "limited": limited } });
    admin.post("/apis/flowcontrol.apiserver.k8s.io/v1/prioritylevelconfigurations", &level).granted();
    let everything = json!({
        "verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "namespaces": ["*"], "clusterScope": true,
    });
    let rule = json!({ "subjects": [{ "kind": "User", "user": { "name": "ann" } }], "resourceRules": [everything] });
    let schema = json!({
        "metadata": { "name": "ann" },
        "spec": { "priorityLevelConfiguration": { "name": "narrow" }, "matchingPrecedence": 10, "rules": [rule] },
    });
    admin.post("/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas", &schema).granted();
    eventually("ann may", || (server.client_as(&ann).get(CONFIG_MAPS).code == 200).then_some(()));
    ann
}

/// Asks on eight connections at once until somebody is refused, and returns the refusal.
#[track_caller]
fn refused_in_a_crowd(
    server: &Server,
    user: &Identity,
    ask: impl Fn(&mut Client) -> HttpResponse + Sync,
) -> HttpResponse {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let asker = || {
            let mut client = server.client_as(user);
            let deadline = Instant::now() + PATIENCE;
            while !over.load(Ordering::Relaxed) && Instant::now() < deadline {
                let answer = ask(&mut client);
                if answer.code >= 300 {
                    over.store(true, Ordering::Relaxed);
                    return Some(answer);
                }
            }
            None
        };
        let askers: Vec<_> = (0..8).map(|_| scope.spawn(asker)).collect();
        askers.into_iter().find_map(|asker| asker.join().expect("an asker"))
    })
    .expect("somebody is refused")
}

#[test]
fn writes_beyond_the_limit_are_asked_to_retry() {
    let server = Server::start_with(&["--max-writes", "1", "--max-reads", "1"]);
    let (mut client, ann) = (server.client(), limited_user(&server));
    client.post(CONFIG_MAPS, &config_map("c")).granted();
    let refusal = refused_in_a_crowd(&server, &ann, |client| {
        client.put(&format!("{CONFIG_MAPS}/c"), &config_map("c"));
        client.delete(&format!("{CONFIG_MAPS}/none?dryRun=All"));
        client.post(&format!("{CONFIG_MAPS}?dryRun=All"), &config_map("d"))
    });
    assert_busy(&refusal);
    client.get(CONFIG_MAPS).granted();
    let mut client = server.client_as(&ann);
    eventually("alone there is room", || (client.post(CONFIG_MAPS, &config_map("e")).code == 201).then_some(()));
}

#[test]
fn reads_beyond_the_limit_are_asked_to_retry() {
    let server = Server::start_with(&["--max-writes", "1", "--max-reads", "1"]);
    let (mut client, ann) = (server.client(), limited_user(&server));
    for n in 0..300 {
        client.post(CONFIG_MAPS, &config_map(&format!("c{n}"))).granted();
    }
    let refusal =
        refused_in_a_crowd(&server, &ann, |client| client.get(&format!("{CONFIG_MAPS}?labelSelector=a%21%3Db")));
    assert_busy(&refusal);
    client.post(CONFIG_MAPS, &config_map("written")).granted();
    assert_eq!(client.get("/livez").code, 200);
    assert_eq!(client.watch(&format!("{CONFIG_MAPS}?watch=1")).about("written")["type"], "ADDED");
    let mut client = server.client_as(&ann);
    eventually("alone there is room", || (client.get(CONFIG_MAPS).code == 200).then_some(()));
}

#[test]
fn a_request_whose_body_is_still_to_come_takes_no_place() {
    let server = Server::start_with(&["--max-writes", "1", "--max-reads", "1"]);
    let mut client = server.client();
    let body = config_map("slow").to_string();
    let begin = |method: &str| {
        let mut wire = server.client().connect().expect("connect");
        let length = body.len();
        let head = format!(
            "{method} {CONFIG_MAPS} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
        );
        wire.send(head.as_bytes()).expect("send the head");
        wire
    };
    let mut slow: Vec<_> = ["POST", "GET", "POST", "GET"].map(begin).into();
    client.post(CONFIG_MAPS, &config_map("quick")).granted();
    client.get(CONFIG_MAPS).granted();
    for (wire, code) in slow.iter_mut().zip([201, 200, 409, 200]) {
        wire.send(body.as_bytes()).expect("send the body");
        assert_eq!(wire.answer(false).expect("an answer").code, code);
    }
}

#[test]
fn the_debug_log_has_a_line_per_request_and_the_usual_log_none() {
    let server = Server::start_with(&["--log", "mainstay_server=debug"]);
    server.client().get(CONFIG_MAPS).granted();
    let line = eventually("the request is in the log", || {
        let log = server.log();
        let path = format!("path=\"{CONFIG_MAPS}\"");
        // The controllers write into this namespace at the same time: only the administrator's line is ours.
        let is_ours = |line: &&str| {
            line.contains("request answered") && line.contains(&path) && line.contains("user=\"mainstay-admin\"")
        };
        log.lines().find(is_ours).map(str::to_owned)
    });
    for part in ["verb=LIST", "resource=\"configmaps\"", "namespace=\"default\"", "code=200", "duration="] {
        assert!(line.contains(part), "no {part} in {line}");
    }
    let quiet = Server::start();
    quiet.client().get(CONFIG_MAPS).granted();
    assert!(!quiet.log().contains("request answered"), "{}", quiet.log());
}
