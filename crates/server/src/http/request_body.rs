//! Request bodies as they arrive: within bounds of size, time and memory.
//!
//! A body has `--body-timeout` to arrive. One that keeps coming earns more: a second for every [`PACE`] bytes, up to the
//! time of the whole request, so that a large upload over a bad line gets through and one that trickles does not.
//! A body that a refusal made superfluous is drained, if little of it is left, so that the connection
//! can be used again; otherwise the connection is closed, and the answer says so.

use std::{io, time::Duration};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, header};
use http_body::Body as _;
use http_body_util::{BodyExt, combinators::UnsyncBoxBody};
use tokio::time::Instant;

use crate::{
    http::{
        fairness::Permit,
        request_limits::Seat,
        status::{ApiError, ApiResult},
    },
    settings::Settings,
};

/// Bytes that earn a slow body another second.
const PACE: usize = 16 * 1024;
/// What a body counts for before any of it has arrived: its place in a connection's tables.
const OVERHEAD: usize = 4 * 1024;
/// Memory that a body which arrives in pieces takes at once.
const FIRST_PIECES: usize = 64 * 1024;
/// How long the rest of a body that nobody wants is awaited.
const DRAIN: Duration = Duration::from_secs(1);

pub type BodyStream = UnsyncBoxBody<Bytes, io::Error>;

pub struct RequestBody {
    /// `None` once it has ended, failed, or been given away.
    stream: Option<BodyStream>,
    announced: Option<usize>,
    /// The client asked whether to send it (`Expect: 100-continue`); reading it would say yes.
    awaits_permission: bool,
    /// It came too slowly; the rest is not worth waiting for.
    abandoned: bool,
}

/// A whole body, and the memory accounted for it.
#[derive(Debug, Default)]
pub struct ReceivedBody {
    pub bytes: Bytes,
    _memory: Option<Permit>,
}

impl RequestBody {
    pub fn new(headers: &HeaderMap, stream: BodyStream) -> Self {
        Self {
            announced: headers.get(header::CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse().ok()),
            awaits_permission: headers.contains_key(header::EXPECT),
            stream: (!stream.is_end_stream()).then_some(stream),
            abandoned: false,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.stream.is_none()
    }

    /// Gives the body to somebody who passes it on.
    pub fn take(&mut self) -> Option<BodyStream> {
        self.stream.take()
    }

    /// Reads all of it.
    pub async fn receive(&mut self, settings: &Settings, seat: &Seat<'_>) -> ApiResult<ReceivedBody> {
        let limit = settings.max_body;
        let too_large = || ApiError::too_large(format!("limit is {limit}"));
        if self.announced.is_some_and(|length| length > limit) {
            return Err(too_large());
        }
        let mut memory = seat.body_memory();
        let mut received = Pieces::default();
        let started = Instant::now();
        self.awaits_permission = false;
        while let Some(stream) = &mut self.stream {
            if received.length == 0 {
                memory.grow(OVERHEAD)?;
            }
            let deadline = started + patience(settings, received.length);
            let Ok(frame) = tokio::time::timeout_at(deadline, stream.frame()).await else {
                self.abandoned = true;
                return Err(ApiError::body_timeout(started.elapsed()));
            };
            match frame {
                None => self.stream = None,
                Some(Err(error)) => {
                    self.stream = None;
                    return Err(ApiError::bad_request(format!("couldn't read the request body: {error}")));
                }
                Some(Ok(frame)) => {
                    let Ok(data) = frame.into_data() else { continue };
                    if received.length + data.len() > limit {
                        return Err(too_large());
                    }
                    memory.grow(data.len())?;
                    received.push(data, self.announced);
                }
            }
        }
        Ok(ReceivedBody { bytes: received.whole(), _memory: memory.into_permit() })
    }

    /// Takes what is left of a body that is not wanted. Whether that reached its end; if not, the connection cannot
    /// be used for another request.
    pub async fn drain(&mut self, limit: usize) -> bool {
        if self.stream.is_some() && !self.awaits_permission && !self.abandoned {
            let _ = tokio::time::timeout(DRAIN, self.discard(limit)).await;
        }
        self.stream.is_none()
    }

    async fn discard(&mut self, mut room: usize) {
        while let Some(stream) = &mut self.stream
            && room > 0
        {
            match stream.frame().await {
                Some(Ok(frame)) => room = room.saturating_sub(frame.data_ref().map_or(0, Bytes::len)),
                Some(Err(_)) | None => self.stream = None,
            }
        }
    }
}

/// How long a body of which this much has arrived may take in all.
fn patience(settings: &Settings, received: usize) -> Duration {
    let earned = Duration::from_secs((received / PACE) as u64);
    settings.body_timeout.saturating_add(earned).min(settings.request_timeout)
}

/// What has arrived. Most bodies arrive in one piece, which is not copied.
#[derive(Default)]
struct Pieces {
    first: Bytes,
    all: BytesMut,
    length: usize,
}

impl Pieces {
    fn push(&mut self, piece: Bytes, announced: Option<usize>) {
        if self.length == 0 {
            self.first = piece;
            self.length = self.first.len();
            return;
        }
        if self.all.is_empty() {
            // What is announced need not come, so memory is not taken for much of it.
            self.all.reserve(announced.unwrap_or(0).min(FIRST_PIECES).max(self.length + piece.len()));
            self.all.extend_from_slice(&std::mem::take(&mut self.first));
        }
        self.all.extend_from_slice(&piece);
        self.length += piece.len();
    }

    fn whole(self) -> Bytes {
        if self.all.is_empty() { self.first } else { self.all.freeze() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_that_keeps_coming_earns_time_and_one_that_trickles_does_not() {
        let settings = Settings::default();
        let seconds = |received| patience(&settings, received).as_secs();
        assert_eq!(seconds(0), 10);
        assert_eq!(seconds(1000), 10);
        assert_eq!(seconds(160 * 1024), 20);
        assert_eq!(seconds(3 << 20), 60);
    }

    #[test]
    fn pieces_make_the_whole() {
        for cuts in [&[][..], &[0, 5], &[3, 2], &[1, 1, 0, 3], &[5]] {
            let mut rest = Bytes::from_static(b"hello");
            let mut pieces = Pieces::default();
            for cut in cuts {
                pieces.push(rest.split_to(*cut), Some(5));
            }
            let expected = if cuts.is_empty() { &b""[..] } else { b"hello" };
            assert_eq!(pieces.whole(), expected, "{cuts:?}");
        }
    }
}
