//! The client's side of a connection: opens streams first, then copies what comes on each of them to its reader.

use std::{collections::HashMap, io};

use bytes::{Bytes, BytesMut};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf},
    sync::mpsc,
};
use tokio_util::sync::CancellationToken;

use crate::{
    Headers,
    frame::{Decoder, Encoder, Frame},
};

/// Bytes of a stream that may wait to be read.
const PIPE: usize = 64 << 10;
/// Frames that may wait to be written.
const QUEUE: usize = 16;

pub struct Connection<S> {
    out: mpsc::Sender<Frame>,
    /// Where the content of each stream goes.
    sinks: Vec<(u32, DuplexStream)>,
    from: ReadHalf<S>,
    input: BytesMut,
    next_id: u32,
    closed: CancellationToken,
}

/// The sending half of a stream.
#[derive(Clone)]
pub struct Writer {
    id: u32,
    out: mpsc::Sender<Frame>,
}

impl<S: AsyncRead + AsyncWrite + Send + 'static> Connection<S> {
    /// On an upgraded connection, of which `input` has been read already. Everything ends when `closed` is cancelled, and that is
    /// cancelled when the connection ends.
    pub fn start(io: S, input: BytesMut, closed: CancellationToken) -> Self {
        let (from, to) = tokio::io::split(io);
        let (out, frames) = mpsc::channel(QUEUE);
        let ended = closed.clone();
        tokio::spawn(async move {
            let written = ended.run_until_cancelled(write(to, frames)).await;
            if !matches!(written, Some(Ok(()))) {
                ended.cancel();
            }
        });
        Self { out, sinks: Vec::new(), from, input, next_id: 1, closed }
    }

    /// Opens a stream; what comes on it can be read from the second.
    pub async fn open_stream(&mut self, headers: Headers) -> io::Result<(Writer, DuplexStream)> {
        let (ours, theirs) = tokio::io::duplex(PIPE);
        let writer = Writer { id: self.next_id, out: self.out.clone() };
        self.next_id += 2;
        self.sinks.push((writer.id, ours));
        writer.send_frame(Frame::SynStream { id: writer.id, fin: false, unidirectional: false, headers }).await?;
        Ok((writer, theirs))
    }

    /// All streams are open: content flows from now on.
    pub fn run(self) {
        let Self { out, sinks, from, input, closed, .. } = self;
        tokio::spawn(async move {
            let reader = Reader { out, sinks: sinks.into_iter().collect() };
            closed.run_until_cancelled(reader.run(from, input)).await;
            closed.cancel();
        });
    }
}

impl Writer {
    pub async fn send(&self, bytes: Bytes) -> io::Result<()> {
        self.send_frame(Frame::Data { id: self.id, fin: false, bytes }).await
    }

    /// No more comes on this stream.
    pub async fn finish(&self) -> io::Result<()> {
        self.send_frame(Frame::Data { id: self.id, fin: true, bytes: Bytes::new() }).await
    }

    async fn send_frame(&self, frame: Frame) -> io::Result<()> {
        self.out.send(frame).await.map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

async fn write(mut to: WriteHalf<impl AsyncWrite>, mut frames: mpsc::Receiver<Frame>) -> io::Result<()> {
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
    async fn run(mut self, mut from: ReadHalf<impl AsyncRead>, mut input: BytesMut) {
        let mut decoder = Decoder::default();
        loop {
            match decoder.decode(&mut input) {
                Ok(Some(frame)) => self.handle(frame).await,
                Ok(None) => match from.read_buf(&mut input).await {
                    Ok(0) | Err(_) => return,
                    Ok(_) => {}
                },
                Err(error) => {
                    tracing::debug!(%error, "the server does not speak SPDY");
                    return;
                }
            }
        }
    }

    async fn handle(&mut self, frame: Frame) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server;

    fn headers(kind: &str) -> Headers {
        let mut headers = Headers::default();
        headers.insert("streamtype", kind);
        headers
    }

    #[tokio::test]
    async fn a_client_and_a_server_exchange_bytes_on_each_stream() {
        let (ours, theirs) = tokio::io::duplex(1000);
        let (closed, mut server) = (CancellationToken::new(), server::Connection::start(theirs));
        let mut client = Connection::start(ours, BytesMut::new(), closed.clone());
        let (stdin, _) = client.open_stream(headers("stdin")).await.unwrap();
        let (_, mut stdout) = client.open_stream(headers("stdout")).await.unwrap();
        client.run();
        let (mut first, second) = (server.accept().await.unwrap(), server.accept().await.unwrap());
        assert_eq!(
            [first.headers.get("streamtype"), second.headers.get("streamtype")],
            [Some("stdin"), Some("stdout")]
        );
        stdin.send("in".into()).await.unwrap();
        stdin.finish().await.unwrap();
        assert_eq!((first.incoming.recv().await, first.incoming.recv().await), (Some("in".into()), None));
        second.writer.send(vec![b'x'; 100_000].into()).await.unwrap();
        second.writer.finish().await.unwrap();
        let mut read = Vec::new();
        stdout.read_to_end(&mut read).await.unwrap();
        assert_eq!(read.len(), 100_000);
        drop((first, second, server));
        closed.cancelled().await;
    }

    #[tokio::test]
    async fn cancelling_ends_the_connection() {
        let (ours, theirs) = tokio::io::duplex(1000);
        let (closed, mut server) = (CancellationToken::new(), server::Connection::start(theirs));
        let mut client = Connection::start(ours, BytesMut::new(), closed.clone());
        let _stream = client.open_stream(headers("stdin")).await.unwrap();
        client.run();
        assert!(server.accept().await.is_some());
        closed.cancel();
        server.closed().cancelled().await;
    }
}
