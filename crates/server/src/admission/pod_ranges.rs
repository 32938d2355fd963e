//! PodRanges: the range of pod addresses (`podCIDR`) of each Node, held by a key of its own.
//!
//! As with Services' addresses, taking one is part of the very transaction that writes the Node, so that no two
//! Nodes ever have the same and no Node is seen without. The key of a range given back stays, empty: its
//! age says which was given back longest ago, and such ranges are used again only when there is no
//! other, for somewhere on the network its old address may still be remembered.
//!
//! Where machines say how far they follow changes of Nodes (their ServiceTables), such a range is not used again before
//! all that are heard of have taken in that the Node went: until then one of them may still route to it. If that leaves
//! no range at all, the new machine is told so, and asks again.
//!
//! A range to which a router of the cloud still has a route is not handed out either. The route controller lists them in a ConfigMap
//! ([`mainstay_api::pod_range_routes`]); without a cloud there is none.
//!
//! Thousands of machines that start together all want the lowest, and none waits for another: each of one server's writes reserves
//! another range in memory ([`reservations`]), and all of them share the store's commits. Servers that share a store may choose the same; then the
//! compare of one of them fails, and it chooses again.
//!
//! A Node that brings a range of its own keeps it, unless it has addresses of another's. If it is of another size, its transaction also changes one
//! key that all others compare, so that every server knows of it before it hands out the next.

mod address_range;
mod reservations;

use std::{collections::HashMap, sync::Arc};

use async_trait::async_trait;
use mainstay_api::{
    descriptor::Descriptor,
    field::{FieldError, Path},
    pod_range_routes::{CONFIG_MAP, range_of_key},
    wellknown::{NO_POD_RANGE, namespace::SYSTEM},
};
use mainstay_store::{Compare, Entry, Expect, List, Op, Revision};
use serde_json::{Value, json};

use self::address_range::{AddressRange, OccupiedAddresses, RangeGrid};
use super::{Plugin, Request, TxnAdditions};
use crate::{
    api::Api,
    http::status::{ApiError, ApiResult},
    objects::{keys, metadata, object},
};

pub use self::reservations::{RangeReservation, RangeReservations};

const RANGES: &str = "/mainstay/podranges/";
/// Changes whenever a Node claims a range that is not of the grid.
const CLAIMS: &str = "/mainstay/podrangeclaims";

pub struct PodRanges;

#[async_trait]
impl Plugin for PodRanges {
    fn name(&self) -> &'static str {
        "PodRanges"
    }

    fn handles(&self, d: &Descriptor) -> bool {
        d.is_core("Node")
    }

    async fn create(&self, request: &Request<'_>, object: &mut Value, txn: &mut TxnAdditions) -> ApiResult<()> {
        assign_range(request.api, object, None, txn).await
    }

    async fn update(
        &self,
        request: &Request<'_>,
        object: &mut Value,
        old: &Value,
        txn: &mut TxnAdditions,
    ) -> ApiResult<()> {
        assign_range(request.api, object, Some(old), txn).await
    }

    /// The range becomes free, but is the last to be used again.
    fn release(&self, old: &Value) -> Vec<Op> {
        range_of(old).map(|range| Op::Put { key: key(range).into(), value: Default::default() }).into_iter().collect()
    }
}

/// Gives the Node its range, if it has none, or takes for it the one it names.
async fn assign_range(api: &Api, node: &mut Value, old: Option<&Value>, txn: &mut TxnAdditions) -> ApiResult<()> {
    if old.and_then(range_of).is_some() {
        return Ok(()); // a Node's range never changes
    }
    // Before anything else is read, so that whoever claims later makes the compare fail.
    let claims = api.store.get(CLAIMS).await?.0.map(|entry| entry.modified);
    let grid = RangeGrid::new(&api.settings);
    let chosen = match range_of(node).map(str::to_owned) {
        Some(range) => claim_named(api, node, &range).await?,
        None => match choose_unused(api, grid, claims).await? {
            Some(unused) => unused,
            None => choose_any(api, grid).await?,
        },
    };
    node["spec"]["podCIDR"] = json!(chosen.range);
    node["spec"]["podCIDRs"] = json!([chosen.range]);
    let key: Arc<str> = key(&chosen.range).into();
    txn.compares.push(Compare { key: key.clone(), expect: chosen.expect });
    let expect = claims.map_or(Expect::Absent, Expect::ModifiedAt);
    txn.compares.push(Compare { key: CLAIMS.into(), expect });
    let name = metadata::string_field(node, "name").unwrap_or_default().to_owned();
    if AddressRange::parse(&chosen.range).is_some_and(|range| grid.number(range).is_none()) {
        txn.ops.push(Op::Put { key: CLAIMS.into(), value: chosen.range.into() });
    }
    txn.ops.push(Op::Put { key, value: name.into() });
    txn.pod_range = chosen.reservation;
    Ok(())
}

