//! The controller manager: the list of all controllers, and starting and stopping them.

use std::sync::Arc;

use kube::Client;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    autoscaling, certificates,
    certificates::CertificateAuthority,
    cluster_role_aggregation, expiry,
    expiry::ExpirySweeper,
    garbage_collector, namespace, namespace_defaults, node_lifecycle,
    objects::replica_set::{ReplicaSet, ReplicationController},
    resource_quota,
    runtime::{Context, ControllerMetrics, EventRecorder, Runnable},
    services::{self, ServiceContext},
    volumes,
    workloads::{
        cron_job, daemon_set, deployment, disruption, job, pod_gc, replica_set, stateful_set, ttl_after_finished,
    },
};

#[derive(Clone, Default)]
pub struct Settings {
    /// The certificate authority of the API server, as PEM.
    pub root_ca: String,
    /// Signs certificates; without one, nobody here answers certificate requests.
    pub certificate_authority: Option<Arc<dyn CertificateAuthority>>,
    /// Deletes what has expired; without one, nothing expires.
    pub expiry_sweeper: Option<Arc<dyn ExpirySweeper>>,
}

/// Every controller there is. Each receives changes of the caches from here on, before any cache is filled.
fn controllers(context: &Arc<Context>, settings: &Settings) -> Vec<Runnable> {
    let services = ServiceContext::new(context);
    let authority = settings.certificate_authority.clone();
    let sweeper = settings.expiry_sweeper.clone();
    let of_server = [
        authority.map(|authority| certificates::controller(context, authority)),
        sweeper.map(|sweeper| expiry::controller(context, sweeper)),
    ];
    let mut controllers = vec![
        namespace::controller(context),
        namespace_defaults::controller(context, settings.root_ca.as_str().into()),
        garbage_collector::controller(context),
        cluster_role_aggregation::controller(context),
        node_lifecycle::controller(context),
        resource_quota::controller(context),
        replica_set::controller::<ReplicaSet>(context),
        replica_set::controller::<ReplicationController>(context),
        deployment::controller(context),
        stateful_set::controller(context),
        daemon_set::controller(context),
        job::controller(context),
        job::orphan_pods::controller(context),
        cron_job::controller(context),
        ttl_after_finished::controller(context),
        disruption::controller(context),
        disruption::stale_condition::controller(context),
        pod_gc::controller(context),
        autoscaling::controller(context),
        services::slices::controller(&services),
        services::endpoints::controller(&services),
        services::mirror::controller(&services),
        services::drain_acknowledgement::controller(&services),
        volumes::claims::controller(context),
        volumes::volume_lifecycle::controller(context),
        volumes::ephemeral::controller(context),
    ];
    controllers.extend(of_server.into_iter().flatten());
    controllers
}

/// Runs all controllers until asked to stop, and returns when they have; nobody sees their metrics.
pub async fn run(client: Client, settings: Settings, stop: CancellationToken) {
    run_with_metrics(client, settings, ControllerMetrics::default(), stop).await;
}

/// Runs all controllers until asked to stop, and returns when they have. None of them reconciles before all caches are
/// filled, so that nothing is decided on half of the objects.
pub async fn run_with_metrics(client: Client, settings: Settings, metrics: ControllerMetrics, stop: CancellationToken) {
    let (events, writer) = EventRecorder::new();
    let context = Context::new(client.clone(), events, metrics);
    let controllers = controllers(&context, &settings);
    let tasks = TaskTracker::new();
    context.caches.run(&client, &tasks, &stop);
    tasks.spawn(context.service_tables.clone().run(client.clone(), stop.clone()));
    tasks.spawn(context.metadata.clone().run(stop.clone()));
    tasks.spawn(writer.run(client, stop.clone()));
    if stop.run_until_cancelled(context.caches.synced()).await.is_some() {
        for controller in controllers {
            tracing::debug!(controller = controller.name, "start");
            tasks.spawn(controller.run(stop.clone()));
        }
    }
    tasks.close();
    tasks.wait().await;
}
