//! A connection to an API server that is closed when the node switches to another server.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_rustls::MaybeHttpsStream;
use hyper_util::{
    client::legacy::connect::{self, Connected},
    rt::TokioIo,
};
use tokio::net::TcpStream;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

type Stream = MaybeHttpsStream<TokioIo<TcpStream>>;

pub struct Connection {
    stream: Stream,
    left: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl Connection {
    pub fn new(stream: Stream, left: CancellationToken) -> Self {
        Self { stream, left: Box::pin(left.cancelled_owned()) }
    }

    fn ended(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        match self.left.as_mut().poll(context) {
            Poll::Ready(()) => Err(io::Error::new(io::ErrorKind::ConnectionAborted, "another server is called")),
            Poll::Pending => Ok(()),
        }
    }
}

impl Read for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        self.ended(context)?;
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl Write for Connection {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, bytes)
    }
}

impl connect::Connection for Connection {
    fn connected(&self) -> Connected {
        self.stream.connected()
    }
}
