//! `/portForward`: connections of a client to ports of a pod.
//!
//! Over SPDY, any number of them: a pair of streams each, one for data and one for errors, that name the port and belong
//! together by a number. The same may come inside a WebSocket. Or, in the old way, a WebSocket that names its ports when
//! it begins and has a pair of channels for each.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};
use http::{Request, header};
use hyper::body::Incoming;
use mainstay_runtime::session::Tunnel;
use mainstay_spdy::server as spdy;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::mpsc,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    channels::{self, Socket},
    remote::Sink,
    response::{HandlerResult, RequestError},
    server::Parts,
    upgrade::{self, Io, PendingUpgrade, RequestedUpgrade},
};

const PROTOCOL: &str = "portforward.k8s.io";
const TUNNELLED: &str = "SPDY/3.1+portforward.k8s.io";
/// How long the second stream of a pair may be awaited.
const PAIR: Duration = Duration::from_secs(30);
const MOST_HALVES: usize = 256;
const PIECE: usize = 32 * 1024;

/// The pod whose ports are meant.
#[derive(Clone)]
struct ForwardTarget {
    parts: Arc<Parts>,
    namespace: String,
    pod: String,
}

impl ForwardTarget {
    async fn connect(&self, port: u16) -> Result<Tunnel, String> {
        let found = self.parts.find(&self.namespace, &self.pod).await.map_err(|e| e.text)?;
        let sandbox = found.sandbox().map_err(|e| e.text)?;
        let uid = &found.uid;
        self.parts.runtime.connect(sandbox, port).await.map_err(|error| {
            format!("error forwarding port {port} to pod {}_{}, uid {uid}: {error}", self.pod, self.namespace)
        })
    }
}

pub async fn serve_port_forward(
    mut request: Request<Incoming>,
    parts: &Arc<Parts>,
    namespace: &str,
    pod: &str,
    stop: CancellationToken,
) -> HandlerResult {
    let headers = request.headers();
    parts.find(namespace, pod).await?.sandbox()?;
    let target = ForwardTarget { parts: parts.clone(), namespace: namespace.into(), pod: pod.into() };
    let offered = upgrade::list(headers, header::SEC_WEBSOCKET_PROTOCOL.as_str());
    let (response, work): (_, futures::future::BoxFuture<'static, ()>) = match upgrade::requested_upgrade(headers) {
        Some(RequestedUpgrade::WebSocket) if offered.contains(&TUNNELLED) => {
            let response = upgrade::to_websocket(headers, Some(TUNNELLED))?;
            let pending = PendingUpgrade::new(&mut request);
            (response, Box::pin(with(pending, async |io| over_spdy(channels::tunnel(io).await, target).await)))
        }
        Some(RequestedUpgrade::WebSocket) => {
            let ports = ports(request.uri().query().unwrap_or_default())?;
            let protocol = match offered[..] {
                [PROTOCOL] => channels::Protocol { name: PROTOCOL, ..channels::PROTOCOLS[0] },
                _ => channels::choose(headers)?,
            };
            let name = Some(protocol.name).filter(|name| !name.is_empty());
            let response = upgrade::to_websocket(headers, name)?;
            let pending = PendingUpgrade::new(&mut request);
            (response, Box::pin(with(pending, async move |io| over_channels(io, protocol, &ports, target).await)))
        }
        Some(RequestedUpgrade::Spdy) => {
            let response = upgrade::to_spdy(upgrade::spdy_protocol(headers, &[PROTOCOL])?);
            let pending = PendingUpgrade::new(&mut request);
            (response, Box::pin(with(pending, async |io| over_spdy(io, target).await)))
        }
        Some(RequestedUpgrade::Tunnel) | None => return Err(upgrade::no_upgrade_requested()),
    };
    tokio::spawn(async move { stop.run_until_cancelled(work).await });
    Ok(response)
}

async fn with<F: Future<Output = ()>>(pending: PendingUpgrade, work: impl FnOnce(Io) -> F) {
    if let Some(io) = pending.io().await {
        work(io).await;
    }
}

/// The ports an old client names in its query.
fn ports(query: &str) -> Result<Vec<u16>, RequestError> {
    let values = form_urlencoded::parse(query.as_bytes()).filter(|(name, _)| name == "port" || name == "ports");
    let ports: Vec<String> = values.flat_map(|(_, v)| v.split(',').map(str::to_owned).collect::<Vec<_>>()).collect();
    if ports.is_empty() {
        return Err(RequestError::bad_request("query parameter \"port\" is required"));
    }
    let port = |text: &String| text.trim().parse().ok().filter(|port| *port > 0);
    let bad = |text: &String| RequestError::bad_request(format!("unable to parse {text:?} as a port"));
    ports.iter().map(|text| port(text).ok_or_else(|| bad(text))).collect()
}

/// A stream whose partner is still to come.
struct Half {
    stream: spdy::Stream,
    since: Instant,
}

