//! `kill -9` of everything in turn, under load: only what was on what died may fail.

use std::{
    collections::BTreeSet,
    fs,
    time::{Duration, Instant},
};

use serde_json::json;

use super::lab::{Lab, Request, curl, dig, now, signal};
use crate::harness::{eventually, host};

const NAME: &str = "web.default.svc.cluster.local";
/// A machine is given up after forty seconds of silence.
const GIVEN_UP: Duration = Duration::from_secs(90);

/// Calls by address (`load`), and by name (`names`), which waits as long as resolvers do.
fn under_load(machines: &[&str], load_on: &str) -> (Lab, String) {
    let lab = Lab::new(machines);
    let address = lab.start_service("web", json!({}));
    lab.start_web("web", 3);
    lab.start_load("load", load_on, 4, Duration::from_secs(3), &[&format!("http://{address}/")]);
    lab.start_load("names", load_on, 1, Duration::from_secs(3), &[&format!("http://{NAME}/")]);
    (lab, address)
}

#[track_caller]
fn nothing_failed(lab: &Lab, since: f64, during: &str) {
    lab.answered("load", 50);
    let failures = lab.failures("load", since);
    assert!(failures.is_empty(), "during {during}: {failures:#?}");
}

/// The pods that machines send to.
fn sent_to(lab: &Lab) -> BTreeSet<String> {
    let ready = "jsonpath={.items[*].endpoints[?(@.conditions.ready==true)].targetRef.name}";
    let output = lab.kubectl(&format!("get endpointslices -l kubernetes.io/service-name=web -o {ready}"));
    output.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn kills_of_agents_and_of_the_server_fail_no_request() {
    let (mut lab, _) = under_load(&["a", "b"], "a");
    let began = now();
    for machine in ["a", "b"] {
        lab.machines.kill(machine);
        nothing_failed(&lab, began, "the absence of an agent");
        lab.machines.start_agent(machine);
        nothing_failed(&lab, began, "the start of an agent");
        lab.answered("names", 20);
    }
    lab.machines.kill_server();
    nothing_failed(&lab, began, "the absence of the server");
    lab.answered("names", 20);
    lab.machines.start_server();
    nothing_failed(&lab, began, "the start of the server");
    lab.machines.all_ready();

    // Everything works on: a pod that is replaced is called.
    let known = lab.pods("web");
    lab.kubectl(&format!("delete pod {} --wait=false", known[0]));
    let new = eventually("a new pod", || lab.ready_pods("web").into_iter().find(|pod| !known.contains(pod)));
    eventually("it is called", || {
        let called = |request: &Request| request.answer.as_ref().is_ok_and(|output| output.starts_with(&new));
        lab.requests("load").iter().any(called).then_some(())
    });
    nothing_failed(&lab, began, "all of it");
    let unknown = lab.failures("names", began);
    assert!(unknown.is_empty(), "names were asked for again until they were answered: {unknown:#?}");
}

#[test]
fn a_killed_pod_and_a_dead_machine_take_only_their_own_requests_with_them() {
    let (mut lab, _) = under_load(&["a", "b", "c"], "a");

    // A pod's process: connections that it had are reset, new ones are not refused but find another.
    let pod = lab.pods("web").remove(0);
    let node = lab.value(&format!("pod {pod}"), "{.spec.nodeName}");
    let named = |pid: &u32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        String::from_utf8_lossy(&environment).split('\0').any(|variable| variable == format!("NAME={pod}"))
    };
    let pids: Vec<u32> = host::of_instance(&lab.machines.data(&node)).into_iter().filter(named).collect();
    assert!(!pids.is_empty());
    let killed = now();
    signal("KILL", &pids);
    lab.answered("load", 300);
    let failures = lab.failures("load", killed - 1.0);
    let late: Vec<&Request> = failures.iter().filter(|request| request.began > killed + 5.0).collect();
    assert!(late.is_empty(), "{late:#?}");
    let refused = |why: &String| why.contains("refused");
    let at_once: Vec<&Request> =
        failures.iter().filter(|request| request.took < 0.9 && request.answer.as_ref().is_err_and(refused)).collect();
    assert!(at_once.is_empty(), "each was tried again after a second: {at_once:#?}");
    lab.serves("web", 3);

    // A machine: until it is given up, most calls to its pods find another with the next try, all others are answered.
    let on = |machine: &str| {
        let pods = lab.kubectl(&format!(
            "get pods -l app=web -o jsonpath={{.items[*].metadata.name}} --field-selector=spec.nodeName={machine}"
        ));
        pods.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    let victim = if on("c").is_empty() { "b" } else { "c" };
    let dead = on(victim);
    assert!(!dead.is_empty() && dead.len() < 3, "{dead:?}");
    let cut = now();
    lab.machines.cut(victim);
    let deadline = Instant::now() + GIVEN_UP;
    while dead.iter().any(|pod| sent_to(&lab).contains(pod)) {
        assert!(Instant::now() < deadline, "nothing is sent to a dead machine after {GIVEN_UP:?}: {:?}", sent_to(&lab));
        lab.answered("load", 1); // by pods of other machines
    }
    lab.answered("load", 10);
    let over = now();
    lab.answered("load", 300);
    assert!(lab.failures("load", over).is_empty(), "{} s after the machine died", over - cut);
    let called: Vec<Request> =
        lab.requests("load").into_iter().filter(|request| (cut..over).contains(&request.began)).collect();
    let failures: Vec<&Request> = called.iter().filter(|request| request.answer.is_err()).collect();
    let (failed, called, share) = (failures.len() as f64, called.len() as f64, dead.len() as f64 / 3.0);
    println!("{failed} of {called} failed while {share:.2} of all pods were dead");
    assert!(failed < called * share.powi(2), "{failed} of {called} failed, though each was tried more than twice");
    for failure in failures {
        let why = failure.answer.as_ref().unwrap_err();
        assert!(
            why.contains("timed out") || why.contains("No route"),
            "only what was sent to nobody fails: {failure:?}"
        );
    }
    println!("given up {} s after it died", over - cut);
}

#[test]
fn without_a_server_names_and_addresses_work_on_even_if_the_agent_starts_anew() {
    let (mut lab, address) = under_load(&["a", "b"], "a");
    let began = now();
    lab.machines.kill_server();
    let works = |lab: &Lab, when: &str| {
        for machine in ["a", "b"] {
            let output = lab.on(machine, &format!("{} +short +time=2 @10.96.0.10 {NAME}", dig())).stdout;
            assert_eq!(output.trim(), address, "{when}, on {machine}");
            let output = lab.on(machine, &format!("{} http://{address}/", curl())).ok();
            assert!(output.starts_with("web-"), "{when}, on {machine}: {output}");
        }
    };
    works(&lab, "without a server");
    for machine in ["a", "b"] {
        lab.machines.kill(machine);
        lab.machines.start_agent(machine);
    }
    let asked = format!("{} +short +time=1 +tries=1 @10.96.0.10 {NAME}", dig());
    for machine in ["a", "b"] {
        eventually("names are known from files", || (lab.on(machine, &asked).stdout.trim() == address).then_some(()));
    }
    works(&lab, "after agents started anew");
    nothing_failed(&lab, began, "all of it");
    lab.answered("names", 20);
    lab.machines.start_server();
    lab.machines.all_ready();
    lab.serves("web", 3);
}

#[test]
fn if_all_machines_are_silent_at_once_their_endpoints_stay() {
    let lab = Lab::new(&["a", "b"]);
    lab.start_service("web", json!({}));
    for machine in ["a", "b"] {
        lab.start_web_with(&format!("web-{machine}"), 1, json!({ "nodeName": machine }));
    }
    // One Service for the pods of both.
    lab.kubectl("label pods --all set=web");
    lab.kubectl(r#"patch service web --type=json -p [{"op":"replace","path":"/spec/selector","value":{"set":"web"}}]"#);
    let both = eventually("both are sent to", || Some(sent_to(&lab)).filter(|pods| pods.len() == 2));
    let on_b: BTreeSet<String> = lab.pods("web-b").into_iter().collect();
    let ready =
        |machine: &str| lab.value(&format!("node {machine}"), r#"{.status.conditions[?(@.type=="Ready")].status}"#);

    lab.machines.plug("a", false);
    lab.machines.plug("b", false);
    let deadline = Instant::now() + GIVEN_UP;
    while ["a", "b"].map(ready) != ["Unknown", "Unknown"] {
        assert!(Instant::now() < deadline, "{:?}", ["a", "b"].map(ready));
        assert_eq!(sent_to(&lab), both, "silence of all proves nothing");
    }
    let slices = lab.kubectl("get endpointslices -o jsonpath={.items[*].metadata.resourceVersion}");
    lab.machines.plug("a", true);
    eventually("one is heard of", || (ready("a") == "True").then_some(()));
    assert_eq!(lab.kubectl("get endpointslices -o jsonpath={.items[*].metadata.resourceVersion}"), slices);
    assert_eq!(ready("b"), "Unknown");

    let deadline = Instant::now() + GIVEN_UP;
    while !sent_to(&lab).is_disjoint(&on_b) {
        assert!(Instant::now() < deadline, "the other is silent while one is heard of: {:?}", sent_to(&lab));
    }
    assert_eq!(sent_to(&lab).len(), 1);
    lab.machines.plug("b", true);
    // The pod there was replaced meanwhile by one that waits for the same machine.
    eventually("both are sent to again", || {
        let pods = sent_to(&lab);
        (pods.len() == 2 && !pods.is_disjoint(&both)).then_some(())
    });
}
