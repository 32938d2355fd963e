//! Requests in flight: as many as allowed, and an honest answer to the rest.

use super::support::{
    Answer, Server, Wire,
    objects::{CONFIG_MAPS, config_map},
};
use crate::harness::eventually;

/// Requests whose bodies are still to come.
fn occupy(server: &Server, method: &str, count: usize, body: &str) -> Vec<Wire> {
    let begin = || {
        let mut wire = server.client().connect().expect("connect");
        let length = body.len();
        let head = format!(
            "{method} {CONFIG_MAPS} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
        );
        wire.send(head.as_bytes()).expect("send the head");
        wire
    };
    (0..count).map(|_| begin()).collect()
}

#[track_caller]
fn assert_busy(answer: &Answer) {
    let status = answer.refused_saying(429, "TooManyRequests", "please try again later");
    assert_eq!(status["details"]["retryAfterSeconds"], 1);
    assert_eq!(answer.header("retry-after"), Some("1"));
}

#[test]
fn writes_beyond_the_limit_are_told_to_come_back() {
    let server = Server::start_with(&["--max-writes", "2"]);
    let mut client = server.client();
    let body = config_map("slow").to_string();
    let mut slow = occupy(&server, "POST", 2, &body);
    let path = format!("{CONFIG_MAPS}?dryRun=All");
    let busy = eventually("the limit is reached", || {
        let answer = client.post(&path, &config_map("late"));
        (answer.code != 201).then_some(answer)
    });
    assert_busy(&busy);
    assert_busy(&client.delete(&format!("{CONFIG_MAPS}/slow")));
    client.get(CONFIG_MAPS).granted();
    assert_eq!(client.get("/readyz").code, 200);
    slow[0].send(body.as_bytes()).expect("send the body");
    assert_eq!(slow[0].answer(false).expect("an answer").code, 201);
    client.post(CONFIG_MAPS, &config_map("late")).granted();
    slow[1].send(body.as_bytes()).expect("send the body");
    slow[1].answer(false).expect("an answer").refused(409, "AlreadyExists");
}

#[test]
fn reads_beyond_the_limit_are_told_to_come_back() {
    let server = Server::start_with(&["--max-reads", "2"]);
    let mut client = server.client();
    let mut slow = occupy(&server, "GET", 2, "{}");
    let busy = eventually("the limit is reached", || {
        let answer = client.get(CONFIG_MAPS);
        (answer.code != 200).then_some(answer)
    });
    assert_busy(&busy);
    client.post(CONFIG_MAPS, &config_map("written")).granted();
    assert_eq!(client.get("/livez").code, 200);
    assert_eq!(client.watch(&format!("{CONFIG_MAPS}?watch=1")).about("written")["type"], "ADDED");
    for wire in &mut slow {
        wire.send(b"{}").expect("send the body");
        assert_eq!(wire.answer(false).expect("an answer").code, 200);
    }
    client.get(CONFIG_MAPS).granted();
}

#[test]
fn a_client_that_leaves_gives_its_place_back() {
    let server = Server::start_with(&["--max-writes", "1"]);
    let mut client = server.client();
    let slow = occupy(&server, "POST", 1, "{}");
    eventually("the limit is reached", || (client.post(CONFIG_MAPS, &config_map("x")).code == 429).then_some(()));
    drop(slow);
    eventually("the place is free", || (client.post(CONFIG_MAPS, &config_map("y")).code == 201).then_some(()));
}
