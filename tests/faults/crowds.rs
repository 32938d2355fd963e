//! More connections than anyone needs.

use std::{net::TcpStream, thread, time::Instant};

use super::support::{Client, Server, Wire};
use crate::harness::eventually;

const HANDSHAKEN: usize = 5_000;
const RAW: usize = 5_000;

/// What the server may take for all of them together, in MiB.
const BOUND: u64 = 600;

#[test]
fn ten_thousand_idle_connections_are_borne() {
    let limit = rlimit::increase_nofile_limit(u64::MAX).expect("raise the limit of open files");
    assert!(limit > (HANDSHAKEN + RAW + 100) as u64, "only {limit} files may be open");
    // All of them come from one address, which has a tenth of the whole.
    let flags = ["--handshake-timeout", "300", "--idle-timeout", "300", "--max-connections", "60000"];
    let mut server = Server::start_with(&flags);
    let before = server.resident_memory();
    let raw: Vec<TcpStream> =
        (0..RAW).map(|n| TcpStream::connect(server.address()).unwrap_or_else(|e| panic!("raw {n}: {e}"))).collect();
    let workers: Vec<_> = (0..4)
        .map(|_| {
            let client = server.stranger();
            thread::spawn(move || {
                let connect = |n| client.connect().unwrap_or_else(|e| panic!("handshake {n}: {e}"));
                (0..HANDSHAKEN / 4).map(connect).collect::<Vec<Wire>>()
            })
        })
        .collect();
    let handshaken: Vec<Wire> = workers.into_iter().flat_map(|w| w.join().expect("a worker")).collect();
    assert_eq!((raw.len(), handshaken.len()), (RAW, HANDSHAKEN));
    let asked = Instant::now();
    server.client().get("/api/v1/namespaces/default").granted();
    let took = asked.elapsed();
    let grown = server.peak_memory() - before;
    println!("{} connections take {grown} MiB; a request among them {took:?}", RAW + HANDSHAKEN);
    assert!(grown < BOUND, "{grown} MiB");
    drop((raw, handshaken));
    server.assert_well();
}

/// Asks on a connection; whether it was answered.
fn is_served(wire: &mut Wire) -> bool {
    wire.send(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n").is_ok() && wire.answer(false).is_ok_and(|a| a.code == 200)
}

/// A connection that is served. A server that is full closes it before or after the handshake.
fn connect(client: &Client) -> Option<Wire> {
    client.connect().ok().and_then(|mut wire| is_served(&mut wire).then_some(wire))
}

/// Connections that are served, until one is not.
fn fill(client: &Client) -> Vec<Wire> {
    std::iter::from_fn(|| connect(client)).take(1000).collect()
}

#[test]
fn one_client_gets_a_part_of_all_connections_and_gives_it_back() {
    let server = Server::start_with(&["--max-connections", "100"]);
    let mut strangers = fill(&server.stranger());
    assert_eq!(strangers.len(), 10);
    let node = server.client_as(&server.authority().client("system:node:n1", &["system:nodes"]));
    let nodes = fill(&node);
    assert_eq!(nodes.len(), 10);
    let administrators = fill(&server.client());
    assert!((15..=50).contains(&administrators.len()), "{}", administrators.len());
    let other = server.client_as(&server.authority().client("system:node:n2", &["system:nodes"]));
    assert_eq!(fill(&other).len(), 10, "administrators take nothing of what nodes are sure of");
    assert!(strangers.iter_mut().all(is_served), "those who are in are served");
    strangers.pop();
    eventually("room after one left", || connect(&server.stranger()));
}
