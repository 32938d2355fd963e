//! The task behind a watch: opens streams, one after the other, until the reader is gone.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::mpsc,
    time::{Instant, sleep, timeout},
};
use tokio_stream::wrappers::ReceiverStream;

use super::{
    assemble::{AssembleError, Assembler},
    newest_if_not_compacted,
    progress::{ProgressRequests, ProgressRounds, WatchStep},
};
use crate::{
    Revision, StoreError, WatchEvent,
    etcd::{
        Etcd,
        error::EtcdError,
        pool::{revision, signed},
        proto::{WatchCreateRequest, WatchProgressRequest, WatchRequest, WatchResponse, watch_request::Request},
        range::Keys,
    },
};

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// How often in a row etcd may refuse a watch before that is believed: a token may have run out
/// in between, and older versions do not tell that from a missing permission.
const REFUSALS: u32 = 2;

pub(super) struct Follower {
    etcd: Etcd,
    prefix: String,
    keys: Keys,
    /// Everything up to here went to the reader.
    seen: Revision,
    reader: mpsc::Sender<Result<WatchEvent, StoreError>>,
    progress_requests: Arc<ProgressRequests>,
    answered: u64,
    refusals: u32,
    pause: Duration,
}

/// Why a stream is no more.
enum StreamEnd {
    /// The reader is gone.
    Dropped,
    /// The watch cannot go on.
    Over(StoreError),
    /// Another stream may do.
    Broken { why: String },
    /// Another stream with another token may do.
    Denied { why: String },
}

impl Follower {
    pub fn new(
        etcd: Etcd,
        prefix: &str,
        seen: Revision,
        reader: mpsc::Sender<Result<WatchEvent, StoreError>>,
        progress_requests: Arc<ProgressRequests>,
    ) -> Self {
        Self {
            etcd,
            prefix: prefix.into(),
            keys: Keys::below(prefix),
            seen,
            reader,
            progress_requests,
            answered: 0,
            refusals: 0,
            pause: FIRST_PAUSE,
        }
    }

    pub async fn run(mut self, newest: Revision) {
        let mut newest = Some(newest);
        loop {
            let end = match newest.take() {
                Some(newest) => self.stream(newest).await,
                None => self.resume().await,
            };
            match end {
                StreamEnd::Dropped => return,
                StreamEnd::Over(error) => {
                    let _ = self.reader.send(Err(error)).await;
                    return;
                }
                StreamEnd::Broken { why } | StreamEnd::Denied { why } => {
                    tracing::debug!(prefix = self.prefix, seen = self.seen.0, why, "watch stream broke");
                    tokio::select! {
                        () = self.reader.closed() => return,
                        () = sleep(self.pause) => self.pause = (self.pause * 2).min(LONGEST_PAUSE),
                    }
                }
            }
        }
    }

    /// A stream after another, if etcd still has all that came since.
    async fn resume(&mut self) -> StreamEnd {
        let retained = tokio::select! {
            () = self.reader.closed() => return StreamEnd::Dropped,
            retained = newest_if_not_compacted(&self.etcd.pool, &self.prefix, self.seen) => retained,
        };
        match retained {
            Ok(newest) => self.stream(newest).await,
            Err(
                EtcdError::Unsent { why }
                | EtcdError::Leaderless { why }
                | EtcdError::Unknown { why }
                | EtcdError::Late { why }
                | EtcdError::Token { why },
            ) => StreamEnd::Broken { why },
            Err(fault @ (EtcdError::Compacted | EtcdError::Future)) => {
                StreamEnd::Over(self.etcd.error_at(fault, &self.prefix, self.seen).await)
            }
            Err(fault @ (EtcdError::NoSpace | EtcdError::TooLarge { .. } | EtcdError::Refused { .. })) => {
                StreamEnd::Over(self.etcd.pool.error(fault))
            }
        }
    }

