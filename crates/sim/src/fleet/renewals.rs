//! Writes the offers and heartbeats of all nodes, by one timer.
//!
//! As agents do: an offer is written when it changed, and else looked up and renewed by the node's Lease, which names its
//! version. Renewals are spread over their period. Changes are collected for a moment, so that a node that loses many pods
//! makes one new offer.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

use futures::{StreamExt, stream};
use http::Method;
use jiff::Timestamp;
use kube::Client;
use mainstay_api::{
    node_loss::Timing,
    offer::{Offer, OfferSpec},
    wellknown::mainstay::RENEWED_OFFER,
};
use parking_lot::Mutex;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::{
    Fleet, FleetActivity, FleetNode,
    register::{NODES, leases_path, micro_time},
};
use crate::requests::{self, CallError, JSON, MERGE};

/// How long changes are collected before offers are renewed early.
const BATCH_DELAY: Duration = Duration::from_millis(50);
const CONCURRENT_REQUESTS: usize = 32;
pub(super) const OFFERS: &str = "/apis/mainstay.dev/v1/offers";

/// When a node renews next.
struct Deadlines {
    offer: Instant,
    heartbeat: Instant,
    /// All nodes offer at once the first time, then spread over the period.
    first_round: bool,
}

pub(super) async fn run(fleet: Arc<Fleet>, stop: CancellationToken) {
    let mut activity = fleet.activity.subscribe();
    let offer_period = fleet.settings.template.ttl.mul_f64(0.6);
    let heartbeat_period = Timing::default().heartbeat.min(offer_period);
    let mut deadlines = spread_deadlines(&fleet, heartbeat_period);
    loop {
        let now = *activity.borrow_and_update();
        let next = match now {
            FleetActivity::Silent => None,
            FleetActivity::HeartbeatsOnly => deadlines.iter().map(|due| due.heartbeat).min(),
            FleetActivity::Offering if !fleet.offers => deadlines.iter().map(|due| due.heartbeat).min(),
            FleetActivity::Offering => deadlines.iter().map(|due| due.heartbeat.min(due.offer)).min(),
        };
        let alarm = async {
            match next {
                Some(at) => tokio::time::sleep_until(at.max(Instant::now() + BATCH_DELAY).into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = stop.cancelled() => return,
            () = alarm => {}
            () = fleet.offers_changed.notified(), if now == FleetActivity::Offering => tokio::time::sleep(BATCH_DELAY).await,
            changed = activity.changed() => {
                if changed.is_err() {
                    return;
                }
                if *activity.borrow() == FleetActivity::Offering {
                    deadlines = spread_deadlines(&fleet, heartbeat_period);
                }
            }
        }
        let periods = Periods { offer: offer_period, heartbeat: heartbeat_period };
        let due = take_due(&fleet, &mut deadlines, *activity.borrow(), &periods);
        stream::iter(due).for_each_concurrent(CONCURRENT_REQUESTS, |renewal| renew(&fleet, renewal)).await;
    }
}

fn spread_deadlines(fleet: &Fleet, heartbeat_period: Duration) -> Vec<Deadlines> {
    let now = Instant::now();
    let count = fleet.nodes.len().max(1);
    let heartbeat = |number: usize| now + heartbeat_period.mul_f64(number as f64 / count as f64);
    (0..count).map(|number| Deadlines { offer: now, heartbeat: heartbeat(number), first_round: true }).collect()
}

struct Periods {
    offer: Duration,
    heartbeat: Duration,
}

enum Renewal {
    Offer(usize),
    Heartbeat(usize),
}

fn take_due(fleet: &Fleet, deadlines: &mut [Deadlines], activity: FleetActivity, periods: &Periods) -> Vec<Renewal> {
    let now = Instant::now();
    let mut renewals = Vec::new();
    let count = fleet.nodes.len().max(1) as f64;
    for (number, (node, due)) in fleet.nodes.iter().zip(deadlines).enumerate() {
        let mut node = node.state.lock();
        let silent = fleet.is_silent(&node);
        if due.heartbeat <= now && activity != FleetActivity::Silent {
            due.heartbeat = now + periods.heartbeat;
            if !silent {
                renewals.push(Renewal::Heartbeat(number));
            }
        }
        let offering = activity == FleetActivity::Offering && fleet.offers;
        if offering && (due.offer <= now || (!silent && node.take_offer_change())) {
            let spread = std::mem::take(&mut due.first_round);
            let spread = if spread { (number + 1) as f64 / count } else { 1.0 };
            due.offer = now + periods.offer.mul_f64(spread);
            if !silent {
                renewals.push(Renewal::Offer(number));
            }
        }
    }
    renewals
}

async fn renew(fleet: &Fleet, renewal: Renewal) {
    let (node, done, counter) = match renewal {
        Renewal::Offer(number) => {
            (&fleet.nodes[number], write_offer(&fleet.nodes[number]).await, &fleet.counters.offers)
        }
        Renewal::Heartbeat(number) => {
            let node = &fleet.nodes[number];
            let renewed = node.published.lock().as_ref().map(|(_, version)| version.to_string());
            (node, write_heartbeat(&node.client, &node.name, renewed).await, &fleet.counters.heartbeats)
        }
    };
    match done {
        Ok(()) => drop(counter.fetch_add(1, Relaxed)),
        Err(error) => {
            fleet.counters.failed.fetch_add(1, Relaxed);
            tracing::debug!(node = node.name, %error, "cannot renew an offer or a heartbeat; will retry at the next renewal");
        }
    }
}

/// Writes the offer unless the API has it as it is.
async fn write_offer(node: &FleetNode) -> Result<(), CallError> {
    let spec = node.state.lock().offer(Timestamp::now());
    let content = |spec: &OfferSpec| OfferSpec { renew_time: None, ..spec.clone() };
    let published = node.published.lock().take();
    if let Some((last, version)) = published
        && content(&last) == content(&spec)
        && stored_version(node).await? == Some(version)
    {
        *node.published.lock() = Some((last, version));
        return Ok(());
    }
    let offer = Offer::new(&node.name, spec.clone());
    let version = requests::create_or_replace(&node.client, OFFERS, &node.name, &offer).await?;
    *node.published.lock() = Some((spec, version));
    Ok(())
}

async fn stored_version(node: &FleetNode) -> Result<Option<u64>, CallError> {
    let path = format!("{OFFERS}/{}", node.name);
    match requests::call(&node.client, Method::GET, &path, JSON, Vec::new()).await {
        Ok(offer) => Ok(Some(requests::version(&offer))),
        Err(error) if error.code() == Some(404) => Ok(None),
        Err(error) => Err(error),
    }
}

async fn write_heartbeat(client: &Client, name: &str, renewed: Option<String>) -> Result<(), CallError> {
    let body = json!({
        "metadata": { "annotations": { RENEWED_OFFER: renewed } },
        "spec": { "renewTime": micro_time(Timestamp::now()) },
    });
    let path = format!("{}/{name}", leases_path());
    requests::call(client, Method::PATCH, &path, MERGE, body.to_string().into()).await.map(drop)
}

/// Heartbeats of the nodes that are registered already, while others still are being: else the first would be lost before the last is there.
pub(super) async fn renew_registered(registered: &Mutex<Vec<Arc<(String, Client)>>>) -> std::convert::Infallible {
    loop {
        tokio::time::sleep(Timing::default().heartbeat).await;
        let nodes = registered.lock().clone();
        let renew = |node: Arc<(String, Client)>| async move {
            if let Err(error) = write_heartbeat(&node.1, &node.0, None).await {
                tracing::debug!(node = node.0, %error, "cannot write a heartbeat; will retry");
            }
        };
        stream::iter(nodes).for_each_concurrent(CONCURRENT_REQUESTS, renew).await;
    }
}

/// Deletes all offers, so that no pod can be bound from now on.
pub(super) async fn withdraw_offers(fleet: &Fleet) {
    if !fleet.offers {
        return set_cordoned(fleet, true).await;
    }
    stream::iter(&fleet.nodes)
        .for_each_concurrent(CONCURRENT_REQUESTS, |node| async move {
            *node.published.lock() = None;
            let path = format!("{OFFERS}/{}", node.name);
            match requests::call(&fleet.access.admin, Method::DELETE, &path, JSON, Vec::new()).await {
                Err(error) if error.code() != Some(404) => tracing::warn!(%error, "cannot withdraw an offer"),
                Ok(_) | Err(_) => {}
            }
        })
        .await;
}

/// For API servers that do not serve offers.
pub(super) async fn set_cordoned(fleet: &Fleet, cordoned: bool) {
    stream::iter(&fleet.nodes)
        .for_each_concurrent(CONCURRENT_REQUESTS, |node| async move {
            let body = json!({ "spec": { "unschedulable": cordoned.then_some(true) } });
            let path = format!("{NODES}/{}", node.name);
            let done = requests::call(&fleet.access.admin, Method::PATCH, &path, MERGE, body.to_string().into()).await;
            if let Err(error) = done {
                tracing::warn!(%error, cordoned, "cannot cordon a node");
            }
        })
        .await;
}
