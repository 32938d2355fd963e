//! Watchers that do not read.

use std::{
    thread,
    time::{Duration, Instant},
};

use serde_json::json;

use super::support::{
    Client, Server,
    objects::{CONFIG_MAPS, config_map, large_config_map},
};

const WRITES: usize = 3_000;
const SIZE: usize = 20_000;

/// Writes one object over and over, and says how long the slowest write took.
fn write_many(client: &mut Client) -> Duration {
    let path = format!("{CONFIG_MAPS}/busy");
    client.post(CONFIG_MAPS, &large_config_map("busy", SIZE)).granted();
    let mut slowest = Duration::ZERO;
    for n in 0..WRITES {
        let mut object = large_config_map("busy", SIZE);
        object["data"]["n"] = json!(n.to_string());
        let asked = Instant::now();
        client.put(&path, &object).granted();
        slowest = slowest.max(asked.elapsed());
    }
    client.post(CONFIG_MAPS, &config_map("last")).granted();
    slowest
}

#[test]
fn a_watcher_that_does_not_read_costs_little_and_disturbs_nobody() {
    let mut server = Server::start_with(&["--history-events", "1000"]);
    let mut client = server.client();
    let path = format!("{CONFIG_MAPS}?watch=1&resourceVersion=0");
    let mut lazy: Vec<_> = (0..10).map(|_| client.watch(&path)).collect();
    let mut keen = client.watch(&path);
    let reader = thread::spawn(move || {
        let mut observed = 0;
        loop {
            let event = keen.next().expect("the watch goes on").expect("the watch goes on");
            match event["object"]["metadata"]["name"].as_str() {
                Some("busy") => observed += 1,
                Some("last") => return observed,
                _ => {}
            }
        }
    });
    let before = server.resident_memory();
    let slowest = write_many(&mut client);
    let grown = server.peak_memory() - before;
    assert_eq!(reader.join().expect("the reader"), WRITES + 1);
    println!("60 MB past ten watchers that do not read: {grown} MiB more, slowest write {slowest:?}");
    // History of 1000 changes is 20 MB of this.
    assert!(grown < 200, "grew by {grown} MiB");
    // A watcher that reads again continues, or gets 410 Gone.
    let last = loop {
        match lazy[0].next().expect("the watch is in order") {
            Some(event) if event["type"] == "ERROR" => break event["object"]["code"].clone(),
            Some(event) if event["object"]["metadata"]["name"] == "last" => break json!(410),
            Some(_) => {}
            None => panic!("the watch ended without a word"),
        }
    };
    assert_eq!(last, 410);
    server.assert_well();
}

#[test]
fn a_watcher_that_takes_nothing_for_too_long_is_closed() {
    let mut server = Server::start_with(&["--stall-timeout", "1"]);
    let mut client = server.client();
    let mut lazy = client.watch(&format!("{CONFIG_MAPS}?watch=1&resourceVersion=0"));
    write_many(&mut client);
    thread::sleep(Duration::from_secs(3)); // the claim is about time: beyond what the server bears
    let broken = loop {
        match lazy.next() {
            Ok(Some(event)) => assert_ne!(event["object"]["metadata"]["name"], "last", "it was not closed"),
            Ok(None) | Err(_) => break true,
        }
    };
    assert!(broken);
    server.assert_well();
}
