//! Requests that are too large, or no HTTP at all.

use std::{
    io::{Read, Write},
    net::TcpStream,
    time::Duration,
};

use super::support::{
    Server,
    objects::{CONFIG_MAPS, config_map},
};
use crate::harness::PATIENCE;

const TOO_MUCH: usize = 64 << 20;

#[test]
fn a_body_of_64_mib_is_too_large_whether_announced_or_not() {
    let mut server = Server::start();
    let before = server.peak_memory();
    let head = format!("POST {CONFIG_MAPS} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n");

    let mut announced = server.client().connect().expect("connect");
    announced.send(format!("{head}Content-Length: {TOO_MUCH}\r\n\r\n").as_bytes()).expect("send the head");
    announced.answer(false).expect("an answer").refused_saying(413, "RequestEntityTooLarge", "limit is 3145728");

    // Announced and really sent, up to where the server stops listening.
    let mut sent = server.client().connect().expect("connect");
    sent.send(format!("{head}Content-Length: {TOO_MUCH}\r\n\r\n").as_bytes()).expect("send the head");
    let piece = vec![b' '; 1 << 20];
    let _ = (0..64).try_for_each(|_| sent.send(&piece));

    let mut chunked = server.client().connect().expect("connect");
    chunked.send(format!("{head}Transfer-Encoding: chunked\r\n\r\n").as_bytes()).expect("send the head");
    let mut send =
        || chunked.send(b"100000\r\n").and_then(|()| chunked.send(&piece)).and_then(|()| chunked.send(b"\r\n"));
    let stopped = (0..64).find(|_| send().is_err());
    match chunked.answer(false) {
        Ok(answer) => drop(answer.refused(413, "RequestEntityTooLarge")),
        Err(error) => assert!(stopped.is_some(), "neither stopped nor answered: {error}"),
    }
    assert!(stopped.is_none_or(|n| n < 32), "the server took {stopped:?} MiB");
    let grown = server.peak_memory() - before;
    assert!(grown < 40, "grew by {grown} MiB");
    server.assert_well();
}

#[test]
fn the_largest_object_is_taken_and_one_byte_more_is_not() {
    let server = Server::start();
    let mut client = server.client();
    let sized = |length: usize| {
        let body = config_map("padded").to_string();
        format!("{body}{}", " ".repeat(length - body.len()))
    };
    let limit = 3 * 1024 * 1024;
    let over = client.send("POST", CONFIG_MAPS, "application/json", sized(limit + 1).as_bytes());
    over.refused(413, "RequestEntityTooLarge");
    client.send("POST", CONFIG_MAPS, "application/json", sized(limit).as_bytes()).granted();
}

#[test]
fn a_client_that_asks_before_sending_is_answered_before_it_sends() {
    let server = Server::start();
    let body = config_map("asked").to_string();
    let head = |length: usize| {
        format!(
            "POST {CONFIG_MAPS} HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\n\r\n"
        )
    };
    let mut large = server.client().connect().expect("connect");
    large.send(head(TOO_MUCH).as_bytes()).expect("send the head");
    large.answer(false).expect("an answer").refused(413, "RequestEntityTooLarge");
    let mut small = server.client().connect().expect("connect");
    small.send(head(body.len()).as_bytes()).expect("send the head");
    assert_eq!(small.answer(true).expect("an answer").code, 100);
    small.send(body.as_bytes()).expect("send the body");
    assert_eq!(small.answer(false).expect("an answer").code, 201);
}

#[test]
fn a_header_of_one_mib_is_refused() {
    let mut server = Server::start();
    let mut wire = server.client().connect().expect("connect");
    let head = format!("GET /livez HTTP/1.1\r\nHost: x\r\nX-Large: {}\r\n\r\n", "x".repeat(1 << 20));
    let sent = wire.send(head.as_bytes());
    match wire.answer(false) {
        Ok(answer) => assert_eq!(answer.code, 431),
        Err(_) => assert!(sent.is_err(), "sent in full, but not answered"),
    }
    let mut many = server.client().connect().expect("connect");
    let lines: String = (0..5_000).map(|n| format!("X-{n}: v\r\n")).collect();
    let _ = many.send(format!("GET /livez HTTP/1.1\r\nHost: x\r\n{lines}\r\n").as_bytes());
    if let Ok(answer) = many.answer(false) {
        assert_eq!(answer.code, 431);
    }
    server.assert_well();
}

#[test]
fn a_very_long_url_is_refused() {
    let mut server = Server::start();
    for length in [60_000, 70_000, 1 << 20] {
        let mut wire = server.client().connect().expect("connect");
        let sent = wire.send(format!("GET /{} HTTP/1.1\r\nHost: x\r\n\r\n", "x".repeat(length)).as_bytes());
        match wire.answer(false) {
            Ok(answer) if length < 65_000 => assert_eq!(answer.code, 404),
            Ok(answer) => assert!(matches!(answer.code, 414 | 431), "{length}: {}", answer.code),
            Err(error) => assert!(sent.is_err(), "{length}: sent in full, but not answered: {error:?}"),
        }
    }
    server.assert_well();
}

#[test]
fn plain_http_on_the_tls_port_disturbs_nobody() {
    let mut server = Server::start();
    let mut plain = TcpStream::connect(server.address()).expect("connect");
    plain.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    plain.write_all(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n").expect("send");
    let mut output = Vec::new();
    let _ = plain.read_to_end(&mut output);
    assert!(!String::from_utf8_lossy(&output).contains("200 OK"));
    server.assert_well();
}

#[test]
fn garbage_instead_of_tls_disturbs_nobody() {
    let mut server = Server::start();
    let noise: Vec<u8> = (0..70_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    for start in [&b"\x16\x03\x01\xff\xff"[..], b"\x16\x03\x03\x00\x00", b"\x00", b"\x80\x2e\x01\x00\x02", b""] {
        let mut raw = TcpStream::connect(server.address()).expect("connect");
        raw.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
        let _ = raw.write_all(start).and_then(|()| raw.write_all(&noise));
        let mut output = Vec::new();
        let _ = raw.read_to_end(&mut output);
    }
    server.assert_well();
}

#[test]
fn http_that_is_malformed_within_tls_is_refused() {
    let mut server = Server::start();
    for request in [
        "NONSENSE\r\n\r\n",
        "GET /livez HTTP/9.9\r\n\r\n",
        "GET  HTTP/1.1\r\n\r\n",
        "GET /livez HTTP/1.1\r\nNo colon here\r\n\r\n",
        "GET /livez HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        "GET /livez HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        "POST /livez HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nnot frames at all, but long enough to be read as some",
    ] {
        let mut wire = server.client().connect().expect("connect");
        let _ = wire.send(request.as_bytes());
        if let Ok(answer) = wire.answer(false) {
            assert!((400..500).contains(&answer.code), "{request:?}: {}", answer.code);
        }
    }
    server.assert_well();
}
