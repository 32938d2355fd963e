//! Addresses of Services, called from everywhere.

use std::collections::BTreeSet;

use serde_json::json;

use super::lab::{Lab, curl, program, set};
use crate::harness::{eventually, machines::OUTSIDE};

/// The pods that answered, and the clients that they saw.
fn answers(output: &str) -> (BTreeSet<String>, BTreeSet<String>) {
    output
        .lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(pod, client)| (pod.to_owned(), client.to_owned()))
        .unzip()
}

fn again_and_again(times: usize, url: &str) -> String {
    format!("for n in $(seq {times}); do {} {url} || exit; done", curl())
}

#[test]
fn a_service_is_reached_from_pods_and_machines_by_address_and_by_name() {
    let lab = Lab::new(&["a", "b"]);
    let address = lab.start_service("web", json!({}));
    lab.start_web("web", 3);
    lab.start_client("a");
    let (pods, own) = (lab.pods("web").into_iter().collect(), lab.value("pod client", "{.status.podIP}"));
    eventually("all pods are called", || {
        let output = lab.by_client(&again_and_again(30, &format!("http://{address}/"))).stdout;
        (answers(&output) == (BTreeSet::clone(&pods), BTreeSet::from([own.clone()]))).then_some(())
    });
    for name in ["web", "web.default", "web.default.svc", "web.default.svc.cluster.local", "web.service.consul"] {
        let output = lab.by_client(&format!("{} http://{name}/", curl())).ok();
        assert!(pods.contains(output.split(' ').next().unwrap()), "{name}: {output}");
    }
    for machine in lab.machines.names() {
        let output = lab.on(machine, &again_and_again(30, &format!("http://{address}/"))).ok();
        assert_eq!(answers(&output).0, pods, "from machine {machine}");
    }

    // A pod that calls the Service of which it is the only backend reaches itself.
    let address = lab.start_service("alone", json!({}));
    lab.start_web("alone", 1);
    let pod = lab.pods("alone").remove(0);
    for url in [format!("http://{address}/"), "http://alone/".into()] {
        eventually("it reaches itself", || {
            let output = lab.machines.kubectl(&["exec", &pod, "--", "sh", "-c", &format!("{} {url}", curl())], "");
            output.stdout.starts_with(&pod).then_some(())
        });
    }

    // What an administrator looks with works, whatever the rules.
    for machine in lab.machines.names() {
        let output = lab.on(machine, &format!("{} list ruleset", program("nftables", "usr/sbin/nft"))).ok();
        assert!(output.contains("services"), "{output}");
    }

    // A Service that is deleted is nobody's.
    lab.kubectl("delete service web");
    eventually("its address is refused or unknown", || {
        (lab.by_client(&format!("{} http://{address}:81/", curl())).code == 7).then_some(())
    });
}

