//! Computes the nftables transactions that turn the kernel's Services table into the desired one. Pure.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Drift, KernelSettings,
    chains::{Chain, constant_chains, disposition_chain},
    conntrack_timeout::ConntrackTimeout,
    maps::{DISPOSITIONS, Disposition, Element, ElementKey, INTERNAL_DISPOSITIONS, SETS, SetId, constant_elements},
    observed::ObservedTable,
};
use crate::nft::{Batch, listing::rule_tag, sets::ElementData};

/// A change of some frontends.
#[derive(Default)]
pub struct TableChange {
    pub deleted: Vec<ElementKey>,
    pub added: Vec<Element>,
    pub first_used: BTreeSet<Disposition>,
    pub unused: BTreeSet<Disposition>,
}

impl TableChange {
    /// Records what turns the elements of a frontend into others.
    pub fn replace_elements(&mut self, old: Vec<Element>, new: Vec<Element>) {
        let old: BTreeMap<ElementKey, Element> = old.into_iter().map(|element| (element.key, element)).collect();
        let mut unchanged = BTreeSet::new();
        for element in new {
            match old.get(&element.key) {
                Some(same) if *same == element => {
                    unchanged.insert(element.key);
                }
                _ => self.added.push(element),
            }
        }
        self.deleted.extend(old.into_keys().filter(|key| !unchanged.contains(key)));
    }

    /// The chains of new dispositions: a transaction of its own that comes first. A packet that is in the ruleset
    /// while both are committed at once could see the element but not the rules of the chain that it jumps to.
    pub fn chains_batch(&self, table: &str, settings: &KernelSettings, timeout: Option<ConntrackTimeout>) -> Batch {
        let mut batch = Batch::new();
        for disposition in &self.first_used {
            add_chain(&mut batch, table, &disposition_chain(*disposition, settings, timeout));
        }
        add_dispositions(&mut batch, table, self.first_used.iter());
        batch
    }

    pub fn elements_batch(&self, table: &str) -> Batch {
        let mut batch = Batch::new();
        delete_elements(&mut batch, table, &self.deleted);
        add_elements(&mut batch, table, &self.added);
        for map in [DISPOSITIONS.name, INTERNAL_DISPOSITIONS.name] {
            let unused = self.unused.iter().filter(|disposition| disposition.map() == map).map(Disposition::key);
            let unused: Vec<[u8; 12]> = unused.collect();
            batch.delete_elements(table, map, unused.iter().map(<[u8; 12]>::as_slice));
        }
        for disposition in &self.unused {
            batch.flush_chain(table, &disposition.chain());
            batch.delete_chain(table, &disposition.chain());
        }
        batch
    }
}

pub struct DesiredTable<'a, E> {
    pub settings: &'a KernelSettings,
    pub timeout: Option<ConntrackTimeout>,
    pub name: &'a str,
    pub dispositions: BTreeSet<Disposition>,
    pub elements: E,
}

