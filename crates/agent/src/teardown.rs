//! Ends all pods of an instance and removes their volumes, networks and cgroups, while no agent runs.

use std::{sync::Arc, time::Duration};

use futures::future::join_all;
use mainstay_files::{mountinfo, remove_tree};
use mainstay_network::Bridge;
use mainstay_runtime::{ContainerStatus, Runtime, RuntimeError, cgroup::Cgroup, images::VOLUME_PREFIX};

use crate::{
    objects::{self, Objects},
    services,
    settings::Settings,
    standalone,
    user_ids::UserIds,
    volumes::{VolumeError, Volumes},
    wake::Wake,
    worker,
};

/// For containers that do not say how long they may take.
const GRACE: Duration = Duration::from_secs(mainstay_api::pod::DEFAULT_TERMINATION_GRACE_SECONDS as u64);

#[derive(Debug, thiserror::Error)]
pub enum TeardownError {
    #[error("end the containers")]
    Runtime(#[from] RuntimeError),
    #[error(transparent)]
    Volume(#[from] VolumeError),
    #[error("remove the pod network: {0}")]
    Network(String),
    #[error("remove the {what} of all pods")]
    Left {
        what: &'static str,
        #[source]
        source: std::io::Error,
    },
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TeardownCounts {
    pub pods: usize,
    pub containers: usize,
}

/// Stops all containers, each with its pod's grace or the longest one allowed, and removes all that belongs to pods. May be repeated.
pub async fn teardown(
    runtime: &dyn Runtime,
    bridge: Option<&Bridge>,
    settings: &Settings,
    longest_grace: Option<Duration>,
) -> Result<TeardownCounts, TeardownError> {
    let observed = runtime.observe(None).await?;
    let alive: Vec<&ContainerStatus> = observed.containers.iter().filter(|c| c.state.is_running()).collect();
    let stop = |container: &ContainerStatus| {
        let grace = longest_grace.map_or_else(|| grace(container), |longest| grace(container).min(longest));
        let id = container.id.clone();
        async move { runtime.stop_container(&id, grace).await }
    };
    let stopped = join_all(alive.iter().map(|c| stop(c))).await;
    let first_failure = stopped.into_iter().find_map(|result| result.err().filter(|e| !e.is_not_found()));
    for sandbox in &observed.sandboxes {
        match runtime.remove_sandbox(&sandbox.id).await {
            Err(error) if !error.is_not_found() => return Err(error.into()),
            Ok(()) | Err(_) => {}
        }
    }
    if let Some(error) = first_failure {
        return Err(error.into());
    }
    let objects = Arc::new(Objects::new(standalone::client(), Wake::default()));
    let volumes = Volumes::new(settings, objects);
    for uid in volumes.pods_on_disk() {
        volumes.release(&uid).await?;
    }
    runtime.images().unmount_volumes(VOLUME_PREFIX).await?;
    if let Err(error) = remove_tree(&objects::checkpoint_directory(settings)) {
        tracing::warn!(%error, "cannot remove checkpoints of API objects");
    }
    let user_ids = UserIds::of_machine(&settings.instance).release_all();
    user_ids.map_err(|source| TeardownError::Left { what: "user ids", source })?;
    // Empty by now; whatever still holds on to them keeps them.
    Cgroup::new(&settings.instance).remove().map_err(|source| TeardownError::Left { what: "cgroup", source })?;
    mountinfo::remove_tree(&settings.run_directory())
        .map_err(|source| TeardownError::Left { what: "directory", source })?;
    services::remove(&settings.instance).await.map_err(|error| TeardownError::Network(error.chain()))?;
    if let Some(bridge) = bridge {
        bridge.down().await.map_err(|error| TeardownError::Network(error.chain()))?;
    }
    Ok(TeardownCounts { pods: observed.sandboxes.len(), containers: alive.len() })
}

/// How long a container may take to stop, as it remembers itself.
fn grace(container: &ContainerStatus) -> Duration {
    let seconds = container.annotations.get(worker::GRACE).and_then(|text| text.parse().ok());
    seconds.map_or(GRACE, Duration::from_secs)
}
