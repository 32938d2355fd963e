//! The store itself goes away for a while.

use std::time::Duration;

use serde_json::json;

use super::{BOTH, Pair};
use crate::{
    harness::eventually,
    services::lab::{curl, dig, now},
};

/// Longer than a server that leads goes on without its lease, and than a call of etcd may take.
const LONG: Duration = Duration::from_secs(6);
const SHORT: Duration = Duration::from_secs(3);

#[test]
fn services_go_on_while_etcd_is_away_and_everything_does_once_it_is_back() {
    let mut pair = Pair::start();
    let address = pair.lab.start_service("web", json!({}));
    pair.lab.start_web("web", 2);
    pair.lab.start_load("load", "a", 2, Duration::from_secs(15), &[&format!("http://{address}/")]);
    let began = now();

    pair.etcd.signal("STOP");
    works_meanwhile(&pair, &address, LONG);
    pair.etcd.signal("CONT");
    works_again(&pair, 3);

    pair.etcd.kill();
    works_meanwhile(&pair, &address, SHORT);
    pair.etcd.start_again();
    works_again(&pair, 2);

    pair.lab.answered("load", 50);
    let (requests, failures) = (pair.lab.requests("load"), pair.lab.failures("load", began));
    println!("{} requests", requests.len());
    assert!(failures.is_empty(), "{} of {} failed: {failures:#?}", failures.len(), requests.len());
    let nodes = pair.lab.kubectl("get nodes -o jsonpath={.items[*].spec.taints}");
    assert_eq!(nodes, "", "no machine is given up for it");
}

/// For the whole time, by address and by name, on both machines.
#[track_caller]
fn works_meanwhile(pair: &Pair, address: &str, time: Duration) {
    let until = now() + time.as_secs_f64();
    while now() < until {
        for machine in ["a", "b"] {
            let asked = format!("{} +short +time=2 @10.96.0.10 web.default.svc.cluster.local", dig());
            assert_eq!(pair.lab.on(machine, &asked).stdout.trim(), address, "on {machine}");
            let output = pair.lab.on(machine, &format!("{} http://{address}/", curl())).ok();
            assert!(output.starts_with("web-"), "on {machine}: {output}");
        }
        pair.lab.answered("load", 5);
    }
}

/// A write at either server, and what follows from it.
#[track_caller]
fn works_again(pair: &Pair, replicas: usize) {
    for server in BOTH {
        eventually(&format!("{server} is ready again"), || {
            (super::kubectl_at(&pair.lab.machines, server, "get --raw /readyz").code == 0).then_some(())
        });
        pair.kubectl_at(server, &format!("annotate deployment web --overwrite told={server}-{replicas}"));
    }
    pair.kubectl_at(BOTH[replicas % 2], &format!("scale deployment web --replicas={replicas}"));
    let pods = pair.lab.serves("web", replicas);
    let ready = "jsonpath={.items[*].endpoints[?(@.conditions.ready==true)].targetRef.name}";
    for server in BOTH {
        eventually(&format!("{server} lists {pods:?}"), || {
            let output =
                pair.kubectl_at(server, &format!("get endpointslices -l kubernetes.io/service-name=web -o {ready}"));
            let names: Vec<&str> = output.split_whitespace().collect();
            (names.len() == pods.len() && pods.iter().all(|pod| names.contains(&pod.as_str()))).then_some(())
        });
    }
    eventually("all of them are called", || {
        let requests = pair.lab.requests("load");
        let recent = requests.iter().rev().take(60).filter_map(|request| request.answer.as_ref().ok());
        let called: Vec<&str> = recent.filter_map(|output| output.split_whitespace().next()).collect();
        pods.iter().all(|pod| called.contains(&pod.as_str())).then_some(())
    });
}
