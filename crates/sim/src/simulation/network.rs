//! The network between machines and servers: messages that are late, lost, repeated and out of order, and links that are cut,
//! also one way only.
//!
//! An agent's requests go to one server until that fails, then to the next. A request that has left is carried out even if
//! whoever sent it has given up: it waits in a socket of a frozen server, or its answer is lost on the way back.

use std::{
    collections::BTreeSet,
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures::StreamExt;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use kube::{Client, client::Body};
use mainstay_server::{auth::User, handler::Caller};
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::{
    sync::oneshot,
    task::{JoinError, JoinHandle},
    time::sleep,
};
use tower::service_fn;

use super::{Simulation, chance::Chance, server_clock::OnServer, store};

type AnswerBody = UnsyncBoxBody<Bytes, io::Error>;

/// How long it takes to notice that a message was lost.
const LOST: Duration = Duration::from_millis(2500);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Host {
    Server(usize),
    Machine(usize),
}

/// How bad all links are at the moment.
#[derive(Clone, Copy, Debug)]
pub struct Weather {
    pub latency: Duration,
    /// Of a thousand messages.
    pub lost: u32,
    pub repeated: u32,
}

impl Weather {
    pub const FAIR: Self = Self { latency: Duration::from_millis(2), lost: 0, repeated: 0 };
}

pub struct Network {
    chance: Chance,
    state: Mutex<State>,
}

struct State {
    weather: Weather,
    /// From whom to whom nothing goes.
    cuts: BTreeSet<(Host, Host)>,
}

impl Network {
    pub fn new(chance: Chance) -> Self {
        let state = State { weather: Weather::FAIR, cuts: BTreeSet::new() };
        Self { chance, state: Mutex::new(state) }
    }

    pub fn set_weather(&self, weather: Weather) {
        self.state.lock().weather = weather;
    }

    pub fn cut(&self, from: Host, to: Host) {
        self.state.lock().cuts.insert((from, to));
    }

    pub fn mend(&self, from: Host, to: Host) {
        self.state.lock().cuts.remove(&(from, to));
    }

    /// Whether all messages that are sent arrive in time, where no link is cut.
    pub fn is_fair(&self) -> bool {
        let Weather { latency, lost, .. } = self.state.lock().weather;
        lost == 0 && latency <= Weather::FAIR.latency
    }

    pub fn mend_all(&self) {
        let mut state = self.state.lock();
        state.cuts.clear();
        state.weather = Weather::FAIR;
    }

    pub fn is_cut(&self, from: Host, to: Host) -> bool {
        self.state.lock().cuts.contains(&(from, to))
    }

    /// Returns whether the message has arrived, when it has or its loss was noticed.
    pub async fn deliver(&self, from: Host, to: Host) -> bool {
        let Weather { latency, lost, .. } = self.state.lock().weather;
        let departed = !self.is_cut(from, to) && !self.chance.per_mille(lost);
        sleep(self.chance.up_to(latency)).await;
        if departed && !self.is_cut(from, to) {
            return true;
        }
        sleep(LOST).await;
        false
    }

    fn repeats(&self) -> bool {
        let repeated = self.state.lock().weather.repeated;
        self.chance.per_mille(repeated)
    }
}

/// A client of the API on a machine, with the rights of its node.
pub fn node_client(simulation: &Arc<Simulation>, machine: usize) -> Client {
    let user = Arc::new(User::node(&simulation.machines[machine].name));
    let (simulation, server) = (Arc::downgrade(simulation), Arc::new(AtomicUsize::new(machine)));
    let service = service_fn(move |request: Request<Body>| {
        let (simulation, user, server) = (simulation.clone(), user.clone(), server.clone());
        async move {
            let simulation = simulation.upgrade().ok_or_else(|| io::Error::other("the simulation is over"))?;
            let used = server.load(Relaxed);
            let chosen = used % simulation.servers.lock().len();
            let mut attempt = Attempt { server, used, is_answered: false };
            let answer = call(&simulation, Host::Machine(machine), chosen, user, request).await;
            attempt.is_answered = answer.is_ok();
            answer
        }
    });
    Client::new(service, "default")
}

/// A request to a server. If it fails, or whoever sent it gives up, the next one goes to another server; of several that fail
/// together at one server, only the first changes that.
struct Attempt {
    server: Arc<AtomicUsize>,
    used: usize,
    is_answered: bool,
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if !self.is_answered {
            let _ = self.server.compare_exchange(self.used, self.used + 1, Relaxed, Relaxed);
        }
    }
}

