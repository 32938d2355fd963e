//! Fences: writes of a leader-gated task hold only during the term of leadership under which it runs.
//!
//! Every election Lease has a term: a key of its own, which the admission plugin `LeaderTerms` writes in the very transaction
//! that changes who holds the Lease, and never when the Lease is merely renewed. A [`Fence`] is the revision of that key.
//! [`Api::commit`](crate::api::Api::commit) compares it in the transaction of the write, so that the store itself refuses what
//! a deposed leader has sent, however long it was frozen, and also what was under way when it was deposed.
//!
//! A fence travels as an extension of requests within the process: nothing that comes over the network can carry one,
//! and nobody who was given one can lose it on the way. The Lease itself is written without.
//!
//! What another API server stores (see [`crate::aggregator`]) cannot be compared in its transaction: there the term is read
//! right before the request is passed on. A process that is frozen between the two still gets it through, once.

use std::sync::Arc;

use http::request::Parts;
use mainstay_store::{Compare, Entry, Expect, Revision};
use tokio_util::sync::CancellationToken;

use crate::objects::keys;

/// One term of an election Lease.
#[derive(Clone, Debug)]
pub struct Fence {
    lease: Arc<str>,
    key: Arc<str>,
    term: Revision,
    ended: CancellationToken,
}

/// The write came too late: the term under which it was decided is over.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the write was refused: its author no longer holds Lease {lease:?} (term {term})")]
pub struct TermEnded {
    lease: Arc<str>,
    term: Revision,
}

impl Fence {
    /// The term that began when the Lease got the version `term`. `ended` is cancelled as soon as a write is refused.
    pub fn new(namespace: &str, name: &str, term: Revision, ended: CancellationToken) -> Self {
        let lease = format!("{namespace}/{name}").into();
        Self { lease, key: keys::leader_term(namespace, name), term, ended }
    }

    /// The fence of a request from within the process.
    pub(crate) fn from_request(parts: &Parts) -> Option<&Self> {
        parts.extensions.get::<Arc<Self>>().map(|fence| &**fence)
    }

    /// What must hold for a write of this term.
    pub(crate) fn compare(&self) -> Compare {
        Compare { key: self.key.clone(), expect: Expect::ModifiedAt(self.term) }
    }

    /// Where the store says whether the term lasts.
    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    /// Refuses what need not be tried: the term is known to be over.
    pub(crate) fn check(&self) -> Result<(), TermEnded> {
        if self.ended.is_cancelled() { Err(self.refusal()) } else { Ok(()) }
    }

    /// Judges what the store found in the place of [`compare`](Self::compare).
    pub(crate) fn check_found(&self, found: Option<&Entry>) -> Result<(), TermEnded> {
        if found.is_some_and(|entry| entry.modified == self.term) {
            return Ok(());
        }
        self.ended.cancel();
        Err(self.refusal())
    }

    fn refusal(&self) -> TermEnded {
        TermEnded { lease: self.lease.clone(), term: self.term }
    }
}
