//! Which servers answer for the API.

use std::time::Instant;

use super::{BOTH, kubectl_at};
use crate::harness::{
    Machines, PATIENCE,
    command::run,
    eventually,
    machines::{SECOND, SERVER},
};

/// The addresses of the API, as a server tells them in both ways.
fn listed(machines: &Machines, server: &str) -> (Vec<String>, Vec<String>) {
    let read = |line: &str| {
        let mut output: Vec<_> =
            kubectl_at(machines, server, line).ok().split_whitespace().map(str::to_owned).collect();
        output.sort();
        output
    };
    (
        read("get endpoints kubernetes -o jsonpath={.subsets[*].addresses[*].ip}"),
        read("get endpointslice kubernetes -o jsonpath={.endpoints[*].addresses[*]}"),
    )
}

#[track_caller]
fn become_listed(machines: &Machines, by: &str, servers: &[&str]) {
    let addresses: Vec<String> = servers.iter().map(|server| machines.address(server)).collect();
    eventually(&format!("{servers:?} are listed by {by}"), || {
        (listed(machines, by) == (addresses.clone(), addresses.clone())).then_some(())
    });
}

#[test]
fn a_killed_server_leaves_the_endpoints_of_the_api_in_time_and_returns() {
    let mut machines = Machines::wired(&[]);
    let _etcd = machines.start_etcd();
    machines.start_server();
    machines.start_server_named(SECOND);
    for server in BOTH {
        become_listed(&machines, server, &BOTH);
    }
    let ports = "get endpointslice kubernetes -o jsonpath={.ports[*].name}/{.ports[*].port}";
    assert_eq!(kubectl_at(&machines, SECOND, ports).ok(), "https/6443");
    trust_each_other(&machines);

    let killed = Instant::now();
    machines.kill(SECOND);
    assert_eq!(listed(&machines, SERVER).0.len(), 2, "a moment of silence is no end");
    become_listed(&machines, SERVER, &[SERVER]);
    let took = killed.elapsed();
    println!("given up after {took:?}");

    machines.start_server_named(SECOND);
    for server in BOTH {
        become_listed(&machines, server, &BOTH);
    }
}

/// Credentials of one server are good at the other.
#[track_caller]
fn trust_each_other(machines: &Machines) {
    for (own, other) in [(SERVER, SECOND), (SECOND, SERVER)] {
        let url = format!("https://{}:6443", machines.address(other));
        let output = machines
            .kubectl_command(own, &["--server", &url, "auth", "whoami", "-o", "jsonpath={.status.userInfo.username}"]);
        assert_eq!(run(output, "kubectl auth whoami", "", PATIENCE).ok(), "mainstay-admin", "of {own} at {other}");
    }
    // What pods trust is what all servers show.
    let ca =
        |server| kubectl_at(machines, server, r"get configmap kube-root-ca.crt -o jsonpath={.data.ca\.crt}").stdout;
    let trusted = eventually("pods know whom to trust", || Some(ca(SECOND)).filter(|ca| !ca.is_empty()));
    for server in BOTH {
        let shown = std::fs::read_to_string(machines.data(server).join("pki/ca.crt")).expect("a certificate");
        assert_eq!(trusted.trim(), shown.trim(), "{server}");
    }
}
