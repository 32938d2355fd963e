//! The table of Services of a simulated machine: follows EndpointSlices, applies them after a while, and says so.
//!
//! What is in force is kept by the machine, as the kernel does: it stays when the agent dies.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use futures::StreamExt;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Api;
use mainstay_api::service_table::{ServiceTable, ServiceTableSpec};
use mainstay_sim::requests;
use mainstay_watch::{Event, Watch, WatchOptions};
use tokio::{sync::watch, time::timeout};

use super::agent::Agent;

const TABLES: &str = "/apis/mainstay.dev/v1/servicetables";

/// Addresses to which a machine sends, by slice.
pub type Endpoints = BTreeMap<String, BTreeSet<String>>;

impl Agent {
    pub(super) async fn keep_service_table(&self) {
        let version = watch::Sender::new(0);
        tokio::join!(self.follow_slices(&version), self.publish_table(version.subscribe()));
    }

    async fn follow_slices(&self, in_force: &watch::Sender<u64>) {
        let slices: Api<EndpointSlice> = Api::all(self.client.clone());
        let mut news = Watch::<EndpointSlice>::new(slices, WatchOptions::default());
        let (mut listed, mut newest) = (Endpoints::new(), 0);
        while let Some(event) = news.next().await {
            let is_removal = match event {
                Ok(Event::Init) => {
                    listed.clear();
                    false
                }
                Ok(Event::InitApply(slice)) => {
                    newest = newest.max(version(&slice));
                    listed.insert(name(&slice), ready_addresses(&slice));
                    false
                }
                Ok(Event::InitDone) => {
                    self.take_time().await;
                    *self.machine.endpoints.lock() = std::mem::take(&mut listed);
                    true
                }
                Ok(Event::Apply(slice)) => {
                    newest = newest.max(version(&slice));
                    self.take_time().await;
                    let now = ready_addresses(&slice);
                    let before = self.machine.endpoints.lock().insert(name(&slice), now.clone());
                    before.is_some_and(|before| !before.is_subset(&now))
                }
                Ok(Event::Delete(slice)) => {
                    newest = newest.max(version(&slice));
                    self.take_time().await;
                    self.machine.endpoints.lock().remove(&name(&slice)).is_some()
                }
                Err(_) => false,
            };
            if is_removal {
                in_force.send_replace(newest);
            }
        }
    }

    /// Rules of the kernel are not changed in no time.
    async fn take_time(&self) {
        self.machine.sleep(self.simulation.chance.up_to(Duration::from_millis(300))).await;
    }

    async fn publish_table(&self, mut in_force: watch::Receiver<u64>) {
        while in_force.changed().await.is_ok() {
            let version = in_force.borrow_and_update().to_string();
            let table =
                ServiceTable::new(&self.machine.name, ServiceTableSpec { endpoints: version.clone(), nodes: version });
            let written = requests::create_or_replace(&self.client, TABLES, &self.machine.name, &table);
            if !matches!(timeout(Duration::from_secs(2), written).await, Ok(Ok(_))) {
                self.machine.sleep(Duration::from_millis(500)).await;
                in_force.mark_changed();
            }
        }
    }
}

fn name(slice: &EndpointSlice) -> String {
    slice.metadata.name.clone().unwrap_or_default()
}

fn version(slice: &EndpointSlice) -> u64 {
    slice.metadata.resource_version.as_ref().and_then(|version| version.parse().ok()).unwrap_or(0)
}

fn ready_addresses(slice: &EndpointSlice) -> BTreeSet<String> {
    let is_ready = |endpoint: &&k8s_openapi::api::discovery::v1::Endpoint| {
        endpoint.conditions.as_ref().is_none_or(|conditions| conditions.ready.unwrap_or(true))
    };
    slice.endpoints.iter().flatten().filter(is_ready).flat_map(|endpoint| endpoint.addresses.iter().cloned()).collect()
}
