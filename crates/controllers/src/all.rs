//! All controllers together: which news wakes whom, and starting and stopping them.

use std::{sync::Arc, time::Duration};

use kube::Client;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    catalogue::{Catalogue, Resource},
    furnish::{self, Furnish},
    gc::Collector,
    meta,
    monitor::{Monitor, Seen, Sink},
    namespace::Namespaces,
    nodes::Nodes,
    runner::{self, Limits},
    volumes::{Desk, claims::Claims, ephemeral::Ephemeral, lives::Volumes},
    workloads,
};

/// How often everything is looked at even if nothing is heard.
const SLOWLY: Duration = Duration::from_secs(600);
/// How long garbage waits for a first account of every resource. A resource that cannot be
/// listed delays it no longer than that: what is deleted is verified in any case.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Clone)]
pub struct Settings {
    /// The certificate authority of the API server, as PEM.
    pub root_ca: String,
}

/// Runs all controllers until asked to stop, and returns when they have.
pub async fn run(client: Client, settings: Settings, stop: CancellationToken) {
    let catalogue = Arc::new(Catalogue::default());
    let switchboard = Arc::new(Switchboard {
        catalogue: catalogue.clone(),
        namespaces: Arc::new(Namespaces::new(client.clone())),
        furnish: Arc::new(Furnish::new(client.clone(), settings.root_ca.into())),
        collector: Arc::new(Collector::new(client.clone(), catalogue.clone())),
        desk: Desk::new(),
    });
    let monitor = Monitor::new(client.clone(), catalogue, switchboard.clone());
    let mut complete = monitor.complete();
    let Switchboard { namespaces, furnish, collector, desk, .. } = &*switchboard;
    let tasks = TaskTracker::new();
    tasks.spawn(monitor.run(stop.clone()));
    tasks.spawn(runner::run(
        namespaces.clone(),
        namespaces.queue.clone(),
        Limits { longest_pause: Duration::from_secs(5), ..Limits::default() },
        stop.clone(),
    ));
    tasks.spawn(runner::run(furnish.clone(), furnish.queue.clone(), Limits::default(), stop.clone()));
    let nodes = Arc::new(Nodes::new(client.clone()));
    tasks.spawn(nodes.clone().follow(stop.clone()));
    tasks.spawn(runner::run(nodes.clone(), nodes.queue.clone(), Limits::default(), stop.clone()));
    let claims = Arc::new(Claims::new(client.clone(), desk.clone()));
    tasks.spawn(runner::run(claims, desk.claims.clone(), Limits::default(), stop.clone()));
    let volumes = Arc::new(Volumes::new(client.clone(), desk.clone()));
    tasks.spawn(runner::run(volumes, desk.volumes.clone(), Limits::default(), stop.clone()));
    let ephemeral = Arc::new(Ephemeral::new(client.clone()));
    tasks.spawn(runner::run(ephemeral, desk.pods.clone(), Limits::default(), stop.clone()));
    tasks.spawn(workloads::run(client.clone(), stop.clone()));
    let (own, ended) = (collector.clone(), stop.clone());
    tasks.spawn(async move {
        let complete = tokio::time::timeout(PATIENCE, complete.wait_for(|complete| *complete));
        if ended.run_until_cancelled(complete).await.is_some() {
            runner::run(own.clone(), own.queue.clone(), Limits::default(), ended).await;
        }
    });
    tasks.close();
    while stop.run_until_cancelled(tokio::time::sleep(SLOWLY)).await.is_some() {
        switchboard.resync(&client).await;
    }
    tasks.wait().await;
}

/// Tells each controller what concerns it.
struct Switchboard {
    catalogue: Arc<Catalogue>,
    namespaces: Arc<Namespaces>,
    furnish: Arc<Furnish>,
    collector: Arc<Collector>,
    desk: Arc<Desk>,
}

impl Switchboard {
    async fn resync(&self, client: &Client) {
        self.collector.resync();
        let kinds = self.catalogue.current();
        let Some(namespaces) = kinds.find("v1", "Namespace") else { return };
        let each = meta::for_each(client, namespaces, None, |meta| {
            self.namespaces.present(&meta);
            self.furnish.queue.wake(meta.name.unwrap_or_default());
        });
        if let Err(error) = each.await {
            tracing::debug!(%error, "cannot list namespaces");
        }
    }
}

impl Sink for Switchboard {
    fn seen(&self, resource: &Arc<Resource>, seen: Seen) {
        if let Seen::Present(meta) | Seen::Gone(meta) = &seen {
            let name = meta.name.as_deref().unwrap_or_default();
            if resource.is("", "namespaces") {
                if matches!(seen, Seen::Present(_)) {
                    self.namespaces.present(meta);
                    if meta.deletion_timestamp.is_none() {
                        self.furnish.queue.wake(name.to_owned());
                    }
                } else {
                    self.namespaces.gone(name);
                }
            } else if let Some(namespace) = &meta.namespace {
                self.namespaces.content_changed(namespace);
                let furniture = (resource.is("", "serviceaccounts") && name == furnish::SERVICE_ACCOUNT)
                    || (resource.is("", "configmaps") && name == furnish::ROOT_CA);
                if furniture {
                    self.furnish.queue.wake(namespace.clone());
                }
            }
            if resource.is("apiextensions.k8s.io", "customresourcedefinitions")
                || resource.is("apiregistration.k8s.io", "apiservices")
            {
                self.catalogue.missed.notify_one();
            }
        }
        self.desk.seen(resource, &seen);
        self.collector.seen(resource, &seen);
    }

    fn added(&self) {
        self.collector.resync();
    }
}
