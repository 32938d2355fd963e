//! Marks the pods of a node as failed when `mainstay down` ends them.
//!
//! The process that stops knows the API, the command that ends the containers does not: so the command leaves a notice in the run
//! directory before it asks the process to stop. Pods are marked not ready, which takes them from their endpoints before their
//! containers get the stop signal, and their containers as waiting. Their phase stays: they are not finished, the next start
//! of the node runs them again.

use std::{fs, io, path::PathBuf, time::Duration};

use futures::{StreamExt, stream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, Patch, PatchParams},
};
use mainstay_errors::error_chain;
use serde_json::{Value, json};

use crate::leftovers::Instance;

const REASON: &str = "NodeDown";
const MESSAGE: &str = "`mainstay down` ended the pods of this node; they run again when it is started";
/// Pods that are marked at a time.
const AT_ONCE: usize = 16;
const DEADLINE: Duration = Duration::from_secs(5);

/// The notice that the stop of an instance's process is the end of its pods. Removed when dropped.
pub struct DownNotice(PathBuf);

impl DownNotice {
    fn path(instance: &Instance) -> PathBuf {
        instance.run_dir().join("down")
    }

    /// For after a start, if whoever left it was killed.
    pub fn clear(instance: &Instance) {
        let _ = fs::remove_file(Self::path(instance));
    }

    pub fn leave(instance: &Instance) -> io::Result<Self> {
        let path = Self::path(instance);
        mainstay_files::open_private(&path)?;
        Ok(Self(path))
    }

    pub fn is_there(instance: &Instance) -> bool {
        Self::path(instance).exists()
    }
}

impl Drop for DownNotice {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Marks all pods of a node. What cannot be marked is logged: the node's own condition says it too.
pub async fn mark_pods_ended(client: &Client, node_name: &str) {
    let all = async {
        let of_node = ListParams::default().fields(&format!("spec.nodeName={node_name}"));
        let pods = Api::<Pod>::all(client.clone()).list(&of_node).await?;
        let mut patches = stream::iter(&pods.items).map(|pod| mark(client, pod)).buffer_unordered(AT_ONCE);
        while let Some(marked) = patches.next().await {
            marked?;
        }
        Ok::<(), kube::Error>(())
    };
    match tokio::time::timeout(DEADLINE, all).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(error = error_chain(&error), "cannot mark the pods of this node as failed"),
        Err(_) => tracing::warn!("cannot mark the pods of this node as failed: the API does not answer"),
    }
}

async fn mark(client: &Client, pod: &Pod) -> Result<(), kube::Error> {
    let Some(status) = ended_status(pod, Timestamp::now()) else { return Ok(()) };
    let api: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace().unwrap_or_default());
    // One of another pod with the same name, made meanwhile, must not be touched.
    let patch = json!({ "metadata": { "uid": pod.metadata.uid }, "status": status });
    match api.patch_status(&pod.name_any(), &PatchParams::default(), &Patch::Strategic(patch)).await {
        Err(kube::Error::Api(answer)) if matches!(answer.code, 404 | 409) => Ok(()),
        result => result.map(drop),
    }
}

/// Pure. None for a pod that has finished, or has no status yet.
fn ended_status(pod: &Pod, now: Timestamp) -> Option<Value> {
    let status = pod.status.as_ref()?;
    if mainstay_api::pod::is_finished(pod) {
        return None;
    }
    let not_ready = |kind: &str| {
        let before = status.conditions.iter().flatten().find(|condition| condition.type_ == kind);
        let since =
            before.filter(|before| before.status == "False").and_then(|before| before.last_transition_time.clone());
        let since = since.map_or_else(|| json!(now), |since| json!(since));
        json!({ "type": kind, "status": "False", "reason": REASON, "message": MESSAGE, "lastTransitionTime": since })
    };
    let mut ended = json!({ "conditions": [not_ready("Ready"), not_ready("ContainersReady")] });
    let lists = [
        ("containerStatuses", &status.container_statuses),
        ("initContainerStatuses", &status.init_container_statuses),
        ("ephemeralContainerStatuses", &status.ephemeral_container_statuses),
    ];
    for (field, containers) in lists {
        if let Some(containers) = containers {
            ended[field] = containers.iter().map(ended_container).collect();
        }
    }
    Some(ended)
}

/// Only one that runs ends.
fn ended_container(container: &ContainerStatus) -> Value {
    let mut ended = json!(container);
    if container.state.as_ref().is_some_and(|state| state.running.is_some()) {
        ended["state"] = json!({ "waiting": { "reason": REASON, "message": MESSAGE } });
        ended["ready"] = json!(false);
        ended["started"] = json!(false);
    }
    ended
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(phase: &str) -> Pod {
        let container = |name: &str, state: Value| json!({"name": name, "image": "i", "imageID": "", "ready": true, "started": true, "restartCount": 3, "state": state});
        let running = json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}});
        let exited = json!({"terminated": {"exitCode": 0}});
        let status = json!({
            "phase": phase,
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [container("a", running)],
            "initContainerStatuses": [container("b", exited)],
        });
        serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": {"containers": []}, "status": status}))
            .unwrap()
    }

    #[test]
    fn what_runs_is_no_longer_ready_and_what_has_ended_stays_as_it_was() {
        let ended = ended_status(&pod("Running"), Timestamp::UNIX_EPOCH).unwrap();
        assert_eq!(
            (&ended["conditions"][0]["status"], &ended["conditions"][0]["reason"]),
            (&json!("False"), &json!(REASON))
        );
        let container = &ended["containerStatuses"][0];
        assert_eq!((&container["ready"], &container["restartCount"]), (&json!(false), &json!(3)));
        assert_eq!(container["state"]["waiting"]["reason"], REASON);
        assert_eq!(container["state"].get("running"), None);
        assert_eq!(ended["initContainerStatuses"][0]["state"]["terminated"]["exitCode"], 0);
        assert_eq!(ended.get("phase"), None, "the pod is not finished");
        assert_eq!(ended_status(&pod("Succeeded"), Timestamp::UNIX_EPOCH), None);
    }
}
