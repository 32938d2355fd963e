//! `kill -9` at any moment, many times over one data directory.
//!
//! Several clients create, update and delete config maps, each its own, and remember what was
//! acknowledged. A request that was cut off may or may not have happened; everything else must be
//! there after the next start, exactly.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::Duration,
};

use serde_json::{Value, json};

use super::support::{
    Client, Server,
    objects::{CONFIG_MAPS, version},
};

const KILLS: usize = 200;
const WRITERS: usize = 3;
const KEYS: usize = 4;

/// What a key holds: a number and the revision that wrote it, or nothing.
type StoredValue = Option<(u64, u64)>;

struct Key {
    name: String,
    acknowledged: StoredValue,
    /// The number that a request without an answer would have left, or nothing if that was a delete.
    uncertain: Option<Option<u64>>,
}

struct Writer {
    keys: Vec<Key>,
    counter: u64,
    /// Revisions of acknowledged writes since the last look.
    written: Vec<u64>,
}

fn object(name: &str, number: u64) -> Value {
    // Both ends carry the number, so that half an object shows.
    let padding = "x".repeat(usize::try_from(number % 7).unwrap_or_default() * 500);
    let data = json!({"a": number.to_string(), "padding": padding, "z": number.to_string()});
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": {"test": "kill"}}, "data": data})
}

#[track_caller]
fn number(object: &Value) -> u64 {
    let of = |field: &str| object["data"][field].as_str().and_then(|n| n.parse::<u64>().ok());
    let (a, z) = (of("a"), of("z"));
    assert!(a.is_some() && a == z, "torn: {object}");
    let a = a.unwrap_or_default();
    assert_eq!(
        object["data"]["padding"].as_str().map(str::len),
        Some(usize::try_from(a % 7).unwrap_or_default() * 500)
    );
    a
}

impl Writer {
    /// Writes until cut off.
    fn work(&mut self, client: &mut Client, over: &AtomicBool) {
        while !over.load(Relaxed) {
            let key = &mut self.keys[fastrand::usize(..KEYS)];
            self.counter += 1;
            let one = format!("{CONFIG_MAPS}/{}", key.name);
            let body = object(&key.name, self.counter).to_string();
            let (method, path, becomes) = match key.acknowledged {
                None => ("POST", CONFIG_MAPS, Some(self.counter)),
                Some(_) if fastrand::u8(..5) == 0 => ("DELETE", &*one, None),
                Some(_) => ("PUT", &*one, Some(self.counter)),
            };
            let content = if becomes.is_some() { body.as_bytes() } else { b"" };
            match client.attempt(method, path, "application/json", content) {
                Ok(answer) => {
                    let answer = answer.granted();
                    key.acknowledged = becomes.map(|number| (number, version(&answer)));
                    self.written.extend(key.acknowledged.map(|(_, revision)| revision));
                }
                Err(_) => {
                    key.uncertain = Some(becomes);
                    return;
                }
            }
        }
    }

    /// Compares what is there with what was promised, and goes on from there.
    fn check(&mut self, there: &BTreeMap<String, (u64, u64)>) {
        for key in &mut self.keys {
            let found = there.get(&key.name).copied();
            let promised = found == key.acknowledged;
            let cut_off = key.uncertain.is_some_and(|number| number == found.map(|(number, _)| number));
            assert!(
                promised || cut_off,
                "{}: found {found:?}, acknowledged {:?}, uncertain {:?}",
                key.name,
                key.acknowledged,
                key.uncertain
            );
            if let (Some((_, found)), Some((_, acknowledged))) = (found, key.acknowledged) {
                assert!(found >= acknowledged, "{} went back from {acknowledged} to {found}", key.name);
            }
            (key.acknowledged, key.uncertain) = (found, None);
        }
    }
}

/// Resumes a watch at `since` and returns the revisions it tells of, up to `until`. `None` if that history is gone.
fn resumed(client: &Client, since: u64, until: u64) -> Option<BTreeSet<u64>> {
    let mut events = client.watch(&format!("{CONFIG_MAPS}?watch=1&resourceVersion={since}"));
    let mut reported = BTreeSet::new();
    loop {
        let event = events.next().expect("the watch is in order").expect("the watch goes on");
        if event["type"] == "ERROR" {
            assert_eq!(event["object"]["code"], 410, "{event}");
            return None;
        }
        let revision = version(&event["object"]);
        assert!(reported.last().is_none_or(|last| *last <= revision), "out of order: {revision} after {reported:?}");
        reported.insert(revision);
        if revision >= until {
            return Some(reported);
        }
    }
}

#[test]
fn two_hundred_kills_under_load_lose_nothing_that_was_acknowledged() {
    let mut server = Server::start();
    let mut client = server.client();
    let mut newest = version(&client.get(CONFIG_MAPS).granted());
    let key = |w: usize, k: usize| Key { name: format!("w{w}-k{k}"), acknowledged: None, uncertain: None };
    let mut writers: Vec<Writer> = (0..WRITERS)
        .map(|w| Writer { keys: (0..KEYS).map(|k| key(w, k)).collect(), counter: 0, written: Vec::new() })
        .collect();
    let (mut continued, mut acknowledged) = (0, 0);
    for kill in 0..KILLS {
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            for writer in &mut writers {
                let (mut client, over) = (client.clone(), &over);
                scope.spawn(move || writer.work(&mut client, over));
            }
            thread::sleep(Duration::from_millis(fastrand::u64(1..80)));
            server.kill();
            over.store(true, Relaxed);
        });
        server.start_again();
        let list = client.get(&format!("{CONFIG_MAPS}?labelSelector=test%3Dkill")).granted();
        let there = list["items"].as_array().expect("items").iter();
        let there = there.map(|item| {
            let name = item["metadata"]["name"].as_str().expect("a name").to_owned();
            (name, (number(item), version(item)))
        });
        let there: BTreeMap<String, (u64, u64)> = there.collect();
        writers.iter_mut().for_each(|writer| writer.check(&there));
        let promised: BTreeSet<u64> = writers.iter_mut().flat_map(|w| w.written.drain(..)).collect();
        acknowledged += promised.len();
        let now = version(&list);
        let observed = promised.last().copied().unwrap_or_default().max(newest);
        assert!(now >= observed, "kill {kill}: revisions went back from {observed} to {now}");
        // A mark to read up to, which also shows that revisions go on.
        let mark =
            client.patch(&format!("{CONFIG_MAPS}/mark"), "merge-patch+json", &json!({"data": {"n": kill.to_string()}}));
        let mark = match mark.code {
            404 => client
                .post(CONFIG_MAPS, &json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "mark"}}))
                .granted(),
            _ => mark.granted(),
        };
        assert!(version(&mark) > observed);
        if let Some(reported) = resumed(&client, newest, version(&mark)) {
            let missed: Vec<_> = promised.difference(&reported).collect();
            assert!(missed.is_empty(), "kill {kill}: the watch missed {missed:?}");
            continued += 1;
        }
        newest = version(&mark);
    }
    println!("{KILLS} kills, {acknowledged} acknowledged writes, {continued} watches resumed without a gap");
    assert!(acknowledged > KILLS, "hardly anything was written");
}