#[test]
fn node_ports_lead_in_at_every_machine_and_local_ones_keep_the_clients_address() {
    let lab = Lab::new(&["a", "b"]);
    lab.start_service("web", json!({ "type": "NodePort" }));
    lab.start_web("web", 1);
    let pod = lab.pods("web").remove(0);
    let (here, port) =
        (lab.value(&format!("pod {pod}"), "{.spec.nodeName}"), lab.value("service web", "{.spec.ports[0].nodePort}"));
    let away = lab.machines.names().find(|name| **name != here).expect("another machine").to_owned();
    let outside = |machine: &str, more: &str| {
        let url = format!("http://{}:{port}/", lab.machines.address(machine));
        lab.on("server", &format!("{} {more} {url}", curl()))
    };
    for machine in [&here, &away] {
        eventually(&format!("{machine} leads to it"), || outside(machine, "").stdout.starts_with(&pod).then_some(()));
        for from in [&here, &away] {
            let url = format!("http://{}:{port}/", lab.machines.address(machine));
            let output = lab.on(from, &format!("{} {url}", curl())).ok();
            assert!(output.starts_with(&pod), "from {from} to {machine}: {output}");
        }
        let output = lab.on(machine, &format!("{} http://127.0.0.1:{port}/", curl())).ok();
        assert!(output.starts_with(&pod), "on {machine} itself: {output}");
    }
    lab.kubectl(r#"patch service web -p {"spec":{"externalTrafficPolicy":"Local"}}"#);
    eventually("only the machine with a pod answers", || (outside(&away, "--max-time 1").code == 28).then_some(()));
    assert_eq!(outside(&here, "").ok().trim(), format!("{pod} {OUTSIDE}"), "and it tells who calls");
}

#[test]
fn at_external_addresses_callers_inside_have_all_backends_even_if_those_outside_have_local_ones() {
    let lab = Lab::new(&["a", "b"]);
    let external = ["a", "b"].map(|machine| lab.machines.address(machine));
    lab.start_service("web", json!({ "externalIPs": external, "externalTrafficPolicy": "Local", "type": "NodePort" }));
    lab.start_web_with("web", 1, json!({ "nodeName": "a" }));
    lab.start_client("b");
    let pod = lab.pods("web").remove(0);
    let [here, away] = external.map(|address| format!("{} http://{address}/", curl()));
    eventually("it is called from outside", || lab.on("server", &here).stdout.starts_with(&pod).then_some(()));
    assert_eq!(lab.on("server", &here).ok().trim(), format!("{pod} {OUTSIDE}"), "and sees who calls");
    assert_eq!(lab.on("server", &format!("{away} --max-time 1")).code, 28, "a machine without a pod does not answer");
    assert!(lab.on("b", &away).ok().starts_with(&pod), "from that machine it does");
    assert!(lab.by_client(&away).ok().starts_with(&pod), "and from a pod there");
}

#[test]
fn callers_are_sent_to_pods_of_their_own_zone_or_node_if_asked_for_and_there_are_any() {
    let lab = Lab::new(&["a", "b"]);
    let address = lab.start_service("web", json!({}));
    let apart = json!({
        "maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": { "matchLabels": { "app": "web" } },
    });
    lab.start_web_with("web", 2, json!({ "topologySpreadConstraints": [apart] }));
    let called = |from: &str| answers(&lab.on(from, &again_and_again(20, &format!("http://{address}/"))).stdout).0;
    let on = |machine: &str| -> BTreeSet<String> {
        let is_there = |pod: &String| lab.value(&format!("pod {pod}"), "{.spec.nodeName}") == machine;
        lab.ready_pods("web").into_iter().filter(is_there).collect()
    };
    let both = lab.ready_pods("web").into_iter().collect();
    eventually("both are called", || (called("a") == both).then_some(()));

    lab.kubectl(r#"patch service web -p {"spec":{"trafficDistribution":"PreferClose"}}"#);
    for (machine, zone) in [("a", "east"), ("b", "west")] {
        lab.kubectl(&format!("label node {machine} topology.kubernetes.io/zone={zone}"));
    }
    for machine in ["a", "b"] {
        eventually(&format!("only the pod on {machine} is called there"), || {
            let pods = called(machine);
            (pods.len() == 1 && pods == on(machine)).then_some(())
        });
    }
    lab.kubectl("label node b --overwrite topology.kubernetes.io/zone=east");
    eventually("both are called in what is one zone now", || (called("a") == both).then_some(()));
    lab.kubectl(r#"patch service web -p {"spec":{"trafficDistribution":"PreferSameNode"}}"#);
    for machine in ["a", "b"] {
        eventually(&format!("only the pod on {machine} itself is called there"), || {
            let pods = called(machine);
            (pods.len() == 1 && pods == on(machine)).then_some(())
        });
    }
    lab.kubectl("scale deployment web --replicas=1");
    let last = lab.serves("web", 1).into_iter().collect();
    for machine in ["a", "b"] {
        eventually(&format!("the last one is called on {machine}"), || (called(machine) == last).then_some(()));
    }
}

#[test]
fn a_client_stays_with_its_backend_until_that_is_gone() {
    let lab = Lab::new(&["a", "b"]);
    let address = lab.start_service("web", json!({ "sessionAffinity": "ClientIP" }));
    lab.start_web("web", 3);
    lab.start_client("a");
    let calls = || answers(&lab.by_client(&again_and_again(15, &format!("http://{address}/"))).stdout).0;
    let only = |pods: BTreeSet<String>| (pods.len() == 1).then(|| pods.into_iter().next().unwrap());
    let first = eventually("it stays with one", || only(calls()));
    assert_eq!(only(calls()), Some(first.clone()));
    lab.kubectl(&format!("delete pod {first}"));
    let second = only(calls()).expect("one other");
    assert_ne!(second, first);
    assert_eq!(only(calls()), Some(second), "and stays with that");
}

#[test]
fn datagrams_from_one_port_go_to_the_pod_that_replaced_another() {
    let lab = Lab::new(&["a", "b"]);
    let address = lab.start_service("echo", json!({ "ports": [{ "port": 7000, "protocol": "UDP" }] }));
    lab.create(&set("Deployment", "echo", 1, lab.pod("echo.py", &["7000"])));
    let first = lab.serves("echo", 1).remove(0);
    lab.start_pod("caller", "a", lab.pod("caller.py", &["/shared/calls", &address, "7000"]));
    let last = || lab.requests("calls").pop().and_then(|call| call.answer.ok());
    eventually("it answers", || (last().as_ref() == Some(&first)).then_some(()));
    lab.kubectl(&format!("delete pod {first}"));
    let second = lab.serves("echo", 1).remove(0);
    eventually("the other one answers", || (last().as_ref() == Some(&second)).then_some(()));
}
