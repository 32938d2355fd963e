//! Clients that start something and never finish it.

use std::{
    io::{Read, Write},
    net::TcpStream,
    thread,
    time::{Duration, Instant},
};

use serde_json::json;

use super::support::{
    Client, Server,
    objects::{CONFIG_MAPS, config_map},
};
use crate::harness::eventually;

/// Well beyond the server's patience below, on a busy machine.
const SOON: Duration = Duration::from_secs(10);

fn impatient() -> Server {
    let times = ["--handshake-timeout", "1", "--idle-timeout", "2", "--request-timeout", "2", "--body-timeout", "1"];
    Server::start_with(&times)
}

#[track_caller]
fn is_closed_within(mut raw: TcpStream, patience: Duration) -> bool {
    raw.set_read_timeout(Some(patience)).expect("a timeout");
    let mut bytes = [0; 4096];
    loop {
        match raw.read(&mut bytes) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(e) => return !matches!(e.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut),
        }
    }
}

/// Somebody else is served: a client gives up at its own deadline.
#[track_caller]
fn assert_undisturbed(client: &mut Client) {
    client.get("/api/v1/namespaces/default").granted();
}

#[test]
fn a_handshake_that_is_never_finished_is_closed() {
    let server = impatient();
    let mut other = server.client();
    let silent = TcpStream::connect(server.address()).expect("connect");
    let mut halfway = TcpStream::connect(server.address()).expect("connect");
    // The start of a ClientHello that announces 512 bytes.
    halfway.write_all(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03").expect("send");
    assert_undisturbed(&mut other);
    assert!(is_closed_within(silent, SOON) && is_closed_within(halfway, SOON));
}

#[test]
fn silent_connections_do_not_keep_out_others_from_the_same_address() {
    let server = Server::start_with(&["--max-connections", "20"]);
    // A source has two of twenty.
    let silent: Vec<TcpStream> = (0..5).map(|_| TcpStream::connect(server.address()).expect("connect")).collect();
    assert_undisturbed(&mut server.client());
    drop(silent);
}

#[test]
fn a_connection_that_never_asks_anything_is_closed() {
    let server = impatient();
    let mut silent = server.client().connect().expect("connect");
    let mut other = server.client();
    assert_undisturbed(&mut other);
    assert!(silent.is_closed_within(SOON));
}

#[test]
fn a_connection_that_asks_nothing_more_is_closed() {
    let server = impatient();
    let mut wire = server.client().connect().expect("connect");
    wire.send(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n").expect("send");
    assert_eq!(wire.answer(false).expect("an answer").code, 200);
    assert!(wire.is_closed_within(SOON));
}

#[test]
fn a_head_that_is_never_finished_is_closed_even_if_it_trickles() {
    let server = impatient();
    let mut halfway = server.client().connect().expect("connect");
    halfway.send(b"GET /livez HTTP/1.1\r\nHost: x\r\n").expect("send");
    let mut trickling = server.client().connect().expect("connect");
    let started = Instant::now();
    let mut other = server.client();
    trickling.send(b"GET /livez HTTP/1.1\r\nX-Slow: ").expect("send");
    while trickling.send(b"x").is_ok() && !trickling.is_closed_within(Duration::from_millis(200)) {
        assert!(started.elapsed() < SOON, "still open after {:?}", started.elapsed());
        assert_undisturbed(&mut other);
    }
    assert!(halfway.is_closed_within(SOON));
}

#[test]
fn a_body_that_is_never_finished_times_out() {
    let server = impatient();
    let mut wire = server.client().connect().expect("connect");
    let head = format!("POST {CONFIG_MAPS} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{{\"kind\":");
    wire.send(head.as_bytes()).expect("send");
    assert_undisturbed(&mut server.client());
    let answer = wire.answer(false).expect("an answer");
    answer.refused_saying(408, "Timeout", "the request body did not arrive within 1s");
    assert_eq!(answer.header("connection"), Some("close"));
    assert!(wire.is_closed_within(SOON));
}

#[test]
fn a_watch_whose_request_is_never_finished_times_out() {
    let server = impatient();
    let mut wire = server.client().connect().expect("connect");
    let head = format!("GET {CONFIG_MAPS}?watch=1 HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n");
    wire.send(head.as_bytes()).expect("send");
    wire.answer(false).expect("an answer").refused(408, "Timeout");
}

/// More than the requests that write and the requests that read may be.
const HALVES: usize = 450;

#[test]
fn half_sent_bodies_of_one_token_hold_up_neither_administrators_nor_nodes() {
    let mut server = Server::start_with(&["--body-timeout", "60"]);
    let mut client = server.client();
    let token = eventually("the default service account", || {
        let path = "/api/v1/namespaces/default/serviceaccounts/default/token";
        let answer = client.post(path, &json!({"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1"}));
        (answer.code == 201).then(|| answer.json()["status"]["token"].as_str().expect("a token").to_owned())
    });
    let pod = server.stranger();
    let begin = |_| {
        let mut wire = pod.connect().expect("connect");
        let head = format!(
            "POST /apis/authentication.k8s.io/v1/selfsubjectreviews HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer \
             {token}\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{{"
        );
        wire.send(head.as_bytes()).expect("send");
        wire
    };
    let halves: Vec<_> = (0..HALVES).map(begin).collect();
    let mut node = server.client_as(&server.authority().client("system:node:n1", &["system:nodes"]));
    node.post("/api/v1/nodes", &json!({"kind": "Node", "apiVersion": "v1", "metadata": {"name": "n1"}})).granted();
    for n in 0..20 {
        client.post(CONFIG_MAPS, &config_map(&format!("c{n}"))).granted();
        let labels = json!({"metadata": {"annotations": {"n": n.to_string()}}});
        node.patch("/api/v1/nodes/n1/status", "merge-patch+json", &labels).granted();
        client.get(CONFIG_MAPS).granted();
    }
    drop(halves);
    server.assert_well();
}

#[test]
fn http2_that_asks_nothing_is_closed() {
    let server = impatient();
    let mut wire = server.client().connect().expect("connect");
    let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    wire.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").and_then(|()| wire.send(&settings)).expect("send");
    let mut prefaceless = server.client().connect().expect("connect");
    prefaceless.send(b"PRI * HTTP/2.0\r\n").expect("send");
    assert!(wire.is_closed_within(SOON) && prefaceless.is_closed_within(SOON));
}

#[test]
fn a_quiet_watch_is_not_an_idle_connection() {
    let server = impatient();
    let mut client = server.client();
    let mut events = client.watch(&format!("{CONFIG_MAPS}?watch=1"));
    thread::sleep(Duration::from_secs(4)); // the claim is about time: twice what an idle connection gets
    client.post(CONFIG_MAPS, &config_map("late")).granted();
    assert_eq!(events.about("late")["type"], "ADDED");
}
