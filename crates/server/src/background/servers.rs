//! The endpoints of the Service `default/kubernetes`: which servers answer for the API.
//!
//! Every server that shares the store renews a key of its own, and lists everybody's. Who has not renewed for a
//! while, by the clock of the one who looks, is gone: clocks need not agree, and a key that was there before counts
//! as renewed when it is first seen. What is listed is written where it differs; who is overtaken by
//! another writes at the next look. A server that ends in peace takes itself off the list.
//!
//! A server that others cannot reach, because it advertises a loopback address, is no endpoint: every pod would
//! find itself there.

use std::{
    collections::{BTreeMap, HashMap},
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use http::{Method, StatusCode};
use mainstay_store::{Compare, Expect, List, Op, Revision, StoreError, Txn};
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{
    background::bootstrap::{BootstrapClient, BootstrapError, failed},
    handler::Handler,
    objects::keys::SERVERS,
};

const RENEW: Duration = Duration::from_secs(5);
const SILENT: Duration = Duration::from_secs(15);

/// Keeps the list until asked to stop, and takes this server off it then.
pub async fn keep(handler: Arc<Handler>, advertise: SocketAddr, stop: CancellationToken) {
    let mut roll = ServerHeartbeats::default();
    while stop.run_until_cancelled(tokio::time::sleep(RENEW)).await.is_some() {
        if let Err(error) = renew(&handler, advertise, &mut roll).await {
            tracing::warn!(%error, "cannot list this server as an endpoint of the API; will try again");
        }
    }
    if let Err(error) = leave(&handler, advertise, &mut roll).await {
        tracing::warn!(%error, "cannot take this server off the endpoints of the API");
    }
}

/// Says that this server answers, and lists all that do.
pub async fn renew(
    handler: &Arc<Handler>,
    advertise: SocketAddr,
    roll: &mut ServerHeartbeats,
) -> Result<(), BootstrapError> {
    if advertise.ip().is_loopback() {
        return Ok(());
    }
    let put = Op::Put { key: key(advertise), value: advertise.to_string().into() };
    commit(handler, Txn { compares: Vec::new(), ops: vec![put] }).await?;
    list(handler, roll).await
}

async fn leave(
    handler: &Arc<Handler>,
    advertise: SocketAddr,
    roll: &mut ServerHeartbeats,
) -> Result<(), BootstrapError> {
    if advertise.ip().is_loopback() {
        return Ok(());
    }
    commit(handler, Txn { compares: Vec::new(), ops: vec![Op::Delete { key: key(advertise) }] }).await?;
    list(handler, roll).await
}

async fn list(handler: &Arc<Handler>, roll: &mut ServerHeartbeats) -> Result<(), BootstrapError> {
    let listing = handler.api.store.list(List { prefix: SERVERS, ..List::default() }).await.map_err(unreachable)?;
    let entries = listing
        .entries
        .iter()
        .filter_map(|entry| Some((entry.key.strip_prefix(SERVERS)?.parse::<SocketAddr>().ok()?, entry.modified)));
    let (alive, gone) = roll.call(entries, Instant::now());
    for (address, seen) in gone {
        let compare = Compare { key: key(address), expect: Expect::ModifiedAt(seen) };
        commit(handler, Txn { compares: vec![compare], ops: vec![Op::Delete { key: key(address) }] }).await?;
    }
    let own = BootstrapClient::new(handler);
    let slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
    write(&own, slices, &slice(&alive), &["endpoints", "ports"]).await?;
    write(&own, "/api/v1/namespaces/default/endpoints", &endpoints(&alive), &["subsets"]).await
}

fn key(address: SocketAddr) -> Arc<str> {
    format!("{SERVERS}{address}").into()
}

async fn commit(handler: &Arc<Handler>, txn: Txn) -> Result<(), BootstrapError> {
    let committed = handler.api.commit(txn, None).await;
    committed.map(drop).map_err(|error| BootstrapError::new("the list of servers", error.to_string()))
}

fn unreachable(error: StoreError) -> BootstrapError {
    BootstrapError::new("the list of servers", error.to_string())
}

/// Writes an object where one of these fields differs.
async fn write(
    own: &BootstrapClient<'_>,
    collection: &str,
    object: &Value,
    fields: &[&str],
) -> Result<(), BootstrapError> {
    let path = format!("{collection}/kubernetes");
    let (code, current) = own.call(Method::GET, &path, None).await;
    let answer = match code {
        StatusCode::OK if fields.iter().all(|field| current[field] == object[field]) => return Ok(()),
        StatusCode::OK => {
            let mut object = object.clone();
            object["metadata"]["resourceVersion"] = current["metadata"]["resourceVersion"].clone();
            own.call(Method::PUT, &path, Some(&object)).await
        }
        StatusCode::NOT_FOUND => own.call(Method::POST, collection, Some(object)).await,
        _ => (code, current),
    };
    match answer {
        // Somebody else was faster; the next look shows whether they knew less.
        (StatusCode::OK | StatusCode::CREATED | StatusCode::CONFLICT, _) => Ok(()),
        (_, status) => Err(failed(collection, "kubernetes", &status)),
    }
}

/// When each server was last heard of.
#[derive(Default)]
pub struct ServerHeartbeats {
    heard: HashMap<SocketAddr, (Revision, Instant)>,
}

impl ServerHeartbeats {
    /// Who is there, and whose keys nobody renews any more, as they were last seen.
    fn call(
        &mut self,
        entries: impl Iterator<Item = (SocketAddr, Revision)>,
        now: Instant,
    ) -> (Vec<SocketAddr>, Vec<(SocketAddr, Revision)>) {
        let mut heard = HashMap::new();
        let (mut alive, mut gone) = (Vec::new(), Vec::new());
        for (address, renewed) in entries {
            let since = match self.heard.get(&address) {
                Some((before, since)) if *before == renewed => *since,
                _ => now,
            };
            heard.insert(address, (renewed, since));
            match now.duration_since(since) < SILENT {
                true => alive.push(address),
                false => gone.push((address, renewed)),
            }
        }
        self.heard = heard;
        alive.sort();
        (alive, gone)
    }
}

/// By kind of address and port, in order.
fn groups(servers: &[SocketAddr]) -> BTreeMap<(bool, u16), Vec<IpAddr>> {
    let mut groups: BTreeMap<(bool, u16), Vec<IpAddr>> = BTreeMap::new();
    for server in servers {
        groups.entry((server.is_ipv6(), server.port())).or_default().push(server.ip());
    }
    groups
}

fn ports(port: u16) -> Value {
    json!([{ "name": "https", "port": port, "protocol": "TCP" }])
}

/// One slice has one port and one kind of address: those that most have.
fn slice(servers: &[SocketAddr]) -> Value {
    let groups = groups(servers);
    let most = groups.iter().max_by_key(|(group, servers)| (servers.len(), std::cmp::Reverse(**group)));
    let ((six, port), chosen) = most.map(|(group, servers)| (*group, servers.clone())).unwrap_or_default();
    let ready = json!({ "ready": true });
    let endpoints: Vec<Value> =
        chosen.iter().map(|ip| json!({ "addresses": [ip.to_string()], "conditions": ready })).collect();
    json!({
        "kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1",
        "metadata": {
            "name": "kubernetes", "namespace": "default", "labels": { (mainstay_api::wellknown::kubernetes::SERVICE_NAME): "kubernetes" },
        },
        "addressType": if six { "IPv6" } else { "IPv4" },
        "endpoints": endpoints,
        "ports": if chosen.is_empty() { json!([]) } else { ports(port) },
    })
}

fn endpoints(servers: &[SocketAddr]) -> Value {
    let subset = |((_, port), ips): ((bool, u16), Vec<IpAddr>)| {
        let addresses: Vec<Value> = ips.iter().map(|ip| json!({ "ip": ip.to_string() })).collect();
        json!({ "addresses": addresses, "ports": ports(port) })
    };
    let mut object = json!({
        "kind": "Endpoints", "apiVersion": "v1",
        "metadata": {
            "name": "kubernetes", "namespace": "default",
            "labels": { (mainstay_api::wellknown::kubernetes::SKIP_MIRROR): "true" },
        },
    });
    if !servers.is_empty() {
        object["subsets"] = groups(servers).into_iter().map(subset).collect();
    }
    object
}

#[cfg(test)]
mod tests;
