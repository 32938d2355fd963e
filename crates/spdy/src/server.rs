//! The server's side of a connection: one task reads frames and hands out the streams that the client opens, another writes.
//!
//! Windows are announced for what is taken, and not waited for when something is sent.

use std::{collections::HashMap, time::Duration};

use bytes::{Bytes, BytesMut};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf},
    sync::mpsc,
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use crate::{
    Headers,
    frame::{Decoder, Encoder, Frame, reset},
};

/// Frames that may wait to be written, and pieces of data that may wait to be read from one stream.
const QUEUE: usize = 32;
/// A window is announced anew once this much of it was used.
const WINDOW_STEP: u32 = 32 * 1024;
/// Streams open at once.
const MOST_STREAMS: usize = 4096;
/// How long a client may take to hang up after we sent GOAWAY.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// The connection ended, or the stream was reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the client closed the connection or the stream")]
pub struct Closed;

/// The server's side of a connection. Dropping it cuts the connection.
pub struct Connection {
    opened: mpsc::Receiver<Stream>,
    out: mpsc::Sender<Frame>,
    gone: CancellationToken,
    reader: AbortOnDropHandle<()>,
    writer: AbortOnDropHandle<()>,
}

/// A stream that the client opened.
pub struct Stream {
    pub id: u32,
    pub headers: Headers,
    /// What the client sends; ends when it closes its side.
    pub incoming: mpsc::Receiver<Bytes>,
    pub writer: Writer,
}

/// Our side of a stream.
#[derive(Clone)]
pub struct Writer {
    id: u32,
    out: mpsc::Sender<Frame>,
    /// The stream, or everything, is over.
    over: CancellationToken,
}

impl Connection {
    pub fn start(io: impl AsyncRead + AsyncWrite + Send + 'static) -> Self {
        let (from, to) = tokio::io::split(io);
        let (out, frames) = mpsc::channel(QUEUE);
        let (open, opened) = mpsc::channel(QUEUE);
        let gone = CancellationToken::new();
        let reader = Reader { open, out: out.clone(), streams: HashMap::new(), newest: 0, gone: gone.clone() };
        let ended = gone.clone().drop_guard();
        let reader = tokio::spawn(async move {
            let _ended = ended;
            reader.run(from).await;
        });
        let ended = gone.clone();
        let writer = tokio::spawn(async move {
            // A writer that was told to stop leaves the reader alone; one that failed does not.
            if write(to, frames).await.is_err() {
                ended.cancel();
            }
        });
        Self { opened, out, gone, reader: AbortOnDropHandle::new(reader), writer: AbortOnDropHandle::new(writer) }
    }

    /// The next stream that the client opens; `None` once it is gone.
    pub async fn accept(&mut self) -> Option<Stream> {
        self.opened.recv().await
    }

    /// Cancelled when the client is gone.
    pub fn closed(&self) -> CancellationToken {
        self.gone.clone()
    }

    /// Delivers everything written so far, says that no more comes, and waits for the client to hang up.
    /// All writers should have been dropped.
    pub async fn close(self) {
        let _ = self.out.send(Frame::GoAway { last: 0, status: 0 }).await;
        let Self { out, reader, writer, opened, gone } = self;
        drop((out, opened));
        let hung_up = async {
            gone.cancelled().await;
            drop(reader); // it holds the last sender of frames
            let _ = writer.await;
        };
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, hung_up).await;
    }
}

impl Writer {
    pub async fn send(&self, bytes: Bytes) -> Result<(), Closed> {
        self.send_frame(Frame::Data { id: self.id, fin: false, bytes }).await
    }

    /// No more comes on this stream.
    pub async fn finish(&self) -> Result<(), Closed> {
        self.send_frame(Frame::Data { id: self.id, fin: true, bytes: Bytes::new() }).await
    }

    /// Cancelled when the client resets the stream or is gone.
    pub fn over(&self) -> CancellationToken {
        self.over.clone()
    }

    /// Neither side wants more of this stream.
    pub async fn reset(&self) {
        let _ = self.send_frame(Frame::Reset { id: self.id, status: reset::CANCEL }).await;
        self.over.cancel();
    }

    async fn send_frame(&self, frame: Frame) -> Result<(), Closed> {
        tokio::select! {
            biased;
            () = self.over.cancelled() => Err(Closed),
            sent = self.out.send(frame) => sent.map_err(|_| Closed),
        }
    }
}

async fn write(mut to: WriteHalf<impl AsyncWrite>, mut frames: mpsc::Receiver<Frame>) -> std::io::Result<()> {
    let (mut encoder, mut buffer) = (Encoder::default(), BytesMut::new());
    while let Some(frame) = frames.recv().await {
        encoder.encode(&frame, &mut buffer).map_err(std::io::Error::other)?;
        while buffer.len() < 128 * 1024
            && let Ok(frame) = frames.try_recv()
        {
            encoder.encode(&frame, &mut buffer).map_err(std::io::Error::other)?;
        }
        to.write_all(&buffer).await?;
        to.flush().await?;
        buffer.clear();
    }
    to.shutdown().await
}

