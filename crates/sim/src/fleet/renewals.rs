//! Renews the offers and heartbeats of all nodes, by one timer.
//!
//! Renewals are spread over their period. Changes are collected for a moment, so that a node that loses many pods makes
//! one new offer.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

use futures::{StreamExt, stream};
use http::Method;
use jiff::Timestamp;
use mainstay_api::offer::Offer;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::{
    Fleet, FleetActivity, FleetNode,
    register::{NODES, leases_path, micro_time},
};
use crate::requests::{self, CallError, JSON, MERGE};

/// How long changes are collected before offers are renewed early.
const BATCH_DELAY: Duration = Duration::from_millis(50);
const HEARTBEAT_PERIOD: Duration = Duration::from_secs(10);
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
    let mut deadlines = spread_deadlines(&fleet);
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
                    deadlines = spread_deadlines(&fleet);
                }
            }
        }
        let due = take_due(&fleet, &mut deadlines, *activity.borrow(), offer_period);
        stream::iter(due).for_each_concurrent(CONCURRENT_REQUESTS, |renewal| renew(&fleet, renewal)).await;
    }
}

fn spread_deadlines(fleet: &Fleet) -> Vec<Deadlines> {
    let now = Instant::now();
    let count = fleet.nodes.len().max(1);
    let heartbeat = |number: usize| now + HEARTBEAT_PERIOD.mul_f64(number as f64 / count as f64);
    (0..count).map(|number| Deadlines { offer: now, heartbeat: heartbeat(number), first_round: true }).collect()
}

enum Renewal {
    Offer(usize),
    Heartbeat(usize),
}

fn take_due(
    fleet: &Fleet,
    deadlines: &mut [Deadlines],
    activity: FleetActivity,
    offer_period: Duration,
) -> Vec<Renewal> {
    let now = Instant::now();
    let mut renewals = Vec::new();
    let count = fleet.nodes.len().max(1) as f64;
    for (number, (node, due)) in fleet.nodes.iter().zip(deadlines).enumerate() {
        let mut node = node.state.lock();
        let silent = fleet.is_silent(&node);
        if due.heartbeat <= now && activity != FleetActivity::Silent {
            due.heartbeat = now + HEARTBEAT_PERIOD;
            if !silent {
                renewals.push(Renewal::Heartbeat(number));
            }
        }
        let offering = activity == FleetActivity::Offering && fleet.offers;
        if offering && (due.offer <= now || (!silent && node.take_offer_change())) {
            let spread = std::mem::take(&mut due.first_round);
            due.offer = now + if spread { offer_period.mul_f64((number + 1) as f64 / count) } else { offer_period };
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
            (&fleet.nodes[number], write_heartbeat(&fleet.nodes[number]).await, &fleet.counters.heartbeats)
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

async fn write_offer(node: &FleetNode) -> Result<(), CallError> {
    let offer = Offer::new(&node.name, node.state.lock().offer(Timestamp::now()));
    requests::create_or_replace(&node.client, OFFERS, &node.name, &offer).await
}

async fn write_heartbeat(node: &FleetNode) -> Result<(), CallError> {
    let body = json!({ "spec": { "renewTime": micro_time(Timestamp::now()) } });
    let path = format!("{}/{}", leases_path(), node.name);
    requests::call(&node.client, Method::PATCH, &path, MERGE, body.to_string().into()).await.map(drop)
}

/// Deletes all offers, so that no pod can be bound from now on.
pub(super) async fn withdraw_offers(fleet: &Fleet) {
    if !fleet.offers {
        return set_cordoned(fleet, true).await;
    }
    stream::iter(&fleet.nodes)
        .for_each_concurrent(CONCURRENT_REQUESTS, |node| async move {
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
