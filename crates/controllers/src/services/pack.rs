//! Distributes endpoints over EndpointSlices so that few slices are written. Pure.
//!
//! What is in a slice stays there. Changes are made where they are; what is new goes first into slices that are
//! written anyway, then into those with the most room, and only then into new ones. A slice that became empty is
//! used again before one is made, and deleted if nobody needs it. However the slices came to be as they are
//! (twice the same endpoint, too many in one, ports of long ago), one pass makes them right, and a second
//! finds nothing to do.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use jiff::Timestamp;
use k8s_openapi::{
    api::discovery::v1::{Endpoint, EndpointSlice},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};

use super::ports::Port;

/// As many endpoints as one slice holds.
pub const MOST: usize = 100;
/// When the changes in a slice came about, as far as is known.
pub const TRIGGERED: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// Endpoints that are reached at the same ports and addresses of the same kind.
pub type DesiredEndpoints = BTreeMap<(&'static str, Vec<Port>), Vec<DesiredEndpoint>>;

#[derive(Clone, Debug)]
pub struct DesiredEndpoint {
    pub endpoint: Endpoint,
    pub since: Option<Timestamp>,
}

/// What all slices of one owner have in common.
#[derive(Clone, Debug)]
pub struct SliceTemplate {
    pub namespace: String,
    pub owner: OwnerReference,
    pub labels: BTreeMap<String, String>,
    /// All annotations a slice has; by default only the time of the change.
    pub annotations: Option<BTreeMap<String, String>>,
    /// Free names for new slices, in order.
    pub names: Vec<String>,
    /// Whether there is a slice even if there are no endpoints.
    pub placeholder: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Write {
    Create(Box<EndpointSlice>),
    /// Carries the version that was judged.
    Replace(Box<EndpointSlice>),
    Delete {
        name: String,
        uid: String,
        version: String,
    },
}

#[derive(Debug, PartialEq)]
pub struct SlicePlan {
    pub writes: Vec<Write>,
    /// False if there were too few names for what is wanted.
    pub complete: bool,
}

/// A slice on its way to what it should be.
struct Draft<'a> {
    from: &'a Arc<EndpointSlice>,
    endpoints: Vec<Endpoint>,
    changed: bool,
    /// When the first of what is new in it came about.
    since: Option<Timestamp>,
}

impl Draft<'_> {
    fn room(&self) -> usize {
        MOST - self.endpoints.len()
    }

    fn add(&mut self, placed: DesiredEndpoint) {
        self.note(placed.since);
        self.endpoints.push(placed.endpoint);
    }

    fn note(&mut self, since: Option<Timestamp>) {
        self.changed = true;
        self.since = earlier(self.since, since);
    }
}

fn earlier(one: Option<Timestamp>, other: Option<Timestamp>) -> Option<Timestamp> {
    one.into_iter().chain(other).min()
}

pub fn pack(existing: &[Arc<EndpointSlice>], mut wanted: DesiredEndpoints, frame: &SliceTemplate) -> SlicePlan {
    let mut writes = Vec::new();
    let mut groups: BTreeMap<(&str, Vec<Port>), Vec<&Arc<EndpointSlice>>> = BTreeMap::new();
    for slice in existing.iter().filter(|slice| slice.metadata.deletion_timestamp.is_none()) {
        if slice.metadata.owner_references.iter().flatten().any(|owner| owner.uid == frame.owner.uid) {
            groups.entry((slice.address_type.as_str(), ports_of(slice))).or_default().push(slice);
        } else {
            writes.push(delete(slice)); // of one that had this name before
        }
    }
    let (mut retained, mut empty, mut fresh) = (Vec::new(), Vec::new(), Vec::new());
    for ((kind, ports), slices) in groups {
        let group = wanted.keys().find(|(other, theirs)| *other == kind && *theirs == ports).cloned();
        let Some((group, placed)) = group.and_then(|group| wanted.remove_entry(&group)) else {
            empty.extend(slices.into_iter().cloned());
            continue;
        };
        let (drafts, rest) = settle(&slices, placed, frame);
        for draft in drafts {
            match draft.endpoints.is_empty() {
                true => empty.push(draft.from.clone()),
                false => retained.push((group.clone(), draft)),
            }
        }
        fresh.extend(in_slices(rest).map(|endpoints| (group.clone(), endpoints)));
    }
    for (group, placed) in wanted {
        fresh.extend(in_slices(placed).map(|endpoints| (group.clone(), endpoints)));
    }
    if retained.is_empty() && fresh.is_empty() && frame.placeholder {
        fresh.push((("IPv4", Vec::new()), Vec::new()));
        empty.sort_by_key(|slice| !is_placeholder(slice));
    }
    for ((_, ports), draft) in retained.into_iter().filter(|(_, draft)| draft.changed) {
        writes.push(Write::Replace(Box::new(slice(frame, Some(draft.from), ports, draft.endpoints, draft.since))));
    }
    let (mut names, mut complete) = (frame.names.iter(), true);
    for ((kind, ports), placed) in fresh {
        let since = placed.iter().filter_map(|placed| placed.since).min();
        let endpoints: Vec<Endpoint> = placed.into_iter().map(|placed| placed.endpoint).collect();
        if let Some(at) = empty.iter().position(|slice| slice.address_type == kind) {
            let old = empty.remove(at);
            let unchanged = endpoints.is_empty() && is_placeholder(&old) && fits(&old, frame);
            if !unchanged {
                writes.push(Write::Replace(Box::new(slice(frame, Some(&old), ports, endpoints, since))));
            }
        } else if let Some(name) = names.next() {
            let mut new = slice(frame, None, ports, endpoints, since);
            new.metadata.name = Some(name.clone());
            new.address_type = kind.to_owned();
            writes.push(Write::Create(Box::new(new)));
        } else {
            complete = false;
        }
    }
    writes.extend(empty.iter().map(delete));
    SlicePlan { writes, complete }
}

