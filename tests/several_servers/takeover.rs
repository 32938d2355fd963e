//! The server that leads is killed in the middle of a rollout.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use serde_json::json;

use super::{LEASES, Pair};
use crate::{
    harness::{
        Following, eventually,
        machines::{SECOND, SERVER},
    },
    services::lab::now,
};

const REPLICAS: usize = 4;
/// The Deployment's `maxSurge`, a quarter of it.
const SURGE: usize = 1;

#[test]
fn a_rollout_whose_server_is_killed_is_finished_by_the_other_without_a_request_lost() {
    let mut pair = Pair::start();
    let address = pair.lab.start_service("web", json!({}));
    pair.lab.start_web_with("web", REPLICAS, json!({ "terminationGracePeriodSeconds": 30 }));
    let old: BTreeSet<String> = pair.lab.pods("web").into_iter().collect();
    pair.lab.start_load("load", "a", 3, Duration::from_secs(15), &[&format!("http://{address}/")]);
    pair.lab.machines.ask(SECOND);
    let each =
        r#"{.type} {.object.metadata.uid} {.object.metadata.deletionTimestamp}/{.object.metadata.labels.mark}{"\n"}"#;
    let each = format!("jsonpath={each}");
    let follow = ["get", "pods", "-l", "app=web", "--watch", "--output-watch-events", "-o", &each];
    let mut events = Following::start(pair.lab.machines.kubectl_command(SECOND, &follow), "kubectl get pods --watch");
    let began = now();

    pair.lab.kubectl("rollout restart deployment web");
    let new = eventually("some pods are new, and some are not", || {
        let ready = pair.lab.ready_pods("web");
        let new: Vec<String> = ready.into_iter().filter(|pod| !old.contains(pod)).collect();
        (1..REPLICAS).contains(&new.len()).then_some(new)
    });
    let killed = Instant::now();
    pair.lab.machines.kill(SERVER);
    // It is sent to until somebody says otherwise, which nobody does for some seconds.
    pair.lab.kubectl(&format!("delete pod {} --wait=false", new[0]));
    for lease in LEASES {
        eventually("the other server leads", || pair.leads(SECOND, lease).then_some(()));
    }
    let took = killed.elapsed();
    pair.lab.kubectl("rollout status deployment web --timeout=60s");
    let serving = pair.lab.serves("web", REPLICAS);
    println!("taken over after {took:?}, rolled out after {:?}", killed.elapsed());
    assert!(serving.iter().all(|pod| !old.contains(pod)), "{serving:?}");
    // Machines go on, too: what happens next happens through the other server.
    pair.lab.machines.all_ready();
    pair.lab.answered("load", 50);
    let (requests, failures) = (pair.lab.requests("load"), pair.lab.failures("load", began));
    assert!(failures.is_empty(), "{} of {} failed: {failures:#?}", failures.len(), requests.len());

    // A mark in the stream of events: all before it has been delivered.
    pair.lab.kubectl(&format!("label pod {} mark=here", serving[0]));
    let mut there = BTreeMap::new();
    let mut made = BTreeSet::new();
    loop {
        let line = events.until("what happens to pods", |_| true);
        let [kind, pod, rest] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line:?}") };
        if rest.ends_with("/here") {
            break;
        }
        made.insert(pod.to_owned());
        match kind {
            "DELETED" => drop(there.remove(pod)),
            _ => drop(there.insert(pod.to_owned(), rest != "/")),
        }
        let alive = there.values().filter(|deleted| !**deleted).count();
        assert!(alive <= REPLICAS + SURGE, "{alive} pods at once: {there:?}");
    }
    assert_eq!(made.len(), 2 * REPLICAS + 1, "each was made once, and one for that which was deleted: {made:?}");
    pair.lab.machines.start_server();
    eventually("the first serves again", || {
        (pair.kubectl_at(SERVER, "get pods -l app=web -o name").lines().count() >= REPLICAS).then_some(())
    });
    assert!(LEASES.iter().all(|lease| pair.leads(SECOND, lease)), "who leads goes on to lead");
}
