//! POST of a PlacementList: binds many pods, each as by a Binding of its own.
//!
//! One transaction per pod, fenced by the pod, the node and the offer that the scheduler used, with the `Scheduled`
//! event; so a pod is placed with its event or not at all, whatever becomes of the others or of this server. All
//! transactions are handed to the store together and share its commits. A pod, node or offer that changed meanwhile is
//! judged again as it is now: an offer that was renewed still stands, one that was withdrawn (deleted, perhaps created
//! anew under the same name) is a conflict.

use std::{borrow::Cow, collections::HashMap, sync::Arc};

use bytes::Bytes;
use futures::future::join_all;
use http::StatusCode;
use jiff::Timestamp;
use mainstay_api::descriptor::Descriptor;
use mainstay_store::{Compare, Entry, Expect, Op, Outcome, Revision, Txn};
use serde::{Deserialize, Serialize};

use crate::{
    api::{self, Api},
    fence::Fence,
    http::{
        reply,
        response_body::Response,
        route::ResourceRoute,
        status::{ApiError, ApiResult},
    },
    objects::{json_prune, keys, metadata, object},
    placement::{Placement, PlacementError, event, placed_bytes, topology_labels},
};

/// How often one that keeps changing is tried.
const ATTEMPTS: usize = 8;
/// Placements that are worked out before others get their turn on this thread.
const AT_A_STRETCH: usize = 128;

#[derive(Deserialize)]
struct PlacementList<'a> {
    #[serde(borrow, default)]
    items: Vec<Item<'a>>,
}

#[derive(Deserialize)]
struct Item<'a> {
    #[serde(borrow)]
    metadata: ItemMeta<'a>,
    #[serde(borrow)]
    node: Cow<'a, str>,
    /// The uid of the node's Offer that this placement uses; any, or none, will do if it is empty.
    #[serde(borrow, default, rename = "offerUid")]
    offer_uid: Cow<'a, str>,
    /// What the event says.
    #[serde(borrow, default)]
    message: Cow<'a, str>,
}

#[derive(Deserialize)]
struct ItemMeta<'a> {
    #[serde(borrow)]
    namespace: Cow<'a, str>,
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow)]
    uid: Cow<'a, str>,
    #[serde(borrow, default)]
    annotations: HashMap<Cow<'a, str>, Cow<'a, str>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ResultList {
    kind: &'static str,
    api_version: &'static str,
    items: Vec<ItemResult>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ItemResult {
    code: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    resource_version: Option<String>,
    #[serde(skip_serializing_if = "str::is_empty")]
    reason: &'static str,
    #[serde(skip_serializing_if = "String::is_empty")]
    message: String,
}

/// `/apis/mainstay.dev/v1/placements`.
pub fn serves(route: &ResourceRoute<'_>) -> bool {
    (&*route.group, &*route.version, &*route.plural) == ("mainstay.dev", "v1", "placements")
        && route.name.is_none()
        && route.namespace.is_none()
}

pub async fn bind_all(api: &Api, body: &Bytes, dry_run: bool, fence: Option<&Fence>) -> ApiResult<Response> {
    let list: PlacementList<'_> = serde_json::from_slice(body).map_err(|error| {
        ApiError::bad_request(format!("PlacementList in version \"v1\" cannot be handled as a PlacementList: {error}"))
    })?;
    let batch = Batch::new(api, dry_run, fence)?;
    let nodes = batch.find_all(batch.nodes, list.items.iter().map(|item| &*item.node)).await?;
    let offered = list.items.iter().filter(|item| !item.offer_uid.is_empty());
    let offers = batch.find_all(batch.offers, offered.map(|item| &*item.node)).await?;
    let pods = join_all(list.items.iter().map(|item| batch.pod(item))).await;
    let mut prepared = Vec::with_capacity(list.items.len());
    for (at, (item, pod)) in list.items.iter().zip(pods).enumerate() {
        let node = nodes.get(&*item.node).cloned().flatten();
        let offer = offers.get(&*item.node).cloned().flatten();
        prepared.push(pod.and_then(|pod| batch.prepare(item, pod, node, offer)));
        if at % AT_A_STRETCH == AT_A_STRETCH - 1 {
            tokio::task::yield_now().await;
        }
    }
    let settled = list.items.iter().zip(prepared).map(|(item, prepared)| batch.commit(item, prepared));
    let items = join_all(settled).await.into_iter().map(ItemResult::from_result).collect();
    let answer =
        ResultList { kind: "PlacementResultList", api_version: mainstay_api::wellknown::mainstay::API_VERSION, items };
    let bytes = serde_json::to_vec(&answer).map_err(|error| ApiError::internal(error.to_string()))?;
    Ok(reply::json_bytes(StatusCode::OK, bytes))
}

/// What all placements of one request have in common.
struct Batch<'a> {
    api: &'a Api,
    pods: &'a Descriptor,
    nodes: &'a Descriptor,
    offers: &'a Descriptor,
    events: &'a Descriptor,
    dry_run: bool,
    fence: Option<&'a Fence>,
    now: Timestamp,
    /// As timestamps are written.
    text: String,
}

impl<'a> Batch<'a> {
    fn new(api: &'a Api, dry_run: bool, fence: Option<&'a Fence>) -> ApiResult<Self> {
        let kind = |group: &str, plural: &str| {
            let found = api.registry.find(group, "v1", plural).map(|d| &**d);
            found.ok_or_else(|| ApiError::internal(format!("{plural} are not served")))
        };
        let (pods, nodes, events) = (kind("", "pods")?, kind("", "nodes")?, kind("", "events")?);
        let offers = kind("mainstay.dev", "offers")?;
        let (now, text) = (Timestamp::now(), api::now().to_string());
        Ok(Self { api, pods, nodes, offers, events, dry_run, fence, now, text })
    }