struct RangeChoice {
    range: String,
    expect: Expect,
    /// Nothing is reserved of what is no range of IPv4 addresses.
    reservation: Option<RangeReservation>,
}

impl RangeChoice {
    fn new(reservation: RangeReservation, expect: Expect) -> Self {
        Self { range: reservation.range.to_string(), expect, reservation: Some(reservation) }
    }
}

fn range_of(node: &Value) -> Option<&str> {
    node["spec"]["podCIDR"].as_str().filter(|range| !range.is_empty())
}

/// In keys, `/` would be a folder.
fn key(range: &str) -> String {
    format!("{RANGES}{}", range.replace('/', "_"))
}

fn range_of_entry(entry: &Entry) -> Option<AddressRange> {
    AddressRange::parse(&entry.key.strip_prefix(RANGES)?.replace('_', "/"))
}

/// All ranges that are or were in use. The value of a key is the name of its Node; of one given back it is empty.
async fn list_ranges(api: &Api) -> ApiResult<Vec<Arc<Entry>>> {
    Ok(api.store.list(List { prefix: RANGES, ..List::default() }).await?.entries)
}

async fn claim_named(api: &Api, node: &Value, range: &str) -> ApiResult<RangeChoice> {
    let listed = list_ranges(api).await?;
    let refuse = |why: String| {
        let error = FieldError::invalid(&Path::new("spec").child("podCIDR"), range, why);
        let name = metadata::string_field(node, "name").unwrap_or_default();
        ApiError::invalid_kind("", "Node", name, &error.into())
    };
    let own_key = key(range);
    let known = listed.iter().find(|entry| *entry.key == *own_key);
    let expect = match known {
        None => Expect::Absent,
        Some(entry) if entry.value.is_empty() => Expect::ModifiedAt(entry.modified),
        Some(entry) => {
            return Err(refuse(format!("the range is that of node {:?}", String::from_utf8_lossy(&entry.value))));
        }
    };
    let Some(parsed) = AddressRange::parse(range) else {
        return Ok(RangeChoice { range: range.to_owned(), expect, reservation: None });
    };
    let in_use = listed.iter().filter(|entry| !entry.value.is_empty());
    let mut others = in_use.filter_map(|entry| Some((range_of_entry(entry)?, entry)));
    if let Some((other, entry)) = others.find(|(other, _)| other.overlaps(parsed)) {
        let owner = String::from_utf8_lossy(&entry.value);
        return Err(refuse(format!("it has addresses of {other}, the range of node {owner:?}")));
    }
    match api.pod_ranges.reserve(parsed) {
        Some(reserved) => Ok(RangeChoice { range: range.to_owned(), expect, reservation: Some(reserved) }),
        None => {
            let why = format!("{range} has addresses of a range that another Node is being given; try again");
            Err(ApiError::unavailable(why))
        }
    }
}

/// The lowest that was never used, if there is one.
async fn choose_unused(api: &Api, grid: RangeGrid, claims: Option<Revision>) -> ApiResult<Option<RangeChoice>> {
    if !api.pod_ranges.is_current(claims) {
        let listed = list_ranges(api).await?;
        let ranges = listed.iter().filter_map(|entry| Some((range_of_entry(entry)?, !entry.value.is_empty())));
        api.pod_ranges.take_in(grid, claims, ranges);
    }
    let routed = routed_ranges(api).await?;
    // Reserved until another was found, and looked at again next time: by then nobody may route to them.
    let mut passed_over = Vec::new();
    while let Some(reserved) = api.pod_ranges.reserve_next(grid) {
        if routed.iter().any(|routed| routed.overlaps(reserved.range)) {
            passed_over.push(reserved);
        } else if api.store.get(&key(&reserved.range.to_string())).await?.0.is_some() {
            reserved.discard();
        } else {
            return Ok(Some(RangeChoice::new(reserved, Expect::Absent)));
        }
    }
    Ok(None)
}

/// The lowest that was never used, else the one given back longest ago, once nobody routes to it: by a list of all.
async fn choose_any(api: &Api, grid: RangeGrid) -> ApiResult<RangeChoice> {
    let routed = routed_ranges(api).await?;
    let listed = list_ranges(api).await?;
    // Nothing is waited for from here on, so that the list is as new as can be.
    let (reserved, freed) = loop {
        let found = find_range(grid, &listed, &routed, |range| api.pod_ranges.is_reserved(range));
        let (range, freed) = found.map_err(|skipped| no_range(grid, skipped))?;
        if let Some(reserved) = api.pod_ranges.reserve(range) {
            break (reserved, freed);
        }
    };
    let Some(freed) = freed else { return Ok(RangeChoice::new(reserved, Expect::Absent)) };
    let behind = nodes_behind(api, freed.0).await?;
    if !behind.is_empty() {
        return Err(ApiError::unavailable(format!(
            "{NO_POD_RANGE} in {grid}: to {}, which was given back, these nodes may still route: {}",
            reserved.range,
            behind.join(", ")
        )));
    }
    Ok(RangeChoice::new(reserved, Expect::ModifiedAt(freed)))
}

