//! `/exec` and `/attach`: a client's terminal or pipes, connected to a process.

use std::{collections::HashMap, sync::Arc, time::Duration};

use http::{HeaderMap, Request};
use hyper::body::Incoming;
use mainstay_runtime::{
    ContainerId, Runtime, RuntimeError,
    session::{Attach, Exec, Session},
};
use mainstay_spdy::server as spdy;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{
    channels::{self, ERROR, RESIZE, STDERR, STDIN, STDOUT, Socket},
    remote::{self, ExecOutcome, Remote, Sink},
    response::{HandlerResult, RequestError, Response},
    server::Parts,
    upgrade::{self, Io, PendingUpgrade, RequestedUpgrade},
};

/// How long a client may take to open its streams.
const STREAMS: Duration = Duration::from_secs(30);
const QUEUE: usize = 32;

/// By preference of the client; the last is what one means that names none.
const SPDY: [&str; 4] = ["v4.channel.k8s.io", "v3.channel.k8s.io", "v2.channel.k8s.io", "channel.k8s.io"];

/// Which streams a client wants, and what for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Streams {
    pub stdin: bool,
    pub stdout: bool,
    pub stderr: bool,
    pub tty: bool,
    pub command: Vec<String>,
}

impl Streams {
    /// From a query as kubelets take it.
    pub fn parse(query: &str) -> Result<Self, RequestError> {
        let mut streams = Self::default();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            let on = matches!(&*value, "1" | "true");
            match &*name {
                "input" | "stdin" => streams.stdin = on,
                "output" | "stdout" => streams.stdout = on,
                "error" | "stderr" => streams.stderr = on,
                "tty" => streams.tty = on,
                "command" => streams.command.push(value.into_owned()),
                _ => {}
            }
        }
        streams.stderr &= !streams.tty; // a terminal has but one output
        if !(streams.stdin || streams.stdout || streams.stderr) {
            return Err(RequestError::bad_request("you must specify at least 1 of stdin, stdout, stderr"));
        }
        Ok(streams)
    }
}

pub async fn exec(
    request: Request<Incoming>,
    parts: &Arc<Parts>,
    namespace: &str,
    pod: &str,
    container: &str,
    stop: CancellationToken,
) -> HandlerResult {
    let streams = Streams::parse(request.uri().query().unwrap_or_default())?;
    if streams.command.is_empty() {
        return Err(RequestError::bad_request("you must specify at least 1 command for the exec"));
    }
    let id = parts.find(namespace, pod).await?.running(container)?.id.clone();
    let work = Work::Exec(Exec {
        command: streams.command.clone(),
        tty: streams.tty,
        stdin: streams.stdin,
        stdout: streams.stdout,
        stderr: streams.stderr,
    });
    start(request, parts.runtime.clone(), id, streams, work, stop)
}

pub async fn attach(
    request: Request<Incoming>,
    parts: &Arc<Parts>,
    namespace: &str,
    pod: &str,
    container: &str,
    stop: CancellationToken,
) -> HandlerResult {
    let mut streams = Streams::parse(request.uri().query().unwrap_or_default())?;
    let found = parts.find(namespace, pod).await?;
    let id = found.running(container)?.id.clone();
    // Whether there is a terminal is the container's to say, and not the client's.
    let tty = found.has_terminal(container);
    streams.stderr &= !tty;
    let work = Work::Attach(Attach { tty, stdin: streams.stdin, stdout: streams.stdout, stderr: streams.stderr });
    start(request, parts.runtime.clone(), id, streams, work, stop)
}

enum Work {
    Exec(Exec),
    Attach(Attach),
}

impl Work {
    async fn open(&self, runtime: &dyn Runtime, id: &ContainerId) -> Result<Session, RuntimeError> {
        match self {
            Self::Exec(exec) => runtime.open_exec(id, exec).await,
            Self::Attach(attach) => runtime.attach(id, attach).await,
        }
    }

    fn ended(&self, exit: Result<i32, RuntimeError>) -> ExecOutcome {
        match (self, exit) {
            // Who attached saw the output; how the container ended is the pod's status.
            (Self::Attach(_), Ok(_)) | (Self::Exec(_), Ok(0)) => ExecOutcome::Succeeded,
            (Self::Exec(_), Ok(code)) => ExecOutcome::Exited(code),
            (Self::Exec(_), Err(error)) => {
                ExecOutcome::Failed(format!("error executing command in container: {error}"))
            }
            (Self::Attach(_), Err(error)) => ExecOutcome::Failed(format!("error attaching to container: {error}")),
        }
    }
}

