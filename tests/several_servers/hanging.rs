//! A server that takes connections and does nothing with them.

use serde_json::json;

use super::Pair;
use crate::{
    harness::{
        eventually,
        machines::{SECOND, SERVER},
    },
    services::lab::signal,
};

#[test]
fn machines_leave_a_server_that_hangs_before_they_are_given_up() {
    let mut pair = Pair::start();
    pair.lab.start_service("web", json!({}));
    pair.lab.start_web("web", 1);
    let calls = |pair: &Pair, machine: &str| {
        let of_second = format!("https://{}:6443", pair.lab.machines.address(SECOND));
        let log = pair.lab.machines.log(machine);
        log.lines().any(|line| line.contains("switched to another server") && line.contains(&of_second))
    };
    assert!(!calls(&pair, "a") && !calls(&pair, "b"));

    let hanging = [pair.lab.machines.pid(SERVER)];
    signal("STOP", &hanging);
    pair.lab.machines.ask(SECOND);
    for machine in ["a", "b"] {
        eventually(&format!("{machine} calls the other server"), || calls(&pair, machine).then_some(()));
    }
    pair.lab.kubectl("scale deployment web --replicas=4");
    let pods = pair.lab.serves("web", 4);
    let on =
        |machine: &str| pods.iter().any(|pod| pair.lab.value(&format!("pod {pod}"), "{.spec.nodeName}") == machine);
    assert!(on("a") && on("b"), "both have heard of new pods: {pods:?}");
    assert_eq!(pair.lab.kubectl("get nodes -o jsonpath={.items[*].spec.taints}"), "", "no machine is given up for it");
    signal("CONT", &hanging);
}
