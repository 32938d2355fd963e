//! Reads the Services table that the kernel really has.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    io,
};

use super::maps::{DISPOSITIONS, Element, ElementKey, INTERNAL_DISPOSITIONS, SETS, SetId};
use crate::nft::{listing, socket::NetfilterSocket};

/// How often the table is read again if the ruleset changes meanwhile.
const ATTEMPTS: usize = 5;

pub struct ObservedTable {
    /// The ruleset generation of this state; unknown if the ruleset changed during every attempt.
    pub generation: Option<u32>,
    pub chains: BTreeMap<String, ObservedChain>,
    /// Chains by the verdict map and key that jump to them.
    pub dispositions: BTreeMap<(&'static str, Vec<u8>), String>,
    pub elements: HashMap<ElementKey, Element>,
}

#[derive(Default)]
pub struct ObservedChain {
    pub hook: Option<(u32, i32)>,
    /// Of each rule.
    pub tags: Vec<Option<Vec<u8>>>,
}

/// `None` if there is no such table, or one of its sets is missing: it has to be created anew then.
pub fn observe_table(socket: &NetfilterSocket, table: &str) -> io::Result<Option<ObservedTable>> {
    for _ in 1..ATTEMPTS {
        let before = listing::get_generation(socket)?;
        let found = read_table(socket, table);
        if listing::get_generation(socket)? == before {
            return Ok(found?.map(|found| ObservedTable { generation: Some(before), ..found }));
        }
    }
    read_table(socket, table)
}

fn read_table(socket: &NetfilterSocket, table: &str) -> io::Result<Option<ObservedTable>> {
    let sets: BTreeSet<String> = match listing::list_sets(socket, table) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        sets => sets?.into_iter().collect(),
    };
    if !SETS.iter().all(|set| sets.contains(set.name)) {
        return Ok(None);
    }
    let chains = listing::list_chains(socket, table)?.into_iter();
    let mut chains: BTreeMap<String, ObservedChain> =
        chains.map(|chain| (chain.name, ObservedChain { hook: chain.hook, tags: Vec::new() })).collect();
    for (chain, tag) in listing::list_rule_tags(socket, table)? {
        chains.entry(chain).or_default().tags.push(tag);
    }
    let mut dispositions = BTreeMap::new();
    for map in [DISPOSITIONS.name, INTERNAL_DISPOSITIONS.name] {
        dispositions.extend(listing::list_elements(socket, table, map, |key, chain| {
            Some(((map, key.to_vec()), String::from_utf8_lossy(chain).trim_end_matches('\0').to_owned()))
        })?);
    }
    let mut elements = HashMap::new();
    for set in SetId::ALL {
        let found = listing::list_elements(socket, table, set.name(), |key, value| Element::read(set, key, value))?;
        elements.extend(found.into_iter().map(|element| (element.key, element)));
    }
    Ok(Some(ObservedTable { generation: None, chains, dispositions, elements }))
}
