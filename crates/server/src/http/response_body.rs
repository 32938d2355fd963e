//! Response bodies: whole, a list copied out piece by piece, an endless stream, or what somebody else sends.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use futures::stream::{BoxStream, StreamExt};
use http_body::{Frame, SizeHint};

/// What is whole leaves in pieces too: a client that takes a part of it has not taken all.
const PIECE: usize = 64 * 1024;

pub type Response = http::Response<Body>;

pub enum Body {
    Full(Option<Bytes>),
    /// Pieces made as the client takes them; their total length is known in advance.
    Pieces {
        length: u64,
        pieces: Box<dyn Iterator<Item = Bytes> + Send>,
    },
    Stream(BoxStream<'static, Bytes>),
    /// A stream that has no end of its own and may be cut at any time: a watch.
    Endless(BoxStream<'static, Bytes>),
    /// What an agent or a pod sends, for as long as it does. If it breaks off, so does the response.
    Relayed(BoxStream<'static, io::Result<Bytes>>),
}

impl Body {
    pub fn empty() -> Self {
        Self::Full(None)
    }

    pub fn full(bytes: impl Into<Bytes>) -> Self {
        Self::Full(Some(bytes.into()))
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let next = match &mut *self {
            Self::Full(Some(bytes)) if bytes.len() > PIECE => Some(bytes.split_to(PIECE)),
            Self::Full(bytes) => bytes.take(),
            Self::Pieces { length, pieces } => {
                let piece = pieces.next();
                *length = length.saturating_sub(piece.as_ref().map_or(0, |p| p.len() as u64));
                piece
            }
            Self::Stream(stream) | Self::Endless(stream) => match stream.poll_next_unpin(cx) {
                Poll::Ready(next) => next,
                Poll::Pending => return Poll::Pending,
            },
            Self::Relayed(stream) => return stream.poll_next_unpin(cx).map(|next| next.map(|p| p.map(Frame::data))),
        };
        Poll::Ready(next.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Full(bytes) => bytes.is_none(),
            Self::Pieces { length, .. } => *length == 0,
            Self::Stream(_) | Self::Endless(_) | Self::Relayed(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Full(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |b| b.len() as u64)),
            Self::Pieces { length, .. } => SizeHint::with_exact(*length),
            Self::Stream(_) | Self::Endless(_) | Self::Relayed(_) => SizeHint::default(),
        }
    }
}
