//! The controller manager: the list of all controllers, and starting and stopping them.

use std::sync::Arc;

use mainstay_api::node_loss::Timing;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    autoscaling, certificates,
    certificates::CertificateAuthority,
    cluster_role_aggregation, config_rollout, config_templates,
    config_templates::{notify::ConsumerNotifier, renderer::TemplateRenderer},
    dependencies, expiry,
    expiry::ExpirySweeper,
    follow, garbage_collector, machines, namespace, namespace_defaults, node_lifecycle,
    objects::replica_set::{ReplicaSet, ReplicationController},
    releases, resource_claims, resource_quota,
    runtime::{Clients, Context, ControllerMetrics, EventRecorder, Runnable},
    service_account_tokens::{self, TokenSigner},
    services::{self, ServiceContext},
    storage_version_migration::{self, StorageMigrator},
    volumes,
    workloads::{
        cron_job, daemon_set, deployment, disruption, job, pod_gc, replica_set, stateful_set, ttl_after_finished,
    },
};

#[derive(Clone, Default)]
pub struct Settings {
    /// The certificate authority of the API server, as PEM.
    pub root_ca: String,
    /// How soon a silent node is lost.
    pub timing: Timing,
    /// Signs certificates; without one, nobody here answers certificate requests.
    pub certificate_authority: Option<Arc<dyn CertificateAuthority>>,
    /// Deletes what has expired; without one, nothing expires.
    pub expiry_sweeper: Option<Arc<dyn ExpirySweeper>>,
    /// Writes stored objects anew; without one, StorageVersionMigrations wait.
    pub storage_migrator: Option<Arc<dyn StorageMigrator>>,
    /// Signs tokens for Secrets of service accounts; without one, such Secrets stay as they are.
    pub token_signer: Option<Arc<dyn TokenSigner>>,
    /// Reaches programs in pods; without one, they are reached by the API.
    pub consumer_notifier: Option<Arc<dyn ConsumerNotifier>>,
    /// Renders ConfigTemplates; without one, this process does.
    pub template_renderer: Option<Arc<dyn TemplateRenderer>>,
}

