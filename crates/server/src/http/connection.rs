//! One TLS connection: handshake, HTTP, and the limits that end it.
//!
//! Whoever connects may be slow, silent, or gone without saying so, and must not be able to hold on
//! to us for that. A connection is closed when its handshake takes too long, when no request has been
//! under way on it for too long (whatever it sent meanwhile: half a request is none), and when it
//! takes none of what is being sent to it, on the connection or on one stream of it. Requests under way have their own limits, see
//! `handler`.
//!
//! Nor can one client take all connections. Until its handshake is done a connection counts against its source
//! address; then against whom its certificate names, or again its source address. See `fairness` for who gets
//! how many.

use std::{
    cell::Cell,
    collections::HashMap,
    convert::Infallible,
    io,
    net::IpAddr,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http::StatusCode;
use http_body::{Frame, SizeHint};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto::Builder,
};
use mainstay_tls::ClientVerifier;
use parking_lot::Mutex;
use rustls::pki_types::UnixTime;
use socket2::{SockRef, TcpKeepalive};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    time::{Instant, Sleep},
};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::{
    auth::User,
    handler::{Caller, Handler},
    http::{
        fairness::{FairLimit, Flow},
        handshakes::{Handshake, Handshakes},
        request_limits::TakenSeat,
        response_body::Body,
    },
    settings::Settings,
};

/// How long a connection without business may take to agree that it is over.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(500);

/// A client that vanished without a word, while nothing is sent to it, is noticed within about two minutes.
const KEEPALIVE: TcpKeepalive =
    TcpKeepalive::new().with_time(Duration::from_secs(60)).with_interval(Duration::from_secs(10));

/// What all connections share.
pub struct ConnectionContext {
    pub handler: Arc<Handler>,
    pub tls: TlsAcceptor,
    pub verifier: Arc<ClientVerifier>,
    pub http: Builder<TokioExecutor>,
    pub limits: ConnectionLimits,
    pub stop: CancellationToken,
}

/// What one user or source address may have of all connections, in percent.
const FLOW_PERCENT: usize = 10;

pub struct ConnectionLimits {
    handshakes: Arc<Handshakes>,
    established: Arc<FairLimit>,
}

impl ConnectionLimits {
    pub fn new(settings: &Settings) -> Self {
        let limit = || FairLimit::without_heartbeats(settings.max_connections, FLOW_PERCENT);
        Self { handshakes: Handshakes::new(limit()), established: limit() }
    }

    /// Room for a new connection from this address to shake hands.
    pub fn admit(&self, source: IpAddr) -> Option<Handshake> {
        self.handshakes.admit(source)
    }
}

pub fn http(settings: &Settings) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(settings.idle_timeout)
        .max_buf_size(settings.max_head)
        .http2()
        .timer(TokioTimer::new())
        .max_header_list_size(u32::try_from(settings.max_head).unwrap_or(u32::MAX))
        .max_concurrent_streams(1_000)
        .max_send_buf_size(128 * 1024)
        .keep_alive_interval(Duration::from_secs(30))
        .keep_alive_timeout(Duration::from_secs(15));
    builder
}