struct Reader {
    open: mpsc::Sender<Stream>,
    out: mpsc::Sender<Frame>,
    streams: HashMap<u32, OpenStream>,
    /// The newest stream of the client.
    newest: u32,
    gone: CancellationToken,
}

struct OpenStream {
    /// `None` once the client has closed its side.
    data: Option<mpsc::Sender<Bytes>>,
    /// Received, but not announced as free again.
    taken: u32,
    over: CancellationToken,
}

impl Reader {
    async fn run(mut self, mut from: ReadHalf<impl AsyncRead>) {
        let (mut decoder, mut input) = (Decoder::default(), BytesMut::with_capacity(32 * 1024));
        loop {
            match decoder.decode(&mut input) {
                Ok(Some(frame)) => {
                    if self.handle(frame).await.is_err() {
                        return;
                    }
                }
                Ok(None) => {
                    input.reserve(32 * 1024);
                    match from.read_buf(&mut input).await {
                        Ok(0) | Err(_) => return,
                        Ok(_) => {}
                    }
                }
                Err(error) => {
                    tracing::debug!(%error, "a client does not speak SPDY");
                    let _ = self.out.try_send(Frame::GoAway { last: self.newest, status: 1 });
                    return;
                }
            }
        }
    }

    async fn handle(&mut self, frame: Frame) -> Result<(), Closed> {
        match frame {
            Frame::SynStream { id, fin, unidirectional, headers } => {
                self.open_stream(id, fin, unidirectional, headers).await?;
            }
            Frame::Data { id, fin, bytes } => self.receive(id, fin, bytes).await?,
            Frame::Headers { id, fin: true, .. } => self.receive(id, true, Bytes::new()).await?,
            Frame::Reset { id, .. } => {
                if let Some(stream) = self.streams.remove(&id) {
                    stream.over.cancel();
                }
            }
            Frame::Ping(id) if id % 2 == 1 => self.send(Frame::Ping(id)).await?,
            // We open no streams, send no pings and keep no windows of the client's.
            Frame::Ping(_)
            | Frame::SynReply { .. }
            | Frame::Headers { .. }
            | Frame::Settings(_)
            | Frame::GoAway { .. }
            | Frame::WindowUpdate { .. }
            | Frame::Other { .. } => {}
        }
        Ok(())
    }

    async fn open_stream(&mut self, id: u32, fin: bool, unidirectional: bool, headers: Headers) -> Result<(), Closed> {
        if id.is_multiple_of(2) || id <= self.newest {
            return self.send(Frame::Reset { id, status: reset::PROTOCOL_ERROR }).await;
        }
        self.newest = id;
        self.streams.retain(|_, stream| !(stream.over.is_cancelled() || stream.data.is_none()));
        if self.streams.len() >= MOST_STREAMS {
            return self.send(Frame::Reset { id, status: reset::REFUSED_STREAM }).await;
        }
        let (data, incoming) = mpsc::channel(QUEUE);
        let over = self.gone.child_token();
        let writer = Writer { id, out: self.out.clone(), over: over.clone() };
        self.streams.insert(id, OpenStream { data: (!fin).then_some(data), taken: 0, over });
        if !unidirectional {
            self.send(Frame::SynReply { id, fin: false, headers: Headers::default() }).await?;
        }
        // Nobody who accepts streams any more is no reason to stop reading: the client has to hang up.
        let _ = self.open.send(Stream { id, headers, incoming, writer }).await;
        Ok(())
    }

    async fn receive(&mut self, id: u32, fin: bool, bytes: Bytes) -> Result<(), Closed> {
        let Some(stream) = self.streams.get_mut(&id) else { return Ok(()) };
        stream.taken += bytes.len() as u32;
        if let Some(data) = stream.data.as_ref().filter(|_| !bytes.is_empty()) {
            tokio::select! {
                // A receiver that was dropped wants no more: the rest is thrown away.
                _ = data.send(bytes) => {}
                () = stream.over.cancelled() => {}
            }
        }
        if fin {
            stream.data = None;
        } else if stream.taken >= WINDOW_STEP
            && self.out.try_send(Frame::WindowUpdate { id, delta: stream.taken }).is_ok()
        {
            stream.taken = 0;
        }
        Ok(())
    }

