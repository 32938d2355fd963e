//! Progress of a watch: proves that every change up to a revision has been delivered.
//!
//! A round first reads the newest revision from etcd's quorum (the target), then progress_requests the stream
//! how far it is until it is at least there. So progress is never older than the moment it was
//! asked for, even if the stream's member lags behind the others.
//!
//! etcd before 3.4.31 and 3.5.13 may answer that question before it has delivered what it claims.
//! There the answer is not taken on trust: the target is confirmed by comparing what the prefix
//! held at the last delivered revision with what it holds at the target. If no key was written in
//! between and as many keys exist, the two are the same, and nothing is under way that would
//! change what a reader holds. Only a key that came and went entirely in between can escape this.
//! It is given time to arrive: such an etcd catches up with history every 100 ms, so a stream is
//! not believed in its first second, nor an instant after its answer. Should the two changes arrive
//! even later they are dropped, for they cancel each other out. All this costs etcd a walk over
//! the prefix and the reader some 100 ms, but never a stale answer.
//!
//! ProgressRounds also happen unasked, about every minute: a watch on keys that rarely change would
//! otherwise resume from a revision that is compacted long since.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::future::BoxFuture;
use tokio::{
    sync::Notify,
    time::{Instant, sleep, sleep_until},
};

use crate::{
    Revision,
    etcd::{
        error::EtcdError,
        pool::{MemberConnection, Pool, signed},
        proto::RangeRequest,
        range::{Keys, range},
    },
};

const RETRY_INTERVAL: Duration = Duration::from_millis(100);
const PROGRESS_INTERVAL: Duration = Duration::from_secs(60);
/// How long a stream and an answer of an etcd that does not keep its word must rest.
const STREAM_SETTLES: Duration = Duration::from_secs(1);
const ANSWER_SETTLES: Duration = Duration::from_millis(100);

/// How often the reader asked.
#[derive(Debug, Default)]
pub(super) struct ProgressRequests {
    count: AtomicU64,
    more: Notify,
}

impl ProgressRequests {
    pub fn ask(&self) {
        self.count.fetch_add(1, Ordering::SeqCst);
        self.more.notify_one();
    }

    pub fn count(&self) -> u64 {
        self.count.load(Ordering::SeqCst)
    }
}

pub(super) struct Target {
    pub revision: Revision,
    /// Whether the stream's word is enough.
    pub trusted: bool,
}

