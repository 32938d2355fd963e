//! The devices that a list of selectors selects, found once for all pods that ask with the same selectors.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use mainstay_cel::{Budget, PER_CALL_LIMIT};

use super::{
    pool::{Device, DeviceNodes, Pool, PoolKey},
    selectors::SelectorCache,
};

/// Lists of selectors that are kept.
const MAX_LISTS: usize = 1_000;
/// What the selectors of a request may cost for all devices together, in CEL's units: claims of users must not hold up the
/// scheduling of others. A usual selector costs ten for each device.
const SELECTION_BUDGET: u64 = 4_000_000;

/// A device that is selected, or the error of a selector.
#[derive(Clone, Debug)]
pub struct Candidate {
    pub device: Arc<Device>,
    pub error: Option<String>,
}

/// The devices that are selected, of complete and valid pools. In the order of pools.
#[derive(Debug, Default)]
pub struct Candidates {
    pub by_node: HashMap<Arc<str>, Vec<Candidate>>,
    /// Those that more than one node can use.
    pub elsewhere: Vec<Candidate>,
}

/// Valid as long as no pool changes.
#[derive(Debug, Default)]
pub struct CandidateCache(HashMap<Vec<String>, Arc<Candidates>>);

impl CandidateCache {
    pub fn clear(&mut self) {
        self.0.clear();
    }

    pub fn find(
        &mut self,
        selectors: &[String],
        pools: &BTreeMap<PoolKey, Pool>,
        evaluated: &mut SelectorCache,
    ) -> Arc<Candidates> {
        if let Some(known) = self.0.get(selectors) {
            return Arc::clone(known);
        }
        if self.0.len() >= MAX_LISTS {
            self.0.clear();
        }
        let found = Arc::new(select(selectors, pools, evaluated));
        self.0.insert(selectors.to_vec(), Arc::clone(&found));
        found
    }
}

fn select(selectors: &[String], pools: &BTreeMap<PoolKey, Pool>, evaluated: &mut SelectorCache) -> Candidates {
    let mut candidates = Candidates::default();
    let mut budget = Budget::new(SELECTION_BUDGET, PER_CALL_LIMIT);
    let usable = pools.values().filter(|pool| pool.is_complete && pool.invalid.is_none());
    for device in usable.flat_map(|pool| &pool.devices) {
        let mut error = None;
        let is_selected = selectors.iter().enumerate().all(|(nth, expression)| {
            evaluated.selects(expression, device, &mut budget).unwrap_or_else(|message| {
                error = Some(format!("selector #{nth}: {message}"));
                false
            })
        });
        if !is_selected && error.is_none() {
            continue;
        }
        let candidate = Candidate { device: Arc::clone(device), error };
        match &device.place {
            DeviceNodes::Node(node) => candidates.by_node.entry(Arc::clone(node)).or_default().push(candidate),
            DeviceNodes::Selected(_) | DeviceNodes::Everywhere => candidates.elsewhere.push(candidate),
            DeviceNodes::Nowhere => {}
        }
    }
    candidates
}
