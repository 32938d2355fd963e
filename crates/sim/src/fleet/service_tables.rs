//! ServiceTables of hollow nodes: each node watches all EndpointSlices and acknowledges the removal of endpoints, as
//! agents do.
//!
//! A thousand nodes share this process, so events are not decoded: the resourceVersion is cut out of the text, and ready
//! endpoints are counted.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Instant,
};

use futures::{AsyncBufReadExt, StreamExt};
use http::{Method, Request};
use kube::Client;
use mainstay_api::service_table::{ServiceTable, ServiceTableSpec};
use mainstay_backoff::RetryState;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{Fleet, FleetNode, RETRY_BACKOFF};
use crate::requests::{self, CallError, JSON};

const SLICES: &str = "/apis/discovery.k8s.io/v1/endpointslices";
const TABLES: &str = "/apis/mainstay.dev/v1/servicetables";

/// Which version of the EndpointSlices each node has applied.
#[derive(Default)]
pub struct ServiceTables {
    nodes: Vec<NodeTable>,
    pub acknowledged: AtomicU64,
}

#[derive(Default)]
struct NodeTable {
    /// The newest version applied.
    version: AtomicU64,
    /// When which version was applied, since [`ServiceTables::clear_history`].
    history: Mutex<Vec<(u64, Instant)>>,
}

impl ServiceTables {
    pub(super) fn new(count: usize) -> Self {
        Self { nodes: (0..count).map(|_| NodeTable::default()).collect(), ..Self::default() }
    }

    /// The version that all nodes have applied.
    pub fn oldest_version(&self) -> u64 {
        self.nodes.iter().map(|table| table.version.load(Relaxed)).min().unwrap_or(0)
    }

    pub fn clear_history(&self) {
        self.nodes.iter().for_each(|table| table.history.lock().clear());
    }

    /// When each node applied a version, of those that did since [`ServiceTables::clear_history`].
    pub fn times_reached(&self, version: u64) -> Vec<Instant> {
        let when = |table: &NodeTable| {
            let history = table.history.lock();
            history.iter().filter(|(own, _)| *own >= version).map(|(_, at)| *at).min()
        };
        self.nodes.iter().filter_map(when).collect()
    }

    fn record_version(&self, node: usize, version: u64) {
        let table = &self.nodes[node];
        table.version.fetch_max(version, Relaxed);
        table.history.lock().push((version, Instant::now()));
    }
}

pub(super) async fn run(fleet: Arc<Fleet>, node: usize, stop: CancellationToken) {
    let acknowledge_version = watch::Sender::new(0);
    let watch = async {
        let mut retries = RetryState::new(RETRY_BACKOFF);
        loop {
            match watch_slices(&fleet, node, &acknowledge_version).await {
                Ok(()) => retries.reset(),
                Err(error) => {
                    tracing::debug!(node = fleet.nodes[node].name, %error, "cannot watch EndpointSlices; will retry");
                }
            }
            tokio::time::sleep(retries.record_failure(fastrand::f64())).await;
        }
    };
    let acknowledge = acknowledge(&fleet, node, acknowledge_version.subscribe());
    stop.run_until_cancelled(async { tokio::join!(watch, acknowledge) }).await;
}

async fn watch_slices(fleet: &Fleet, node: usize, acknowledge_version: &watch::Sender<u64>) -> Result<(), CallError> {
    let client = &fleet.nodes[node].client;
    let list = requests::call(client, Method::GET, SLICES, JSON, Vec::new()).await?;
    let list: Value = serde_json::from_slice(&list).unwrap_or_default();
    let mut ready: HashMap<String, usize> = HashMap::new();
    for slice in list["items"].as_array().into_iter().flatten() {
        ready.insert(as_text(&slice["metadata"]["uid"]).to_owned(), count_ready(&slice.to_string()));
    }
    let from = as_text(&list["metadata"]["resourceVersion"]).to_owned();
    let begin = from.parse().unwrap_or(0);
    fleet.service_tables.record_version(node, begin);
    acknowledge_version.send_replace(begin);
    let mut lines = std::pin::pin!(open_watch(client, &from).await?);
    while let Some(Ok(line)) = lines.next().await {
        let Some(event) = SliceEvent::parse(&line) else { return Ok(()) };
        let now = if event.deleted { 0 } else { count_ready(&line) };
        let before = ready.insert(event.uid, now).unwrap_or(0);
        fleet.service_tables.record_version(node, event.version);
        // The same number of endpoints may be other endpoints.
        if before > 0 && now <= before {
            acknowledge_version.send_replace(event.version);
        }
    }
    Ok(())
}

