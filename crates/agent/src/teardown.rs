//! Ending everything on a machine, with no agent running: containers first, then what they stood on.

use std::{collections::BTreeMap, path::Path, sync::Arc, time::Duration};

use futures::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use mainstay_files::mountinfo;
use mainstay_network::Bridge;
use mainstay_runtime::{ContainerStatus, Runtime, RuntimeError, cgroup::Cgroup};

use crate::{
    objects::{self, Objects},
    services,
    settings::Settings,
    standalone,
    user_ids::UserIds,
    volumes::{VolumeError, Volumes, remove},
    wake::Wake,
};

/// For pods of which no record says how long they may take.
const GRACE: Duration = Duration::from_secs(30);

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
pub struct Ended {
    pub pods: usize,
    pub containers: usize,
}

/// Stops all containers, each with its pod's grace, and removes all that belongs to pods. May be repeated.
pub async fn teardown(
    runtime: &dyn Runtime,
    bridge: Option<&Bridge>,
    settings: &Settings,
) -> Result<Ended, TeardownError> {
    let graces = graces(&settings.directory);
    let observed = runtime.observe(None).await?;
    let alive: Vec<&ContainerStatus> = observed.containers.iter().filter(|c| c.state.is_running()).collect();
    let stop = |container: &ContainerStatus| {
        let grace = graces.get(&container.pod.uid.0).copied().unwrap_or(GRACE);
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
    for uid in volumes.held() {
        volumes.release(&uid).await?;
    }
    if let Err(error) = remove::tree(&objects::kept_in(settings)) {
        tracing::warn!(%error, "something of what the API told is left");
    }
    let user_ids = UserIds::of_machine(&settings.instance).release_all();
    user_ids.map_err(|source| TeardownError::Left { what: "user ids", source })?;
    // Empty by now; whatever still holds on to them keeps them.
    Cgroup::at(&settings.instance).remove().map_err(|source| TeardownError::Left { what: "cgroup", source })?;
    mountinfo::remove_tree(&settings.run_directory())
        .map_err(|source| TeardownError::Left { what: "directory", source })?;
    services::remove(&settings.instance).await.map_err(|error| TeardownError::Network(error.chain()))?;
    if let Some(bridge) = bridge {
        bridge.down().await.map_err(|error| TeardownError::Network(error.chain()))?;
    }
    Ok(Ended { pods: observed.sandboxes.len(), containers: alive.len() })
}

/// How long each pod may take to stop, as far as it was kept.
fn graces(agent_directory: &Path) -> BTreeMap<String, Duration> {
    let files = std::fs::read_dir(agent_directory.join("checkpoints")).into_iter().flatten().flatten();
    let pods = files.filter_map(|file| serde_json::from_slice::<Pod>(&std::fs::read(file.path()).ok()?).ok());
    pods.filter_map(|pod| {
        let seconds = pod.spec?.termination_grace_period_seconds?;
        Some((pod.metadata.uid?, Duration::from_secs(u64::try_from(seconds).unwrap_or_default())))
    })
    .collect()
}
