//! When it is true that everything up to a revision has been delivered.
//!
//! A round first reads the newest revision from etcd's quorum (the target), then asks the stream
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
//! Rounds also happen unasked, about every minute: a watch on keys that rarely change would
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
        fault::Fault,
        pool::{Line, Pool, signed},
        proto::RangeRequest,
        range::{Keys, range},
    },
};

const ASK_AGAIN: Duration = Duration::from_millis(100);
const UNASKED: Duration = Duration::from_secs(60);
/// How long a stream and an answer of an etcd that does not keep its word must rest.
const STREAM_SETTLES: Duration = Duration::from_secs(1);
const ANSWER_SETTLES: Duration = Duration::from_millis(100);

/// How often the reader asked.
#[derive(Debug, Default)]
pub(super) struct Asks {
    count: AtomicU64,
    more: Notify,
}

impl Asks {
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
    Aiming(BoxFuture<'static, Result<Target, Fault>>),
    /// The stream was asked.
    Awaiting { target: Target, again: Instant },
    /// The stream answered, but its word is not enough.
    Proving { target: Target, seen: Revision, proof: BoxFuture<'static, Result<bool, Fault>> },
}

/// What the follower must do.
pub(super) enum Do {
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
pub(super) struct Rounds {
    pool: Arc<Pool>,
    line: Line,
    keys: Keys,
    asks: Arc<Asks>,
    /// How many asks the reader has had an answer to.
    answered: u64,
    /// How many asks this round answers.
    covers: u64,
    trusted: Option<bool>,
    settled: Instant,
    stage: Stage,
}

impl Rounds {
    pub fn new(pool: Arc<Pool>, line: Line, keys: Keys, asks: Arc<Asks>, answered: u64) -> Self {
        let now = Instant::now();
        let stage = Stage::Idle { earliest: now, next: now + UNASKED };
        Self { pool, line, keys, asks, answered, covers: answered, trusted: None, settled: now + STREAM_SETTLES, stage }
    }

    pub fn answered(&self) -> u64 {
        self.answered
    }

    /// Waits for the next thing to do. Cancel safe.
    pub async fn next(&mut self, seen: Revision) -> Do {
        match &mut self.stage {
            Stage::Idle { earliest, next } => {
                let (earliest, next) = (*earliest, *next);
                let asked = async {
                    while self.asks.count() <= self.answered {
                        self.asks.more.notified().await;
                    }
                    sleep_until(earliest).await;
                };
                tokio::select! {
                    () = asked => {}
                    () = sleep_until(next) => {}
                }
                self.covers = self.asks.count();
                self.stage = Stage::Aiming(Box::pin(aim(self.pool.clone(), self.line.clone(), self.trusted)));
                Do::Nothing
            }
            Stage::Aiming(aim) => match aim.await {
                Ok(target) => {
                    self.trusted = Some(target.trusted);
                    self.stage = Stage::Awaiting { target, again: Instant::now() + ASK_AGAIN };
                    match self.delivered(seen) {
                        Do::Nothing => Do::Ask,
                        concluded => concluded,
                    }
                }
                Err(_) => self.rest(),
            },
            Stage::Awaiting { again, .. } => {
                sleep_until(*again).await;
                *again = Instant::now() + ASK_AGAIN;
                Do::Ask
            }
            Stage::Proving { target, seen: from, proof } => {
                let proved = proof.await;
                let (at, unmoved) = (target.revision, *from == seen);
                match proved {
                    Ok(true) if unmoved => self.conclude(at),
                    Ok(_) => {
                        let target = Target { revision: at, trusted: false };
                        self.stage = Stage::Awaiting { target, again: Instant::now() + ASK_AGAIN };
                        Do::Nothing
                    }
                    Err(Fault::Compacted) => Do::Reopen,
                    Err(_) => self.rest(),
                }
            }
        }
    }

    /// The stream says it is at `at`.
    pub fn stream_at(&mut self, at: Revision, seen: Revision, holding: bool) -> Do {
        let Stage::Awaiting { target, .. } = &self.stage else { return Do::Nothing };
        if at < target.revision || holding {
            return Do::Nothing;
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
        Do::Nothing
    }

    /// Changes up to `seen` went to the reader. In order as they come, they may be proof enough.
    pub fn delivered(&mut self, seen: Revision) -> Do {
        match &self.stage {
            Stage::Awaiting { target, .. } | Stage::Proving { target, .. } if seen >= target.revision => {
                self.conclude(seen)
            }
            Stage::Idle { .. } | Stage::Aiming(_) | Stage::Awaiting { .. } | Stage::Proving { .. } => Do::Nothing,
        }
    }

    fn conclude(&mut self, at: Revision) -> Do {
        let now = Instant::now();
        self.stage = Stage::Idle { earliest: now, next: now + UNASKED };
        let tell = self.covers > self.answered;
        self.answered = self.covers;
        Do::Conclude { at, tell }
    }

    /// etcd could not be asked; the stream will notice too if that lasts.
    fn rest(&mut self) -> Do {
        let now = Instant::now();
        self.stage = Stage::Idle { earliest: now + ASK_AGAIN, next: now + UNASKED };
        Do::Nothing
    }
}

async fn aim(pool: Arc<Pool>, line: Line, trusted: Option<bool>) -> Result<Target, Fault> {
    let trusted = match trusted {
        Some(trusted) => trusted,
        None => tokio::time::timeout(pool.call_deadline, line.version())
            .await
            .ok()
            .flatten()
            .is_some_and(|version| keeps_its_word(&version)),
    };
    Ok(Target { revision: pool.newest().await?, trusted })
}

/// Whether this version of etcd delivers before it claims to have.
fn keeps_its_word(version: &str) -> bool {
    let mut numbers = version.split(['.', '-', '+']).map(|part| part.parse::<u32>().unwrap_or_default());
    let mut number = || numbers.next().unwrap_or_default();
    match (number(), number(), number()) {
        (3, 4, patch) => patch >= 31,
        (3, 5, patch) => patch >= 13,
        (major, minor, _) => (major, minor) >= (3, 6),
    }
}

/// Whether the keys hold the same at `to` as they did at `from`.
async fn unchanged(pool: &Pool, keys: &Keys, from: Revision, to: Revision) -> Result<bool, Fault> {
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
    use super::keeps_its_word;

    #[test]
    fn versions_with_the_known_fault_are_not_taken_at_their_word() {
        for faulty in ["3.3.27", "3.4.23", "3.4.30", "3.5.0", "3.5.12", "3.5.0-rc.1", "", "nonsense"] {
            assert!(!keeps_its_word(faulty), "{faulty}");
        }
        for sound in ["3.4.31", "3.5.13", "3.5.16", "3.6.0", "3.6.0-rc.2+git", "4.0.0"] {
            assert!(keeps_its_word(sound), "{sound}");
        }
    }
}
