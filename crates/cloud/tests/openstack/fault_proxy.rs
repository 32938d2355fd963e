//! A proxy between us and the real services that injects faults: errors, rate limits, time-outs after the work was done, connections that are closed,
//! answers that are cut off, stale or changed, and a service that is down. It also counts calls, and says when one of them is reached.
//!
//! It speaks as much HTTP/1.1 as the client needs: one request per connection.

use std::{
    collections::{BTreeMap, HashMap},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use reqwest::{
    Method,
    header::{HeaderMap, HeaderName, HeaderValue},
};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};
use tokio_util::sync::CancellationToken;

#[derive(Clone)]
pub enum Effect {
    /// The service is not asked.
    Status { code: u16, retry_after: Option<u64> },
    /// The service does the work; nobody hears of it.
    HangAfterWork,
    /// The service does the work; the connection is closed before the answer.
    CloseAfterWork,
    /// The service is not asked; the connection is closed.
    Close,
    /// Half of the answer's JSON, as whole HTTP.
    Truncate,
    /// Half of the answer, and then the connection is closed.
    CutOff,
    /// The answer that the same request had the first time.
    Stale,
    /// The answer, changed.
    Change(fn(&mut Value)),
}

/// Requests whose line (`GET /path`) contains `line`, `times` times.
#[derive(Clone)]
pub struct Fault {
    line: &'static str,
    /// So many requests are let through before.
    skip: usize,
    times: usize,
    effect: Effect,
}

impl Fault {
    pub fn new(line: &'static str, times: usize, effect: Effect) -> Self {
        Self { line, skip: 0, times, effect }
    }

    /// The same, after so many requests that are let through.
    pub fn after(self, skip: usize) -> Self {
        Self { skip, ..self }
    }
}

/// When the process that calls is to be killed: at a call, before the service is asked or after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KillPoint {
    pub call: usize,
    pub after_work: bool,
}

/// Whether a request changes something; logins do not.
pub fn is_write(line: &str) -> bool {
    !line.starts_with("GET ") && !line.ends_with("/auth/tokens")
}

#[derive(Default)]
struct State {
    faults: Vec<Fault>,
    calls: Vec<String>,
    first_answers: HashMap<String, Answer>,
    kill_at: Option<KillPoint>,
    /// The number of the kill point is among those that change something.
    counts_writes: bool,
}

impl State {
    /// Records a call; returns the kill point if this call is the one.
    fn record(&mut self, line: &str) -> Option<KillPoint> {
        self.calls.push(line.to_owned());
        let number = match self.counts_writes {
            false => self.calls.len() - 1,
            true if is_write(line) => self.calls.iter().filter(|call| is_write(call)).count() - 1,
            true => return None,
        };
        self.kill_at.filter(|point| point.call == number)
    }
}

#[derive(Clone, Default)]
struct Answer {
    status: u16,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
}

pub struct FaultProxy {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
    killed: CancellationToken,
    task: JoinHandle<()>,
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl FaultProxy {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind a port");
        let address = listener.local_addr().unwrap();
        let (state, killed) = (Arc::<Mutex<State>>::default(), CancellationToken::new());
        let upstream = Arc::new(Upstream {
            http: http_client(),
            own: format!("http://{address}"),
            state: state.clone(),
            killed: killed.clone(),
        });
        let task = tokio::spawn(async move {
            while let Ok((connection, _)) = listener.accept().await {
                let upstream = upstream.clone();
                tokio::spawn(async move { upstream.serve(connection).await });
            }
        });
        Self { address, state, killed, task }
    }

    /// Where Keystone answers, through the proxy; the catalog leads to the proxy from there on.
    pub fn keystone(&self, real: &str) -> String {
        let port_and_path = real.rsplit_once(':').expect("a port").1;
        format!("http://{}/{port_and_path}", self.address)
    }

    pub fn inject(&self, fault: Fault) {
        self.state.lock().faults.push(fault);
    }

    /// How many of the injected faults are still to come.
    pub fn pending_faults(&self) -> usize {
        self.state.lock().faults.iter().filter(|fault| fault.times > 0).count()
    }

    pub fn clear(&self) {
        self.state.lock().faults.clear();
    }

    pub fn kill_at(&self, point: KillPoint) {
        let mut state = self.state.lock();
        state.calls.clear();
        state.kill_at = Some(point);
    }

    /// The same; of calls that change something alone.
    pub fn kill_at_write(&self, point: KillPoint) {
        self.kill_at(point);
        self.state.lock().counts_writes = true;
    }

    /// Returns when the call is reached; its answer is never sent.
    pub async fn killed(&self) {
        self.killed.cancelled().await;
    }

    pub fn was_killed(&self) -> bool {
        self.killed.is_cancelled()
    }

    /// All requests so far: method and path.
    pub fn calls(&self) -> Vec<String> {
        self.state.lock().calls.clone()
    }
}