async fn open_watch(
    client: &Client,
    from: &str,
) -> Result<impl futures::Stream<Item = std::io::Result<String>> + use<>, CallError> {
    let path = format!("{SLICES}?watch=true&resourceVersion={from}");
    let failed = |source| CallError::Unanswered { method: Method::GET, path: path.clone(), source: Box::new(source) };
    let request = Request::get(&path).body(Vec::new()).map_err(|error| failed(kube::Error::HttpError(error)))?;
    Ok(client.request_stream(request).await.map_err(failed)?.lines())
}

/// The few fields of a watch event that matter here.
#[derive(Debug, PartialEq, Eq)]
struct SliceEvent {
    deleted: bool,
    uid: String,
    version: u64,
}

impl SliceEvent {
    fn parse(line: &str) -> Option<Self> {
        let field = |name: &str| {
            let begin = line.find(&format!("\"{name}\":\""))? + name.len() + 4;
            Some(&line[begin..begin + line[begin..].find('"')?])
        };
        let deleted = match field("type")? {
            "ADDED" | "MODIFIED" => false,
            "DELETED" => true,
            _ => return None,
        };
        let meta = line.find("\"metadata\":").map(|at| &line[at..])?;
        Some(Self { deleted, uid: slice_uid(meta)?.to_owned(), version: field("resourceVersion")?.parse().ok()? })
    }
}

/// The uid of the slice itself, not those of its owners.
fn slice_uid(metadata: &str) -> Option<&str> {
    let (mut depth, mut found) = (0usize, None);
    let mut at = metadata.find('{')?;
    let bytes = metadata.as_bytes();
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'{' => depth += 1,
            b'}' if depth <= 1 => return found,
            b'}' => depth -= 1,
            b'"' if depth == 1 && metadata[at..].starts_with("\"uid\":\"") => {
                let begin = at + 7;
                found = metadata[begin..].find('"').map(|end| &metadata[begin..begin + end]);
            }
            _ => {}
        }
        at += 1;
    }
    None
}

fn count_ready(json: &str) -> usize {
    json.matches("\"ready\":true").count()
}

fn as_text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Writes which version is applied, the newest only.
async fn acknowledge(fleet: &Fleet, node: usize, mut acknowledge_version: watch::Receiver<u64>) {
    let node = &fleet.nodes[node];
    let mut retries = RetryState::new(RETRY_BACKOFF);
    while acknowledge_version.changed().await.is_ok() {
        let version = *acknowledge_version.borrow_and_update();
        match write_table(node, version).await {
            Ok(()) => {
                retries.reset();
                fleet.service_tables.acknowledged.fetch_add(1, Relaxed);
            }
            Err(error) => {
                tracing::debug!(node = node.name, %error, "cannot write the ServiceTable; will retry");
                tokio::time::sleep(retries.record_failure(fastrand::f64())).await;
                acknowledge_version.mark_changed();
            }
        }
    }
}

async fn write_table(node: &FleetNode, version: u64) -> Result<(), CallError> {
    let spec = ServiceTableSpec { endpoints: version.to_string(), nodes: version.to_string() };
    requests::create_or_replace(&node.client, TABLES, &node.name, &ServiceTable::new(&node.name, spec)).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_cut_out_of_an_event() {
        let line = r#"{"type":"MODIFIED","object":{"kind":"EndpointSlice","metadata":{"resourceVersion":"42","name":"web-a","ownerReferences":[{"name":"web","uid":"other"}],"uid":"u1"},"endpoints":[{"conditions":{"ready":true}},{"conditions":{"ready":false}}]}}"#;
        let event = SliceEvent { deleted: false, uid: "u1".into(), version: 42 };
        assert_eq!((SliceEvent::parse(line), count_ready(line)), (Some(event), 1));
        assert!(SliceEvent::parse(&line.replace("MODIFIED", "DELETED")).unwrap().deleted);
        assert_eq!(SliceEvent::parse(r#"{"type":"ERROR","object":{"code":410}}"#), None);
    }
}
