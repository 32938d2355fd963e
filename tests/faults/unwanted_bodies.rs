//! Refusals that come before the body has been read: the client sees each, and its connection goes on or ends as announced.

use std::process::Command;

use serde_json::json;

use super::support::{
    Server,
    objects::{CONFIG_MAPS, config_map, large_config_map},
};
use crate::harness::tool;

/// Requests that are refused by their head, with the code each gets.
const REFUSED: [(&str, &str, u16); 4] = [
    ("POST", "/api/v1/namespaces/default/nothing", 404),
    ("POST", "/api/v1/namespaces/default/configmaps?dryRun=Some", 422),
    ("PUT", "/api/v1/namespaces/default/configmaps", 405),
    ("POST", "/livez", 405),
];

#[test]
fn a_connection_goes_on_after_a_refusal_whose_body_was_not_wanted() {
    let server = Server::start();
    let mut wire = server.client().connect().expect("connect");
    for body in [config_map("c"), large_config_map("c", 200_000)] {
        let body = body.to_string();
        for (method, path, code) in REFUSED {
            let head = format!("{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", body.len());
            wire.send(head.as_bytes()).and_then(|()| wire.send(body.as_bytes())).expect("send");
            let answer = wire.answer(false).unwrap_or_else(|error| panic!("{method} {path}: {error}"));
            assert_eq!(answer.code, code, "{method} {path}: {}", answer.text());
            assert_eq!(answer.header("connection"), None);
        }
    }
    let mut stranger = server.stranger().connect().expect("connect");
    let body = config_map("c").to_string();
    for _ in 0..3 {
        let head = format!("POST {CONFIG_MAPS} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        stranger.send(head.as_bytes()).expect("send");
        stranger.answer(false).expect("an answer").refused(401, "Unauthorized");
    }
}

#[test]
fn a_body_that_is_too_much_to_drain_ends_the_connection_and_the_answer_says_so() {
    let server = Server::start();
    let mut stranger = server.stranger().connect().expect("connect");
    let head = format!("POST {CONFIG_MAPS} HTTP/1.1\r\nHost: x\r\nContent-Length: 100000000\r\n\r\n{{");
    stranger.send(head.as_bytes()).expect("send");
    let answer = stranger.answer(false).expect("an answer");
    answer.refused(401, "Unauthorized");
    assert_eq!(answer.header("connection"), Some("close"));
    // Whoever asks first need not send at all.
    let mut careful = server.client().connect().expect("connect");
    let head =
        format!("POST {CONFIG_MAPS} HTTP/1.1\r\nHost: x\r\nContent-Length: 100000000\r\nExpect: 100-continue\r\n\r\n");
    careful.send(head.as_bytes()).expect("send");
    let answer = careful.answer(false).expect("an answer");
    answer.refused(413, "RequestEntityTooLarge");
    assert_eq!(answer.header("connection"), Some("close"));
}

#[test]
fn curl_over_http2_sees_the_status_of_every_refusal() {
    let server = Server::start();
    let body = json!({"metadata": {"name": "c"}, "data": {"key": "x".repeat(100_000)}}).to_string();
    let file = server.data().join("body.json");
    std::fs::write(&file, body).expect("write the body");
    let ca = server.data().join("pki/ca.crt");
    for attempt in 0..20 {
        let output = Command::new(tool("curl/usr/bin/curl"))
            .env("LD_LIBRARY_PATH", tool("curl/libraries"))
            .args(["--silent", "--http2", "--max-time", "30", "--output", "/dev/null", "--write-out", "%{http_code}"])
            .arg("--cacert")
            .arg(&ca)
            .arg("--data-binary")
            .arg(format!("@{}", file.display()))
            .arg(format!("https://{}{CONFIG_MAPS}", server.address()))
            .output()
            .expect("run curl");
        let code = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!((output.status.code(), code.as_str()), (Some(0), "401"), "attempt {attempt}");
    }
}