fn http_client() -> reqwest::Client {
    let tls = rustls::ClientConfig::builder_with_provider(mainstay_tls::provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    let builder = reqwest::Client::builder().tls_backend_preconfigured(tls).no_proxy();
    builder.timeout(Duration::from_secs(60)).build().unwrap()
}

struct Upstream {
    http: reqwest::Client,
    /// The address of the proxy, below which each service is, by its port.
    own: String,
    state: Arc<Mutex<State>>,
    killed: CancellationToken,
}

struct HttpRequest {
    method: Method,
    target: String,
    headers: HeaderMap,
    body: Vec<u8>,
}

impl Upstream {
    /// Serves one request; a connection that is dropped is closed.
    async fn serve(&self, mut connection: TcpStream) {
        let Some(request) = read_request(&mut connection).await else { return };
        // /PORT/path
        let (port, path) = request.target[1..].split_once('/').unwrap_or((&request.target[1..], ""));
        let line = format!("{} /{path}", request.method);
        let url = format!("http://127.0.0.1:{port}/{path}");
        let (effect, kill) = {
            let mut state = self.state.lock();
            (take_fault(&mut state.faults, &line), state.record(&line))
        };
        if kill.is_some_and(|point| !point.after_work) {
            return self.kill(connection).await;
        }
        match &effect {
            Some(Effect::Status { code, retry_after }) => {
                let headers = retry_after.iter().map(|seconds| ("retry-after", seconds.to_string())).collect();
                let body = br#"{"error": {"message": "injected"}}"#.to_vec();
                return write_answer(&mut connection, &Answer { status: *code, headers, body }, usize::MAX).await;
            }
            Some(Effect::Close) => return,
            Some(Effect::Stale) => {
                let stale = self.state.lock().first_answers.get(&line).cloned();
                if let Some(answer) = stale {
                    return write_answer(&mut connection, &answer, usize::MAX).await;
                }
            }
            _ => {}
        }
        let Some(mut answer) = self.forward(request, url).await else { return };
        if line.ends_with("/auth/tokens") {
            self.rewrite_catalog(&mut answer.body);
        }
        if kill.is_some() {
            return self.kill(connection).await;
        }
        self.state.lock().first_answers.entry(line).or_insert_with(|| answer.clone());
        let mut sent = usize::MAX;
        match effect {
            Some(Effect::HangAfterWork) => return self.hold(connection).await,
            Some(Effect::CloseAfterWork) => return,
            Some(Effect::Change(change)) => {
                let mut value: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
                change(&mut value);
                answer.body = serde_json::to_vec(&value).unwrap();
            }
            Some(Effect::Truncate) => answer.body.truncate(answer.body.len() / 2),
            Some(Effect::CutOff) => sent = answer.body.len() / 2,
            _ => {}
        }
        write_answer(&mut connection, &answer, sent).await;
    }

    async fn forward(&self, request: HttpRequest, url: String) -> Option<Answer> {
        let builder = self.http.request(request.method, url).headers(request.headers).body(request.body);
        let response = builder.send().await.ok()?;
        let kept = ["x-subject-token", "content-type", "retry-after"];
        let header = |name: &'static str| Some((name, response.headers().get(name)?.to_str().ok()?.to_owned()));
        let (status, headers) = (response.status().as_u16(), kept.into_iter().filter_map(header).collect());
        Some(Answer { status, headers, body: response.bytes().await.ok()?.to_vec() })
    }

    async fn kill(&self, connection: TcpStream) {
        self.killed.cancel();
        self.hold(connection).await;
    }

    /// Says nothing until the client gives up.
    async fn hold(&self, mut connection: TcpStream) {
        let _ = connection.read(&mut [0; 1]).await;
    }

    /// Endpoints of services become paths of the proxy.
    fn rewrite_catalog(&self, body: &mut Vec<u8>) {
        let Ok(mut value) = serde_json::from_slice::<Value>(body) else { return };
        let Some(entries) = value.pointer_mut("/token/catalog").and_then(Value::as_array_mut) else { return };
        for endpoint in entries.iter_mut().filter_map(|entry| entry["endpoints"].as_array_mut()).flatten() {
            let url = endpoint["url"].as_str().unwrap_or_default().to_owned();
            if let Some(rest) = url.strip_prefix("http://127.0.0.1:") {
                endpoint["url"] = format!("{}/{rest}", self.own).into();
            }
        }
        *body = serde_json::to_vec(&value).unwrap();
    }
}

async fn read_request(connection: &mut TcpStream) -> Option<HttpRequest> {
    let mut bytes = Vec::new();
    let head_end = loop {
        if let Some(at) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break at + 4;
        }
        if connection.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8(bytes[..head_end].to_vec()).ok()?;
    let mut lines = head.lines();
    let mut first = lines.next()?.split(' ');
    let (method, target) = (first.next()?.parse().ok()?, first.next()?.to_owned());
    let mut headers = HeaderMap::new();
    let mut length = 0;
    for (name, value) in lines.filter_map(|line| line.split_once(": ")) {
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.parse().ok()?,
            "host" | "connection" | "accept-encoding" => {}
            other => {
                headers.insert(other.parse::<HeaderName>().ok()?, HeaderValue::from_str(value).ok()?);
            }
        }
    }
    while bytes.len() < head_end + length {
        if connection.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
    Some(HttpRequest { method, target, headers, body: bytes.split_off(head_end) })
}

/// Writes at most `sent` bytes of the body, which is announced as a whole.
async fn write_answer(connection: &mut TcpStream, answer: &Answer, sent: usize) {
    let headers: String = answer.headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let (status, length) = (answer.status, answer.body.len());
    let head = format!("HTTP/1.1 {status} -\r\n{headers}content-length: {length}\r\nconnection: close\r\n\r\n");
    let _ = connection.write_all(head.as_bytes()).await;
    let _ = connection.write_all(&answer.body[..length.min(sent)]).await;
    let _ = connection.shutdown().await;
}

fn take_fault(faults: &mut [Fault], line: &str) -> Option<Effect> {
    for fault in faults.iter_mut().filter(|fault| fault.times > 0 && line.contains(fault.line)) {
        match fault.skip {
            0 => {
                fault.times -= 1;
                return Some(fault.effect.clone());
            }
            _ => fault.skip -= 1,
        }
    }
    None
}

/// How often each line occurs, for messages of failed assertions.
pub fn summary(calls: &[String]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for call in calls {
        *counts.entry(call.clone()).or_default() += 1;
    }
    counts
}
