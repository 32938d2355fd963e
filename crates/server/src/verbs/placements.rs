//! POST of a PlacementList: many pods get their machines, each as by a Binding of its own.
//!
//! One transaction per pod, fenced by the pod and the machine as they were judged, with the event that tells of it; so
//! a pod is placed with its event or not at all, whatever becomes of the others or of this server. All
//! transactions are handed to the store together and share its commits. A pod or a machine that changed meanwhile is
//! judged again as it is now.

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
    body::Response,
    keys,
    placement::{NotPlaced, Placement, event, placed_bytes},
    reply,
    route::ResourceRoute,
    status::{ApiError, ApiResult},
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
pub fn concerns(route: &ResourceRoute<'_>) -> bool {
    (&*route.group, &*route.version, &*route.plural) == ("mainstay.dev", "v1", "placements")
        && route.name.is_none()
        && route.namespace.is_none()
}

pub async fn place(api: &Api, body: &Bytes, dry_run: bool) -> ApiResult<Response> {
    let list: PlacementList<'_> = serde_json::from_slice(body).map_err(|error| {
        ApiError::bad_request(format!("PlacementList in version \"v1\" cannot be handled as a PlacementList: {error}"))
    })?;
    let batch = Batch::new(api, dry_run)?;
    let nodes = batch.nodes(&list.items).await?;
    let pods = join_all(list.items.iter().map(|item| batch.pod(item))).await;
    let mut prepared = Vec::with_capacity(list.items.len());
    for (at, (item, pod)) in list.items.iter().zip(pods).enumerate() {
        let node = nodes.get(&*item.node).cloned().flatten();
        prepared.push(pod.and_then(|pod| batch.prepared(item, pod, node)));
        if at % AT_A_STRETCH == AT_A_STRETCH - 1 {
            tokio::task::yield_now().await;
        }
    }
    let settled = list.items.iter().zip(prepared).map(|(item, prepared)| batch.settled(item, prepared));
    let items = join_all(settled).await.into_iter().map(ItemResult::of).collect();
    let answer = ResultList { kind: "PlacementResultList", api_version: "mainstay.dev/v1", items };
    let bytes = serde_json::to_vec(&answer).map_err(|error| ApiError::internal(error.to_string()))?;
    Ok(reply::json_bytes(StatusCode::OK, bytes))
}

/// What all placements of one request have in common.
struct Batch<'a> {
    api: &'a Api,
    pods: &'a Descriptor,
    nodes: &'a Descriptor,
    events: &'a Descriptor,
    dry_run: bool,
    now: Timestamp,
    /// As timestamps are written.
    text: String,
}

impl<'a> Batch<'a> {
    fn new(api: &'a Api, dry_run: bool) -> ApiResult<Self> {
        let kind = |plural: &str| {
            let found = api.registry.find("", "v1", plural).map(|d| &**d);
            found.ok_or_else(|| ApiError::internal(format!("{plural} are not served")))
        };
        let (pods, nodes, events) = (kind("pods")?, kind("nodes")?, kind("events")?);
        Ok(Self { api, pods, nodes, events, dry_run, now: Timestamp::now(), text: api::now().to_string() })
    }

    /// The machines that are named, each looked up once.
    async fn nodes<'i>(&self, items: &'i [Item<'_>]) -> ApiResult<HashMap<&'i str, Option<Arc<Entry>>>> {
        let mut found: HashMap<&str, Option<Arc<Entry>>> = items.iter().map(|item| (&*item.node, None)).collect();
        let names: Vec<&str> = found.keys().copied().filter(|name| keys::is_segment(name)).collect();
        let keys: Vec<Arc<str>> = names.iter().map(|name| keys::key(self.nodes, None, name)).collect();
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

    /// The transaction that places a pod as it and the machine were seen.
    fn prepared(&self, item: &Item<'_>, pod: Option<Arc<Entry>>, node: Option<Arc<Entry>>) -> ApiResult<Txn> {
        let ItemMeta { namespace, name, uid, annotations } = &item.metadata;
        let pod = pod.ok_or_else(|| ApiError::not_found(self.pods, name))?;
        let node = node.ok_or_else(|| ApiError::not_found(self.nodes, &item.node))?;
        let annotations: Vec<(&str, &str)> = annotations.iter().map(|(key, value)| (&**key, &**value)).collect();
        let placement = Placement { uid, node: &item.node, annotations: &annotations };
        let placed = placed_bytes(&pod.value, &placement, &self.text).map_err(|why| match &why {
            NotPlaced::Another { .. } => ApiError::conflict(self.pods, name, &why.to_string()),
            _ => ApiError::conflict_on("pods/binding", name, &why.to_string()),
        })?;
        let told = event::Told {
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
            compares: vec![unchanged(&pod), unchanged(&node)],
            ops: vec![
                Op::Put { key: pod.key.clone(), value: placed },
                event::written(self.events, &told, self.now, &self.text),
            ],
        })
    }

    /// Commits, and if something changed meanwhile looks at it as it is now.
    async fn settled(&self, item: &Item<'_>, prepared: ApiResult<Txn>) -> ApiResult<Option<Revision>> {
        let mut txn = prepared?;
        if self.dry_run {
            return Ok(None);
        }
        for _ in 0..ATTEMPTS {
            match self.api.commit(txn).await? {
                Outcome::Committed(revision) => return Ok(Some(revision)),
                Outcome::Conflict { current } => {
                    let mut current = current.into_iter();
                    txn = self.prepared(item, current.next().flatten(), current.next().flatten())?;
                }
            }
        }
        Err(ApiError::modified(self.pods, &item.metadata.name))
    }
}

impl ItemResult {
    fn of(settled: ApiResult<Option<Revision>>) -> Self {
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
