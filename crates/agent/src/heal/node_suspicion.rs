//! Suspects the node itself when pods of several owners keep failing on it. Pure.
//!
//! A set whose pods fail everywhere is faulty itself; several sets that fail on the same node at the same time, and keep
//! failing after their pods were recreated, have the node in common.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::Timestamp;

const WINDOW: Duration = Duration::from_secs(600);
const SETS: usize = 3;

#[derive(Debug, Default)]
pub struct NodeSuspicion {
    /// By set: its name, and when one of its pods last climbed above restarting.
    failing: BTreeMap<String, (String, Timestamp)>,
}

impl NodeSuspicion {
    pub fn record_failure(&mut self, set: String, name: String, now: Timestamp) {
        self.failing.retain(|_, (_, at)| recent(*at, now));
        self.failing.insert(set, (name, now));
    }

    /// `sets` are those with pods here.
    pub fn reason(&self, sets: &BTreeSet<String>, now: Timestamp) -> Option<String> {
        let failing = self.failing.iter().filter(|(set, (_, at))| sets.contains(*set) && recent(*at, now));
        let names: Vec<&str> = failing.map(|(_, (name, _))| name.as_str()).collect();
        if names.len() < SETS || names.len() * 2 < sets.len() {
            return None;
        }
        let (failing, all, shown) = (names.len(), sets.len(), names[..SETS].join(", "));
        let more = if failing > SETS { ", …" } else { "" };
        Some(format!("pods of {failing} of {all} different owners kept failing here within 10m: {shown}{more}"))
    }
}

fn recent(at: Timestamp, now: Timestamp) -> bool {
    now.duration_since(at).unsigned_abs() < WINDOW
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at_second(seconds: u64) -> Timestamp {
        Timestamp::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn three_different_sets_make_the_machine_suspect_until_it_is_long_ago() {
        let mut suspicion = NodeSuspicion::default();
        let sets: BTreeSet<String> = ["a", "b", "c", "d"].map(String::from).into();
        for (n, set) in ["a", "b", "a", "a"].into_iter().enumerate() {
            suspicion.record_failure(set.into(), format!("ReplicaSet {set}"), at_second(n as u64));
        }
        assert_eq!(suspicion.reason(&sets, at_second(10)), None);
        suspicion.record_failure("c".into(), "Pod c".into(), at_second(20));
        let why = "pods of 3 of 4 different owners kept failing here within 10m: ReplicaSet a, ReplicaSet b, Pod c";
        assert_eq!(suspicion.reason(&sets, at_second(30)).as_deref(), Some(why));
        assert_eq!(suspicion.reason(&sets, at_second(700)), None);
    }

    #[test]
    fn a_few_of_many_are_not_the_machines_fault() {
        let mut suspicion = NodeSuspicion::default();
        let sets: BTreeSet<String> = (0..10).map(|n| n.to_string()).collect();
        for set in ["1", "2", "3"] {
            suspicion.record_failure(set.into(), set.into(), at_second(0));
        }
        assert_eq!(suspicion.reason(&sets, at_second(1)), None);
        let gone: BTreeSet<String> = ["1", "2"].map(String::from).into();
        assert_eq!(suspicion.reason(&gone, at_second(1)), None);
    }
}
