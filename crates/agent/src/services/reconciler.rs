//! Reconciles this node's Service table and DNS catalogue with Services, EndpointSlices and Nodes.
//!
//! News is taken in as it comes; what has come by then is one change of the table. From time to time the table is compared
//! with what the kernel really has.

use std::{
    collections::BTreeSet,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use mainstay_api::wellknown;
use mainstay_network::{
    catalogue::{self, Catalogue, Key, ServiceKind},
    services::{
        Balancer,
        frontend::{BackendPool, Frontend, LocalNode, service_frontends},
    },
};
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, MissedTickBehavior, interval_at},
};

use super::{
    TableVersion, Traffic,
    follow::{WatchUpdate, key, version},
    wire::{EndpointSlice, Names, Service},
};
use crate::{metrics::Metrics, servers::Servers};

const RECONCILE: Duration = Duration::from_secs(30);
/// How soon the kernel is asked again after it refused.
const RETRY_DELAY: Duration = Duration::from_secs(1);

pub struct Parts {
    /// This machine's name.
    pub here: String,
    pub dns: Ipv4Addr,
    pub catalogue: Arc<Catalogue>,
    pub traffic: Arc<Traffic>,
    pub balancer: Arc<Balancer>,
    pub in_force: Arc<watch::Sender<TableVersion>>,
    pub metrics: Metrics,
    /// Learns who answers for the API.
    pub servers: Servers,
}

pub struct ServiceReconciler {
    parts: Parts,
    names: Names,
    /// Services whose part of the table may have to change.
    dirty: BTreeSet<Key>,
    services_complete: bool,
    slices_complete: bool,
    progress: SliceProgress,
    /// Something that somebody waits for is among what was taken in.
    owes: bool,
}

impl ServiceReconciler {
    pub fn new(parts: Parts) -> Self {
        Self {
            parts,
            names: Names::default(),
            dirty: BTreeSet::new(),
            services_complete: false,
            slices_complete: false,
            progress: SliceProgress::default(),
            owes: true,
        }
    }

    pub async fn run(
        mut self,
        mut services: mpsc::Receiver<WatchUpdate<Service>>,
        mut slices: mpsc::Receiver<WatchUpdate<EndpointSlice>>,
    ) {
        let mut reconcile = interval_at(Instant::now() + RECONCILE, RECONCILE);
        reconcile.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut again = None;
        let mut zone = self.parts.catalogue.zone_changes();
        loop {
            let retry = async {
                match again {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                news = services.recv() => match news {
                    Some(news) => self.hear_of_service(news),
                    None => return,
                },
                news = slices.recv() => match news {
                    Some(news) => self.hear_of_slice(news),
                    None => return,
                },
                Ok(()) = zone.changed() => self.look_at_all(),
                _ = reconcile.tick() => self.reconcile().await,
                () = retry => {}
            }
            while let Ok(news) = services.try_recv() {
                self.hear_of_service(news);
            }
            while let Ok(news) = slices.try_recv() {
                self.hear_of_slice(news);
            }
            again = self.apply().await.is_err().then(|| Instant::now() + RETRY_DELAY);
        }
    }

    fn look_at_all(&mut self) {
        self.dirty.extend(self.parts.catalogue.read().services().map(|(key, _)| key.clone()));
    }

    fn hear_of_service(&mut self, news: WatchUpdate<Service>) {
        match news {
            WatchUpdate::Applied(service) => {
                let key = key(&service);
                self.parts.traffic.set_selector(&key, Some(&service.spec.selector));
                self.parts.catalogue.set_service(key.clone(), Some(catalogue::Service::from(&service)));
                self.dirty.insert(key);
            }
            WatchUpdate::Deleted(key) => self.forget_service(key),
            WatchUpdate::Synced(all) => {
                self.services_complete = true;
                let gone = self.gone(&all, |known| known.services().map(|(key, _)| key.clone()).collect());
                gone.into_iter().for_each(|key| self.forget_service(key));
            }
            WatchUpdate::Listing | WatchUpdate::Interrupted => {}
        }
    }

    fn forget_service(&mut self, key: Key) {
        self.parts.traffic.set_selector(&key, None);
        self.parts.catalogue.set_service(key.clone(), None);
        self.dirty.insert(key);
    }

    fn hear_of_slice(&mut self, news: WatchUpdate<EndpointSlice>) {
        match news {
            WatchUpdate::Listing => self.progress.is_listing = true,
            WatchUpdate::Applied(slice) => {
                self.progress.take_in(version(&slice));
                let read = slice.to_catalogue(&mut self.names);
                let key = key(&slice);
                if is_api(&key) {
                    self.parts.servers.learn(read.iter().flat_map(addresses));
                }
                self.set_slice(key, read);
            }
            WatchUpdate::Deleted(key) => self.set_slice(key, None),
            WatchUpdate::Synced(all) => {
                self.slices_complete = true;
                self.progress.is_listing = false;
                let gone = self.gone(&all, |known| known.slices().map(|(key, _)| key.clone()).collect());
                gone.into_iter().for_each(|key| self.set_slice(key, None));
            }
            // A server that begins anew has forgotten how far we are.
            WatchUpdate::Interrupted => self.owes = true,
        }
    }

    fn set_slice(&mut self, key: Key, slice: Option<catalogue::Slice>) {
        self.owes |= takes_away(self.parts.catalogue.read().slice(&key), slice.as_ref());
        self.dirty.extend(self.parts.catalogue.set_slice(key, slice));
    }

    fn gone(&self, all: &BTreeSet<Key>, known: impl FnOnce(&catalogue::CatalogueState) -> BTreeSet<Key>) -> Vec<Key> {
        known(&self.parts.catalogue.read()).difference(all).cloned().collect()
    }

    /// Nothing before everything is known: half a table would refuse what the other half serves.
    async fn apply(&mut self) -> Result<(), ()> {
        if !self.services_complete || !self.slices_complete {
            return Ok(());
        }
        self.parts.catalogue.set_complete();
        if !self.dirty.is_empty() {
            let changes: Vec<(Key, Vec<(Frontend, BackendPool)>)> = {
                let (known, zone) = (self.parts.catalogue.read(), self.parts.catalogue.zone());
                let here = LocalNode { name: &self.parts.here, zone: zone.as_deref() };
                self.dirty.iter().map(|key| (key.clone(), self.frontends(&known, key, here))).collect()
            };
            if let Err(error) = self.parts.balancer.apply(changes).await {
                tracing::warn!(error = error.chain(), "cannot update the Service table; will retry");
                return Err(());
            }
            self.dirty.clear();
            self.parts.metrics.table_changes.inc();
            let known = self.parts.catalogue.read().services().count();
            self.parts.metrics.services.set(i64::try_from(known).unwrap_or(i64::MAX));
        }
        let Some(endpoints) = self.progress.complete_until() else { return Ok(()) };
        let owes = std::mem::take(&mut self.owes);
        self.parts.in_force.send_if_modified(|now| {
            now.endpoints = endpoints;
            now.owed += u64::from(owes);
            owes
        });
        Ok(())
    }

    /// DNS is answered here, at an address of this machine's own.
    fn frontends(
        &self,
        known: &catalogue::CatalogueState,
        key: &Key,
        here: LocalNode<'_>,
    ) -> Vec<(Frontend, BackendPool)> {
        let is_dns = known.service(key).is_some_and(|service| service.kind == ServiceKind::ClusterIp(self.parts.dns));
        if is_dns { Vec::new() } else { service_frontends(known, key, here) }
    }

    async fn reconcile(&self) {
        match self.parts.balancer.reconcile().await {
            Ok(drift) if drift == Default::default() => {}
            Ok(drift) => {
                self.parts.metrics.table_drift.inc_by((drift.missing + drift.surplus) as u64);
                tracing::warn!(
                    missing = drift.missing,
                    surplus = drift.surplus,
                    dead_connections = drift.dead_connections,
                    "packet rules were not as they should be, and are again"
                );
            }
            Err(error) => tracing::warn!(error = error.chain(), "cannot compare packet rules with what they should be"),
        }
    }
}

/// Up to which version all changes of EndpointSlices were taken in.
#[derive(Default)]
struct SliceProgress {
    /// Of all that were taken in.
    newest: u64,
    is_listing: bool,
}

impl SliceProgress {
    fn take_in(&mut self, version: u64) {
        self.newest = self.newest.max(version);
    }

