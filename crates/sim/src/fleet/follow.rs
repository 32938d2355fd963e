//! Which pods the machines have, by one watch of all pods or by one for each machine.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use futures::StreamExt;
use kube::{
    Api,
    runtime::{
        WatchStreamExt,
        watcher::{self, Event, watcher},
    },
};
use tokio_util::sync::CancellationToken;

use super::Fleet;
use crate::pod::Pod;

pub(super) async fn together(fleet: Arc<Fleet>, stop: CancellationToken) {
    let api: Api<Pod> = Api::all(fleet.access.admin.clone());
    let mut news = std::pin::pin!(watcher(api, watcher::Config::default()).default_backoff());
    // Where each pod was when it was last seen, and what a new account has mentioned so far.
    let (mut places, mut mentioned) = (HashMap::<String, usize>::new(), HashSet::<String>::new());
    while let Some(Some(event)) = stop.run_until_cancelled(news.next()).await {
        match event {
            Ok(Event::Init) => mentioned.clear(),
            Ok(Event::InitApply(pod)) => {
                mentioned.insert(pod.uid().to_owned());
                seen(&fleet, &mut places, &pod);
            }
            Ok(Event::InitDone) => places.retain(|uid, number| {
                let kept = mentioned.contains(uid);
                if !kept {
                    fleet.left(*number, &unknown(uid));
                }
                kept
            }),
            Ok(Event::Apply(pod)) => seen(&fleet, &mut places, &pod),
            Ok(Event::Delete(pod)) => {
                fleet.ledger.gone(&pod);
                if let Some(number) = places.remove(pod.uid()) {
                    fleet.left(number, &pod);
                }
            }
            Err(error) => tracing::debug!(%error, "cannot watch pods; will watch again"),
        }
    }
}

fn seen(fleet: &Fleet, places: &mut HashMap<String, usize>, pod: &Pod) {
    fleet.ledger.saw(pod);
    let now = fleet.by_name.get(&pod.spec.node_name).copied();
    let before = places.get(pod.uid()).copied();
    if before != now {
        match now {
            Some(number) => drop(places.insert(pod.uid().to_owned(), number)),
            None => drop(places.remove(pod.uid())),
        }
        if let Some(number) = before {
            fleet.left(number, pod);
        }
    }
    if let Some(number) = now {
        fleet.arrived(number, pod);
    }
}

fn unknown(uid: &str) -> Pod {
    let mut pod = Pod::default();
    pod.metadata.uid = Some(uid.to_owned());
    pod
}

pub(super) async fn one(fleet: Arc<Fleet>, number: usize, stop: CancellationToken) {
    let slot = &fleet.slots[number];
    let api: Api<Pod> = Api::all(slot.client.clone());
    let own = watcher::Config::default().fields(&format!("spec.nodeName={}", slot.name));
    let mut news = std::pin::pin!(watcher(api, own).default_backoff());
    let (mut held, mut mentioned) = (HashSet::<String>::new(), HashSet::<String>::new());
    while let Some(Some(event)) = stop.run_until_cancelled(news.next()).await {
        match event {
            Ok(Event::Init) => mentioned.clear(),
            Ok(Event::InitApply(pod)) => {
                mentioned.insert(pod.uid().to_owned());
                held.insert(pod.uid().to_owned());
                fleet.ledger.saw(&pod);
                fleet.arrived(number, &pod);
            }
            Ok(Event::InitDone) => held.retain(|uid| {
                let kept = mentioned.contains(uid);
                if !kept {
                    fleet.left(number, &unknown(uid));
                }
                kept
            }),
            Ok(Event::Apply(pod)) => {
                held.insert(pod.uid().to_owned());
                fleet.ledger.saw(&pod);
                fleet.arrived(number, &pod);
            }
            Ok(Event::Delete(pod)) => {
                // Gone, or no longer placed here.
                if pod.is_leaving() {
                    fleet.ledger.gone(&pod);
                }
                held.remove(pod.uid());
                fleet.left(number, &pod);
            }
            Err(error) => tracing::debug!(machine = slot.name, %error, "cannot watch pods; will watch again"),
        }
    }
}
