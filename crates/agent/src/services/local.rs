//! Puts this machine's own services into its catalogue, ahead of the API: names follow them while no server answers.
//!
//! What the API says of them later is the same, for this machine alone writes it. A list of the API that lacks them takes them away again;
//! so whoever has services compares now and then.

use std::sync::Arc;

use k8s_openapi::api::discovery::v1 as discovery;
use mainstay_api::{host_service::NAMESPACE, wellknown::kubernetes::SERVICE_NAME};
use mainstay_network::catalogue::{Catalogue, Key};
use serde_json::json;
use tokio::sync::mpsc;

use super::{
    follow::{WatchUpdate, key},
    wire::{EndpointSlice, Names, Service},
};

/// News that may wait to be taken in.
const QUEUE: usize = 1_024;

#[derive(Clone)]
pub struct LocalCatalogue {
    catalogue: Arc<Catalogue>,
    pub(super) services: mpsc::Sender<WatchUpdate<Service>>,
    pub(super) slices: mpsc::Sender<WatchUpdate<EndpointSlice>>,
}

/// Changes of Services and slices, from the API and from this machine.
pub struct LocalUpdates {
    pub services: mpsc::Receiver<WatchUpdate<Service>>,
    pub slices: mpsc::Receiver<WatchUpdate<EndpointSlice>>,
}

impl LocalCatalogue {
    pub fn new(catalogue: Arc<Catalogue>) -> (Self, LocalUpdates) {
        let (services, received_services) = mpsc::channel(QUEUE);
        let (slices, received_slices) = mpsc::channel(QUEUE);
        let updates = LocalUpdates { services: received_services, slices: received_slices };
        (Self { catalogue, services, slices }, updates)
    }

    /// Has these slices of this machine, and their Services; those of these names no longer.
    pub async fn follow(&self, wanted: &[&discovery::EndpointSlice], gone: &[String]) {
        for slice in wanted {
            let narrow = serde_json::to_string(slice).and_then(|text| serde_json::from_str::<EndpointSlice>(&text));
            let Ok(narrow) = narrow else { continue };
            let name = slice.metadata.labels.iter().flatten().find(|(key, _)| *key == SERVICE_NAME);
            let service = Key::new(NAMESPACE, name.map(|(_, name)| name.as_str()).unwrap_or_default());
            let (is_known, has_service) = {
                let known = self.catalogue.read();
                let read = narrow.to_catalogue(&mut Names::default());
                (known.slice(&key(&narrow)) == read.as_ref(), known.service(&service).is_some())
            };
            if !has_service {
                let object = json!({
                    "metadata": {"namespace": NAMESPACE, "name": &*service.name}, "spec": {"clusterIP": "None"},
                });
                if let Ok(object) = serde_json::from_str(&object.to_string()) {
                    let _ = self.services.send(WatchUpdate::Applied(object)).await;
                }
            }
            if !is_known {
                let _ = self.slices.send(WatchUpdate::Applied(narrow)).await;
            }
        }
        for name in gone {
            let _ = self.slices.send(WatchUpdate::Deleted(Key::new(NAMESPACE, name))).await;
        }
    }
}
