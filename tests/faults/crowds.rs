//! More connections than anyone needs.

use std::{
    net::TcpStream,
    thread,
    time::{Duration, Instant},
};

use super::support::{Server, Wire};
use crate::harness::eventually;

const HANDSHAKEN: usize = 5_000;
const RAW: usize = 5_000;

/// What the server may take for all of them together, in MiB.
const BOUND: u64 = 600;

#[test]
fn ten_thousand_idle_connections_are_borne() {
    let limit = rlimit::increase_nofile_limit(u64::MAX).expect("raise the limit of open files");
    assert!(limit > (HANDSHAKEN + RAW + 100) as u64, "only {limit} files may be open");
    let mut server = Server::start_with(&["--handshake-timeout", "300", "--idle-timeout", "300"]);
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
    assert!(took < Duration::from_secs(1), "a request took {took:?}");
    assert!(grown < BOUND, "{grown} MiB");
    drop((raw, handshaken));
    server.assert_well();
}

#[test]
fn beyond_the_limit_connections_are_closed_at_once_and_room_is_given_back() {
    let server = Server::start_with(&["--max-connections", "50"]);
    let client = server.client();
    let mut held: Vec<Wire> = (0..50).map(|_| client.connect().expect("there is room")).collect();
    for _ in 0..5 {
        assert!(client.connect().is_err(), "the limit was not kept");
    }
    let mut first = held.remove(0);
    first.send(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n").expect("those who are in are served");
    assert_eq!(first.answer(false).expect("an answer").code, 200);
    drop(first);
    let mut late = eventually("room after one left", || client.connect().ok());
    late.send(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n").expect("send");
    assert_eq!(late.answer(false).expect("an answer").code, 200);
}
