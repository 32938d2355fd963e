//! What the kernel really has of our table.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    io,
};

use super::layout::{Element, INSIDE_WAYS, Key, SHAPES, Set, WAYS};
use crate::nft::{listing, socket::Session};

/// It is looked at again so often if it changes meanwhile.
const ATTEMPTS: usize = 5;

pub struct Observed {
    /// When this was so; unknown if it did not stay so while we looked.
    pub generation: Option<u32>,
    pub chains: BTreeMap<String, Chain>,
    /// Chains by the map and key that lead there.
    pub ways: BTreeMap<(&'static str, Vec<u8>), String>,
    pub elements: HashMap<Key, Element>,
}

#[derive(Default)]
pub struct Chain {
    pub hook: Option<(u32, i32)>,
    /// What is kept with each rule.
    pub marks: Vec<Option<Vec<u8>>>,
}

/// None if there is no such table, or a map of it is missing: nothing of it can be used then.
pub fn observe(session: &Session, table: &str) -> io::Result<Option<Observed>> {
    for _ in 1..ATTEMPTS {
        let before = listing::generation(session)?;
        let found = look(session, table);
        if listing::generation(session)? == before {
            return Ok(found?.map(|found| Observed { generation: Some(before), ..found }));
        }
    }
    look(session, table)
}

fn look(session: &Session, table: &str) -> io::Result<Option<Observed>> {
    let sets: BTreeSet<String> = match listing::sets(session, table) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        sets => sets?.into_iter().collect(),
    };
    if !SHAPES.iter().all(|shape| sets.contains(shape.name)) {
        return Ok(None);
    }
    let chains = listing::chains(session, table)?.into_iter();
    let mut chains: BTreeMap<String, Chain> =
        chains.map(|chain| (chain.name, Chain { hook: chain.hook, marks: Vec::new() })).collect();
    for (chain, mark) in listing::rules(session, table)? {
        chains.entry(chain).or_default().marks.push(mark);
    }
    let mut ways = BTreeMap::new();
    for map in [WAYS.name, INSIDE_WAYS.name] {
        ways.extend(listing::elements(session, table, map, |key, chain| {
            Some(((map, key.to_vec()), String::from_utf8_lossy(chain).trim_end_matches('\0').to_owned()))
        })?);
    }
    let mut elements = HashMap::new();
    for set in Set::ALL {
        let found = listing::elements(session, table, set.name(), |key, value| Element::read(set, key, value))?;
        elements.extend(found.into_iter().map(|element| (element.key, element)));
    }
    Ok(Some(Observed { generation: None, chains, ways, elements }))
}
