//! Against a server that answers by a script, on paused time.

use std::{
    collections::VecDeque,
    convert::Infallible,
    sync::{Arc, Mutex},
};

use futures::StreamExt;
use http::Response;
use kube::client::Body;
use serde_json::{Value, json};

use super::*;
use crate::Watch;

/// A server that answers each request with the next of its responses and never answers after the last.
#[derive(Clone)]
struct ScriptedServer {
    responses: Arc<Mutex<VecDeque<(u16, String)>>>,
    requests: Arc<Mutex<Vec<String>>>,
}

impl ScriptedServer {
    fn new(responses: impl IntoIterator<Item = (u16, String)>) -> Self {
        Self { responses: Arc::new(Mutex::new(responses.into_iter().collect())), requests: Arc::default() }
    }

    fn watch(&self, options: WatchOptions) -> Watch<Value> {
        let server = self.clone();
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let server = server.clone();
            async move {
                server.requests.lock().unwrap().push(request.uri().to_string());
                let response = server.responses.lock().unwrap().pop_front();
                let Some((code, body)) = response else { return std::future::pending().await };
                let body = Body::from(body.into_bytes());
                Ok::<_, Infallible>(Response::builder().status(code).body(body).unwrap())
            }
        });
        Watch::of_path(Client::new(service, "default"), "/api/v1/things", options)
    }

    fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

fn thing(name: &str, version: u64) -> Value {
    json!({"metadata": {"name": name, "resourceVersion": version.to_string()}})
}

fn page(things: &[Value], version: u64, token: Option<&str>) -> (u16, String) {
    let metadata = json!({"resourceVersion": version.to_string(), "continue": token});
    (200, json!({"metadata": metadata, "items": things}).to_string())
}

fn lines(events: &[(&str, Value)]) -> (u16, String) {
    let line = |(type_, object): &(&str, Value)| json!({"type": type_, "object": object}).to_string() + "\n";
    (200, events.iter().map(line).collect())
}

fn refusal(code: u16) -> (u16, String) {
    let status = json!({"kind": "Status", "status": "Failure", "message": "no", "reason": "x", "code": code});
    (code, status.to_string())
}

/// What is delivered until the script ends, in short.
async fn delivered(watch: &mut Watch<Value>, count: usize) -> Vec<String> {
    let name = |object: &Value| object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let text = |event: Result<Event<Value>, WatchError>| match event {
        Ok(Event::Init) => "init".to_owned(),
        Ok(Event::InitApply(object)) => format!("listed {}", name(&object)),
        Ok(Event::InitDone) => "done".to_owned(),
        Ok(Event::Apply(object)) => format!("applied {}", name(&object)),
        Ok(Event::Delete(object)) => format!("deleted {}", name(&object)),
        Err(error) => format!("error: {error}"),
    };
    watch.take(count).map(text).collect().await
}

#[tokio::test(start_paused = true)]
async fn pages_are_listed_and_then_watched_from_the_version_of_the_last() {
    let server = ScriptedServer::new([
        page(&[thing("a", 1)], 7, Some("t&1")),
        page(&[thing("b", 2)], 8, None),
        lines(&[("ADDED", thing("c", 9)), ("BOOKMARK", thing("", 20)), ("DELETED", thing("a", 21))]),
        lines(&[("MODIFIED", thing("c", 22))]),
    ]);
    let mut watch = server.watch(WatchOptions::fields("spec.nodeName=n"));
    let events = delivered(&mut watch, 7).await;
    assert_eq!(events, ["init", "listed a", "listed b", "done", "applied c", "deleted a", "applied c"]);
    let query = |path: &str| path.split_once('?').unwrap().1.replace("fieldSelector=spec.nodeName%3Dn&", "");
    let requests: Vec<String> = server.requests().iter().map(|path| query(path)).collect();
    assert_eq!(requests[0], "limit=500");
    assert_eq!(requests[1], "limit=500&continue=t%261");
    assert!(requests[2].contains("resourceVersion=8"), "{requests:?}");
    assert!(requests[3].contains("resourceVersion=21"), "resumed from what was delivered last: {requests:?}");
}