    async fn stream(&mut self, newest: Revision) -> StreamEnd {
        let pool = self.etcd.pool.clone();
        let connection = match pool.stream_connection().await {
            Ok(connection) => connection,
            Err(EtcdError::Refused { why }) => return StreamEnd::Over(pool.error(EtcdError::Refused { why })),
            Err(fault) => return StreamEnd::Broken { why: format!("{fault:?}") },
        };
        let (requests, outbound) = mpsc::channel(4);
        if requests.try_send(self.create(newest)).is_err() {
            return StreamEnd::Broken { why: "request channel".into() };
        }
        // etcd answers with its first message, so this is also the wait for the watch's creation.
        let mut client = connection.watch();
        let opened = tokio::select! {
            () = self.reader.closed() => return StreamEnd::Dropped,
            opened = timeout(pool.call_deadline, client.watch(ReceiverStream::new(outbound))) => opened,
        };
        let mut stream = match opened {
            Ok(Ok(opened)) => opened.into_inner(),
            Ok(Err(status)) => {
                pool.stream_failed(&connection, false);
                let fault = EtcdError::from_status(&status);
                if matches!(fault, EtcdError::Token { .. }) {
                    pool.forget_token_of(&connection);
                }
                return StreamEnd::Broken { why: format!("{fault:?}") };
            }
            Err(_) => {
                pool.stream_failed(&connection, true);
                return StreamEnd::Broken { why: "no answer".into() };
            }
        };
        let mut assembler = Assembler::new(self.seen);
        let mut rounds = ProgressRounds::new(
            pool.clone(),
            connection.clone(),
            self.keys.clone(),
            self.progress_requests.clone(),
            self.answered,
        );
        let mut created = false;
        let created_by = Instant::now() + pool.call_deadline;
        let end = loop {
            let todo = tokio::select! {
                biased;
                () = self.reader.closed() => break StreamEnd::Dropped,
                message = stream.message() => match message {
                    Ok(Some(answer)) => {
                        created |= answer.created;
                        match self.handle_response(answer, &mut assembler, &mut rounds).await {
                            Ok(todo) => todo,
                            Err(end) => break end,
                        }
                    }
                    Ok(None) => break StreamEnd::Broken { why: "etcd closed the stream".into() },
                    Err(status) => break StreamEnd::Broken { why: format!("{:?}", EtcdError::from_status(&status)) },
                },
                () = tokio::time::sleep_until(created_by), if !created => break StreamEnd::Broken { why: "no watch".into() },
                todo = rounds.next(self.seen), if created => todo,
            };
            match todo {
                WatchStep::Nothing => {}
                WatchStep::Ask => {
                    let ask = WatchRequest { request: Some(Request::Progress(WatchProgressRequest {})) };
                    // A full channel means that earlier questions are still on their way.
                    let _ = requests.try_send(ask);
                }
                WatchStep::Reopen => break StreamEnd::Broken { why: "fell behind compaction".into() },
                WatchStep::Conclude { at, tell } => {
                    self.seen = self.seen.max(at);
                    assembler.raise(self.seen);
                    if tell && self.reader.send(Ok(WatchEvent::Progress(self.seen))).await.is_err() {
                        break StreamEnd::Dropped;
                    }
                }
            }
        };
        self.answered = rounds.answered();
        match &end {
            StreamEnd::Dropped | StreamEnd::Over(_) => {}
            StreamEnd::Denied { .. } => pool.forget_token_of(&connection),
            StreamEnd::Broken { .. } => pool.stream_failed(&connection, !created),
        }
        end
    }

    fn create(&self, newest: Revision) -> WatchRequest {
        // From a revision in the past, etcd refuses a watch if history before that revision is
        // gone. Behind `seen` the change at that very revision might be gone too, so the watch
        // begins at `seen` itself and what comes twice is dropped. Nothing to come is ever gone.
        let start = if self.seen < newest { self.seen } else { Revision(self.seen.0.saturating_add(1)) };
        let create = WatchCreateRequest {
            key: self.keys.first.clone(),
            range_end: self.keys.end.clone(),
            start_revision: signed(start),
            prev_kv: true,
            fragment: true,
        };
        WatchRequest { request: Some(Request::Create(create)) }
    }

    async fn handle_response(
        &mut self,
        answer: WatchResponse,
        assembler: &mut Assembler,
        rounds: &mut ProgressRounds,
    ) -> Result<WatchStep, StreamEnd> {
        if answer.canceled {
            return Err(self.refused(answer));
        }
        if answer.created {
            (self.refusals, self.pause) = (0, FIRST_PAUSE);
            return Ok(WatchStep::Nothing);
        }
        if answer.events.is_empty() && !answer.fragment {
            let at = revision(answer.header.map(|header| header.revision));
            return Ok(rounds.stream_reached(at, self.seen, assembler.is_incomplete()));
        }
        let changes = match assembler.take(answer.events, answer.fragment) {
            Ok(changes) => changes,
            Err(AssembleError::Overtaken { at }) => {
                let requested = Revision(at.0.saturating_sub(1));
                return Err(StreamEnd::Over(self.etcd.error_at(EtcdError::Compacted, &self.prefix, requested).await));
            }
            Err(AssembleError::Malformed { why }) => {
                return Err(StreamEnd::Over(self.etcd.pool.error(EtcdError::Refused { why })));
            }
        };
        let Some(last) = changes.last() else { return Ok(WatchStep::Nothing) };
        let seen = last.revision;
        if self.reader.send(Ok(WatchEvent::Changes(changes))).await.is_err() {
            return Err(StreamEnd::Dropped);
        }
        self.seen = seen;
        Ok(rounds.delivered(seen))
    }

    fn refused(&mut self, answer: WatchResponse) -> StreamEnd {
        if answer.compact_revision > 0 {
            let oldest = revision(Some(answer.compact_revision));
            self.etcd.pool.record_compaction(oldest);
            return StreamEnd::Over(StoreError::Compacted { requested: self.seen, oldest });
        }
        let why = answer.cancel_reason;
        if why.contains("permission denied") || why.contains("auth") || why.contains("user name is empty") {
            self.refusals += 1;
            return match self.refusals < REFUSALS {
                true => StreamEnd::Denied { why },
                false => StreamEnd::Over(self.etcd.pool.error(EtcdError::Refused { why })),
            };
        }
        StreamEnd::Broken { why: format!("etcd ended the watch: {why}") }
    }
}