impl<E: Iterator<Item = Element>> DesiredTable<'_, E> {
    fn chains(&self) -> Vec<Chain> {
        let dispositions = self.dispositions.iter();
        let chains = dispositions.map(|disposition| disposition_chain(*disposition, self.settings, self.timeout));
        constant_chains(self.settings).into_iter().chain(chains).collect()
    }

    /// Replaces whatever table there is.
    pub fn create(self) -> Batch {
        let (mut batch, table) = (Batch::new(), self.name);
        // Deleting a table that is not there is an error, so it is added first.
        batch.add_table(table);
        batch.delete_table(table);
        batch.add_table(table);
        for (id, set) in (1..).zip(SETS) {
            batch.add_set(table, id, set);
        }
        if let Some(timeout) = self.timeout {
            timeout.add_to(&mut batch, table);
        }
        for chain in self.chains() {
            add_chain(&mut batch, table, &chain);
        }
        add_dispositions(&mut batch, table, self.dispositions.iter());
        let elements: Vec<Element> = self.elements.chain(constant_elements()).collect();
        add_elements(&mut batch, table, &elements);
        batch
    }

    /// Repairs what differs. `None` if only creating the table anew helps: the hook of a chain cannot be changed.
    pub fn repair(self, mut observed: ObservedTable) -> Option<(Batch, Drift)> {
        let (mut batch, mut drift, table) = (Batch::new(), Drift::default(), self.name);
        for chain in self.chains() {
            let hook = chain.hook.map(|hook| hook.number_and_priority());
            let Some(found) = observed.chains.remove(&chain.name) else {
                drift.missing += 1 + chain.rules.len();
                add_chain(&mut batch, table, &chain);
                continue;
            };
            if found.hook != hook {
                return None;
            }
            let tags: Vec<Option<Vec<u8>>> = chain.rules.iter().map(|rule| Some(rule_tag(rule))).collect();
            if tags != found.tags {
                drift.missing += tags.iter().filter(|tag| !found.tags.contains(tag)).count();
                drift.surplus += found.tags.iter().filter(|tag| !tags.contains(tag)).count();
                batch.flush_chain(table, &chain.name);
                append_rules(&mut batch, table, &chain);
            }
        }
        let mut surplus_dispositions = observed.dispositions;
        let key = |disposition: &Disposition| (disposition.map(), disposition.key().to_vec());
        let is_missing =
            |disposition: &&Disposition| surplus_dispositions.get(&key(disposition)) != Some(&disposition.chain());
        let missing: Vec<&Disposition> = self.dispositions.iter().filter(is_missing).collect();
        drift.missing += missing.len();
        let is_desired = |found: &(&'static str, Vec<u8>), chain: &String| {
            self.dispositions.iter().any(|desired| key(desired) == *found && desired.chain() == *chain)
        };
        surplus_dispositions.retain(|found, chain| !is_desired(found, chain));
        for map in [DISPOSITIONS.name, INTERNAL_DISPOSITIONS.name] {
            let surplus = surplus_dispositions.keys().filter(|(of, _)| *of == map);
            batch.delete_elements(table, map, surplus.map(|(_, key)| key.as_slice()));
        }
        add_dispositions(&mut batch, table, missing.into_iter());
        // A changed element counts twice: as missing with its desired value, and as surplus with its present one.
        let mut missing = Vec::new();
        for element in self.elements.chain(constant_elements()) {
            match observed.elements.get(&element.key) {
                Some(found) if *found == element => {
                    observed.elements.remove(&element.key);
                }
                _ => missing.push(element),
            }
        }
        let surplus: Vec<ElementKey> = observed.elements.into_keys().collect();
        delete_elements(&mut batch, table, &surplus);
        add_elements(&mut batch, table, &missing);
        drift.missing += missing.len();
        drift.surplus += surplus.len() + surplus_dispositions.len() + observed.chains.len();
        for (name, found) in &observed.chains {
            drift.surplus += found.tags.len();
            batch.flush_chain(table, name);
        }
        for name in observed.chains.keys() {
            batch.delete_chain(table, name);
        }
        Some((batch, drift))
    }
}

fn add_chain(batch: &mut Batch, table: &str, chain: &Chain) {
    match chain.hook {
        Some(hook) => batch.add_base_chain(table, &chain.name, hook),
        None => batch.add_regular_chain(table, &chain.name),
    }
    append_rules(batch, table, chain);
}

fn append_rules(batch: &mut Batch, table: &str, chain: &Chain) {
    for rule in &chain.rules {
        batch.append_tagged_rule(table, &chain.name, rule);
    }
}

fn add_dispositions<'a>(batch: &mut Batch, table: &str, dispositions: impl Iterator<Item = &'a Disposition>) {
    let jumps = dispositions.map(|disposition| (disposition.map(), disposition.key(), disposition.chain()));
    let jumps: Vec<(&str, [u8; 12], String)> = jumps.collect();
    for map in [DISPOSITIONS.name, INTERNAL_DISPOSITIONS.name] {
        let of_map = jumps.iter().filter(|(of, ..)| *of == map);
        batch.add_elements(table, map, of_map.map(|(_, key, chain)| (&key[..], ElementData::Jump(chain))));
    }
}

fn delete_elements(batch: &mut Batch, table: &str, keys: &[ElementKey]) {
    for set in SetId::ALL {
        let of_set = keys.iter().filter(|key| key.set == set);
        batch.delete_elements(table, set.name(), of_set.map(ElementKey::bytes));
    }
}

fn add_elements(batch: &mut Batch, table: &str, elements: &[Element]) {
    for set in SetId::ALL {
        let of_set = elements.iter().filter(|element| element.key.set == set);
        let with_data =
            of_set.map(|element| (element.key.bytes(), element.value().map_or(ElementData::None, ElementData::Value)));
        batch.add_elements(table, set.name(), with_data);
    }
}
