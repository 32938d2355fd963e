//! From what there is and what there should be to one batch. Pure.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Drift, KernelSettings,
    again::Again,
    chains::{self, Chain},
    layout::{self, Element, INSIDE_WAYS, Key, SHAPES, Set, WAYS, Way},
    observed::Observed,
};
use crate::nft::{Batch, listing, sets::Data};

/// Elements that go and come, and ways that begin to be used or are not used any more.
#[derive(Default)]
pub struct Change {
    pub delete: Vec<Key>,
    pub add: Vec<Element>,
    pub begin: BTreeSet<Way>,
    pub end: BTreeSet<Way>,
}

impl Change {
    /// What turns the elements of a front into others.
    pub fn elements(&mut self, old: Vec<Element>, new: Vec<Element>) {
        let old: BTreeMap<Key, Element> = old.into_iter().map(|element| (element.key, element)).collect();
        let mut kept = BTreeSet::new();
        for element in new {
            match old.get(&element.key) {
                Some(same) if *same == element => {
                    kept.insert(element.key);
                }
                _ => self.add.push(element),
            }
        }
        self.delete.extend(old.into_keys().filter(|key| !kept.contains(key)));
    }

    /// What has to be there before anything leads to it. A packet that is being judged while this and the rest are
    /// written at once could be led to a chain that is still empty for it.
    pub fn preparation(&self, table: &str, settings: &KernelSettings, again: Option<Again>) -> Batch {
        let mut batch = Batch::new();
        for way in &self.begin {
            chain(&mut batch, table, &chains::of(*way, settings, again));
        }
        lead(&mut batch, table, self.begin.iter());
        batch
    }

    pub fn batch(&self, table: &str) -> Batch {
        let mut batch = Batch::new();
        delete(&mut batch, table, &self.delete);
        add(&mut batch, table, &self.add);
        for map in [WAYS.name, INSIDE_WAYS.name] {
            let ended = self.end.iter().filter(|way| way.map() == map).map(Way::key);
            let ended: Vec<[u8; 12]> = ended.collect();
            batch.delete_elements(table, map, ended.iter().map(<[u8; 12]>::as_slice));
        }
        for way in &self.end {
            batch.empty_chain(table, &way.chain());
            batch.delete_chain(table, &way.chain());
        }
        batch
    }
}

/// What there should be.
pub struct Wanted<'a, E> {
    pub settings: &'a KernelSettings,
    pub again: Option<Again>,
    pub table: &'a str,
    pub ways: BTreeSet<Way>,
    pub elements: E,
}

impl<E: Iterator<Item = Element>> Wanted<'_, E> {
    fn chains(&self) -> Vec<Chain> {
        let ways = self.ways.iter().map(|way| chains::of(*way, self.settings, self.again));
        chains::constant(self.settings).into_iter().chain(ways).collect()
    }

    /// All of it, in place of whatever there is.
    pub fn anew(self) -> Batch {
        let (mut batch, table) = (Batch::new(), self.table);
        // Deleting what may not be there needs it to be there.
        batch.table(table);
        batch.delete_table(table);
        batch.table(table);
        for (number, shape) in (1..).zip(SHAPES) {
            batch.set(table, number, shape);
        }
        if let Some(again) = self.again {
            again.write(&mut batch, table);
        }
        for wanted in self.chains() {
            chain(&mut batch, table, &wanted);
        }
        lead(&mut batch, table, self.ways.iter());
        let elements: Vec<Element> = self.elements.chain(layout::constant_elements()).collect();
        add(&mut batch, table, &elements);
        batch
    }

    /// What differs. None if it cannot be mended piece by piece.
    pub fn mend(self, mut observed: Observed) -> Option<(Batch, Drift)> {
        let (mut batch, mut drift, table) = (Batch::new(), Drift::default(), self.table);
        for wanted in self.chains() {
            let found = observed.chains.remove(&wanted.name);
            let hook = wanted.hook.map(|hook| hook.place());
            let Some(found) = found else {
                drift.missing += 1 + wanted.rules.len();
                chain(&mut batch, table, &wanted);
                continue;
            };
            if found.hook != hook {
                return None;
            }
            let marks: Vec<Option<Vec<u8>>> = wanted.rules.iter().map(|rule| Some(listing::mark(rule))).collect();
            if marks != found.marks {
                drift.missing += marks.iter().filter(|mark| !found.marks.contains(mark)).count();
                drift.surplus += found.marks.iter().filter(|mark| !marks.contains(mark)).count();
                batch.empty_chain(table, &wanted.name);
                rules(&mut batch, table, &wanted);
            }
        }
        let mut ways = observed.ways;
        let place = |way: &Way| (way.map(), way.key().to_vec());
        let unled: Vec<&Way> = self.ways.iter().filter(|way| ways.get(&place(way)) != Some(&way.chain())).collect();
        drift.missing += unled.len();
        ways.retain(|at, chain| !self.ways.iter().any(|way| place(way) == *at && way.chain() == *chain));
        for map in [WAYS.name, INSIDE_WAYS.name] {
            let surplus = ways.keys().filter(|(own, _)| *own == map);
            batch.delete_elements(table, map, surplus.map(|(_, key)| key.as_slice()));
        }
        lead(&mut batch, table, unled.into_iter());
        // A changed one is missing as it should be, and surplus as it is.
        let mut missing = Vec::new();
        for element in self.elements.chain(layout::constant_elements()) {
            match observed.elements.get(&element.key) {
                Some(found) if *found == element => {
                    observed.elements.remove(&element.key);
                }
                _ => missing.push(element),
            }
        }
        let surplus: Vec<Key> = observed.elements.into_keys().collect();
        delete(&mut batch, table, &surplus);
        add(&mut batch, table, &missing);
        drift.missing += missing.len();
        drift.surplus += surplus.len() + ways.len() + observed.chains.len();
        for (name, found) in &observed.chains {
            drift.surplus += found.marks.len();
            batch.empty_chain(table, name);
        }
        for name in observed.chains.keys() {
            batch.delete_chain(table, name);
        }
        Some((batch, drift))
    }
}

fn chain(batch: &mut Batch, table: &str, chain: &Chain) {
    match chain.hook {
        Some(hook) => batch.chain(table, &chain.name, hook),
        None => batch.inner_chain(table, &chain.name),
    }
    rules(batch, table, chain);
}

fn rules(batch: &mut Batch, table: &str, chain: &Chain) {
    for rule in &chain.rules {
        batch.marked_rule(table, &chain.name, rule);
    }
}

fn lead<'a>(batch: &mut Batch, table: &str, ways: impl Iterator<Item = &'a Way>) {
    let named: Vec<(&str, [u8; 12], String)> = ways.map(|way| (way.map(), way.key(), way.chain())).collect();
    for map in [WAYS.name, INSIDE_WAYS.name] {
        let own = named.iter().filter(|(own, ..)| *own == map);
        batch.add_elements(table, map, own.map(|(_, key, chain)| (&key[..], Data::Jump(chain))));
    }
}

fn delete(batch: &mut Batch, table: &str, keys: &[Key]) {
    for set in Set::ALL {
        let of_set = keys.iter().filter(|key| key.set == set);
        batch.delete_elements(table, set.name(), of_set.map(Key::bytes));
    }
}

fn add(batch: &mut Batch, table: &str, elements: &[Element]) {
    for set in Set::ALL {
        let of_set = elements.iter().filter(|element| element.key.set == set);
        let with_data = of_set.map(|element| (element.key.bytes(), element.value().map_or(Data::None, Data::Value)));
        batch.add_elements(table, set.name(), with_data);
    }
}
