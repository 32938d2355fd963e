//! Assembles the messages of a watch stream into whole transactions.
//!
//! etcd may spread what it has to say over several messages (fragments), and cuts between any two
//! changes, those of one transaction included. Changes are passed on as soon as their transaction
//! is complete: a later one has begun, or the last fragment is here. So what is incomplete back is
//! bounded by the size of a transaction, not by what a lagging watch has to catch up with.

use crate::etcd::{
    pool::revision,
    proto::{Event, event::Type},
    range::{entry, key},
};
use crate::{Change, Revision, StoreError};

#[derive(Debug, PartialEq, Eq)]
pub(super) enum AssembleError {
    /// Compaction overtook etcd while it looked for what a key incomplete before this revision.
    Overtaken { at: Revision },
    /// No change at all.
    Malformed { why: String },
}

#[derive(Debug)]
pub(super) struct Assembler {
    /// Changes up to here are known already.
    delivered: Revision,
    incomplete: Vec<Change>,
}

impl Assembler {
    pub fn new(delivered: Revision) -> Self {
        Self { delivered, incomplete: Vec::new() }
    }

    /// Whether part of a transaction waits for the rest.
    pub fn is_incomplete(&self) -> bool {
        !self.incomplete.is_empty()
    }

    /// Changes up to this revision are dropped from now on.
    pub fn raise(&mut self, delivered: Revision) {
        self.delivered = self.delivered.max(delivered);
    }

    /// The transactions that `events` complete, given whether more fragments follow.
    pub fn take(&mut self, events: Vec<Event>, more: bool) -> Result<Vec<Change>, AssembleError> {
        for event in events {
            // A change that is known already may come without the previous value.
            if event.kv.as_ref().is_none_or(|kv| revision(Some(kv.mod_revision)) > self.delivered) {
                self.incomplete.push(change(event)?);
            }
        }
        let complete = match self.incomplete.last() {
            Some(last) if more => self.incomplete.partition_point(|change| change.revision < last.revision),
            Some(_) | None => self.incomplete.len(),
        };
        let rest = self.incomplete.split_off(complete);
        Ok(std::mem::replace(&mut self.incomplete, rest))
    }
}

fn change(event: Event) -> Result<Change, AssembleError> {
    let malformed = |error: StoreError| AssembleError::Malformed { why: error.to_string() };
    let deleted = event.r#type() == Type::Delete;
    let kv = event.kv.ok_or_else(|| AssembleError::Malformed { why: "an event about no key".into() })?;
    let at = revision(Some(kv.mod_revision));
    // A put that is its key's first replaces nothing; every other change replaces something.
    if event.prev_kv.is_none() && (deleted || kv.create_revision != kv.mod_revision) {
        return Err(AssembleError::Overtaken { at });
    }
    let previous = event.prev_kv.map(entry).transpose().map_err(malformed)?;
    if deleted {
        let key = match &previous {
            Some(previous) => previous.key.clone(),
            None => key(kv.key).map_err(malformed)?,
        };
        return Ok(Change { key, revision: at, current: None, previous });
    }
    let current = entry(kv).map_err(malformed)?;
    Ok(Change { key: current.key.clone(), revision: at, current: Some(current), previous })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::etcd::proto::KeyValue;

    fn created(key: &str, at: i64) -> Event {
        let kv = KeyValue { key: key.into(), create_revision: at, mod_revision: at, version: 1, value: b"v".to_vec() };
        Event { r#type: Type::Put.into(), kv: Some(kv), prev_kv: None }
    }

    fn deleted(key: &str, at: i64) -> Event {
        let kv = KeyValue { key: key.into(), mod_revision: at, ..Default::default() };
        Event { r#type: Type::Delete.into(), kv: Some(kv), prev_kv: None }
    }

    fn output(changes: Result<Vec<Change>, AssembleError>) -> Vec<(String, u64)> {
        changes.expect("no flaw").iter().map(|change| (change.key.to_string(), change.revision.0)).collect()
    }

    #[test]
    fn a_transaction_cut_in_two_is_passed_on_whole() {
        let mut assembler = Assembler::new(Revision(1));
        let first = assembler.take(vec![created("a", 2), created("b", 3)], true);
        assert_eq!(output(first), [("a".to_owned(), 2)]);
        assert!(assembler.is_incomplete());
        assert_eq!(output(assembler.take(vec![created("c", 3)], true)), []);
        let last = assembler.take(vec![created("d", 3), created("e", 4)], false);
        assert_eq!(output(last), [("b".to_owned(), 3), ("c".to_owned(), 3), ("d".to_owned(), 3), ("e".to_owned(), 4)]);
        assert!(!assembler.is_incomplete());
    }

    #[test]
    fn what_was_delivered_before_the_stream_broke_is_not_delivered_again() {
        let mut assembler = Assembler::new(Revision(2));
        assert_eq!(output(assembler.take(vec![created("a", 2), created("b", 3)], false)), [("b".to_owned(), 3)]);
        assert_eq!(output(assembler.take(vec![deleted("a", 2)], false)), []);
        assembler.raise(Revision(5));
        assert_eq!(output(assembler.take(vec![created("c", 5), created("d", 6)], false)), [("d".to_owned(), 6)]);
    }

    #[test]
    fn a_change_whose_previous_value_was_compacted_away_is_a_flaw_not_a_creation() {
        let mut update = created("a", 7);
        if let Some(kv) = &mut update.kv {
            (kv.create_revision, kv.version) = (3, 2);
        }
        let flaw = Assembler::new(Revision(1)).take(vec![update], false).expect_err("update");
        assert_eq!(flaw, AssembleError::Overtaken { at: Revision(7) });
        let flaw = Assembler::new(Revision(1)).take(vec![deleted("a", 8)], false).expect_err("delete");
        assert_eq!(flaw, AssembleError::Overtaken { at: Revision(8) });
    }
}
