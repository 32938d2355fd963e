//! Several streams in one WebSocket: each message begins with the number of its channel.
//!
//! As bytes, or in base64 with the number as a digit, for clients that can only send text. From version 5 on, a message
//! on channel 255 says that the channel it names has ended.

use std::{collections::HashMap, time::Duration};

use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use http::{HeaderMap, header};
use mainstay_spdy::server::Closed;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream},
    sync::mpsc,
};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        Message,
        protocol::{CloseFrame, Role, frame::coding::CloseCode},
    },
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use super::{response::RequestError, upgrade};

pub const STDIN: u8 = 0;
pub const STDOUT: u8 = 1;
pub const STDERR: u8 = 2;
pub const ERROR: u8 = 3;
pub const RESIZE: u8 = 4;
const CLOSE: u8 = 255;

const QUEUE: usize = 32;
/// How long a client may take to hang up after we sent our close.
const FAREWELL: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Binary,
    Base64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protocol {
    pub name: &'static str,
    pub form: Form,
    /// Whether errors are sent as a `Status`.
    pub statuses: bool,
    /// Whether clients say that a channel has ended.
    pub closes: bool,
}

const fn protocol(name: &'static str, form: Form, statuses: bool, closes: bool) -> Protocol {
    Protocol { name, form, statuses, closes }
}

/// Those of a client that names none come first.
pub const PROTOCOLS: [Protocol; 6] = [
    protocol("", Form::Binary, false, false),
    protocol("channel.k8s.io", Form::Binary, false, false),
    protocol("base64.channel.k8s.io", Form::Base64, false, false),
    protocol("v4.channel.k8s.io", Form::Binary, true, false),
    protocol("v4.base64.channel.k8s.io", Form::Base64, true, false),
    protocol("v5.channel.k8s.io", Form::Binary, true, true),
];

/// The first of the client's protocols that we speak.
pub fn choose(headers: &HeaderMap) -> Result<Protocol, RequestError> {
    let wanted = upgrade::list(headers, header::SEC_WEBSOCKET_PROTOCOL.as_str());
    if wanted.is_empty() {
        return Ok(PROTOCOLS[0]);
    }
    let known = |name: &&str| PROTOCOLS.iter().find(|p| p.name == *name).copied();
    wanted.iter().find_map(known).ok_or_else(|| {
        let ours: Vec<_> = PROTOCOLS.iter().map(|p| p.name).filter(|name| !name.is_empty()).collect();
        RequestError::bad_request(format!("requested protocol(s) are not supported: {wanted:?}; supports {ours:?}"))
    })
}

impl Form {
    fn encode(self, channel: u8, bytes: &[u8]) -> Message {
        match self {
            Self::Binary => {
                let mut message = Vec::with_capacity(bytes.len() + 1);
                message.push(channel);
                message.extend_from_slice(bytes);
                Message::Binary(message.into())
            }
            Self::Base64 => {
                let mut message = char::from(b'0' + channel).to_string();
                BASE64_STANDARD.encode_string(bytes, &mut message);
                Message::Text(message.into())
            }
        }
    }

    fn decode(self, message: Bytes) -> Option<(u8, Bytes)> {
        let first = *message.first()?;
        match self {
            Self::Binary => Some((first, message.slice(1..))),
            Self::Base64 => {
                let channel = first.checked_sub(b'0').filter(|digit| *digit < 10)?;
                Some((channel, BASE64_STANDARD.decode(&message[1..]).ok()?.into()))
            }
        }
    }
}

/// Our end of the WebSocket. Dropping it cuts the connection.
pub struct Socket {
    out: mpsc::Sender<Message>,
    form: Form,
    gone: CancellationToken,
    _reader: AbortOnDropHandle<()>,
    _writer: AbortOnDropHandle<()>,
}

#[derive(Clone)]
pub struct Writer {
    channel: u8,
    form: Form,
    out: mpsc::Sender<Message>,
    gone: CancellationToken,
}

impl Socket {
    /// What comes on a channel goes where `incoming` says, or nowhere.
    pub async fn start<S>(io: S, protocol: Protocol, mut incoming: HashMap<u8, mpsc::Sender<Bytes>>) -> Self
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let socket = WebSocketStream::from_raw_socket(io, Role::Server, None).await;
        let (mut to, mut from) = socket.split();
        let (out, mut messages) = mpsc::channel(QUEUE);
        let gone = CancellationToken::new();
        let ended = gone.clone().drop_guard();
        let reader = tokio::spawn(async move {
            let _ended = ended;
            while let Some(Ok(message)) = from.next().await {
                let bytes = match message {
                    Message::Binary(bytes) => bytes,
                    Message::Text(text) => Bytes::from(text),
                    Message::Close(_) => return,
                    Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => continue,
                };
                let Some((channel, bytes)) = protocol.form.decode(bytes) else { continue };
                if protocol.closes && channel == CLOSE {
                    bytes.first().and_then(|ended| incoming.remove(ended));
                } else if let Some(to) = incoming.get(&channel).filter(|_| !bytes.is_empty()) {
                    let _ = to.send(bytes).await;
                }
            }
        });
        let failed = gone.clone();
        let writer = tokio::spawn(async move {
            while let Some(message) = messages.recv().await {
                if to.send(message).await.is_err() {
                    return failed.cancel();
                }
            }
        });
        let (reader, writer) = (AbortOnDropHandle::new(reader), AbortOnDropHandle::new(writer));
        Self { out, form: protocol.form, gone, _reader: reader, _writer: writer }
    }

    pub fn writer(&self, channel: u8) -> Writer {
        Writer { channel, form: self.form, out: self.out.clone(), gone: self.gone.clone() }
    }

    pub fn closed(&self) -> CancellationToken {
        self.gone.clone()
    }

    /// Delivers everything written so far, says goodbye, and waits for the client to do the same.
    pub async fn close(self) {
        let goodbye = Message::Close(Some(CloseFrame { code: CloseCode::Normal, reason: "".into() }));
        let _ = self.out.send(goodbye).await;
        let _ = tokio::time::timeout(FAREWELL, self.gone.cancelled()).await;
    }
}

