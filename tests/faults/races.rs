//! Requests that meet.

use std::{
    sync::{Arc, Barrier},
    thread,
};

use serde_json::json;

use super::support::{
    Server,
    objects::{CONFIG_MAPS, config_map},
};

#[test]
fn of_many_who_create_one_name_exactly_one_succeeds() {
    let server = Server::start();
    for round in 0..10 {
        let start = Arc::new(Barrier::new(8));
        let racers: Vec<_> = (0..8)
            .map(|_| {
                let (mut client, start) = (server.client(), start.clone());
                client.get("/version").granted(); // connected before the start
                thread::spawn(move || {
                    start.wait();
                    client.post(CONFIG_MAPS, &config_map(&format!("wanted-{round}")))
                })
            })
            .collect();
        let answers: Vec<_> = racers.into_iter().map(|racer| racer.join().expect("a racer")).collect();
        assert_eq!(answers.iter().filter(|a| a.code == 201).count(), 1);
        for loser in answers.iter().filter(|a| a.code != 201) {
            let words = format!(r#"configmaps "wanted-{round}" already exists"#);
            loser.refused_saying(409, "AlreadyExists", &words);
        }
    }
}

#[test]
fn counters_updated_by_many_lose_no_step() {
    const CLIENTS: usize = 4;
    const STEPS: usize = 20;
    let server = Server::start();
    let mut counter = config_map("counter");
    counter["data"] = json!({"n": "0"});
    server.client().post(CONFIG_MAPS, &counter).granted();
    let path = format!("{CONFIG_MAPS}/counter");
    let workers: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let (mut client, path) = (server.client(), path.clone());
            thread::spawn(move || {
                let mut done = 0;
                while done < STEPS {
                    let mut object = client.get(&path).granted();
                    let n: usize = object["data"]["n"].as_str().and_then(|n| n.parse().ok()).expect("a number");
                    object["data"]["n"] = json!((n + 1).to_string());
                    match client.put(&path, &object).code {
                        200 => done += 1,
                        409 => {}
                        other => panic!("{other}"),
                    }
                }
            })
        })
        .collect();
    workers.into_iter().for_each(|worker| worker.join().expect("a worker"));
    assert_eq!(server.client().get(&path).granted()["data"]["n"], (CLIENTS * STEPS).to_string());
}
