//! Bodies that are within the limit of size but full of trouble.
//!
//! Each is answered in bounded time and memory, and nobody else has to wait for it.

use std::{
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use super::support::{
    Server,
    objects::{CONFIG_MAPS, PODS, config_map, pod},
};

/// Sends it while another client keeps asking, and returns what it got.
#[track_caller]
fn borne(server: &mut Server, path: &str, what: &str, body: &str) -> u16 {
    assert!(body.len() < 3 << 20, "{what} is {} bytes", body.len());
    let before = server.resident_memory();
    let (path, body) = (path.to_owned(), body.to_owned());
    let mut hostile = server.client();
    let asked = Instant::now();
    let answer = thread::spawn(move || hostile.send("POST", &path, "application/json", body.as_bytes()));
    let mut other = server.client();
    let mut slowest = Duration::ZERO;
    while !answer.is_finished() {
        let asked = Instant::now();
        other.get("/api/v1/namespaces/default").granted();
        slowest = slowest.max(asked.elapsed());
    }
    let answer = answer.join().expect("an answer");
    let took = asked.elapsed();
    let grown = server.peak_memory().saturating_sub(before);
    println!("{what}: {} after {took:?}, {grown} MiB, others waited {slowest:?}", answer.code);
    assert!(grown < 700, "{what} took {grown} MiB");
    assert!(answer.body.len() < 64 << 20, "{what} was answered with {} bytes", answer.body.len());
    server.assert_well();
    answer.code
}

fn fields(count: usize, field: impl Fn(usize) -> String) -> String {
    (0..count).map(field).collect::<Vec<_>>().join(",")
}

fn map_with(extra: &str) -> String {
    format!(r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"bulk"}},{extra}}}"#)
}

#[test]
fn many_unknown_fields_are_borne() {
    let mut server = Server::start();
    let body = map_with(&fields(180_000, |n| format!(r#""u{n}":1"#)));
    assert_eq!(borne(&mut server, &format!("{CONFIG_MAPS}?fieldValidation=Strict"), "unknown, strict", &body), 400);
    assert_eq!(borne(&mut server, CONFIG_MAPS, "unknown, warned of", &body), 201);
}

#[test]
fn many_duplicate_fields_are_borne() {
    let mut server = Server::start();
    let data = fields(100_000, |n| format!(r#""k{}":"v""#, n % 50_000));
    let body = map_with(&format!(r#""data":{{{data}}}"#));
    assert_eq!(borne(&mut server, &format!("{CONFIG_MAPS}?fieldValidation=Strict"), "duplicates, strict", &body), 400);
    let code = borne(&mut server, CONFIG_MAPS, "duplicates, warned of", &body);
    assert!(matches!(code, 201 | 422), "{code}");
}

#[test]
fn many_invalid_labels_are_borne() {
    let mut server = Server::start();
    let labels = fields(100_000, |n| format!(r#""bad key {n}":"bad value""#));
    let body =
        format!(r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"bulk","labels":{{{labels}}}}}}}"#);
    assert_eq!(borne(&mut server, CONFIG_MAPS, "labels", &body), 422);
}

#[test]
fn long_lists_that_must_be_unique_are_borne() {
    let mut server = Server::start();
    let with = |edit: &dyn Fn(&mut Value)| {
        let mut pod = pod("bulk");
        edit(&mut pod);
        pod.to_string()
    };
    let many = |count: usize, item: &dyn Fn(usize) -> Value| Value::Array((0..count).map(item).collect());
    let container = |n: usize| json!({"name": format!("c{n}"), "image": "i"});
    let bodies = [
        ("containers", with(&|pod| pod["spec"]["containers"] = many(50_000, &container))),
        (
            "env",
            with(&|pod| {
                pod["spec"]["containers"][0]["env"] = many(50_000, &|n| json!({"name": format!("E{n}"), "value": ""}));
            }),
        ),
        (
            "volumes",
            with(&|pod| {
                pod["spec"]["volumes"] = many(40_000, &|n| json!({"name": format!("v{n}"), "emptyDir": {}}));
            }),
        ),
        (
            "ports",
            with(&|pod| {
                pod["spec"]["containers"][0]["ports"] =
                    many(60_000, &|n| json!({"containerPort": n + 1, "hostPort": n + 1}));
            }),
        ),
        (
            "tolerations",
            with(&|pod| {
                pod["spec"]["tolerations"] = many(50_000, &|n| json!({"key": format!("k{n}"), "operator": "Exists"}));
            }),
        ),
        (
            "owners",
            with(&|pod| {
                let owner = |n: usize| json!({"apiVersion": "v1", "kind": "Node", "name": "n", "uid": format!("{n}")});
                pod["metadata"]["ownerReferences"] = many(30_000, &owner);
            }),
        ),
        (
            "finalizers",
            with(&|pod| {
                pod["metadata"]["finalizers"] = many(60_000, &|n| json!(format!("example.com/f{n}")));
            }),
        ),
        (
            "host aliases",
            with(&|pod| {
                pod["spec"]["hostAliases"] =
                    many(40_000, &|n| json!({"ip": "10.0.0.1", "hostnames": [format!("h{n}")]}));
            }),
        ),
    ];
    for (what, body) in bodies {
        let code = borne(&mut server, &format!("{PODS}?dryRun=All"), what, &body);
        assert!(matches!(code, 201 | 413 | 422), "{what}: {code}");
    }
}

#[test]
fn hostile_selectors_are_borne() {
    let mut server = Server::start();
    let mut client = server.client();
    client.post(CONFIG_MAPS, &config_map("c")).granted();
    let many = |term: &str, joint: &str| vec![term; 60_000 / (term.len() + joint.len())].join(joint);
    for selector in [many("a!=b", ","), many("!a", ","), format!("a%20in%20({})", many("b", ",")), "(".repeat(60_000)] {
        let answer = client.get(&format!("{CONFIG_MAPS}?labelSelector={selector}"));
        assert!(matches!(answer.code, 200 | 400), "{}", answer.code);
    }
    server.assert_well();
}