    /// The objects of a kind that has no namespaces, by name, each looked up once.
    async fn find_all<'i>(
        &self,
        d: &Descriptor,
        names: impl Iterator<Item = &'i str>,
    ) -> ApiResult<HashMap<&'i str, Option<Arc<Entry>>>> {
        let mut found: HashMap<&str, Option<Arc<Entry>>> = names.map(|name| (name, None)).collect();
        let names: Vec<&str> = found.keys().copied().filter(|name| keys::is_segment(name)).collect();
        let keys: Vec<Arc<str>> = names.iter().map(|name| keys::key(d, None, name)).collect();
        for (name, entry) in names.iter().zip(join_all(keys.iter().map(|key| self.api.store.get(key))).await) {
            found.insert(name, entry?.0);
        }
        Ok(found)
    }

    async fn pod(&self, item: &Item<'_>) -> ApiResult<Option<Arc<Entry>>> {
        let ItemMeta { namespace, name, .. } = &item.metadata;
        if !keys::is_segment(namespace) || !keys::is_segment(name) {
            return Ok(None);
        }
        Ok(self.api.store.get(&keys::key(self.pods, Some(namespace), name)).await?.0)
    }

    /// The transaction that places a pod as it, the node and the offer were read.
    fn prepare(
        &self,
        item: &Item<'_>,
        pod: Option<Arc<Entry>>,
        node: Option<Arc<Entry>>,
        offer: Option<Arc<Entry>>,
    ) -> ApiResult<Txn> {
        let ItemMeta { namespace, name, uid, annotations } = &item.metadata;
        let pod = pod.ok_or_else(|| ApiError::not_found(self.pods, name))?;
        let node = node.ok_or_else(|| ApiError::not_found(self.nodes, &item.node))?;
        let offer = if item.offer_uid.is_empty() { None } else { Some(self.check_offer(item, offer)?) };
        let annotations: Vec<(&str, &str)> = annotations.iter().map(|(key, value)| (&**key, &**value)).collect();
        let labelled = json_prune::pruned(&node.value, &[&["metadata", "labels"]]);
        let labels = topology_labels(&labelled);
        let placement = Placement { uid, node: &item.node, annotations: &annotations, labels: &labels };
        let placed = placed_bytes(&pod.value, &placement, &self.text).map_err(|why| match &why {
            PlacementError::Another { .. } => ApiError::conflict(self.pods, name, &why.to_string()),
            PlacementError::Unreadable { why } => object::unreadable(&pod, why),
            _ => ApiError::conflict_on("pods/binding", name, &why.to_string()),
        })?;
        let scheduled = event::PodEvent {
            namespace,
            pod: name,
            uid,
            kind: "Normal",
            reason: "Scheduled",
            message: &item.message,
            component: event::SCHEDULER,
        };
        let unchanged = |entry: &Entry| Compare { key: entry.key.clone(), expect: Expect::ModifiedAt(entry.modified) };
        Ok(Txn {
            compares: [&pod, &node].into_iter().chain(&offer).map(|entry| unchanged(entry)).collect(),
            ops: vec![
                Op::Put { key: pod.key.clone(), value: placed },
                event::put_event(self.events, &scheduled, self.now, &self.text),
            ],
        })
    }

    /// The offer that the placement uses, if it still stands.
    fn check_offer(&self, item: &Item<'_>, offer: Option<Arc<Entry>>) -> ApiResult<Arc<Entry>> {
        let refuse = |why: String| ApiError::conflict_on("pods/binding", &item.metadata.name, &why);
        let node = &item.node;
        let offer = offer.ok_or_else(|| refuse(format!("the offer of node {node:?} was withdrawn")))?;
        let object = object::parse(self.offers, &offer)?;
        let stored = metadata::string_field(&object, "uid").unwrap_or_default();
        if stored != item.offer_uid {
            let given = &item.offer_uid;
            return Err(refuse(format!(
                "the offer of node {node:?} was withdrawn and made anew: UID in precondition: {given}, UID in object \
                 meta: {stored}"
            )));
        }
        Ok(offer)
    }

    /// Commits, and if something changed meanwhile judges it as it is now.
    async fn commit(&self, item: &Item<'_>, prepared: ApiResult<Txn>) -> ApiResult<Option<Revision>> {
        let mut txn = prepared?;
        if self.dry_run {
            return Ok(None);
        }
        for _ in 0..ATTEMPTS {
            match self.api.commit(txn, self.fence).await? {
                Outcome::Committed(revision) => return Ok(Some(revision)),
                Outcome::Conflict { current } => {
                    let mut current = current.into_iter();
                    let mut next = || current.next().flatten();
                    txn = self.prepare(item, next(), next(), next())?;
                }
            }
        }
        Err(ApiError::modified(self.pods, &item.metadata.name))
    }
}

impl ItemResult {
    fn from_result(settled: ApiResult<Option<Revision>>) -> Self {
        match settled {
            Ok(revision) => Self {
                code: StatusCode::CREATED.as_u16(),
                resource_version: revision.map(|revision| revision.to_string()),
                reason: "",
                message: String::new(),
            },
            Err(error) => Self {
                code: error.code().as_u16(),
                resource_version: None,
                reason: error.reason(),
                message: error.message().to_owned(),
            },
        }
    }
}

#[cfg(test)]
mod tests;
