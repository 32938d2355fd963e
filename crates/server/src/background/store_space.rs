//! Whether the store's disk has room: what writes have found out, for `/readyz` and the log.
//!
//! An outage begins with the first write refused for lack of space and is over when a write is taken after
//! [`QUIET`] without such a refusal: on a disk that is nearly full small writes fit where large ones do not, and
//! that must not fill the log. Removals prove nothing, for they may find room where nothing else does.

use std::time::{Duration, Instant};

use mainstay_store::{Op, Outcome, StoreError, Txn};
use parking_lot::Mutex;

/// How long no write may have been refused before the outage is over.
const QUIET: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub struct StoreSpace {
    last_refusal: Mutex<Option<Instant>>,
}

/// What a write tells about the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SpaceChange {
    OutageBegan,
    OutageOver,
}

impl StoreSpace {
    pub fn is_exhausted(&self) -> bool {
        self.last_refusal.lock().is_some()
    }

    /// Whether a transaction's success shows that there is room.
    pub fn needs_room(txn: &Txn) -> bool {
        txn.ops.iter().any(|op| matches!(op, Op::Put { .. }))
    }

    /// Learns from a write that was tried; `needed_room` as by [`StoreSpace::needs_room`].
    pub fn observe(&self, needed_room: bool, tried: &Result<Outcome, StoreError>) {
        match self.learn(needed_room, tried, Instant::now()) {
            Some(SpaceChange::OutageBegan) => tracing::error!(
                "the store's disk is full: objects can be deleted but not created, and /readyz fails; free some space on it"
            ),
            Some(SpaceChange::OutageOver) => tracing::info!("the store's disk has space again: writes are taken"),
            None => {}
        }
    }

    fn learn(&self, needed_room: bool, tried: &Result<Outcome, StoreError>, now: Instant) -> Option<SpaceChange> {
        let mut last_refusal = self.last_refusal.lock();
        match (tried, *last_refusal) {
            (Err(StoreError::NoSpace), before) => {
                *last_refusal = Some(now);
                before.is_none().then_some(SpaceChange::OutageBegan)
            }
            (Ok(Outcome::Committed(_)), Some(at)) if needed_room && now.duration_since(at) >= QUIET => {
                *last_refusal = None;
                Some(SpaceChange::OutageOver)
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use mainstay_store::Revision;

    use super::*;

    #[test]
    fn an_outage_begins_and_ends_once_however_often_writes_fail_and_succeed() {
        let (space, start) = (StoreSpace::default(), Instant::now());
        let (refused, taken) = (Err(StoreError::NoSpace), Ok(Outcome::Committed(Revision(1))));
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(space.learn(true, &taken, at(0)), None);
        assert_eq!(space.learn(true, &refused, at(1)), Some(SpaceChange::OutageBegan));
        assert!(space.is_exhausted());
        assert_eq!(space.learn(true, &taken, at(2)), None); // a small one fitted
        assert_eq!(space.learn(true, &refused, at(3)), None);
        assert_eq!(space.learn(false, &taken, at(60)), None); // a removal
        assert!(space.is_exhausted());
        assert_eq!(space.learn(true, &taken, at(61)), Some(SpaceChange::OutageOver));
        assert!(!space.is_exhausted());
        assert_eq!(space.learn(true, &taken, at(62)), None);
    }
}
