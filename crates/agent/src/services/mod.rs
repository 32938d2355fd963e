//! Services on this node: the Service table, DNS names, and draining of pods that end.
//!
//! What the API says of Services, EndpointSlices and Nodes is followed ([`follow`], read narrowly by [`wire`]) and kept in files
//! ([`checkpoint`]) for a start without it. [`reconciler`] brings the catalogue, and with it the packet rules, up to date; [`publish`]
//! tells the API how far; [`names`] runs DNS; [`drain`] says whether a pod may still be sent to.

pub mod checkpoint;
mod drain;
pub mod follow;
mod local;
mod names;
mod publish;
mod reconciler;
pub mod wire;

use std::{net::Ipv4Addr, path::PathBuf, sync::Arc};

use kube::{Api, Client};
use mainstay_network::{
    Range,
    catalogue::Catalogue,
    loopback,
    services::{Balancer, BalancerSettings},
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub use drain::{Traffic, is_drained};
pub use local::LocalCatalogue;
pub use names::NamesSettings;

use self::{
    follow::follow,
    local::LocalUpdates,
    publish::Publisher,
    reconciler::{Parts, ServiceReconciler},
};
use crate::{metrics::Metrics, servers::Servers};

/// The address of DNS within the range of Services, as upstream's installers choose it.
const DNS: u32 = 10;

#[derive(Clone, Debug)]
pub struct ServicesSettings {
    pub instance: String,
    pub node_name: String,
    /// Where what the API says is kept.
    pub directory: PathBuf,
    pub services: Range,
    /// All machines' pods.
    pub pods: Range,
    pub names: NamesSettings,
}

pub fn dns_address(services: Range) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(services.base()) + DNS)
}

/// How far this machine's table is, for those who wait for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableVersion {
    /// The newest version of an EndpointSlice that is taken into account.
    pub endpoints: u64,
    /// The newest version of a Node that routes take into account.
    pub nodes: u64,
    /// Counts what somebody waits for: backends and machines that went.
    pub owed: u64,
}

/// Everything built, nothing running yet.
pub struct Services {
    settings: ServicesSettings,
    client: Client,
    pub catalogue: Arc<Catalogue>,
    pub traffic: Arc<Traffic>,
    pub in_force: Arc<watch::Sender<TableVersion>>,
    balancer: Arc<Balancer>,
    metrics: Metrics,
    servers: Servers,
    /// What this machine knows of its own services, and what it says of them.
    pub local: LocalCatalogue,
    updates: LocalUpdates,
}

impl Services {
    pub fn build(
        settings: ServicesSettings,
        client: Client,
        servers: Servers,
        metrics: Metrics,
    ) -> Result<Self, mainstay_network::NetworkError> {
        let balancer = Balancer::start(BalancerSettings {
            instance: settings.instance.clone(),
            services: settings.services,
            pods: settings.pods,
        })?;
        let catalogue = Arc::<Catalogue>::default();
        let (local, updates) = LocalCatalogue::new(catalogue.clone());
        Ok(Self {
            settings,
            client,
            traffic: Arc::new(Traffic::new(catalogue.clone())),
            catalogue,
            in_force: Arc::new(watch::Sender::new(TableVersion::default())),
            balancer,
            metrics,
            servers,
            local,
            updates,
        })
    }

    pub async fn run(self, stop: CancellationToken) {
        stop.run_until_cancelled(self.work()).await;
    }

    async fn work(self) {
        let Self { settings, client, catalogue, traffic, in_force, balancer, metrics, servers, local, updates } = self;
        let LocalUpdates { services: told_services, slices: told_slices } = updates;
        let file = |name: &str| settings.directory.join(name);
        let dns = dns_address(settings.services);
        let keeper = ServiceReconciler::new(Parts {
            here: settings.node_name.clone(),
            dns,
            catalogue: catalogue.clone(),
            traffic,
            balancer,
            in_force: in_force.clone(),
            metrics,
            servers,
        });
        let publisher = Publisher::new(client.clone(), settings.node_name.clone(), in_force.subscribe());
        tokio::join!(
            follow(Api::all(client.clone()), file("services"), local.services),
            follow(Api::all(client), file("endpointslices"), local.slices),
            keeper.run(told_services, told_slices),
            publisher.run(),
            names::run(&settings, dns, catalogue),
        );
    }
}

/// Removes all that Services left on this machine.
pub async fn remove(instance: &str) -> Result<(), mainstay_network::NetworkError> {
    Balancer::remove(instance).await?;
    loopback::remove(instance).await
}
