//! The watermark of acknowledgements: the version of slices that all nodes have in force, and who waits for it. Pure.
//!
//! A thousand nodes acknowledge every change. What counts is the one that is furthest behind, so each
//! acknowledgement costs a step in an ordered set, and adds only those whose version it reached.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use crate::runtime::ObjectKey;

#[derive(Default)]
pub struct Watermark {
    /// The newest version in force, by node.
    tables: HashMap<String, u64>,
    /// Nodes that are ready.
    ready: HashSet<String>,
    /// Those that have a table and are ready.
    counted: BTreeSet<(u64, String)>,
    waiting: BTreeMap<u64, BTreeSet<ObjectKey>>,
}

impl Watermark {
    /// Takes in what a node acknowledges; nothing if it has no table. Returns who need wait no longer.
    #[must_use]
    pub fn put_table(&mut self, node: &str, version: Option<u64>) -> Vec<ObjectKey> {
        let before = match version {
            Some(version) => self.tables.insert(node.to_owned(), version),
            None => self.tables.remove(node),
        };
        if let Some(before) = before {
            self.counted.remove(&(before, node.to_owned()));
        }
        self.count(node);
        self.reached()
    }

    /// Takes in whether a node is there and ready.
    #[must_use]
    pub fn put_node(&mut self, node: &str, ready: bool) -> Vec<ObjectKey> {
        if ready {
            self.ready.insert(node.to_owned());
        } else if self.ready.remove(node)
            && let Some(version) = self.tables.get(node)
        {
            self.counted.remove(&(*version, node.to_owned()));
        }
        self.count(node);
        self.reached()
    }

    /// What is in force everywhere; nothing if there is no node to ask.
    pub fn least(&self) -> Option<u64> {
        self.counted.first().map(|(version, _)| *version)
    }

    pub fn has(&self, version: u64) -> bool {
        self.least().is_none_or(|least| least >= version)
    }

    /// Whether a node that is ready has no table.
    pub fn is_partial(&self) -> bool {
        self.counted.len() < self.ready.len()
    }

    /// Remembers who waits for a version.
    pub fn wait(&mut self, version: u64, key: ObjectKey) {
        self.waiting.entry(version).or_default().insert(key);
    }

    fn count(&mut self, node: &str) {
        if let Some(version) = self.tables.get(node).filter(|_| self.ready.contains(node)) {
            self.counted.insert((*version, node.to_owned()));
        }
    }

    fn reached(&mut self) -> Vec<ObjectKey> {
        let reached = match self.least() {
            Some(least) => {
                let later = self.waiting.split_off(&(least + 1));
                std::mem::replace(&mut self.waiting, later)
            }
            None => std::mem::take(&mut self.waiting),
        };
        reached.into_values().flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(name: &str) -> ObjectKey {
        ObjectKey::new("ns", name)
    }

    #[test]
    fn the_node_furthest_behind_counts_while_it_reports() {
        let mut watermark = Watermark::default();
        for node in ["a", "b"] {
            assert!(watermark.put_node(node, true).is_empty());
        }
        assert!(watermark.has(9), "nobody has a table");
        assert!(watermark.put_table("a", Some(5)).is_empty());
        assert!(watermark.put_table("b", Some(3)).is_empty());
        watermark.wait(4, key("x"));
        watermark.wait(6, key("y"));
        assert!(!watermark.has(4));
        assert_eq!(watermark.put_table("b", Some(4)), [key("x")]);
        assert!(watermark.put_table("a", Some(7)).is_empty(), "b is still behind");
        assert_eq!(watermark.put_node("b", false), [key("y")]);
        assert!(watermark.put_node("b", true).is_empty());
        assert_eq!(watermark.least(), Some(4), "heard of again, it counts again");
        assert!(watermark.put_table("b", None).is_empty());
        assert_eq!(watermark.least(), Some(7), "without a table it does not");
        assert!(watermark.is_partial());
    }

    proptest! {
        #[test]
        fn whoever_waits_is_woken_exactly_when_all_have_come_so_far(
            steps in proptest::collection::vec((0..4usize, 0..3usize, 0..9u64), 1..60),
        ) {
            let mut watermark = Watermark::default();
            let (mut tables, mut ready, mut waiting) = (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
            for (kind, node, version) in steps {
                let name = format!("m{node}");
                let reached = match kind {
                    0 => {
                        tables.insert(name.clone(), version);
                        watermark.put_table(&name, Some(version))
                    }
                    1 => {
                        tables.remove(&name);
                        watermark.put_table(&name, None)
                    }
                    2 => {
                        let there = version % 2 == 0;
                        if there { ready.insert(name.clone()); } else { ready.remove(&name); }
                        watermark.put_node(&name, there)
                    }
                    _ => {
                        if !watermark.has(version) {
                            waiting.insert(version);
                            watermark.wait(version, key(&version.to_string()));
                        }
                        Vec::new()
                    }
                };
                let least = tables.iter().filter(|(name, _)| ready.contains(*name)).map(|(_, version)| *version).min();
                prop_assert_eq!(watermark.least(), least);
                let due: BTreeSet<u64> = waiting.iter().copied().filter(|own| least.is_none_or(|least| least >= *own)).collect();
                let reached: BTreeSet<u64> = reached.iter().map(|key| key.name.parse().unwrap()).collect();
                prop_assert_eq!(&reached, &due);
                waiting.retain(|own| !due.contains(own));
            }
        }
    }
}