    async fn send(&self, frame: Frame) -> Result<(), Closed> {
        self.out.send(frame).await.map_err(|_| Closed)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::DuplexStream;

    use super::*;

    /// A client as terse as can be.
    struct Client {
        io: DuplexStream,
        encoder: Encoder,
        decoder: Decoder,
        input: BytesMut,
    }

    impl Client {
        fn connect() -> (Self, Connection) {
            let (ours, theirs) = tokio::io::duplex(64 * 1024);
            let client =
                Self { io: theirs, encoder: Encoder::default(), decoder: Decoder::default(), input: BytesMut::new() };
            (client, Connection::start(ours))
        }

        async fn send(&mut self, frame: Frame) {
            let mut wire = BytesMut::new();
            self.encoder.encode(&frame, &mut wire).unwrap();
            self.io.write_all(&wire).await.unwrap();
        }

        async fn open(&mut self, id: u32, kind: &str) {
            let mut headers = Headers::default();
            headers.insert("streamtype", kind);
            self.send(Frame::SynStream { id, fin: false, unidirectional: false, headers }).await;
            assert_eq!(self.next().await, Some(Frame::SynReply { id, fin: false, headers: Headers::default() }));
        }

        async fn next(&mut self) -> Option<Frame> {
            loop {
                if let Some(frame) = self.decoder.decode(&mut self.input).unwrap() {
                    return Some(frame);
                }
                if self.io.read_buf(&mut self.input).await.unwrap() == 0 {
                    return None;
                }
            }
        }
    }

    #[tokio::test]
    async fn streams_carry_bytes_both_ways_and_close_one_side_at_a_time() {
        let (mut client, mut server) = Client::connect();
        client.open(1, "data").await;
        let mut stream = server.accept().await.unwrap();
        assert_eq!((stream.id, stream.headers.get("streamtype")), (1, Some("data")));
        client.send(Frame::Data { id: 1, fin: false, bytes: "ping".into() }).await;
        client.send(Frame::Data { id: 1, fin: true, bytes: Bytes::new() }).await;
        assert_eq!(stream.incoming.recv().await, Some("ping".into()));
        assert_eq!(stream.incoming.recv().await, None);
        stream.writer.send("pong".into()).await.unwrap();
        stream.writer.finish().await.unwrap();
        assert_eq!(client.next().await, Some(Frame::Data { id: 1, fin: false, bytes: "pong".into() }));
        assert_eq!(client.next().await, Some(Frame::Data { id: 1, fin: true, bytes: Bytes::new() }));
    }

    #[tokio::test]
    async fn pings_are_answered_and_windows_announced() {
        let (mut client, mut server) = Client::connect();
        client.send(Frame::Ping(7)).await;
        assert_eq!(client.next().await, Some(Frame::Ping(7)));
        client.open(1, "data").await;
        let mut stream = server.accept().await.unwrap();
        client.send(Frame::Data { id: 1, fin: false, bytes: vec![0; 40_000].into() }).await;
        assert!(matches!(client.next().await, Some(Frame::WindowUpdate { id: 1, delta }) if delta >= WINDOW_STEP));
        assert!(!stream.incoming.recv().await.unwrap().is_empty());
    }

    #[tokio::test]
    async fn a_client_that_hangs_up_ends_everything() {
        let (mut client, mut server) = Client::connect();
        client.open(1, "data").await;
        let mut stream = server.accept().await.unwrap();
        drop(client);
        assert_eq!(stream.incoming.recv().await, None);
        server.closed().cancelled().await;
        assert!(server.accept().await.is_none());
        assert_eq!(stream.writer.send("x".into()).await, Err(Closed));
    }

    #[tokio::test]
    async fn closing_delivers_what_was_written_and_sends_goaway() {
        let (mut client, mut server) = Client::connect();
        client.open(1, "data").await;
        let stream = server.accept().await.unwrap();
        stream.writer.send("last".into()).await.unwrap();
        drop(stream);
        let closing = tokio::spawn(server.close());
        assert_eq!(client.next().await, Some(Frame::Data { id: 1, fin: false, bytes: "last".into() }));
        assert_eq!(client.next().await, Some(Frame::GoAway { last: 0, status: 0 }));
        drop(client);
        closing.await.unwrap();
    }

    #[tokio::test]
    async fn a_stream_that_was_reset_takes_no_more_and_disturbs_no_other() {
        let (mut client, mut server) = Client::connect();
        client.open(1, "data").await;
        client.open(3, "data").await;
        let (first, mut second) = (server.accept().await.unwrap(), server.accept().await.unwrap());
        client.send(Frame::Reset { id: 1, status: reset::CANCEL }).await;
        client.send(Frame::Data { id: 3, fin: false, bytes: "on".into() }).await;
        assert_eq!(second.incoming.recv().await, Some("on".into()));
        assert_eq!(first.writer.send("x".into()).await, Err(Closed));
        client.send(Frame::SynStream { id: 2, fin: false, unidirectional: false, headers: Headers::default() }).await;
        assert_eq!(client.next().await, Some(Frame::Reset { id: 2, status: reset::PROTOCOL_ERROR }));
    }
}
