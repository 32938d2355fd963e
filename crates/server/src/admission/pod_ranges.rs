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
//! A thousand machines that start together all want the lowest. Within one server they take turns, from
//! choosing to the commit; only servers that share a store can still choose the same, and then one of them chooses again.

use std::{collections::HashMap, net::Ipv4Addr, sync::Arc};

use async_trait::async_trait;
use mainstay_api::{
    descriptor::Descriptor,
    field::{FieldError, Path},
    pod_range_routes::{CONFIG_MAP, range_of_key},
    wellknown::{NO_POD_RANGE, namespace::SYSTEM},
};
use mainstay_store::{Compare, Entry, Expect, List, Op};
use serde_json::{Value, json};

use super::{Plugin, Request, TxnAdditions};
use crate::{
    api::Api,
    http::status::{ApiError, ApiResult},
    objects::{keys, metadata, object},
};

const RANGES: &str = "/mainstay/podranges/";
/// So many ranges at most are looked through.
const MOST_BITS: u8 = 16;

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
    txn.locks.push(api.pod_range_lock.clone().lock_owned().await);
    let taken = api.store.list(List { prefix: RANGES, ..List::default() }).await?.entries;
    let taken: RangeEntries<'_> = taken.iter().map(|entry| (&*entry.key, entry)).collect();
    let chosen = match range_of(node).map(str::to_owned) {
        Some(range) => claim_named(node, &range, &taken)?,
        None => choose_free(api, &taken).await?,
    };
    node["spec"]["podCIDR"] = json!(chosen.range);
    node["spec"]["podCIDRs"] = json!([chosen.range]);
    let key: Arc<str> = key(&chosen.range).into();
    txn.compares.push(Compare { key: key.clone(), expect: chosen.expect });
    let name = metadata::string_field(node, "name").unwrap_or_default();
    txn.ops.push(Op::Put { key, value: name.to_owned().into() });
    Ok(())
}

struct RangeChoice {
    range: String,
    expect: Expect,
}

fn range_of(node: &Value) -> Option<&str> {
    node["spec"]["podCIDR"].as_str().filter(|range| !range.is_empty())
}

/// In keys, `/` would be a folder.
fn key(range: &str) -> String {
    format!("{RANGES}{}", range.replace('/', "_"))
}

/// Ranges that are or were in use, by their keys.
type RangeEntries<'a> = HashMap<&'a str, &'a Arc<Entry>>;

fn claim_named(node: &Value, range: &str, taken: &RangeEntries<'_>) -> ApiResult<RangeChoice> {
    let expect = match taken.get(&*key(range)) {
        None => Expect::Absent,
        Some(entry) if entry.value.is_empty() => Expect::ModifiedAt(entry.modified),
        Some(entry) => {
            let why = format!("the range is that of node {:?}", String::from_utf8_lossy(&entry.value));
            let error = FieldError::invalid(&Path::new("spec").child("podCIDR"), range, why);
            let name = metadata::string_field(node, "name").unwrap_or_default();
            return Err(ApiError::invalid_kind("", "Node", name, &error.into()));
        }
    };
    Ok(RangeChoice { range: range.to_owned(), expect })
}

/// The lowest that was never used, else the one given back longest ago, once nobody routes to it.
async fn choose_free(api: &Api, taken: &RangeEntries<'_>) -> ApiResult<RangeChoice> {
    let (base, bits) = api.settings.pod_range;
    let routed = routed_ranges(api).await?;
    let is_routed = |range: &str| routed.iter().any(|routed| have_common_addresses(range, routed));
    let mut skipped: Option<String> = None;
    let size = api.settings.node_pod_bits.clamp(1, 32);
    let count = 1u32 << size.saturating_sub(bits).min(MOST_BITS);
    let ranges = (0..count).map(|n| format!("{}/{size}", Ipv4Addr::from(u32::from(base) + (n << (32 - size)))));
    let mut freed: Option<(&Arc<Entry>, String)> = None;
    for range in ranges {
        match taken.get(&*key(&range)).copied() {
            // With another size before, it may be part of one that is in use, or the other way round.
            None if overlaps_another(&range, taken) => {}
            None if is_routed(&range) => skipped = skipped.or(Some(range)),
            Some(entry) if entry.value.is_empty() && is_routed(&range) => skipped = skipped.or(Some(range)),
            None => return Ok(RangeChoice { range, expect: Expect::Absent }),
            Some(entry)
                if entry.value.is_empty() && freed.as_ref().is_none_or(|(f, _)| entry.modified < f.modified) =>
            {
                freed = Some((entry, range));
            }
            Some(_) => {}
        }
    }
    let (entry, range) = freed.ok_or_else(|| match skipped {
        Some(range) => ApiError::unavailable(format!(
            "{NO_POD_RANGE} in {base}/{bits}: a router of the cloud still has a route to {range}; ConfigMap \
             {SYSTEM}/{CONFIG_MAP} lists such ranges"
        )),
        None => ApiError::unavailable(format!(
            "{NO_POD_RANGE} in {base}/{bits}, which holds {count} nodes with a /{size} each: delete the Node of \
             a machine that is gone, or start the cluster's servers with a larger --pod-range or smaller ranges \
             (--node-pod-range-size)"
        )),
    })?;
    let behind = nodes_behind(api, entry.modified.0).await?;
    if !behind.is_empty() {
        return Err(ApiError::unavailable(format!(
            "{NO_POD_RANGE} in {base}/{bits}: to {range}, which was given back, these nodes may still \
             route: {}",
            behind.join(", ")
        )));
    }
    Ok(RangeChoice { range, expect: Expect::ModifiedAt(entry.modified) })
}

/// Ranges to which a router of the cloud has a route.
async fn routed_ranges(api: &Api) -> ApiResult<Vec<String>> {
    let Some(config_maps) = api.registry.find("", "v1", "configmaps") else { return Ok(Vec::new()) };
    let (entry, _) = api.store.get(&keys::key(config_maps, Some(SYSTEM), CONFIG_MAP)).await?;
    let Some(entry) = entry else { return Ok(Vec::new()) };
    let value = object::parse(config_maps, &entry)?;
    Ok(value["data"].as_object().into_iter().flat_map(|data| data.keys()).map(|key| range_of_key(key)).collect())
}

/// Whether two ranges overlap; not if one of them is none.
fn have_common_addresses(a: &str, b: &str) -> bool {
    let (Some((a, a_bits)), Some((b, b_bits))) = (parse_range(a), parse_range(b)) else { return false };
    prefix(a, a_bits.min(b_bits)) == prefix(b, a_bits.min(b_bits))
}

fn prefix(address: u32, bits: u32) -> u32 {
    address.checked_shr(32 - bits).unwrap_or(0)
}

/// Whether a range of another size that is in use has an address in common with this one.
fn overlaps_another(range: &str, taken: &RangeEntries<'_>) -> bool {
    let Some((base, bits)) = parse_range(range) else { return false };
    let in_use = taken.iter().filter(|(_, entry)| !entry.value.is_empty());
    let others = in_use.filter_map(|(key, _)| parse_range(&key.strip_prefix(RANGES)?.replace('_', "/")));
    others.filter(|(_, other)| *other != bits).any(|(other, other_bits)| {
        let common = bits.min(other_bits);
        prefix(base, common) == prefix(other, common)
    })
}

fn parse_range(text: &str) -> Option<(u32, u32)> {
    let (base, bits) = text.split_once('/')?;
    Some((base.parse::<Ipv4Addr>().ok()?.into(), bits.parse().ok().filter(|bits| *bits <= 32)?))
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