#[tokio::test(start_paused = true)]
async fn a_version_that_is_too_old_leads_to_a_new_list() {
    let expired = ("ERROR", json!({"code": 410, "message": "too old"}));
    let server = ScriptedServer::new([
        page(&[thing("a", 1)], 7, None),
        lines(&[expired]),
        page(&[], 9, None),
        refusal(410),
        page(&[thing("b", 9)], 9, None),
    ]);
    let events = delivered(&mut server.watch(WatchOptions::default()), 10).await;
    let expected = [
        ["init", "listed a", "done", "error: the server ended the watch: too old"].as_slice(),
        &["init", "done", "error: start a watch", "init", "listed b", "done"],
    ];
    assert_eq!(events, expected.concat());
}

#[tokio::test(start_paused = true)]
async fn a_token_that_has_expired_leads_to_a_new_list() {
    let server = ScriptedServer::new([
        page(&[thing("a", 1)], 7, Some("t")),
        refusal(410),
        page(&[thing("a", 1), thing("b", 8)], 8, None),
    ]);
    let events = delivered(&mut server.watch(WatchOptions::default()), 7).await;
    assert_eq!(events, ["init", "listed a", "error: list objects", "init", "listed a", "listed b", "done"]);
}

/// Objects of which the decoder wants a number.
#[derive(Debug, serde::Deserialize)]
struct Counted {
    #[serde(rename = "count")]
    _count: u32,
}

#[tokio::test(start_paused = true)]
async fn an_object_that_cannot_be_decoded_is_never_passed_over() {
    let good = |version: u64| json!({"metadata": {"resourceVersion": version.to_string()}, "count": 1});
    let server = ScriptedServer::new([
        page(&[thing("a", 1)], 7, None),
        page(&[good(1)], 8, None),
        lines(&[("MODIFIED", thing("a", 9)), ("MODIFIED", good(10))]),
        page(&[good(10)], 10, None),
    ]);
    let options = WatchOptions::default();
    let untyped = server.watch(options.clone());
    drop(untyped);
    let service = {
        let server = server.clone();
        tower::service_fn(move |_: http::Request<Body>| {
            let response = server.responses.lock().unwrap().pop_front();
            async move {
                let Some((code, body)) = response else { return std::future::pending().await };
                Ok::<_, Infallible>(Response::builder().status(code).body(Body::from(body.into_bytes())).unwrap())
            }
        })
    };
    let watch = Watch::<Counted>::of_path(Client::new(service, "default"), "/api/v1/things", options);
    let events: Vec<&str> = watch
        .take(9)
        .map(|event| match event {
            Ok(Event::Init) => "init",
            Ok(Event::InitApply(_)) => "listed",
            Ok(Event::InitDone) => "done",
            Ok(Event::Apply(_) | Event::Delete(_)) => "changed",
            Err(WatchError::Decode(_)) => "undecodable",
            Err(_) => "failed",
        })
        .collect()
        .await;
    assert_eq!(events, ["init", "undecodable", "init", "listed", "done", "undecodable", "init", "listed", "done"]);
}

#[tokio::test(start_paused = true)]
async fn failures_wait_longer_each_time_and_a_success_starts_over() {
    let backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(4), 0.0);
    let server =
        ScriptedServer::new([refusal(500), refusal(403), refusal(500), refusal(500), page(&[], 7, None), refusal(500)]);
    let mut watch = server.watch(WatchOptions { backoff, ..WatchOptions::default() });
    let (start, mut failed_after) = (Instant::now(), Vec::new());
    for _ in 0..11 {
        if let Err(error) = watch.next().await.unwrap() {
            failed_after.push((start.elapsed().as_secs(), error.is_forbidden()));
        }
    }
    assert_eq!(failed_after, [(0, false), (1, true), (3, false), (7, false), (11, false)]);
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_ends_at_once_is_not_repeated_at_once() {
    let backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(4), 0.0);
    let empty = || lines(&[]);
    let server =
        ScriptedServer::new([page(&[], 7, None), empty(), empty(), empty(), lines(&[("ADDED", thing("a", 8))])]);
    let mut watch = server.watch(WatchOptions { backoff, ..WatchOptions::default() });
    let start = Instant::now();
    assert_eq!(delivered(&mut watch, 3).await, ["init", "done", "applied a"]);
    assert_eq!(start.elapsed().as_secs(), 1 + 2 + 4);
}