/// Leaves endpoints where they are, changes what changed, and fills what has room. Returns what found none.
fn settle<'a>(
    slices: &[&'a Arc<EndpointSlice>],
    placed: Vec<DesiredEndpoint>,
    frame: &SliceTemplate,
) -> (Vec<Draft<'a>>, Vec<DesiredEndpoint>) {
    let mut missing: Vec<Option<DesiredEndpoint>> = placed.into_iter().map(Some).collect();
    let mut places: HashMap<(String, String), usize> = HashMap::with_capacity(missing.len());
    for (at, placed) in missing.iter().enumerate() {
        if let Some(placed) = placed {
            let (address, uid) = identity(&placed.endpoint);
            places.insert((address.to_owned(), uid.to_owned()), at);
        }
    }
    let mut drafts: Vec<Draft<'_>> = Vec::with_capacity(slices.len());
    for slice in slices {
        let mut draft = Draft { from: slice, endpoints: Vec::new(), changed: !fits(slice, frame), since: None };
        for old in slice.endpoints.iter().flatten() {
            let (address, uid) = identity(old);
            let place = places.get(&(address.to_owned(), uid.to_owned())).copied();
            let found = place.filter(|_| draft.room() > 0).and_then(|at| missing[at].take());
            match found {
                Some(new) if new.endpoint == *old => draft.endpoints.push(new.endpoint),
                Some(new) => draft.add(new),
                None => draft.changed = true,
            }
        }
        drafts.push(draft);
    }
    let mut rest: Vec<DesiredEndpoint> = missing.into_iter().flatten().collect();
    rest.reverse(); // taken from the end
    let mut order: Vec<usize> = (0..drafts.len()).filter(|at| drafts[*at].room() > 0).collect();
    order.sort_by_key(|at| (!drafts[*at].changed, std::cmp::Reverse(drafts[*at].room()), *at));
    for at in order {
        while drafts[at].room() > 0
            && let Some(placed) = rest.pop()
        {
            drafts[at].add(placed);
        }
    }
    rest.reverse();
    (drafts, rest)
}

fn in_slices(mut rest: Vec<DesiredEndpoint>) -> impl Iterator<Item = Vec<DesiredEndpoint>> {
    std::iter::from_fn(move || {
        let more = rest.split_off(rest.len().min(MOST));
        Some(std::mem::replace(&mut rest, more)).filter(|some| !some.is_empty())
    })
}

/// Who an endpoint is, whatever its state.
fn identity(endpoint: &Endpoint) -> (&str, &str) {
    let uid = endpoint.target_ref.as_ref().and_then(|pod| pod.uid.as_deref());
    (endpoint.addresses.first().map_or("", String::as_str), uid.unwrap_or_default())
}

fn ports_of(slice: &EndpointSlice) -> Vec<Port> {
    let mut ports: Vec<Port> = slice.ports.iter().flatten().map(Port::from).collect();
    ports.sort();
    ports
}

fn is_placeholder(slice: &EndpointSlice) -> bool {
    slice.endpoints.as_ref().is_none_or(Vec::is_empty)
        && slice.ports.as_ref().is_none_or(Vec::is_empty)
        && slice.address_type == "IPv4"
}

/// Whether all but its content is as it should be.
fn fits(slice: &EndpointSlice, frame: &SliceTemplate) -> bool {
    let same = |own: &Option<BTreeMap<String, String>>, wanted: &BTreeMap<String, String>| match own {
        Some(own) => own == wanted,
        None => wanted.is_empty(),
    };
    let noted = frame.annotations.as_ref().is_none_or(|wanted| same(&slice.metadata.annotations, wanted));
    noted && same(&slice.metadata.labels, &frame.labels)
}

fn slice(
    frame: &SliceTemplate,
    from: Option<&Arc<EndpointSlice>>,
    ports: Vec<Port>,
    endpoints: Vec<Endpoint>,
    since: Option<Timestamp>,
) -> EndpointSlice {
    let mut metadata = from.map(|old| ObjectMeta { managed_fields: None, ..old.metadata.clone() }).unwrap_or_default();
    metadata.namespace = Some(frame.namespace.clone());
    metadata.labels = Some(frame.labels.clone());
    let mut annotations = match &frame.annotations {
        Some(all) => all.clone(),
        None => metadata.annotations.unwrap_or_default(),
    };
    if frame.annotations.is_none() {
        match since {
            Some(since) => drop(annotations.insert(TRIGGERED.to_owned(), since.to_string())),
            None => drop(annotations.remove(TRIGGERED)),
        }
    }
    metadata.annotations = Some(annotations).filter(|all| !all.is_empty());
    if from.is_none() {
        metadata.generate_name = Some(format!("{}-", frame.owner.name));
        metadata.owner_references = Some(vec![frame.owner.clone()]);
    }
    EndpointSlice {
        metadata,
        address_type: from.map(|old| old.address_type.clone()).unwrap_or_default(),
        endpoints: Some(endpoints),
        ports: Some(ports.iter().map(Port::in_slice).collect()),
    }
}

fn delete(slice: &Arc<EndpointSlice>) -> Write {
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    let meta = &slice.metadata;
    Write::Delete { name: text(&meta.name), uid: text(&meta.uid), version: text(&meta.resource_version) }
}

#[cfg(test)]
mod tests;