enum Stage {
    /// Nothing to do before `next`, unless asked and it is past `earliest`.
    Idle { earliest: Instant, next: Instant },
    /// Reading the target.
    ReadingTarget(BoxFuture<'static, Result<Target, EtcdError>>),
    /// The stream was asked.
    Awaiting { target: Target, again: Instant },
    /// The stream answered, but its word is not enough.
    Proving { target: Target, seen: Revision, proof: BoxFuture<'static, Result<bool, EtcdError>> },
}

/// What the follower must do.
pub(super) enum WatchStep {
    Nothing,
    /// Put the question to the stream.
    Ask,
    /// What was delivered last is compacted, so nothing can be proved from it any more.
    Reopen,
    /// Everything up to here is delivered; `tell` the reader if it asked.
    Conclude {
        at: Revision,
        tell: bool,
    },
}

/// The rounds of one stream.
pub(super) struct ProgressRounds {
    pool: Arc<Pool>,
    connection: MemberConnection,
    keys: Keys,
    progress_requests: Arc<ProgressRequests>,
    /// How many progress_requests the reader has had an answer to.
    answered: u64,
    /// How many progress_requests this round answers.
    covers: u64,
    trusted: Option<bool>,
    settled: Instant,
    stage: Stage,
}

impl ProgressRounds {
    pub fn new(
        pool: Arc<Pool>,
        connection: MemberConnection,
        keys: Keys,
        progress_requests: Arc<ProgressRequests>,
        answered: u64,
    ) -> Self {
        let now = Instant::now();
        let stage = Stage::Idle { earliest: now, next: now + PROGRESS_INTERVAL };
        Self {
            pool,
            connection,
            keys,
            progress_requests,
            answered,
            covers: answered,
            trusted: None,
            settled: now + STREAM_SETTLES,
            stage,
        }
    }

    pub fn answered(&self) -> u64 {
        self.answered
    }

    /// Waits for the next thing to do. Cancel safe.
    pub async fn next(&mut self, seen: Revision) -> WatchStep {
        match &mut self.stage {
            Stage::Idle { earliest, next } => {
                let (earliest, next) = (*earliest, *next);
                let asked = async {
                    while self.progress_requests.count() <= self.answered {
                        self.progress_requests.more.notified().await;
                    }
                    sleep_until(earliest).await;
                };
                tokio::select! {
                    () = asked => {}
                    () = sleep_until(next) => {}
                }
                self.covers = self.progress_requests.count();
                self.stage = Stage::ReadingTarget(Box::pin(read_target(
                    self.pool.clone(),
                    self.connection.clone(),
                    self.trusted,
                )));
                WatchStep::Nothing
            }
            Stage::ReadingTarget(read_target) => match read_target.await {
                Ok(target) => {
                    self.trusted = Some(target.trusted);
                    self.stage = Stage::Awaiting { target, again: Instant::now() + RETRY_INTERVAL };
                    match self.delivered(seen) {
                        WatchStep::Nothing => WatchStep::Ask,
                        concluded => concluded,
                    }
                }
                Err(_) => self.wait_for_retry(),
            },
            Stage::Awaiting { again, .. } => {
                sleep_until(*again).await;
                *again = Instant::now() + RETRY_INTERVAL;
                WatchStep::Ask
            }
            Stage::Proving { target, seen: from, proof } => {
                let proved = proof.await;
                let (at, unmoved) = (target.revision, *from == seen);
                match proved {
                    Ok(true) if unmoved => self.conclude(at),
                    Ok(_) => {
                        let target = Target { revision: at, trusted: false };
                        self.stage = Stage::Awaiting { target, again: Instant::now() + RETRY_INTERVAL };
                        WatchStep::Nothing
                    }
                    Err(EtcdError::Compacted) => WatchStep::Reopen,
                    Err(_) => self.wait_for_retry(),
                }
            }
        }
    }

    /// The stream says it is at `at`.
    pub fn stream_reached(&mut self, at: Revision, seen: Revision, holding: bool) -> WatchStep {
        let Stage::Awaiting { target, .. } = &self.stage else { return WatchStep::Nothing };
        if at < target.revision || holding {
            return WatchStep::Nothing;
        }
        if target.trusted {
            return self.conclude(at);
        }
        let target = Target { revision: target.revision, trusted: false };
        let (pool, keys, settled, to) = (self.pool.clone(), self.keys.clone(), self.settled, target.revision);
        let proof = Box::pin(async move {
            sleep_until(settled).await;
            let unchanged = unchanged(&pool, &keys, seen, to).await?;
            sleep(ANSWER_SETTLES).await;
            Ok(unchanged)
        });
        self.stage = Stage::Proving { target, seen, proof };
        WatchStep::Nothing
    }

    /// Changes up to `seen` went to the reader. In order as they come, they may be proof enough.
    pub fn delivered(&mut self, seen: Revision) -> WatchStep {
        match &self.stage {
            Stage::Awaiting { target, .. } | Stage::Proving { target, .. } if seen >= target.revision => {
                self.conclude(seen)
            }
            Stage::Idle { .. } | Stage::ReadingTarget(_) | Stage::Awaiting { .. } | Stage::Proving { .. } => {
                WatchStep::Nothing
            }
        }
    }

    fn conclude(&mut self, at: Revision) -> WatchStep {
        let now = Instant::now();
        self.stage = Stage::Idle { earliest: now, next: now + PROGRESS_INTERVAL };
        let tell = self.covers > self.answered;
        self.answered = self.covers;
        WatchStep::Conclude { at, tell }
    }

    /// etcd could not be asked; the stream will notice too if that lasts.
    fn wait_for_retry(&mut self) -> WatchStep {
        let now = Instant::now();
        self.stage = Stage::Idle { earliest: now + RETRY_INTERVAL, next: now + PROGRESS_INTERVAL };
        WatchStep::Nothing
    }
}

async fn read_target(
    pool: Arc<Pool>,
    connection: MemberConnection,
    trusted: Option<bool>,
) -> Result<Target, EtcdError> {
    let trusted = match trusted {
        Some(trusted) => trusted,
        None => tokio::time::timeout(pool.call_deadline, connection.version())
            .await
            .ok()
            .flatten()
            .is_some_and(|version| has_reliable_progress(&version)),
    };
    Ok(Target { revision: pool.newest().await?, trusted })
}

/// Whether this version of etcd delivers before it claims to have.
fn has_reliable_progress(version: &str) -> bool {
    let mut numbers = version.split(['.', '-', '+']).map(|part| part.parse::<u32>().unwrap_or_default());
    let mut number = || numbers.next().unwrap_or_default();
    match (number(), number(), number()) {
        (3, 4, patch) => patch >= 31,
        (3, 5, patch) => patch >= 13,
        (major, minor, _) => (major, minor) >= (3, 6),
    }
}

/// Whether the keys hold the same at `to` as they did at `from`.
async fn unchanged(pool: &Pool, keys: &Keys, from: Revision, to: Revision) -> Result<bool, EtcdError> {
    let at = |revision: Revision| RangeRequest {
        key: keys.first.clone(),
        range_end: keys.end.clone(),
        revision: signed(revision),
        ..Default::default()
    };
    let before = range(pool, RangeRequest { count_only: true, ..at(from) }).await?.count;
    let after = range(pool, RangeRequest { count_only: true, ..at(to) }).await?.count;
    if before != after {
        return Ok(false);
    }
    let written =
        RangeRequest { min_mod_revision: signed(from).saturating_add(1), limit: 1, keys_only: true, ..at(to) };
    Ok(range(pool, written).await?.kvs.is_empty())
}

#[cfg(test)]
mod tests {
    use super::has_reliable_progress;

    #[test]
    fn versions_with_the_known_fault_are_not_taken_at_their_word() {
        for faulty in ["3.3.27", "3.4.23", "3.4.30", "3.5.0", "3.5.12", "3.5.0-rc.1", "", "malformed"] {
            assert!(!has_reliable_progress(faulty), "{faulty}");
        }
        for sound in ["3.4.31", "3.5.13", "3.5.16", "3.6.0", "3.6.0-rc.2+git", "4.0.0"] {
            assert!(has_reliable_progress(sound), "{sound}");
        }
    }
}
