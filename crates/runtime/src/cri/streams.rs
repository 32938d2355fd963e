//! A connection to the runtime's streaming server: SPDY/3.1, as the client that opens the streams.
//!
//! WebSocket would be simpler, but in the version that runtimes serve standard input cannot be ended by
//! it without ending everything. Flow-control windows are neither kept nor announced, as the servers' library does not
//! know them: what holds a sender up is the connection itself.

use std::{collections::HashMap, io, time::Duration};

use bytes::{Bytes, BytesMut};
use http::Uri;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf},
    net::TcpStream,
    sync::mpsc,
};
use tokio_util::sync::CancellationToken;

use crate::spdy::{
    Headers,
    frame::{Decoder, Encoder, Frame},
};

const PATIENCE: Duration = Duration::from_secs(30);
/// Of what waits to be read or written.
const PIPE: usize = 64 << 10;
const QUEUE: usize = 16;
/// The answer to the upgrade.
const LONGEST_HEAD: usize = 16 << 10;

pub struct Connection {
    out: mpsc::Sender<Frame>,
    /// Where the content of each stream goes.
    sinks: Vec<(u32, DuplexStream)>,
    from: ReadHalf<TcpStream>,
    input: BytesMut,
    next: u32,
    over: CancellationToken,
}

/// Our end of a stream.
#[derive(Clone)]
pub struct Writer {
    id: u32,
    out: mpsc::Sender<Frame>,
}

impl Connection {
    /// Everything ends when `over` is cancelled, and it is when the connection ends.
    pub async fn open(url: &str, over: CancellationToken) -> io::Result<Self> {
        let (stream, input) = tokio::time::timeout(PATIENCE, upgrade(url)).await??;
        let (from, to) = tokio::io::split(stream);
        let (out, frames) = mpsc::channel(QUEUE);
        let ended = over.clone();
        tokio::spawn(async move {
            let written = ended.run_until_cancelled(write(to, frames)).await;
            if !matches!(written, Some(Ok(()))) {
                ended.cancel();
            }
        });
        Ok(Self { out, sinks: Vec::new(), from, input, next: 1, over })
    }

    /// Opens a stream; what comes on it can be read from the second.
    pub async fn stream(&mut self, kind: &str) -> io::Result<(Writer, DuplexStream)> {
        let (ours, theirs) = tokio::io::duplex(PIPE);
        let writer = Writer { id: self.next, out: self.out.clone() };
        self.next += 2;
        self.sinks.push((writer.id, ours));
        let mut headers = Headers::default();
        headers.insert("streamtype", kind);
        writer.put(Frame::SynStream { id: writer.id, fin: false, unidirectional: false, headers }).await?;
        Ok((writer, theirs))
    }

    /// All streams are open: content flows from now on.
    pub fn run(self) {
        let Self { out, sinks, from, input, over, .. } = self;
        tokio::spawn(async move {
            let reader = Reader { out, sinks: sinks.into_iter().collect() };
            over.run_until_cancelled(reader.run(from, input)).await;
            over.cancel();
        });
    }
}

impl Writer {
    pub async fn send(&self, bytes: Bytes) -> io::Result<()> {
        self.put(Frame::Data { id: self.id, fin: false, bytes }).await
    }

    pub async fn finish(&self) -> io::Result<()> {
        self.put(Frame::Data { id: self.id, fin: true, bytes: Bytes::new() }).await
    }

    async fn put(&self, frame: Frame) -> io::Result<()> {
        self.out.send(frame).await.map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

/// What comes after the head belongs to the streams.
async fn upgrade(url: &str) -> io::Result<(TcpStream, BytesMut)> {
    let uri: Uri = url.parse().map_err(io::Error::other)?;
    let (Some("http"), Some(authority), Some(path)) = (uri.scheme_str(), uri.authority(), uri.path_and_query()) else {
        return Err(io::Error::other(format!("the runtime streams at {url}, which cannot be reached from here")));
    };
    let host = authority.host().trim_matches(['[', ']']);
    let mut stream = TcpStream::connect((host, authority.port_u16().unwrap_or(80))).await?;
    stream.set_nodelay(true)?;
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: {authority}\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\
         X-Stream-Protocol-Version: v4.channel.k8s.io\r\nContent-Length: 0\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await?;
    let mut input = BytesMut::with_capacity(4096);
    loop {
        if let Some(end) = input.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = input.split_to(end + 4);
            let first = String::from_utf8_lossy(&head).lines().next().unwrap_or_default().to_owned();
            return match first.split(' ').nth(1) {
                Some("101") => Ok((stream, input)),
                _ => Err(io::Error::other(format!("the runtime's streaming server answers {first:?}"))),
            };
        }
        if input.len() > LONGEST_HEAD || stream.read_buf(&mut input).await? == 0 {
            return Err(io::Error::other("the runtime's streaming server does not speak HTTP"));
        }
    }
}

async fn write(mut to: WriteHalf<TcpStream>, mut frames: mpsc::Receiver<Frame>) -> io::Result<()> {
    let (mut encoder, mut buffer) = (Encoder::default(), BytesMut::new());
    while let Some(frame) = frames.recv().await {
        encoder.encode(&frame, &mut buffer).map_err(io::Error::other)?;
        to.write_all(&buffer).await?;
        buffer.clear();
    }
    Ok(())
}

struct Reader {
    out: mpsc::Sender<Frame>,
    sinks: HashMap<u32, DuplexStream>,
}

impl Reader {
    async fn run(mut self, mut from: ReadHalf<TcpStream>, mut input: BytesMut) {
        let mut decoder = Decoder::default();
        loop {
            match decoder.decode(&mut input) {
                Ok(Some(frame)) => self.on(frame).await,
                Ok(None) => match from.read_buf(&mut input).await {
                    Ok(0) | Err(_) => return,
                    Ok(_) => {}
                },
                Err(error) => {
                    tracing::debug!(%error, "the runtime's streaming server does not speak SPDY");
                    return;
                }
            }
        }
    }

    async fn on(&mut self, frame: Frame) {
        match frame {
            Frame::Data { id, fin, bytes } => {
                if let Some(sink) = self.sinks.get_mut(&id)
                    && (sink.write_all(&bytes).await.is_err() || fin)
                {
                    self.sinks.remove(&id); // read to its end, or wanted by nobody
                }
            }
            Frame::Reset { id, .. } | Frame::SynReply { id, fin: true, .. } | Frame::Headers { id, fin: true, .. } => {
                self.sinks.remove(&id);
            }
            Frame::Ping(id) if id.is_multiple_of(2) => {
                let _ = self.out.send(Frame::Ping(id)).await;
            }
            Frame::SynStream { .. }
            | Frame::SynReply { .. }
            | Frame::Headers { .. }
            | Frame::Settings(_)
            | Frame::Ping(_)
            | Frame::GoAway { .. }
            | Frame::WindowUpdate { .. }
            | Frame::Other { .. } => {}
        }
    }
}
