//! Hollow machines hold tables of where Services end: each follows all EndpointSlices with a watch of its own, and
//! acknowledges what took an endpoint away, as agents do.
//!
//! A thousand of them share this process, so what comes is not parsed: of every event the version is cut out, and the
//! endpoints that are ready are counted.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use futures::{AsyncBufReadExt, StreamExt};
use http::{Method, Request};
use kube::Client;
use mainstay_api::service_table::{ServiceTable, ServiceTableSpec};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{Fleet, Slot};
use crate::wire::{self, CallError, JSON};

const SLICES: &str = "/apis/discovery.k8s.io/v1/endpointslices";
const TABLES: &str = "/apis/mainstay.dev/v1/servicetables";
const AGAIN: Duration = Duration::from_millis(200);

/// How far the machines have come.
#[derive(Default)]
pub struct Tables {
    machines: Vec<Table>,
    pub acknowledged: AtomicU64,
}

#[derive(Default)]
struct Table {
    /// The newest version that is in force.
    version: AtomicU64,
    /// What came when, since this was last asked for.
    came: Mutex<Vec<(u64, Instant)>>,
}

impl Tables {
    pub(super) fn of(count: usize) -> Self {
        Self { machines: (0..count).map(|_| Table::default()).collect(), ..Self::default() }
    }

    /// The version that is in force on all machines.
    pub fn least(&self) -> u64 {
        self.machines.iter().map(|table| table.version.load(Relaxed)).min().unwrap_or(0)
    }

    /// Forgets when things came.
    pub fn forget(&self) {
        self.machines.iter().for_each(|table| table.came.lock().clear());
    }

    /// When each machine came to a version, of those that did since [`Tables::forget`].
    pub fn came_to(&self, version: u64) -> Vec<Instant> {
        let when = |table: &Table| {
            let came = table.came.lock();
            came.iter().filter(|(own, _)| *own >= version).map(|(_, at)| *at).min()
        };
        self.machines.iter().filter_map(when).collect()
    }

    fn take(&self, machine: usize, version: u64) {
        let table = &self.machines[machine];
        table.version.fetch_max(version, Relaxed);
        table.came.lock().push((version, Instant::now()));
    }
}

pub(super) async fn hold(fleet: Arc<Fleet>, machine: usize, stop: CancellationToken) {
    let wanted = watch::Sender::new(0);
    let follow = async {
        loop {
            if let Err(error) = follow(&fleet, machine, &wanted).await {
                tracing::debug!(machine = fleet.slots[machine].name, %error, "cannot follow slices; will follow again");
            }
            tokio::time::sleep(AGAIN).await;
        }
    };
    let acknowledge = acknowledge(&fleet, machine, wanted.subscribe());
    stop.run_until_cancelled(async { tokio::join!(follow, acknowledge) }).await;
}

async fn follow(fleet: &Fleet, machine: usize, wanted: &watch::Sender<u64>) -> Result<(), CallError> {
    let client = &fleet.slots[machine].client;
    let list = wire::call(client, Method::GET, SLICES, JSON, Vec::new()).await?;
    let list: Value = serde_json::from_slice(&list).unwrap_or_default();
    let mut ready: HashMap<String, usize> = HashMap::new();
    for slice in list["items"].as_array().into_iter().flatten() {
        ready.insert(text(&slice["metadata"]["uid"]).to_owned(), count_ready(&slice.to_string()));
    }
    let from = text(&list["metadata"]["resourceVersion"]).to_owned();
    let begin = from.parse().unwrap_or(0);
    fleet.tables.take(machine, begin);
    wanted.send_replace(begin);
    let mut lines = std::pin::pin!(open(client, &from).await?);
    while let Some(Ok(line)) = lines.next().await {
        let Some(event) = Event::cut(&line) else { return Ok(()) };
        let now = if event.gone { 0 } else { count_ready(&line) };
        let before = ready.insert(event.uid, now).unwrap_or(0);
        fleet.tables.take(machine, event.version);
        // Those that stay as many may be others.
        if before > 0 && now <= before {
            wanted.send_replace(event.version);
        }
    }
    Ok(())
}

async fn open(
    client: &Client,
    from: &str,
) -> Result<impl futures::Stream<Item = std::io::Result<String>> + use<>, CallError> {
    let path = format!("{SLICES}?watch=true&resourceVersion={from}");
    let failed = |source| CallError::Unanswered { method: Method::GET, path: path.clone(), source: Box::new(source) };
    let request = Request::get(&path).body(Vec::new()).map_err(|error| failed(kube::Error::HttpError(error)))?;
    Ok(client.request_stream(request).await.map_err(failed)?.lines())
}

/// One event of a watch, as far as it matters.
#[derive(Debug, PartialEq, Eq)]
struct Event {
    gone: bool,
    uid: String,
    version: u64,
}

impl Event {
    fn cut(line: &str) -> Option<Self> {
        let field = |name: &str| {
            let begin = line.find(&format!("\"{name}\":\""))? + name.len() + 4;
            Some(&line[begin..begin + line[begin..].find('"')?])
        };
        let gone = match field("type")? {
            "ADDED" | "MODIFIED" => false,
            "DELETED" => true,
            _ => return None,
        };
        let meta = line.find("\"metadata\":").map(|at| &line[at..])?;
        Some(Self { gone, uid: uid(meta)?.to_owned(), version: field("resourceVersion")?.parse().ok()? })
    }
}

/// The slice's own: the last before its metadata ends, for its owners have theirs too.
fn uid(metadata: &str) -> Option<&str> {
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

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Says what is in force, the newest only.
async fn acknowledge(fleet: &Fleet, machine: usize, mut wanted: watch::Receiver<u64>) {
    let slot = &fleet.slots[machine];
    while wanted.changed().await.is_ok() {
        let version = *wanted.borrow_and_update();
        match put(slot, version).await {
            Ok(()) => drop(fleet.tables.acknowledged.fetch_add(1, Relaxed)),
            Err(error) => {
                tracing::debug!(machine = slot.name, %error, "cannot acknowledge; will try again");
                tokio::time::sleep(AGAIN).await;
                wanted.mark_changed();
            }
        }
    }
}

async fn put(slot: &Slot, version: u64) -> Result<(), CallError> {
    let spec = ServiceTableSpec { endpoints: version.to_string(), nodes: version.to_string() };
    wire::put(&slot.client, TABLES, &slot.name, &ServiceTable::new(&slot.name, spec)).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_an_event_the_version_is_cut_out() {
        let line = r#"{"type":"MODIFIED","object":{"kind":"EndpointSlice","metadata":{"resourceVersion":"42","name":"web-a","ownerReferences":[{"name":"web","uid":"other"}],"uid":"u1"},"endpoints":[{"conditions":{"ready":true}},{"conditions":{"ready":false}}]}}"#;
        let event = Event { gone: false, uid: "u1".into(), version: 42 };
        assert_eq!((Event::cut(line), count_ready(line)), (Some(event), 1));
        assert!(Event::cut(&line.replace("MODIFIED", "DELETED")).unwrap().gone);
        assert_eq!(Event::cut(r#"{"type":"ERROR","object":{"code":410}}"#), None);
    }
}