/// What was protocol_choice on.
#[derive(Clone, Copy)]
enum NegotiatedProtocol {
    Channels(channels::Protocol),
    Spdy(&'static str),
}

fn agree(headers: &HeaderMap) -> Result<(NegotiatedProtocol, Response), RequestError> {
    match upgrade::requested_upgrade(headers) {
        Some(RequestedUpgrade::WebSocket) => {
            let protocol = channels::choose(headers)?;
            let name = Some(protocol.name).filter(|name| !name.is_empty());
            Ok((NegotiatedProtocol::Channels(protocol), upgrade::to_websocket(headers, name)?))
        }
        Some(RequestedUpgrade::Spdy) => {
            let protocol = upgrade::spdy_protocol(headers, &SPDY)?;
            Ok((NegotiatedProtocol::Spdy(protocol), upgrade::to_spdy(protocol)))
        }
        Some(RequestedUpgrade::Tunnel) | None => Err(upgrade::no_upgrade_requested()),
    }
}

fn start(
    mut request: Request<Incoming>,
    runtime: Arc<dyn Runtime>,
    id: ContainerId,
    streams: Streams,
    work: Work,
    stop: CancellationToken,
) -> HandlerResult {
    let (protocol_choice, response) = agree(request.headers())?;
    let pending = PendingUpgrade::new(&mut request);
    let session = async move {
        let Some(io) = pending.io().await else { return };
        let Some((mut remote, line)) = connect(io, protocol_choice, &streams).await else { return };
        let exit = match work.open(&*runtime, &id).await {
            Ok(session) => remote.connect(session).await,
            Err(error) => Some(Err(error)),
        };
        if let Some(exit) = exit {
            remote.finish(&work.ended(exit)).await;
            line.close().await;
        }
    };
    tokio::spawn(async move { stop.run_until_cancelled(session).await });
    Ok(response)
}

/// What must be closed in the end.
enum ExecConnection {
    Spdy(spdy::Connection),
    Channels(Socket),
}

impl ExecConnection {
    async fn close(self) {
        match self {
            Self::Spdy(connection) => connection.close().await,
            Self::Channels(socket) => socket.close().await,
        }
    }
}

async fn connect(io: Io, protocol_choice: NegotiatedProtocol, streams: &Streams) -> Option<(Remote, ExecConnection)> {
    match protocol_choice {
        NegotiatedProtocol::Channels(protocol) => {
            let (remote, socket) = over_channels(io, protocol, streams).await;
            Some((remote, ExecConnection::Channels(socket)))
        }
        NegotiatedProtocol::Spdy(protocol) => {
            let mut connection = spdy::Connection::start(io);
            match tokio::time::timeout(STREAMS, over_spdy(&mut connection, protocol, streams)).await {
                Ok(Some(remote)) => Some((remote, ExecConnection::Spdy(connection))),
                Ok(None) | Err(_) => {
                    tracing::debug!("a client did not open the streams it asked for");
                    None
                }
            }
        }
    }
}

async fn over_channels(io: Io, protocol: channels::Protocol, streams: &Streams) -> (Remote, Socket) {
    let mut incoming = HashMap::new();
    let mut receive = |channel: u8, wanted: bool| {
        let (to, from) = mpsc::channel(QUEUE);
        incoming.insert(channel, to);
        wanted.then_some(from)
    };
    let (stdin, resize) = (receive(STDIN, streams.stdin), receive(RESIZE, streams.tty));
    let socket = Socket::start(io, protocol, incoming).await;
    let sink = |channel: u8, wanted: bool| wanted.then(|| Sink::Channel(socket.writer(channel)));
    let remote = Remote {
        stdin,
        stdout: sink(STDOUT, streams.stdout),
        stderr: sink(STDERR, streams.stderr),
        error: Sink::Channel(socket.writer(ERROR)),
        statuses: protocol.statuses,
        sizes: resize.map(remote::sizes),
        gone: socket.closed(),
    };
    // An empty message tells clients that wait for one that they are connected.
    let lowest = remote.stdout.as_ref().or(remote.stderr.as_ref()).unwrap_or(&remote.error);
    let _ = lowest.send(bytes::Bytes::new()).await;
    (remote, socket)
}

async fn over_spdy(connection: &mut spdy::Connection, protocol: &str, streams: &Streams) -> Option<Remote> {
    let resizes = streams.tty && matches!(protocol, "v3.channel.k8s.io" | "v4.channel.k8s.io");
    let expected = [
        ("error", true),
        ("stdin", streams.stdin),
        ("stdout", streams.stdout),
        ("stderr", streams.stderr),
        ("resize", resizes),
    ];
    let mut missing: Vec<&str> = expected.iter().filter(|(_, wanted)| *wanted).map(|(kind, _)| *kind).collect();
    let mut opened = HashMap::new();
    while !missing.is_empty() {
        let stream = connection.accept().await?;
        let kind = stream.headers.get("streamtype").unwrap_or_default().to_owned();
        match missing.iter().position(|m| *m == kind) {
            Some(index) => {
                missing.swap_remove(index);
                opened.insert(kind, stream);
            }
            None => stream.writer.reset().await,
        }
    }
    let mut take = |kind: &str| opened.remove(kind);
    let error = Sink::Spdy(take("error")?.writer);
    Some(Remote {
        stdin: take("stdin").map(|stream| stream.incoming),
        stdout: take("stdout").map(|stream| Sink::Spdy(stream.writer)),
        stderr: take("stderr").map(|stream| Sink::Spdy(stream.writer)),
        error,
        statuses: protocol == "v4.channel.k8s.io",
        sizes: take("resize").map(|stream| remote::sizes(stream.incoming)),
        gone: connection.closed(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_names_streams_and_command() {
        let streams =
            Streams::parse("input=1&output=1&error=1&tty=1&command=sh&command=-c&command=echo%20a%2Bb").unwrap();
        assert!(streams.stdin && streams.stdout && streams.tty && !streams.stderr);
        assert_eq!(streams.command, ["sh", "-c", "echo a+b"]);
        assert_eq!(Streams::parse("command=ls").unwrap_err().code, http::StatusCode::BAD_REQUEST);
    }
}
