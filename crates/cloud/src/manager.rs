//! The manager of the cloud's controllers: the list of all of them, and starting and stopping them.

use std::{collections::BTreeSet, sync::Arc};

use kube::Client;
use mainstay_controllers::runtime::{ApiError, Clock, ControllerMetrics, EventRecorder, Runnable};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    context::{CloudContext, Clouds, ClusterNetwork, Pace},
    deorbit, flight, hammertime,
    kluster_parts::KlusterParts,
    klusters::{self, KlusterMetrics, KlusterSettings},
    load_balancers,
    metrics::CloudMetrics,
    pools, provider_ids, routes, servicing, volumes,
};

/// Makes a controller that already receives changes of the caches.
type MakeController = fn(&Arc<CloudContext>) -> Runnable;

/// Every controller there is, by the name that `--cloud-controllers` has for it.
const CONTROLLERS: &[(&str, MakeController)] = &[
    ("deorbiter", deorbit::controller),
    ("flight", flight::controller::controller),
    ("hammertime", hammertime::controller),
    ("klusters", klusters::controller),
    ("launchctl", pools::controller),
    ("load-balancers", load_balancers::controller),
    ("nodes", provider_ids::controller),
    ("routegc", routes::controllers::collection_controller),
    ("routes", routes::controllers::controller),
    ("servicing", servicing::controller),
    ("volumes", volumes::attachments::attacher::controller),
    ("volumes", volumes::attachments::node_report::controller),
    ("volumes", volumes::attachments::requests::controller),
    ("volumes", volumes::claims::controller),
    ("volumes", volumes::lifecycle::controller),
    ("volumes", volumes::snapshots::contents::controller),
    ("volumes", volumes::snapshots::requests::controller),
];

/// The names of all controllers.
pub fn controller_names() -> BTreeSet<&'static str> {
    CONTROLLERS.iter().map(|(name, _)| *name).collect()
}

#[derive(Debug, thiserror::Error)]
#[error("there is no controller {name:?} of the cloud; there are {}", controller_names().into_iter().collect::<Vec<_>>().join(", "))]
pub struct NoSuchController {
    name: String,
}

/// Which controllers run.
#[derive(Clone, Debug, Default)]
pub struct ControllerSelection(Option<BTreeSet<String>>);

impl ControllerSelection {
    /// From a list of names; all without any.
    pub fn parse(names: &[String]) -> Result<Self, NoSuchController> {
        let known = controller_names();
        match names.iter().find(|name| !known.contains(name.as_str())) {
            Some(name) => Err(NoSuchController { name: name.clone() }),
            None if names.is_empty() => Ok(Self(None)),
            None => Ok(Self(Some(names.iter().cloned().collect()))),
        }
    }

    fn selects(&self, name: &str) -> bool {
        self.0.as_ref().is_none_or(|names| names.contains(name))
    }
}

pub struct Settings {
    pub clouds: Clouds,
    pub network: ClusterNetwork,
    /// Claims that name no class are in Cinder.
    pub has_default_storage: bool,
    /// How Klusters are run here.
    pub klusters: KlusterSettings,
    pub kluster_metrics: KlusterMetrics,
    pub kluster_parts: KlusterParts,
    pub controllers: ControllerSelection,
    pub pace: Pace,
    pub clock: Clock,
    pub metrics: CloudMetrics,
}

/// Runs the controllers until asked to stop, and returns when they have. None of them reconciles before all caches are filled.
pub async fn run(
    client: Client,
    settings: Settings,
    metrics: ControllerMetrics,
    stop: CancellationToken,
) -> Result<(), ApiError> {
    let Settings {
        clouds,
        network,
        has_default_storage,
        klusters,
        kluster_metrics,
        kluster_parts,
        controllers: selection,
        pace,
        clock,
        metrics: cloud_metrics,
    } = settings;
    let (events, writer) = EventRecorder::new();
    let context = CloudContext::new(client.clone(), clouds, network, pace, events, metrics, clock).await?;
    let context = context.with_default_storage(has_default_storage).with_metrics(cloud_metrics);
    let context = context.with_klusters(klusters, kluster_metrics).with_kluster_parts(kluster_parts);
    let selected = CONTROLLERS.iter().filter(|(name, _)| selection.selects(name));
    let controllers: Vec<Runnable> = selected.map(|(_, make)| make(&context)).collect();
    let tasks = TaskTracker::new();
    context.caches.run(&client, &tasks, &stop);
    tasks.spawn(writer.run(client, stop.clone()));
    if stop.run_until_cancelled(context.caches.synced()).await.is_some() {
        for controller in controllers {
            tracing::debug!(controller = controller.name, "start");
            tasks.spawn(controller.run(stop.clone()));
        }
    }
    tasks.close();
    tasks.wait().await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_controllers_picks_those_and_no_others() {
        let some = ControllerSelection::parse(&["volumes".to_owned()]).unwrap();
        assert!(some.selects("volumes") && !some.selects("load-balancers"));
        assert!(ControllerSelection::parse(&[]).unwrap().selects("load-balancers"));
        let error = ControllerSelection::parse(&["volume".to_owned()]).unwrap_err().to_string();
        assert!(
            error.contains("\"volume\"") && error.contains("load-balancers, nodes, routegc, routes, servicing"),
            "{error}"
        );
    }
}