/// A range, and when it was given back if it was used; else one to which a router still has a route, if that is why there is none.
fn find_range(
    grid: RangeGrid,
    listed: &[Arc<Entry>],
    routed: &[AddressRange],
    is_reserved: impl Fn(AddressRange) -> bool,
) -> Result<(AddressRange, Option<Revision>), Option<AddressRange>> {
    let (mut known, mut others) = (HashMap::new(), Vec::new());
    for entry in listed {
        let Some(range) = range_of_entry(entry) else { continue };
        match grid.number(range) {
            Some(number) => {
                known.insert(number, entry);
            }
            // With another size before, one of the grid may be part of it, or the other way round.
            None if !entry.value.is_empty() => others.push(range),
            None => {}
        }
    }
    let others: OccupiedAddresses = others.into_iter().collect();
    let (mut skipped, mut freed) = (None, None::<(AddressRange, Revision)>);
    for number in 0..grid.count() {
        let (range, entry) = (grid.range(number), known.get(&number));
        if entry.is_some_and(|entry| !entry.value.is_empty()) || others.overlap(range) || is_reserved(range) {
            continue;
        }
        if routed.iter().any(|routed| routed.overlaps(range)) {
            skipped = skipped.or(Some(range));
            continue;
        }
        match entry {
            None => return Ok((range, None)),
            Some(entry) if freed.is_none_or(|(_, at)| entry.modified < at) => freed = Some((range, entry.modified)),
            Some(_) => {}
        }
    }
    freed.map(|(range, at)| (range, Some(at))).ok_or(skipped)
}

fn no_range(grid: RangeGrid, skipped: Option<AddressRange>) -> Box<ApiError> {
    let (count, size) = (grid.count(), grid.size);
    match skipped {
        Some(range) => ApiError::unavailable(format!(
            "{NO_POD_RANGE} in {grid}: a router of the cloud still has a route to {range}; ConfigMap \
             {SYSTEM}/{CONFIG_MAP} lists such ranges"
        )),
        None => ApiError::unavailable(format!(
            "{NO_POD_RANGE} in {grid}, which holds {count} nodes with a /{size} each: delete the Node of \
             a machine that is gone, or start the cluster's servers with a larger --pod-range or smaller ranges \
             (--node-pod-range-size)"
        )),
    }
}

/// Ranges to which a router of the cloud has a route.
async fn routed_ranges(api: &Api) -> ApiResult<Vec<AddressRange>> {
    let Some(config_maps) = api.registry.find("", "v1", "configmaps") else { return Ok(Vec::new()) };
    let (entry, _) = api.store.get(&keys::key(config_maps, Some(SYSTEM), CONFIG_MAP)).await?;
    let Some(entry) = entry else { return Ok(Vec::new()) };
    let value = object::parse(config_maps, &entry)?;
    let keys = value["data"].as_object().into_iter().flat_map(|data| data.keys());
    Ok(keys.filter_map(|key| AddressRange::parse(&range_of_key(key))).collect())
}

/// The machines that are heard of, have a table, and do not follow changes of Nodes up to this version.
async fn nodes_behind(api: &Api, version: u64) -> ApiResult<Vec<String>> {
    let (Some(tables), Some(nodes)) =
        (api.registry.find("mainstay.dev", "v1", "servicetables"), api.registry.find("", "v1", "nodes"))
    else {
        return Ok(Vec::new());
    };
    let all = api.store.list(List { prefix: &keys::prefix(tables, None), ..List::default() }).await?.entries;
    let mut behind = Vec::new();
    for table in all {
        let value = object::parse(tables, &table)?;
        let follows: u64 = value["spec"]["nodes"].as_str().and_then(|text| text.parse().ok()).unwrap_or(0);
        if follows >= version {
            continue;
        }
        let name = keys::names(tables, &table.key).1;
        let (node, _) = api.store.get(&keys::key(nodes, None, name)).await?;
        if let Some(node) = node
            && is_ready(&object::parse(nodes, &node)?)
        {
            behind.push(name.to_owned());
        }
    }
    Ok(behind)
}

fn is_ready(node: &Value) -> bool {
    let conditions = node["status"]["conditions"].as_array().into_iter().flatten();
    conditions.into_iter().any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

#[cfg(test)]
mod tests;
