//! Stopping in order, whoever is connected, and going on afterwards.

use std::{fs, net::TcpStream};

use super::support::{
    Server,
    objects::{CONFIG_MAPS, config_map, version},
};

/// Nothing had to be cut at the end of a grace period.
#[track_caller]
fn assert_not_held_up(server: &Server) {
    let log = server.log();
    assert!(!log.contains("at the end of the grace period") && !log.contains("did not end in time"), "{log}");
}

fn stops_with_everyone_connected(signal: &str) {
    let mut server = Server::start();
    let client = server.client();
    let mut watches: Vec<_> = (0..20).map(|_| client.watch(&format!("{CONFIG_MAPS}?watch=1"))).collect();
    let _raw: Vec<_> = (0..20).map(|_| TcpStream::connect(server.address()).expect("connect")).collect();
    let mut idle: Vec<_> = (0..20).map(|_| client.connect().expect("connect")).collect();
    for wire in idle.iter_mut().take(10) {
        wire.send(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n").expect("send");
        assert_eq!(wire.answer(false).expect("an answer").code, 200);
    }
    let mut http2 = client.connect().expect("connect");
    http2.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").expect("send");
    let mut halfway = client.connect().expect("connect");
    halfway.send(b"GET /livez HTTP/1.1\r\n").expect("send");
    server.signal(signal);
    let status = server.wait();
    assert_eq!(status.code(), Some(0), "{}", server.log());
    assert_not_held_up(&server);
    for watch in &mut watches {
        while watch.next().expect("a watch ends in order").is_some() {}
    }
}

#[test]
fn sigterm_ends_it_in_time_with_watches_and_idle_connections_open() {
    stops_with_everyone_connected("TERM");
}

#[test]
fn sigint_ends_it_in_time_with_watches_and_idle_connections_open() {
    stops_with_everyone_connected("INT");
}

#[test]
fn a_watcher_that_does_not_read_does_not_keep_it_from_stopping() {
    let mut server = Server::start();
    let mut client = server.client();
    let _lazy = client.watch(&format!("{CONFIG_MAPS}?watch=1"));
    for n in 0..40 {
        let large = super::support::objects::large_config_map(&format!("c{n}"), 900_000);
        client.post(CONFIG_MAPS, &large).granted();
    }
    server.signal("TERM");
    assert_eq!(server.wait().code(), Some(0));
    assert_not_held_up(&server);
}

#[test]
fn requests_under_way_are_finished_before_it_stops() {
    let mut server = Server::start();
    let mut wire = server.client().connect().expect("connect");
    let body = config_map("finished").to_string();
    let head = format!("POST {CONFIG_MAPS} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", body.len());
    wire.send(head.as_bytes()).expect("send the head");
    server.client().get("/version").granted(); // by now the head has arrived, too
    server.signal("TERM");
    crate::harness::eventually("it listens no more", || TcpStream::connect(server.address()).err());
    wire.send(body.as_bytes()).expect("send the body");
    assert_eq!(wire.answer(false).expect("an answer").code, 201);
    assert_eq!(server.wait().code(), Some(0));
    server.start_again();
    server.client().get(&format!("{CONFIG_MAPS}/finished")).granted();
}

#[test]
fn the_next_start_continues_where_it_was() {
    let mut server = Server::start();
    let mut client = server.client();
    let created = client.post(CONFIG_MAPS, &config_map("kept")).granted();
    let list = version(&client.get(CONFIG_MAPS).granted());
    let files = |server: &Server| {
        ["pki/ca.crt", "pki/ca.key", "pki/admin.crt", "pki/server.crt"]
            .map(|name| fs::read_to_string(server.data().join(name)).expect(name))
    };
    let before = files(&server);
    server.signal("TERM");
    assert_eq!(server.wait().code(), Some(0));
    server.start_again();
    assert_eq!(files(&server), before);
    // The same client: address, CA and certificate still hold.
    assert_eq!(client.get(&format!("{CONFIG_MAPS}/kept")).granted(), created);
    let now = client.get(CONFIG_MAPS).granted();
    assert!(version(&now) >= list);
    let next = client.post(CONFIG_MAPS, &config_map("next")).granted();
    assert!(version(&next) > list);
    let mut events = client.watch(&format!("{CONFIG_MAPS}?watch=1&resourceVersion={list}"));
    assert_eq!(events.about("next")["type"], "ADDED");
}
