//! Decides a batch of transactions before any of them is written: one after the other, each seeing those before it. Pure.

use std::{collections::HashMap, sync::Arc};

use bytes::Bytes;

use crate::{
    Change, Compare, Entry, Expect, Op, Outcome, Revision, StoreError, Txn,
    mvcc::{Batch, State},
};

pub(super) struct Plan {
    /// One per transaction, in order. True only once `changes` are on disk.
    pub(super) outcomes: Vec<Result<Outcome, StoreError>>,
    /// Transactions that change something, in order.
    pub(super) changes: Vec<Batch>,
    /// Newest revision afterwards.
    pub(super) revision: Revision,
}

/// `admit` refuses changes that there is no room for.
pub(super) fn plan<'a>(
    state: &State,
    txns: impl Iterator<Item = &'a Txn>,
    admit: impl Fn(&[Change]) -> Result<(), StoreError>,
) -> Plan {
    let mut planner = Planner { state, written: HashMap::new(), changes: Vec::new(), revision: state.revision() };
    let outcomes = txns.map(|txn| planner.decide(txn, &admit)).collect();
    Plan { outcomes, changes: planner.changes, revision: planner.revision }
}

struct Planner<'a> {
    state: &'a State,
    /// What transactions of this batch made of their keys.
    written: HashMap<Arc<str>, Option<Arc<Entry>>>,
    changes: Vec<Batch>,
    revision: Revision,
}

impl Planner<'_> {
    fn current(&self, key: &str) -> Option<&Arc<Entry>> {
        match self.written.get(key) {
            Some(written) => written.as_ref(),
            None => self.state.get(key),
        }
    }

    fn holds(&self, compare: &Compare) -> bool {
        match (compare.expect, self.current(&compare.key)) {
            (Expect::Absent, current) => current.is_none(),
            (Expect::ModifiedAt(at), current) => current.is_some_and(|e| e.modified == at),
        }
    }

    fn decide(
        &mut self,
        txn: &Txn,
        admit: &impl Fn(&[Change]) -> Result<(), StoreError>,
    ) -> Result<Outcome, StoreError> {
        if !txn.compares.iter().all(|c| self.holds(c)) {
            let current = txn.compares.iter().map(|c| self.current(&c.key).cloned()).collect();
            return Ok(Outcome::Conflict { current });
        }
        let revision = Revision(self.revision.0 + 1);
        let changes: Batch = txn.ops.iter().filter_map(|op| self.change(op, revision)).collect();
        if !changes.is_empty() {
            admit(&changes)?;
            for change in changes.iter() {
                self.written.insert(change.key.clone(), change.current.clone());
            }
            self.changes.push(changes);
            self.revision = revision;
        }
        Ok(Outcome::Committed(self.revision))
    }

    fn change(&self, op: &Op, revision: Revision) -> Option<Change> {
        let previous = self.current(op.key()).cloned();
        // One allocation per key, however often it is written.
        let key = previous.as_ref().map_or_else(|| op.key().clone(), |p| p.key.clone());
        let current = match op {
            Op::Delete { .. } if previous.is_none() => return None,
            Op::Delete { .. } => None,
            Op::Put { value, .. } => Some(Arc::new(Entry {
                key: key.clone(),
                // A copy, because the caller's bytes may be a small part of a large buffer.
                value: Bytes::copy_from_slice(value),
                created: previous.as_ref().map_or(revision, |p| p.created),
                modified: revision,
                memo: Default::default(),
            })),
        };
        Some(Change { key, revision, current, previous })
    }
}