    /// None in the middle of a list. It comes in the order of names: an older change may still be missing, and whoever said
    /// otherwise would have a pod stopped to which this machine still sends.
    fn complete_until(&self) -> Option<u64> {
        (!self.is_listing).then_some(self.newest)
    }
}

/// Whether this is what servers write of themselves.
fn is_api(slice: &Key) -> bool {
    (&*slice.namespace, &*slice.name) == (wellknown::namespace::DEFAULT, wellknown::API_SERVICE)
}

fn addresses(slice: &catalogue::Slice) -> impl Iterator<Item = SocketAddr> {
    let ready = slice.endpoints.iter().filter(|endpoint| endpoint.ready);
    ready.flat_map(|endpoint| slice.ports.iter().map(|port| (endpoint.address, port.port).into()))
}

/// Whether a backend that connections went to no longer is one.
fn takes_away(before: Option<&catalogue::Slice>, after: Option<&catalogue::Slice>) -> bool {
    let ready = |slice: &catalogue::Slice| -> BTreeSet<Ipv4Addr> {
        slice.endpoints.iter().filter(|endpoint| endpoint.ready).map(|endpoint| endpoint.address).collect()
    };
    before.is_some_and(|before| !ready(before).is_subset(&after.map(ready).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(ready: &[u8], waiting: &[u8]) -> catalogue::Slice {
        let endpoint = |ready: bool| {
            move |last: &u8| catalogue::Endpoint {
                address: Ipv4Addr::new(10, 244, 0, *last),
                ready,
                serving: ready,
                terminating: false,
                node: None,
                hostname: None,
                hints: None,
            }
        };
        let endpoints = ready.iter().map(endpoint(true)).chain(waiting.iter().map(endpoint(false))).collect();
        catalogue::Slice { service: "web".into(), ports: vec![], endpoints, host: None }
    }

    #[test]
    fn nothing_is_said_of_how_far_the_table_is_in_the_middle_of_a_list() {
        let mut progress = SliceProgress::default();
        progress.take_in(5);
        assert_eq!(progress.complete_until(), Some(5));
        progress.is_listing = true;
        progress.take_in(9);
        assert_eq!(progress.complete_until(), None, "one that changed at 7 may come next");
        progress.take_in(7);
        progress.is_listing = false;
        assert_eq!(progress.complete_until(), Some(9));
    }

    #[test]
    fn only_backends_that_go_are_waited_for() {
        let before = slice(&[1, 2], &[3]);
        assert!(!takes_away(None, Some(&before)), "new");
        assert!(!takes_away(Some(&before), Some(&slice(&[1, 2, 3], &[]))), "one more");
        assert!(!takes_away(Some(&before), Some(&slice(&[2, 1], &[]))), "one less that was none");
        assert!(takes_away(Some(&before), Some(&slice(&[1], &[2, 3]))), "no longer ready");
        assert!(takes_away(Some(&before), None), "all");
    }
}
