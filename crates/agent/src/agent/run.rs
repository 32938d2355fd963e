//! Starts all parts of an agent and ends them in order. Nothing is built here.

use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{Agent, ClusterParts};
use crate::{
    host_services::publisher::withdraw_services,
    node::{
        PodsAfterStop,
        ended::{DownNotice, mark_pods_ended},
    },
};

impl Agent {
    /// Works until asked to stop. Containers run on.
    pub async fn run(self, stop: CancellationToken) {
        let draining = stop.clone();
        self.run_with_drain(stop, draining).await;
    }

    /// Likewise; once `draining` is cancelled the node offers nothing any more, so that it gets no new pods.
    pub async fn run_with_drain(self, stop: CancellationToken, draining: CancellationToken) {
        let tasks = TaskTracker::new();
        // The last events are about stopping, so they are written until the very end.
        let end_of_events = CancellationToken::new();
        let events = TaskTracker::new();
        events.spawn(self.event_writer.run(self.client.clone(), end_of_events.clone()));
        events.close();
        tasks.spawn(self.server.run(stop.clone()));
        if let Some(source) = self.static_pods {
            tasks.spawn(source.run(stop.clone()));
        }
        let mut keeper = None;
        if self.cluster.is_some() {
            tasks.spawn(self.devices.run(stop.clone()));
            let (in_use, stop) = (self.volumes_in_use, stop.clone());
            tasks.spawn(async move { in_use.run(stop).await });
        }
        if let Some(cluster) = self.cluster {
            let ClusterParts {
                pod_watch,
                mirrors,
                keeper: node,
                offers,
                local_path,
                node_watch,
                route_checker,
                services,
                host_services,
                fence,
                steps,
                files,
            } = cluster;
            tasks.spawn(pod_watch.run(stop.clone()));
            tasks.spawn(mirrors.run(stop.clone()));
            tasks.spawn(node.clone().run(stop.clone()));
            tasks.spawn(fence.run(stop.clone()));
            tasks.spawn(offers.run(draining));
            tasks.spawn(local_path.run(stop.clone()));
            tasks.spawn(node_watch.run(self.client.clone(), stop.clone()));
            tasks.spawn(route_checker.run(stop.clone()));
            tasks.spawn(services.run(stop.clone()));
            tasks.spawn(host_services.run(stop.clone()));
            if let Some(steps) = steps {
                tasks.spawn(steps.run(stop.clone()));
            }
            tasks.spawn(files.run(stop.clone()));
            keeper = Some(node);
        }
        tasks.spawn(self.log_rotation.run(stop.clone()));
        tasks.spawn(self.workers.run(stop.clone()));
        tasks.spawn({
            let (dependencies, stop) = (self.dependencies, stop.clone());
            async move {
                stop.run_until_cancelled(dependencies.run()).await;
            }
        });
        tasks.close();
        stop.cancelled().await;
        tasks.wait().await;
        self.background.close().await;
        if let Some(keeper) = keeper {
            let ends = self.settings.instance.parse().is_ok_and(|instance| DownNotice::is_there(&instance));
            if ends {
                mark_pods_ended(&self.client, &self.settings.node_name).await;
                withdraw_services(&self.client, &self.settings.node_name).await;
            }
            keeper.retire(if ends { PodsAfterStop::End } else { PodsAfterStop::KeepRunning }).await;
        }
        end_of_events.cancel();
        events.wait().await;
    }
}