impl Writer {
    pub async fn send(&self, bytes: Bytes) -> Result<(), Closed> {
        let message = self.form.encode(self.channel, &bytes);
        tokio::select! {
            biased;
            () = self.gone.cancelled() => Err(Closed),
            sent = self.out.send(message) => sent.map_err(|_| Closed),
        }
    }
}

/// A connection within a WebSocket: bytes in messages of any length.
pub async fn tunnel<S>(io: S) -> DuplexStream
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let socket = WebSocketStream::from_raw_socket(io, Role::Server, None).await;
    let (mut to, mut from) = socket.split();
    let (ours, theirs) = tokio::io::duplex(128 * 1024);
    let (mut read, mut write) = tokio::io::split(ours);
    tokio::spawn(async move {
        let incoming = async {
            while let Some(Ok(message)) = from.next().await {
                let bytes = match message {
                    Message::Binary(bytes) => bytes,
                    Message::Text(text) => Bytes::from(text),
                    Message::Close(_) => break,
                    Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => continue,
                };
                if write.write_all(&bytes).await.is_err() {
                    break;
                }
            }
            let _ = write.shutdown().await;
        };
        let outgoing = async {
            let mut buffer = vec![0; 32 * 1024];
            while let Ok(read @ 1..) = read.read(&mut buffer).await {
                if to.send(Message::Binary(Bytes::copy_from_slice(&buffer[..read]))).await.is_err() {
                    return;
                }
            }
            let _ = to.close().await;
        };
        tokio::join!(incoming, outgoing);
    });
    theirs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_carry_their_channel_in_both_forms() {
        assert_eq!(Form::Binary.encode(STDOUT, b"hi"), Message::Binary(Bytes::from_static(b"\x01hi")));
        assert_eq!(Form::Base64.encode(STDOUT, b"hi"), Message::Text("1aGk=".into()));
        assert_eq!(Form::Base64.decode("0aGk=".into()), Some((STDIN, "hi".into())));
        assert_eq!(Form::Binary.decode(Bytes::from_static(b"\x04{}")), Some((RESIZE, "{}".into())));
        assert_eq!(Form::Base64.decode("xaGk=".into()), None);
        assert_eq!(Form::Binary.decode(Bytes::new()), None);
    }

    #[test]
    fn the_first_protocol_both_know_is_spoken() {
        let asked = |text: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::SEC_WEBSOCKET_PROTOCOL, http::HeaderValue::from_static(text));
            choose(&headers)
        };
        assert_eq!(asked("v9.channel.k8s.io, v4.channel.k8s.io").unwrap().name, "v4.channel.k8s.io");
        assert!(asked("v5.channel.k8s.io").unwrap().closes);
        assert!(asked("chat").is_err());
        assert_eq!(choose(&HeaderMap::new()).unwrap().name, "");
    }

    #[tokio::test]
    async fn a_channel_ends_when_the_client_says_so() {
        let (ours, theirs) = tokio::io::duplex(4096);
        let (stdin, mut input) = mpsc::channel(4);
        let v5 = PROTOCOLS[5];
        let socket = Socket::start(ours, v5, HashMap::from([(STDIN, stdin)])).await;
        let mut client = WebSocketStream::from_raw_socket(theirs, Role::Client, None).await;
        client.send(Message::Binary(Bytes::from_static(b"\x00in"))).await.unwrap();
        client.send(Message::Binary(Bytes::from_static(b"\xff\x00"))).await.unwrap();
        assert_eq!(input.recv().await, Some("in".into()));
        assert_eq!(input.recv().await, None);
        socket.writer(STDOUT).send("out".into()).await.unwrap();
        assert_eq!(client.next().await.unwrap().unwrap(), Message::Binary(Bytes::from_static(b"\x01out")));
        let closing = tokio::spawn(socket.close());
        assert!(matches!(client.next().await.unwrap().unwrap(), Message::Close(Some(_))));
        while client.next().await.is_some() {}
        closing.await.unwrap();
    }
}
