//! What the network of a machine has after a storm, and after everything is taken down.

use std::fs;

use serde_json::{Value, json};

use super::lab::{Lab, program};
use crate::harness::{Machines, eventually, host};

/// `MAINSTAY_KILLS` sets another number.
const KILLS: usize = 15;
/// Every so many-th, the machine goes with the agent.
const REBOOT: usize = 5;

/// What the kernel says of a machine's network, as far as it is to be the same again.
fn network(machines: &Machines, machine: &str) -> Vec<(String, String)> {
    let nft = format!("{} -s list ruleset", program("nftables", "usr/sbin/nft"));
    let questions = ["ip -o link show", "ip -o addr show", "ip route show table all", "ip rule show", &nft];
    let output = |question: &str| {
        let output = machines.shell(machine, question).ok();
        // Lifetimes pass, and the kernel's own IPv6 neighbours come and go.
        let retained = output.lines().filter(|line| !line.contains("fe80::") && !line.contains("ff00::"));
        retained.map(str::trim_end).collect::<Vec<_>>().join("\n")
    };
    questions.map(|question| (question.to_owned(), output(question))).to_vec()
}

fn conntrack(machines: &Machines, machine: &str) -> String {
    let settings = machines.shell(machine, "cd /proc/sys/net/netfilter && grep -H . nf_conntrack_* 2>/dev/null").stdout;
    settings.lines().filter(|line| !line.starts_with("nf_conntrack_count:")).collect::<Vec<_>>().join("\n")
}

#[test]
fn down_leaves_nothing_of_services_and_a_start_leaves_conntrack_alone() {
    let mut machines = Machines::wired(&["a"]);
    machines.start_server();
    let (before, settings) = (network(&machines, "a"), conntrack(&machines, "a"));
    machines.start_agent("a");
    machines.all_ready();
    let mut lab = Lab::of(machines);
    lab.start_service("web", json!({ "type": "NodePort", "sessionAffinity": "ClientIP" }));
    lab.start_service("nobody", json!({}));
    lab.start_web("web", 2);
    assert_ne!(network(&lab.machines, "a"), before);
    assert_eq!(conntrack(&lab.machines, "a"), settings);
    lab.machines.down("a");
    let after = network(&lab.machines, "a");
    for ((question, before), (_, after)) in before.iter().zip(&after) {
        assert_eq!(after, before, "{question}");
    }
    assert_eq!(host::traces(&lab.machines.data("a")), Vec::<String>::new());
}

#[test]
fn down_removes_the_pods_of_a_node_from_the_api_and_from_their_endpoints() {
    let mut machines = Machines::wired(&["a"]);
    machines.start_server();
    machines.start_agent("a");
    machines.all_ready();
    let mut lab = Lab::of(machines);
    lab.start_service("web", json!({}));
    lab.start_web("web", 2);
    let endpoints = |lab: &Lab| lab.value("endpoints web", "{.subsets[*].addresses[*].ip}");
    eventually("both are endpoints", || (endpoints(&lab).split(' ').count() == 2).then_some(()));
    let before = lab.pods("web");
    lab.machines.down("a");
    let after = lab.pods("web");
    assert!(before.iter().all(|pod| !after.contains(pod)), "{before:?} {after:?}");
    eventually("none is an endpoint", || endpoints(&lab).is_empty().then_some(()));
    assert_eq!(lab.ready_pods("web"), Vec::<String>::new());
    let ready = "{.status.conditions[?(@.type==\"Ready\")].message}";
    assert!(lab.machines.kubectl(&["get", "node", "a", "-o", &format!("jsonpath={ready}")], "").ok().contains("ended"));
    lab.machines.start_agent("a");
    lab.serves("web", 2);
}

fn rules(lab: &Lab) -> String {
    lab.on("a", &format!("{} -s list ruleset", program("nftables", "usr/sbin/nft"))).ok()
}

/// How many addresses are taken, how many interfaces and how many lines of packet rules there are.
fn taken(lab: &Lab) -> [usize; 3] {
    let file = lab.machines.data("a").join("agent/network/addresses.json");
    let pages: Value = serde_json::from_str(&fs::read_to_string(file).unwrap_or_default()).unwrap_or_default();
    let lines = |line: &str| lab.on("a", line).ok().lines().count();
    [pages["held"].as_object().map_or(0, |held| held.len()), lines("ip -o link show"), rules(lab).lines().count()]
}

#[test]
fn kills_and_reboots_while_pods_come_and_go_leak_no_address_interface_or_rule() {
    let kills = std::env::var("MAINSTAY_KILLS").map_or(KILLS, |kills| kills.parse().expect("a number of kills"));
    let mut lab = Lab::new(&["a"]);
    lab.start_service("web", json!({}));
    let pod = lab.container(&["sleep".into(), "100000".into()]);
    lab.create(&super::lab::set("Deployment", "web", 2, pod));
    lab.kubectl("patch deployment web -p {\"spec\":{\"template\":{\"spec\":{\"terminationGracePeriodSeconds\":1}}}}");
    lab.serves("web", 2);
    let quiet = || {
        let mut last = taken(&lab);
        eventually("the machine is at rest", || {
            std::thread::sleep(std::time::Duration::from_millis(500));
            let now = taken(&lab);
            (std::mem::replace(&mut last, now) == now).then_some(now)
        })
    };
    let before = quiet();
    let mut random = fastrand::Rng::new();
    println!("seed {}", random.get_seed());
    for kill in 0..kills {
        lab.kubectl(&format!("scale deployment web --replicas={}", 1 + kill % 5));
        std::thread::sleep(std::time::Duration::from_millis(random.u64(100..900)));
        if kill % REBOOT == REBOOT - 1 {
            lab.machines.reboot("a");
        } else {
            lab.machines.kill("a");
            lab.machines.start_agent("a");
        }
    }
    lab.kubectl("scale deployment web --replicas=2");
    lab.serves("web", 2);
    let deadline = std::time::Instant::now() + crate::harness::PATIENCE;
    while taken(&lab) != before && std::time::Instant::now() < deadline {
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
    assert_eq!(taken(&lab), before, "as many addresses, interfaces and lines of rules as before\n{}", rules(&lab));
}
