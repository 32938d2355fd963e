//! The controllers of the cloud within a server: configured by its flags, run by the server whose controllers run.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use anyhow::anyhow;
use kube::Client;
use mainstay_cloud::{
    context::{Clouds, ClusterNetwork, Pace},
    facade::{Facade, FacadeServer, FacadeSettings},
    kluster_parts::KlusterParts,
    klusters::{KlusterMetrics, KlusterSettings},
    manager::{self, ControllerSelection},
    metrics::CloudMetrics,
    openstack::{CloudsFile, ConfigError, recorder::CallMetrics, session::Deadlines},
};
use mainstay_controllers::{ControllerMetrics, Registry, runtime::Clock};
use tokio_util::sync::CancellationToken;

use crate::{cli::CloudOptions, exit::Exit};

/// The service account that the controllers of the cloud are.
pub const ACCOUNT: &str = "cloud-controller";
/// Before the controllers are started again, if the API did not answer at their start.
const RETRY: Duration = Duration::from_secs(5);

#[derive(Clone)]
pub struct CloudManager {
    file: CloudsFile,
    cloud: String,
    network: ClusterNetwork,
    has_default_storage: bool,
    controllers: ControllerSelection,
    calls: Arc<CallMetrics>,
    klusters: KlusterSettings,
    kluster_metrics: KlusterMetrics,
    kluster_parts: KlusterParts,
    facade: Option<(SocketAddr, FacadeSettings)>,
    metrics: CloudMetrics,
}

impl CloudManager {
    /// None if the flags name no cloud. What is wrong with the configuration is said at the start; whether the cloud answers shows later.
    pub fn from_options(options: &CloudOptions, registry: &mut Registry) -> Result<Option<Self>, Exit> {
        let Some(path) = &options.cloud_config else { return Ok(None) };
        let refused =
            |error: ConfigError| Exit::Refused(anyhow!(error).context(format!("--cloud-config {}", path.display())));
        let file = CloudsFile::read(Some(path)).map_err(refused)?;
        let cloud = file.cloud(options.cloud.as_deref()).map_err(refused)?.name;
        let controllers = ControllerSelection::parse(&options.cloud_controllers)
            .map_err(|error| Exit::Refused(anyhow!(error).context("--cloud-controllers")))?;
        let network = ClusterNetwork {
            load_balancer_subnet: options.cloud_lb_subnet.clone(),
            floating_network: options.cloud_floating_network.clone(),
            router: options.cloud_router.clone(),
        };
        let klusters = options.klusters.settings().map_err(Exit::Refused)?;
        let facade = options.klusters.kubernikus_listen.map(|address| (address, options.klusters.facade_settings()));
        let (calls, metrics) = (CallMetrics::register(registry), CloudMetrics::register(registry));
        let (kluster_metrics, kluster_parts) = (KlusterMetrics::register(registry), KlusterParts::register(registry));
        Ok(Some(Self {
            file,
            cloud,
            network,
            has_default_storage: options.cloud_default_storage,
            controllers,
            calls,
            klusters,
            kluster_metrics,
            kluster_parts,
            facade,
            metrics,
        }))
    }

    /// Runs the controllers, and the REST API of Kubernikus if it is to be served, until asked to stop.
    pub async fn run(self, client: Client, metrics: ControllerMetrics, stop: CancellationToken) {
        let facade = self.clone().run_facade(client.clone(), stop.clone());
        tokio::join!(facade, self.run_controllers(client, metrics, stop));
    }

    async fn run_facade(self, client: Client, stop: CancellationToken) {
        let Some((address, settings)) = self.facade else { return };
        let clouds = Clouds::new(self.file, Some(&self.cloud), Deadlines::default(), self.calls);
        // Why it cannot be used is said by the controllers.
        let Ok(session) = clouds.and_then(|clouds| clouds.own_session()) else { return };
        let facade = Facade::new(client, session.clone(), Some(session), settings);
        while !stop.is_cancelled() {
            match FacadeServer::bind(address, facade.clone()).await {
                Ok(server) => return server.run(stop).await,
                Err(error) => {
                    let error = mainstay_errors::error_chain(&error);
                    tracing::error!(error, retry_in = ?RETRY, "the REST API of Kubernikus is not served");
                    let _ = stop.run_until_cancelled(tokio::time::sleep(RETRY)).await;
                }
            }
        }
    }

    async fn run_controllers(self, client: Client, metrics: ControllerMetrics, stop: CancellationToken) {
        while !stop.is_cancelled() {
            let clouds = Clouds::new(self.file.clone(), Some(&self.cloud), Deadlines::default(), self.calls.clone());
            let settings = match clouds {
                Ok(clouds) => manager::Settings {
                    clouds,
                    network: self.network.clone(),
                    has_default_storage: self.has_default_storage,
                    klusters: self.klusters.clone(),
                    kluster_metrics: self.kluster_metrics.clone(),
                    kluster_parts: self.kluster_parts.clone(),
                    controllers: self.controllers.clone(),
                    pace: Pace::default(),
                    clock: Clock::default(),
                    metrics: self.metrics.clone(),
                },
                Err(error) => {
                    let error = mainstay_errors::error_chain(&error);
                    return tracing::error!(
                        error,
                        "the configuration of the cloud cannot be used: nothing is done there"
                    );
                }
            };
            match manager::run(client.clone(), settings, metrics.clone(), stop.clone()).await {
                Ok(()) => return,
                Err(error) => {
                    let error = error.chain();
                    tracing::warn!(error, retry_in = ?RETRY, "controllers of the cloud did not start");
                    let _ = stop.run_until_cancelled(tokio::time::sleep(RETRY)).await;
                }
            }
        }
    }
}
