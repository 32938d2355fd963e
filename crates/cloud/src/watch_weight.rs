//! How much the Nodes of a Kluster weigh that are kept in memory here, and when that is too much.
//!
//! A Kluster's administrator makes Nodes as he likes, in number and in size, and all controllers of all Klusters share one process. So the watch of a Kluster whose Nodes are
//! larger than [`MOST_BYTES`] together is ended: its Nodes are not known from then on, until it has other credentials or this process is started anew.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicBool, Ordering},
};

use mainstay_controllers::runtime::{Change, ObjectKey};
use parking_lot::Mutex;
use serde::Serialize;

/// As JSON: two thousand Nodes with fifty images each.
pub const MOST_BYTES: usize = 32 << 20;

#[derive(Default)]
struct Weights {
    by_key: HashMap<ObjectKey, usize>,
    total: usize,
}

#[derive(Default)]
pub struct WatchWeight {
    weights: Mutex<Weights>,
    is_exceeded: AtomicBool,
}

impl WatchWeight {
    /// Takes in a change; says whether all objects together are more than `most` by it.
    pub fn observe<K: Serialize>(&self, change: &Change<'_, K>, most: usize) -> bool {
        let bytes = change.after.map(|object| serde_json::to_vec(object).map_or(0, |bytes| bytes.len()));
        let mut weights = self.weights.lock();
        let before = match bytes {
            Some(bytes) => weights.by_key.insert(change.key.clone(), bytes),
            None => weights.by_key.remove(change.key),
        };
        weights.total = weights.total + bytes.unwrap_or(0) - before.unwrap_or(0);
        let is_too_much = weights.total > most;
        if is_too_much {
            self.is_exceeded.store(true, Ordering::Relaxed);
        }
        is_too_much
    }

    /// Whether it was too much once.
    pub fn is_exceeded(&self) -> bool {
        self.is_exceeded.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_weighed_together_and_those_that_go_weigh_nothing() {
        let weight = WatchWeight::default();
        let observe = |name: &str, after: Option<&String>| {
            let key = ObjectKey::new("", name);
            weight.observe(&Change { key: &key, before: None, after, version: 0, own: false }, 100)
        };
        let (large, small) = ("x".repeat(60), "x".repeat(10));
        assert!(!observe("a", Some(&large)));
        assert!(!observe("a", Some(&large)), "the same again");
        assert!(!observe("a", None));
        assert!(!observe("b", Some(&large)) && !observe("c", Some(&small)) && !weight.is_exceeded());
        assert!(observe("d", Some(&large)) && weight.is_exceeded());
    }
}
