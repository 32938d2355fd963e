//! Offers and heartbeats of all machines, by one timer.
//!
//! Renewals are spread over their period. What happens meanwhile is gathered for a moment, so that a machine that
//! loses many pods makes one new offer.

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
    Fleet, Pace, Slot,
    register::{LEASES, NODES, micro},
};
use crate::wire::{self, CallError, JSON, MERGE};

/// How long news is gathered.
const GATHER: Duration = Duration::from_millis(50);
const BEAT: Duration = Duration::from_secs(10);
const AT_ONCE: usize = 32;
pub(super) const OFFERS: &str = "/apis/mainstay.dev/v1/offers";

/// When a machine is to be heard of next.
struct Due {
    offer: Instant,
    beat: Instant,
    /// All offer at once now; the next time each at a time of its own.
    together: bool,
}

pub(super) async fn run(fleet: Arc<Fleet>, stop: CancellationToken) {
    let mut pace = fleet.pace.subscribe();
    let renewal = fleet.settings.shape.ttl.mul_f64(0.6);
    let mut dues = spread(&fleet);
    loop {
        let now = *pace.borrow_and_update();
        let next = match now {
            Pace::Quiet => None,
            Pace::Held => dues.iter().map(|due| due.beat).min(),
            Pace::Offering if !fleet.offers => dues.iter().map(|due| due.beat).min(),
            Pace::Offering => dues.iter().map(|due| due.beat.min(due.offer)).min(),
        };
        let alarm = async {
            match next {
                Some(at) => tokio::time::sleep_until(at.max(Instant::now() + GATHER).into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = stop.cancelled() => return,
            () = alarm => {}
            () = fleet.news.notified(), if now == Pace::Offering => tokio::time::sleep(GATHER).await,
            changed = pace.changed() => {
                if changed.is_err() {
                    return;
                }
                if *pace.borrow() == Pace::Offering {
                    dues = spread(&fleet);
                }
            }
        }
        let due = take_due(&fleet, &mut dues, *pace.borrow(), renewal);
        stream::iter(due).for_each_concurrent(AT_ONCE, |job| perform(&fleet, job)).await;
    }
}

fn spread(fleet: &Fleet) -> Vec<Due> {
    let now = Instant::now();
    let count = fleet.slots.len().max(1);
    let beat = |number: usize| now + BEAT.mul_f64(number as f64 / count as f64);
    (0..count).map(|number| Due { offer: now, beat: beat(number), together: true }).collect()
}

enum Job {
    Offer(usize),
    Beat(usize),
}

fn take_due(fleet: &Fleet, dues: &mut [Due], pace: Pace, renewal: Duration) -> Vec<Job> {
    let now = Instant::now();
    let mut jobs = Vec::new();
    let count = fleet.slots.len().max(1) as f64;
    for (number, (slot, due)) in fleet.slots.iter().zip(dues).enumerate() {
        let mut machine = slot.machine.lock();
        let silent = fleet.is_silent(&machine);
        if due.beat <= now && pace != Pace::Quiet {
            due.beat = now + BEAT;
            if !silent {
                jobs.push(Job::Beat(number));
            }
        }
        let offering = pace == Pace::Offering && fleet.offers;
        if offering && (due.offer <= now || (!silent && machine.take_news())) {
            let spread = std::mem::take(&mut due.together);
            due.offer = now + if spread { renewal.mul_f64((number + 1) as f64 / count) } else { renewal };
            if !silent {
                jobs.push(Job::Offer(number));
            }
        }
    }
    jobs
}

async fn perform(fleet: &Fleet, job: Job) {
    let (slot, done, counter) = match job {
        Job::Offer(number) => (&fleet.slots[number], offer(&fleet.slots[number]).await, &fleet.counters.offers),
        Job::Beat(number) => (&fleet.slots[number], beat(&fleet.slots[number]).await, &fleet.counters.beats),
    };
    match done {
        Ok(()) => drop(counter.fetch_add(1, Relaxed)),
        Err(error) => {
            fleet.counters.failed.fetch_add(1, Relaxed);
            tracing::debug!(machine = slot.name, %error, "cannot be heard; will try again in time");
        }
    }
}

async fn offer(slot: &Slot) -> Result<(), CallError> {
    let offer = Offer::new(&slot.name, slot.machine.lock().offer(Timestamp::now()));
    wire::put(&slot.client, OFFERS, &slot.name, &offer).await
}

async fn beat(slot: &Slot) -> Result<(), CallError> {
    let body = json!({ "spec": { "renewTime": micro(Timestamp::now()) } });
    let path = format!("{LEASES}/{}", slot.name);
    wire::call(&slot.client, Method::PATCH, &path, MERGE, body.to_string().into()).await.map(drop)
}

/// Takes all offers back, so that nothing can be placed from now on.
pub(super) async fn withdraw(fleet: &Fleet) {
    if !fleet.offers {
        return cordon(fleet, true).await;
    }
    stream::iter(&fleet.slots)
        .for_each_concurrent(AT_ONCE, |slot| async move {
            let path = format!("{OFFERS}/{}", slot.name);
            match wire::call(&fleet.access.admin, Method::DELETE, &path, JSON, Vec::new()).await {
                Err(error) if error.code() != Some(404) => tracing::warn!(%error, "cannot take an offer back"),
                Ok(_) | Err(_) => {}
            }
        })
        .await;
}

/// For API servers without offers.
pub(super) async fn cordon(fleet: &Fleet, on: bool) {
    stream::iter(&fleet.slots)
        .for_each_concurrent(AT_ONCE, |slot| async move {
            let body = json!({ "spec": { "unschedulable": on.then_some(true) } });
            let path = format!("{NODES}/{}", slot.name);
            let done = wire::call(&fleet.access.admin, Method::PATCH, &path, MERGE, body.to_string().into()).await;
            if let Err(error) = done {
                tracing::warn!(%error, on, "cannot cordon a machine");
            }
        })
        .await;
}