async fn over_spdy<S>(io: S, target: ForwardTarget)
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + 'static,
{
    let mut connection = spdy::Connection::start(io);
    let gone = connection.closed();
    let mut halves: HashMap<(String, bool), Half> = HashMap::new();
    let forwards = TaskTracker::new();
    while let Some(stream) = connection.accept().await {
        halves.retain(|_, half| half.since.elapsed() < PAIR);
        let Some((number, is_data, port)) = described(&stream) else {
            stream.writer.reset().await;
            continue;
        };
        let Some(other) = halves.remove(&(number.clone(), !is_data)) else {
            if halves.len() < MOST_HALVES {
                halves.insert((number, is_data), Half { stream, since: Instant::now() });
            } else {
                stream.writer.reset().await;
            }
            continue;
        };
        let (data, error) = if is_data { (stream, other.stream) } else { (other.stream, stream) };
        let (target, gone) = (target.clone(), gone.clone());
        forwards.spawn(async move {
            gone.run_until_cancelled(forward_streams(target, port, data, error)).await;
        });
    }
    forwards.close();
    forwards.wait().await;
}

/// The number of the pair, whether it is the data half, and the port.
fn described(stream: &spdy::Stream) -> Option<(String, bool, u16)> {
    let is_data = match stream.headers.get("streamtype")? {
        "data" => true,
        "error" => false,
        _ => return None,
    };
    let port = stream.headers.get("port")?.parse().ok().filter(|port| *port > 0)?;
    // The oldest clients give no number: the data stream follows its error stream.
    let implied = || if is_data { stream.id.saturating_sub(2) } else { stream.id }.to_string();
    let number = stream.headers.get("requestid").map_or_else(implied, str::to_owned);
    Some((number, is_data, port))
}

async fn forward_streams(target: ForwardTarget, port: u16, data: spdy::Stream, error: spdy::Stream) {
    let over = data.writer.over();
    let sink = Sink::Spdy(data.writer);
    match target.connect(port).await {
        Ok(tunnel) => {
            tokio::select! {
                () = copy(tunnel, data.incoming, &sink) => {}
                () = over.cancelled() => {}
            }
        }
        Err(why) => {
            tracing::debug!(port, why, "cannot forward");
            let _ = error.writer.send(why.into()).await;
        }
    }
    let _ = sink.finish().await;
    let _ = error.writer.finish().await;
}

/// Both ways, each until its own end.
async fn copy(tunnel: Tunnel, mut incoming: mpsc::Receiver<Bytes>, to: &Sink) {
    let (mut from_pod, mut to_pod) = tokio::io::split(tunnel);
    let inward = async {
        while let Some(bytes) = incoming.recv().await {
            if to_pod.write_all(&bytes).await.is_err() || to_pod.flush().await.is_err() {
                return;
            }
        }
        let _ = to_pod.shutdown().await;
    };
    let outward = async {
        let mut buffer = BytesMut::new();
        loop {
            buffer.reserve(PIECE);
            match from_pod.read_buf(&mut buffer).await {
                Ok(0) | Err(_) => break,
                Ok(_) => {}
            }
            if to.send(buffer.split().freeze()).await.is_err() {
                break;
            }
        }
        let _ = to.finish().await;
    };
    // Once the pod has hung up, what the client still sends has nowhere to go.
    tokio::pin!(inward, outward);
    tokio::select! {
        () = &mut outward => {}
        () = &mut inward => outward.await,
    }
}

async fn over_channels(io: Io, protocol: channels::Protocol, ports: &[u16], target: ForwardTarget) {
    let mut incoming = HashMap::new();
    let mut receivers = Vec::new();
    for index in 0..ports.len().min(120) {
        let (to, from) = mpsc::channel(32);
        incoming.insert(2 * index as u8, to);
        receivers.push(from);
    }
    let socket = Socket::start(io, protocol, incoming).await;
    let gone = socket.closed();
    let forwards = TaskTracker::new();
    for (index, (port, from)) in ports.iter().copied().zip(receivers).enumerate() {
        let data = Sink::Channel(socket.writer(2 * index as u8));
        let error = Sink::Channel(socket.writer(2 * index as u8 + 1));
        let (target, gone) = (target.clone(), gone.clone());
        let forward = async move {
            // Each channel says first which port it is for.
            for sink in [&data, &error] {
                let _ = sink.send(Bytes::copy_from_slice(&port.to_le_bytes())).await;
            }
            match target.connect(port).await {
                Ok(tunnel) => copy(tunnel, from, &data).await,
                Err(why) => {
                    let _ = error.send(why.into()).await;
                }
            }
        };
        forwards.spawn(async move { gone.run_until_cancelled(forward).await });
    }
    forwards.close();
    forwards.wait().await;
    socket.close().await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_named_one_by_one_or_in_a_list() {
        assert_eq!(ports("port=80&port=81").unwrap(), [80, 81]);
        assert_eq!(ports("ports=80,81").unwrap(), [80, 81]);
        assert!(ports("").is_err());
        assert!(ports("port=0").is_err());
        assert!(ports("port=70000").is_err());
    }
}