/// A request under way, which may end with whoever waits for it.
struct AbortOnDrop<T>(JoinHandle<T>, bool);

impl<T> Future for AbortOnDrop<T> {
    type Output = Result<T, JoinError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context)
    }
}

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        if self.1 {
            self.0.abort();
        }
    }
}

async fn call(
    simulation: &Arc<Simulation>,
    from: Host,
    server: usize,
    user: Arc<User>,
    request: Request<Body>,
) -> Result<Response<AnswerBody>, io::Error> {
    let to = Host::Server(server);
    let (parts, body) = request.into_parts();
    let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
    if !simulation.network.deliver(from, to).await {
        return Err(io::Error::new(io::ErrorKind::TimedOut, "the request was lost"));
    }
    let is_watch = parts.uri.query().is_some_and(|query| query.contains("watch=true"));
    let is_write = matches!(parts.method, Method::POST | Method::PUT | Method::PATCH);
    let is_heartbeat = parts.method == Method::PATCH && parts.uri.path().contains("/leases/");
    let repeated = !is_watch && !is_heartbeat && simulation.network.repeats();
    let execute = |delay: Duration| {
        let (simulation, user) = (simulation.clone(), user.clone());
        let request = Request::from_parts(parts.clone(), Body::from(body.clone()));
        tokio::spawn(async move {
            sleep(delay).await;
            let process = simulation.server(server);
            let process = process.ok_or_else(|| io::Error::from(io::ErrorKind::ConnectionRefused))?;
            store::wait_thawed(process.link.subscribe()).await;
            let (reply, answer) = oneshot::channel();
            OnServer::new(server, async move {
                let _ = reply.send(process.handler.clone().handle(request, Caller::Internal(user)).await);
            })
            .await;
            answer.await.map_err(io::Error::other)
        })
    };
    // A heartbeat that its sender has given up is not accepted later: docs/node-loss.md assumes that.
    let executed = AbortOnDrop(execute(Duration::ZERO), is_heartbeat);
    if repeated {
        execute(simulation.chance.up_to(Duration::from_secs(2)));
    }
    let answer = executed.await.map_err(io::Error::other)??;
    if !simulation.network.deliver(to, from).await {
        return Err(io::Error::new(io::ErrorKind::TimedOut, "the answer was lost"));
    }
    let (head, body) = answer.into_parts();
    if !is_watch {
        let bytes = body.collect().await.map_err(|error| io::Error::other(error.to_string()))?.to_bytes();
        if is_write && head.status.is_success() {
            check_acknowledged(simulation, &bytes);
        }
        let whole = Full::new(bytes).map_err(|never| match never {}).boxed_unsync();
        return Ok(Response::from_parts(head, whole));
    }
    let simulation = Arc::downgrade(simulation);
    let chunks = body.into_data_stream().then(move |chunk| {
        let simulation = simulation.clone();
        async move {
            let simulation = simulation.upgrade().ok_or_else(|| io::Error::other("the simulation is over"))?;
            if !simulation.network.deliver(to, from).await || simulation.server(server).is_none() {
                return Err(io::Error::from(io::ErrorKind::ConnectionReset));
            }
            chunk.map_err(|error| io::Error::other(error.to_string()))
        }
    });
    let frames = chunks.map(|chunk: Result<Bytes, io::Error>| chunk.map(http_body::Frame::data));
    Ok(Response::from_parts(head, StreamBody::new(frames).boxed_unsync()))
}

/// An answer that names the version of an object is a promise that the store has it.
fn check_acknowledged(simulation: &Simulation, answer: &[u8]) {
    #[derive(Deserialize)]
    struct Answer {
        metadata: Option<Metadata>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Metadata {
        name: Option<String>,
        resource_version: Option<String>,
    }
    let Ok(Answer { metadata: Some(metadata) }) = serde_json::from_slice(answer) else { return };
    if let (Some(name), Some(Ok(version))) = (metadata.name, metadata.resource_version.map(|version| version.parse())) {
        simulation.view.lock().check_acknowledged(&name, version);
    }
}
