//! How far all machines have come together, and who waits for that. Pure.
//!
//! A thousand machines acknowledge every change. What counts is the one that is furthest behind, so each
//! acknowledgement costs a step in an ordered set, and wakes only those whose version it reached.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use crate::cache::Key;

#[derive(Default)]
pub struct Floor {
    /// The newest version in force, by machine.
    tables: HashMap<String, u64>,
    /// Machines that are heard of.
    alive: HashSet<String>,
    /// Those that have a table and are alive.
    counted: BTreeSet<(u64, String)>,
    waiting: BTreeMap<u64, BTreeSet<Key>>,
}

impl Floor {
    /// Takes in what a machine acknowledges; nothing if it has no table. Returns who need wait no longer.
    #[must_use]
    pub fn put_table(&mut self, machine: &str, version: Option<u64>) -> Vec<Key> {
        let before = match version {
            Some(version) => self.tables.insert(machine.to_owned(), version),
            None => self.tables.remove(machine),
        };
        if let Some(before) = before {
            self.counted.remove(&(before, machine.to_owned()));
        }
        self.count(machine);
        self.reached()
    }

    /// Takes in whether a machine is there and heard of.
    #[must_use]
    pub fn put_machine(&mut self, machine: &str, alive: bool) -> Vec<Key> {
        if alive {
            self.alive.insert(machine.to_owned());
        } else if self.alive.remove(machine)
            && let Some(version) = self.tables.get(machine)
        {
            self.counted.remove(&(*version, machine.to_owned()));
        }
        self.count(machine);
        self.reached()
    }

    /// What is in force everywhere; nothing if there is no machine to ask.
    pub fn least(&self) -> Option<u64> {
        self.counted.first().map(|(version, _)| *version)
    }

    pub fn has(&self, version: u64) -> bool {
        self.least().is_none_or(|least| least >= version)
    }

    /// Whether a machine that is heard of has no table.
    pub fn is_partial(&self) -> bool {
        self.counted.len() < self.alive.len()
    }

    /// Remembers who waits for a version.
    pub fn wait(&mut self, version: u64, key: Key) {
        self.waiting.entry(version).or_default().insert(key);
    }

    fn count(&mut self, machine: &str) {
        if let Some(version) = self.tables.get(machine).filter(|_| self.alive.contains(machine)) {
            self.counted.insert((*version, machine.to_owned()));
        }
    }

    fn reached(&mut self) -> Vec<Key> {
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

    fn key(name: &str) -> Key {
        Key::new("ns", name)
    }

    #[test]
    fn the_one_furthest_behind_counts_while_it_is_heard_of() {
        let mut floor = Floor::default();
        for machine in ["a", "b"] {
            assert!(floor.put_machine(machine, true).is_empty());
        }
        assert!(floor.has(9), "nobody has a table");
        assert!(floor.put_table("a", Some(5)).is_empty());
        assert!(floor.put_table("b", Some(3)).is_empty());
        floor.wait(4, key("x"));
        floor.wait(6, key("y"));
        assert!(!floor.has(4));
        assert_eq!(floor.put_table("b", Some(4)), [key("x")]);
        assert!(floor.put_table("a", Some(7)).is_empty(), "b is still behind");
        assert_eq!(floor.put_machine("b", false), [key("y")]);
        assert!(floor.put_machine("b", true).is_empty());
        assert_eq!(floor.least(), Some(4), "heard of again, it counts again");
        assert!(floor.put_table("b", None).is_empty());
        assert_eq!(floor.least(), Some(7), "without a table it does not");
        assert!(floor.is_partial());
    }

    proptest! {
        #[test]
        fn whoever_waits_is_woken_exactly_when_all_have_come_so_far(
            steps in proptest::collection::vec((0..4usize, 0..3usize, 0..9u64), 1..60),
        ) {
            let mut floor = Floor::default();
            let (mut tables, mut alive, mut waiting) = (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
            for (kind, machine, version) in steps {
                let name = format!("m{machine}");
                let woken = match kind {
                    0 => {
                        tables.insert(name.clone(), version);
                        floor.put_table(&name, Some(version))
                    }
                    1 => {
                        tables.remove(&name);
                        floor.put_table(&name, None)
                    }
                    2 => {
                        let there = version % 2 == 0;
                        if there { alive.insert(name.clone()); } else { alive.remove(&name); }
                        floor.put_machine(&name, there)
                    }
                    _ => {
                        if !floor.has(version) {
                            waiting.insert(version);
                            floor.wait(version, key(&version.to_string()));
                        }
                        Vec::new()
                    }
                };
                let least = tables.iter().filter(|(name, _)| alive.contains(*name)).map(|(_, version)| *version).min();
                prop_assert_eq!(floor.least(), least);
                let due: BTreeSet<u64> = waiting.iter().copied().filter(|own| least.is_none_or(|least| least >= *own)).collect();
                let woken: BTreeSet<u64> = woken.iter().map(|key| key.name.parse().unwrap()).collect();
                prop_assert_eq!(&woken, &due);
                waiting.retain(|own| !due.contains(own));
            }
        }
    }
}