/// Serves a connection until either side has had enough of it. `handshake` is its place among those that are not
/// established yet.
pub async fn run(stream: TcpStream, source: IpAddr, handshake: Handshake, shared: Arc<ConnectionContext>) {
    let settings = &shared.handler.api.settings;
    let _ = stream.set_nodelay(true);
    let _ = SockRef::from(&stream).set_tcp_keepalive(&KEEPALIVE);
    let patient = Arc::new(AtomicBool::new(false));
    let stream = WriteTimeout::new(stream, settings.stall_timeout, patient.clone());
    let accepted = tokio::time::timeout(settings.handshake_timeout, shared.tls.accept(stream));
    let stream = tokio::select! {
        () = shared.stop.cancelled() => return,
        () = handshake.evicted() => return tracing::debug!(%source, "another connection took the place of this handshake"),
        done = accepted => match done {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return tracing::debug!(%error, "TLS handshake failed"),
            Err(_) => return tracing::debug!("TLS handshake took too long"),
        },
    };
    let presented = stream.get_ref().1.peer_certificates().unwrap_or_default();
    let user = shared.verifier.subject(presented, UnixTime::now()).map(User::from);
    let flow = user.as_ref().map_or_else(|| Flow::of_source(source), Flow::of_user);
    let Ok(_established) = shared.limits.established.acquire(flow, 1) else {
        return tracing::debug!(%source, level = flow.level().name(), "too many connections");
    };
    drop(handshake);
    let caller = Caller::Network { user: user.map(Arc::new), source };
    let activity = Arc::new(Activity::default());
    let service = service_fn(|request: http::Request<Incoming>| {
        let (handler, caller, guard) = (shared.handler.clone(), caller.clone(), activity.clone().begin());
        let patient = patient.clone();
        async move {
            let mut answer = handler.handle(request, caller).await;
            let seat = answer.extensions_mut().remove::<Arc<TakenSeat>>();
            if matches!(answer.body(), Body::Endless(_) | Body::Relayed(_)) {
                guard.mark_endless();
            } else {
                guard.mark_progress();
            }
            if answer.status() == StatusCode::SWITCHING_PROTOCOLS || matches!(answer.body(), Body::Relayed(_)) {
                patient.store(true, Ordering::Relaxed);
            }
            Ok::<_, Infallible>(answer.map(|body| TrackedBody::new(body, guard, seat)))
        }
    });
    let mut connection = pin!(shared.http.serve_connection_with_upgrades(TokioIo::new(stream), service));
    let ended = tokio::select! {
        ended = connection.as_mut() => Some(ended),
        () = shared.stop.cancelled() => None,
        () = activity.idle_for(settings.idle_timeout) => None,
        () = activity.stalled_for(settings.stall_timeout) => {
            return tracing::debug!(%source, "the client takes nothing of a response any more");
        }
    };
    let ended = match ended {
        Some(ended) => ended,
        None => {
            connection.as_mut().graceful_shutdown();
            tokio::select! {
                ended = connection => ended,
                () = activity.finished_for(CLOSE_TIMEOUT) => return,
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(error = &*error, "connection ended badly");
    }
}

/// What is under way on a connection.
struct Activity(Mutex<ActivityState>);

struct ActivityState {
    requests: usize,
    /// Those among them that have no end of their own.
    endless: usize,
    /// When one last began or ended.
    since: Instant,
    begun: u64,
    /// Responses that have an end and have not reached it: when the client last took a part of each.
    sending: HashMap<u64, Instant>,
}

impl Default for Activity {
    fn default() -> Self {
        Self(Mutex::new(ActivityState {
            requests: 0,
            endless: 0,
            since: Instant::now(),
            begun: 0,
            sending: HashMap::new(),
        }))
    }
}

impl Activity {
    fn begin(self: Arc<Self>) -> RequestGuard {
        let number = {
            let mut state = self.0.lock();
            state.requests += 1;
            state.begun += 1;
            state.begun
        };
        RequestGuard { activity: self, number, endless: Cell::new(false) }
    }

    /// Returns once nothing of some response was taken for this long. In HTTP/2 a client can take other responses meanwhile, and
    /// the connection as a whole does not stall.
    async fn stalled_for(&self, patience: Duration) {
        loop {
            let longest = self.0.lock().sending.values().map(Instant::elapsed).max().unwrap_or_default();
            if longest >= patience {
                return;
            }
            tokio::time::sleep(patience - longest).await;
        }
    }

    /// Returns once nothing has been under way for this long.
    async fn idle_for(&self, patience: Duration) {
        self.quiet_for(patience, |state| state.requests == 0).await;
    }

    /// The same, but does not wait for what would never end.
    async fn finished_for(&self, patience: Duration) {
        self.quiet_for(patience, |state| state.requests == state.endless).await;
    }

    async fn quiet_for(&self, patience: Duration, is_quiet: impl Fn(&ActivityState) -> bool) {
        let called = Instant::now();
        loop {
            let quiet = {
                let state = self.0.lock();
                if is_quiet(&state) { state.since.max(called).elapsed() } else { Duration::ZERO }
            };
            if quiet >= patience {
                return;
            }
            tokio::time::sleep(patience - quiet).await;
        }
    }
}

/// A request under way; over when dropped.
struct RequestGuard {
    activity: Arc<Activity>,
    number: u64,
    endless: Cell<bool>,
}

impl RequestGuard {
    fn mark_endless(&self) {
        self.endless.set(true);
        self.activity.0.lock().endless += 1;
    }

    /// The client takes a part of the response.
    fn mark_progress(&self) {
        if !self.endless.get() {
            self.activity.0.lock().sending.insert(self.number, Instant::now());
        }
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        let mut state = self.activity.0.lock();
        state.requests -= 1;
        state.endless -= usize::from(self.endless.get());
        state.sending.remove(&self.number);
        state.since = Instant::now();
    }
}

/// A connection sends this much of a response before it gives way to others that wait for the same thread.
const BYTES_BETWEEN_YIELDS: usize = 128 * 1024;

/// A response whose request is under way until all of it is sent.
///
/// A client that reads as fast as we send would keep its connection's thread for the whole of a long response, and small
/// requests of others behind it: after every [`BYTES_BETWEEN_YIELDS`] it is the others' turn.
struct TrackedBody {
    body: Body,
    guard: RequestGuard,
    sent_since_yield: usize,
    _seat: Option<Arc<TakenSeat>>,
}

impl TrackedBody {
    fn new(body: Body, guard: RequestGuard, seat: Option<Arc<TakenSeat>>) -> Self {
        Self { body, guard, sent_since_yield: 0, _seat: seat }
    }
}

impl http_body::Body for TrackedBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        self.guard.mark_progress();
        if self.sent_since_yield >= BYTES_BETWEEN_YIELDS {
            self.sent_since_yield = 0;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        match &frame {
            Poll::Ready(Some(Ok(frame))) => self.sent_since_yield += frame.data_ref().map_or(0, Bytes::len),
            Poll::Ready(Some(Err(_)) | None) => {}
            Poll::Pending => self.sent_since_yield = 0,
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A stream whose writes fail when the other side takes nothing for too long.
struct WriteTimeout<S> {
    stream: S,
    patience: Duration,
    /// Set once it carries what people look at: they may pause for as long as they like.
    patient: Arc<AtomicBool>,
    /// Runs while a write waits.
    waiting: Option<Pin<Box<Sleep>>>,
}

impl<S> WriteTimeout<S> {
    fn new(stream: S, patience: Duration, patient: Arc<AtomicBool>) -> Self {
        Self { stream, patience, patient, waiting: None }
    }

    fn fail_if_stalled<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() || self.patient.load(Ordering::Relaxed) {
            self.waiting = None;
            return written;
        }
        let patience = self.patience;
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(tokio::time::sleep(patience)));
        ready!(waiting.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client takes nothing any more")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteTimeout<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteTimeout<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.fail_if_stalled(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, pieces);
        self.fail_if_stalled(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.fail_if_stalled(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.fail_if_stalled(cx, shut)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use http_body::Body as _;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_response_that_is_not_taken_stalls_whatever_else_goes_on() {
        let activity = Arc::new(Activity::default());
        let [slow, stuck, watch] = [(); 3].map(|()| activity.clone().begin());
        watch.mark_endless();
        for response in [&slow, &stuck, &watch] {
            response.mark_progress();
        }
        let started = Instant::now();
        tokio::spawn(async move {
            for _ in 0..10 {
                tokio::time::sleep(Duration::from_secs(1)).await;
                slow.mark_progress();
            }
        });
        activity.stalled_for(Duration::from_secs(5)).await;
        assert_eq!(started.elapsed().as_secs(), 5);
        drop(stuck);
        assert!(
            tokio::time::timeout(Duration::from_secs(60), activity.stalled_for(Duration::from_secs(5))).await.is_err()
        );
    }

    #[test]
    fn a_long_response_gives_way_again_and_again_and_arrives_whole() {
        let guard = Arc::new(Activity::default()).begin();
        let length = 10 * BYTES_BETWEEN_YIELDS + 1;
        let mut body = TrackedBody::new(Body::full(vec![b'x'; length]), guard, None);
        let woken = Arc::new(Wakes::default());
        let waker = woken.clone().into();
        let (mut received, mut yields) = (0, 0);
        loop {
            match Pin::new(&mut body).poll_frame(&mut Context::from_waker(&waker)) {
                Poll::Ready(Some(frame)) => received += frame.unwrap().into_data().unwrap().len(),
                Poll::Ready(None) => break,
                Poll::Pending => {
                    yields += 1;
                    assert_eq!(woken.0.load(Ordering::Relaxed), yields, "whoever gives way has to be woken again");
                }
            }
        }
        assert_eq!((received, yields), (length, 10));
    }

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl std::task::Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_quiet_only_while_nothing_is_under_way() {
        let activity = Arc::new(Activity::default());
        let started = Instant::now();
        let guard = activity.clone().begin();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(7)).await;
            drop(guard);
        });
        activity.idle_for(Duration::from_secs(5)).await;
        assert_eq!(started.elapsed().as_secs(), 12);
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_stops_fails_the_writer_and_a_slow_one_does_not() {
        let (ours, mut theirs) = tokio::io::duplex(16);
        let mut ours = WriteTimeout::new(ours, Duration::from_secs(5), Arc::default());
        let slow = tokio::spawn(async move {
            let mut got = [0; 16];
            for _ in 0..4 {
                tokio::time::sleep(Duration::from_secs(4)).await;
                theirs.read_exact(&mut got).await.expect("more to read");
            }
            theirs
        });
        ours.write_all(&[0; 64]).await.expect("a slow reader is waited for");
        let _theirs = slow.await.expect("the reader ends");
        let refused = ours.write_all(&[0; 64]).await.expect_err("nobody reads");
        assert_eq!(refused.kind(), io::ErrorKind::TimedOut);
    }
}