/// Every controller there is, each with the service account of `kube-system` that its requests are made as; what these
/// may do is in the server's bootstrap policy. Each receives changes of the caches from here on, before any cache is filled.
fn controllers(context: &Arc<Context>, clients: &Clients, settings: &Settings) -> Vec<Runnable> {
    let client = |account: &str| clients.for_account(account);
    let context_for = |account: &str| context.with_client(client(account));
    let services = ServiceContext::new(context);
    let authority = settings.certificate_authority.clone();
    let sweeper = settings.expiry_sweeper.clone();
    let evictions = Arc::<resource_claims::taint_rule_status::EvictionCounts>::default();
    let migrator = settings.storage_migrator.clone();
    let signer = settings.token_signer.clone();
    let of_server = [
        signer.map(|signer| {
            service_account_tokens::controller(
                &context_for("tokens-controller"),
                signer,
                settings.root_ca.as_str().into(),
            )
        }),
        authority.map(|authority| certificates::controller(&context_for("certificate-controller"), authority)),
        sweeper.map(|sweeper| expiry::controller(context, sweeper)),
        migrator.map(|migrator| {
            storage_version_migration::controller(&context_for("storage-version-migrator-controller"), migrator)
        }),
    ];
    let mut controllers = vec![
        namespace::controller(&context_for("namespace-controller")),
        namespace_defaults::controller(&context_for("namespace-defaults-controller"), settings.root_ca.as_str().into()),
        garbage_collector::controller(&context_for("generic-garbage-collector")),
        cluster_role_aggregation::controller(&context_for("clusterrole-aggregation-controller")),
        node_lifecycle::controller(&context_for("node-controller"), settings.timing),
        machines::controller(&context_for("machine-controller")),
        releases::controller(&context_for("release-controller")),
        resource_quota::controller(&context_for("resourcequota-controller")),
        replica_set::controller::<ReplicaSet>(&context_for("replicaset-controller")),
        replica_set::controller::<ReplicationController>(&context_for("replication-controller")),
        deployment::controller(&context_for("deployment-controller")),
        stateful_set::controller(&context_for("statefulset-controller")),
        daemon_set::controller(&context_for("daemon-set-controller")),
        job::controller(&context_for("job-controller")),
        job::orphan_pods::controller(&context_for("job-controller")),
        cron_job::controller(&context_for("cronjob-controller")),
        ttl_after_finished::controller(&context_for("ttl-after-finished-controller")),
        disruption::controller(&context_for("disruption-controller")),
        disruption::stale_condition::controller(&context_for("disruption-controller")),
        pod_gc::controller(&context_for("pod-garbage-collector")),
        autoscaling::controller(&context_for("horizontal-pod-autoscaler")),
        services::slices::controller(client("endpointslice-controller"), &services),
        services::endpoints::controller(client("endpoint-controller"), &services),
        services::mirror::controller(client("endpointslicemirroring-controller"), &services),
        services::drain_acknowledgement::controller(client("drain-acknowledgement-controller"), &services),
        services::host::controller(client("host-service-controller"), &services),
        services::service_cidrs::controller(&context_for("service-cidrs-controller")),
        resource_claims::templates::controller(&context_for("resource-claim-controller")),
        resource_claims::reservations::controller(&context_for("resource-claim-controller")),
        resource_claims::device_taints::controller(&context_for("device-taint-eviction-controller"), &evictions),
        resource_claims::taint_rule_status::controller(&context_for("device-taint-eviction-controller"), &evictions),
        dependencies::object_needs::controller(&context_for("dependency-controller")),
        follow::controller(&context_for("follow-controller")),
        dependencies::cycles::controller(&context_for("dependency-controller")),
        config_templates::controller(
            &context_for("config-template-controller"),
            settings.consumer_notifier.clone(),
            settings.template_renderer.clone(),
        ),
        config_rollout::controller(&context_for("config-rollout-controller")),
        volumes::claims::controller(&context_for("persistent-volume-binder")),
        volumes::volume_lifecycle::controller(&context_for("persistent-volume-binder")),
        volumes::ephemeral::controller(&context_for("ephemeral-volume-controller")),
        volumes::attributes_class::controller(&context_for("volumeattributesclass-protection-controller")),
    ];
    controllers.extend(of_server.into_iter().flatten());
    controllers
}

/// Runs all controllers until asked to stop, and returns when they have; nobody sees their metrics.
pub async fn run(clients: impl Into<Clients>, settings: Settings, stop: CancellationToken) {
    run_with_metrics(clients.into(), settings, ControllerMetrics::default(), stop).await;
}

/// Runs all controllers until asked to stop, and returns when they have. None of them reconciles before all caches are
/// filled, so that nothing is decided on half of the objects.
pub async fn run_with_metrics(
    clients: Clients,
    settings: Settings,
    metrics: ControllerMetrics,
    stop: CancellationToken,
) {
    let (events, writer) = EventRecorder::new();
    let client = clients.shared.clone();
    let context = Context::new(client.clone(), events, metrics);
    let controllers = controllers(&context, &clients, &settings);
    let tasks = TaskTracker::new();
    context.caches.run(&client, &tasks, &stop);
    tasks.spawn(context.service_tables.clone().run(client.clone(), stop.clone()));
    tasks.spawn(context.config_templates.clone().run(client.clone(), stop.clone()));
    tasks.spawn(context.machine_files.clone().run(client.clone(), stop.clone()));
    tasks.spawn(context.attributes_classes.clone().run(client.clone(), stop.clone()));
    tasks.spawn(context.service_cidrs.clone().run(client.clone(), stop.clone()));
    context.device_caches.run(&client, &tasks, &stop);
    context.machine_caches.run(&client, &tasks, &stop);
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
