//! Machines come into being: a Node and a heartbeat each.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Instant,
};

use futures::{StreamExt, TryStreamExt, stream};
use http::Method;
use jiff::Timestamp;
use kube::Client;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::{Notify, mpsc, watch};

use super::{Access, Counters, Fleet, Pace, Settings, Slot, TELLERS, Tables};
use crate::{
    ledger::Ledger,
    machine::Machine,
    wire::{self, CallError, JSON},
};

const AT_ONCE: usize = 32;
pub(super) const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
pub(super) const NODES: &str = "/api/v1/nodes";

impl Fleet {
    /// Registers all machines. They begin to offer, and to take pods, with [`Fleet::run`].
    pub async fn register(
        access: Access,
        settings: Settings,
        ledger: Arc<Ledger>,
        done: &AtomicUsize,
    ) -> Result<Arc<Self>, CallError> {
        let offers = has_offers(&access.admin).await?;
        let shape = Arc::new(settings.shape.clone());
        let conducts = settings.faults.conducts(settings.count);
        let digits = settings.count.saturating_sub(1).max(1).to_string().len();
        let slots = stream::iter(conducts.into_iter().enumerate())
            .map(|(number, conduct)| {
                let name = format!("{}-{number:0digits$}", settings.prefix);
                let (client, shape) = ((access.machine)(&name), shape.clone());
                async move {
                    let range = register(&client, shape.node(number, &name, Timestamp::now()), &name).await?;
                    done.fetch_add(1, Relaxed);
                    let machine = Mutex::new(Machine::new(shape, conduct));
                    Ok(Slot { name, client, machine, range })
                }
            })
            .buffered(AT_ONCE)
            .try_collect::<Vec<Slot>>()
            .await?;
        let by_name = slots.iter().enumerate().map(|(number, slot)| (slot.name.clone(), number)).collect();
        let (words, heard) = (0..TELLERS).map(|_| mpsc::unbounded_channel()).unzip();
        Ok(Arc::new(Self {
            tables: Tables::of(slots.len()),
            settings,
            access,
            slots,
            by_name,
            started: Instant::now(),
            offers,
            pace: watch::Sender::new(Pace::Offering),
            news: Notify::new(),
            words,
            heard: Mutex::new(heard),
            ledger,
            counters: Counters::default(),
        }))
    }
}

async fn has_offers(client: &Client) -> Result<bool, CallError> {
    match wire::call(client, Method::GET, "/apis/mainstay.dev/v1", JSON, Vec::new()).await {
        Ok(bytes) => {
            let resources: Value = serde_json::from_slice(&bytes).unwrap_or_default();
            let mut resources = resources["resources"].as_array().into_iter().flatten();
            Ok(resources.any(|resource| resource["name"] == "offers"))
        }
        Err(error) if error.code() == Some(404) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Makes the Node and its Lease, or finds them. The answer is the beginning of its pods' addresses.
async fn register(client: &Client, node: Value, name: &str) -> Result<Option<String>, CallError> {
    let made = wire::call(client, Method::POST, NODES, JSON, node.to_string().into()).await;
    let made = match made {
        Err(error) if error.code() == Some(409) => {
            wire::call(client, Method::GET, &format!("{NODES}/{name}"), JSON, Vec::new()).await?
        }
        made => made?,
    };
    let lease = json!({
        "kind": "Lease", "apiVersion": "coordination.k8s.io/v1",
        "metadata": { "name": name, "namespace": "kube-node-lease" },
        "spec": { "holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": micro(Timestamp::now()) },
    });
    match wire::call(client, Method::POST, LEASES, JSON, lease.to_string().into()).await {
        Err(error) if error.code() != Some(409) => return Err(error),
        Ok(_) | Err(_) => {}
    }
    let node: Value = serde_json::from_slice(&made).unwrap_or_default();
    let range = node["spec"]["podCIDR"].as_str().and_then(|range| range.rsplit_once('.'));
    Ok(range.map(|(begin, _)| begin.to_owned()))
}

pub(super) fn micro(at: Timestamp) -> String {
    at.strftime("%FT%T%.6fZ").to_string()
}
