//! Looks up a pod by name: its containers in the runtime and its log files.

use std::path::PathBuf;

use http::StatusCode;
use k8s_openapi::api::core::v1::{ContainerStatus as ApiStatus, Pod};
use mainstay_runtime::{
    ContainerState, ContainerStatus, Observed, PodUid, RuntimeError, SandboxId, SandboxStatus, observed::PodRef,
};
use serde_json::{Value, json};

use super::{response::RequestError, server::Parts};
use crate::logs::path;

/// A pod and what runs for it.
pub struct PodOnNode {
    pub pod: std::sync::Arc<Pod>,
    pub uid: PodUid,
    pub observed: Observed,
}

impl Parts {
    pub async fn find(&self, namespace: &str, name: &str) -> Result<PodOnNode, RequestError> {
        let wanted = self.pods.named(namespace, name);
        let pod = wanted.ok_or_else(|| RequestError::not_found(format!("pod {name:?} does not exist")))?.pod;
        let uid = PodUid(pod.metadata.uid.clone().unwrap_or_default());
        let observed = self.runtime.observe(Some(&uid)).await.map_err(unavailable)?;
        Ok(PodOnNode { pod, uid, observed })
    }
}

/// A runtime's refusal, as an answer.
pub fn unavailable(error: RuntimeError) -> RequestError {
    let code = match &error {
        RuntimeError::NotFound { .. } => StatusCode::NOT_FOUND,
        RuntimeError::Unavailable { .. } => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    RequestError::new(code, error.to_string())
}

/// Pods that have a sandbox, with the containers that run in them: upstream's `/runningpods/`.
pub fn running_pods(observed: &Observed) -> Value {
    let pod = |sandbox: &SandboxStatus| {
        let running = observed.containers.iter().filter(|c| c.sandbox == sandbox.id && c.state.is_running());
        let containers: Vec<Value> = running.map(|c| json!({ "name": c.name, "image": c.image })).collect();
        let PodRef { namespace, name, uid } = &sandbox.pod;
        json!({
            "metadata": { "name": name, "namespace": namespace, "uid": uid.0 },
            "spec": { "containers": containers }, "status": {},
        })
    };
    let items: Vec<Value> = observed.sandboxes.iter().filter(|sandbox| sandbox.ready).map(pod).collect();
    json!({ "kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items })
}

impl PodOnNode {
    fn name(&self) -> &str {
        self.pod.metadata.name.as_deref().unwrap_or_default()
    }

    /// The newest container of this name.
    pub fn newest(&self, container: &str) -> Option<&ContainerStatus> {
        self.observed.containers.iter().filter(|c| c.name == container).max_by_key(|c| c.attempt)
    }

    pub fn running(&self, container: &str) -> Result<&ContainerStatus, RequestError> {
        let running = self.newest(container).filter(|c| c.state.is_running());
        running.ok_or_else(|| RequestError::internal(format!("container not found ({container:?})")))
    }

    pub fn sandbox(&self) -> Result<&SandboxId, RequestError> {
        let newest = self.observed.sandboxes.iter().filter(|s| s.ready).max_by_key(|s| s.attempt);
        let newest = newest.map(|sandbox| &sandbox.id);
        newest.ok_or_else(|| RequestError::internal(format!("pod {:?} is not running", self.name())))
    }

    /// Whether the pod asks for a terminal of this container.
    pub fn has_terminal(&self, container: &str) -> bool {
        let spec = self.pod.spec.iter();
        let plain = spec.clone().flat_map(|s| s.containers.iter().chain(s.init_containers.iter().flatten()));
        let plain = plain.filter(|c| c.name == container).any(|c| c.tty == Some(true));
        let mut ephemeral = spec.flat_map(|s| s.ephemeral_containers.iter().flatten());
        plain || ephemeral.any(|c| c.name == container && c.tty == Some(true))
    }

    /// The last reported status of a container.
    fn status(&self, container: &str) -> Option<&ApiStatus> {
        let status = self.pod.status.as_ref()?;
        let lists = [&status.container_statuses, &status.init_container_statuses, &status.ephemeral_container_statuses];
        lists.into_iter().flatten().flatten().find(|s| s.name == container)
    }

    /// The log that someone who asks for the container's, or for that of the run before, means.
    pub fn log(&self, logs: &std::path::Path, container: &str, previous: bool) -> Result<Log, RequestError> {
        let (namespace, name) = (self.pod.metadata.namespace.as_deref().unwrap_or_default(), self.name());
        let waiting = self.status(container).and_then(|s| s.state.as_ref()?.waiting.as_ref());
        let directory = path::pod_directory(logs, namespace, name, &self.uid.0).join(container);
        let runs = self.runs(&directory, container);
        let newest = runs.last();
        let chosen = match newest {
            Some(run) if !previous => Some(run),
            // One that ended and is about to be started again is already the one before.
            Some(run) if run.ended && waiting.is_some() => Some(run),
            Some(_) => runs.len().checked_sub(2).and_then(|index| runs.get(index)),
            None => None,
        };
        if let Some(run) = chosen {
            return Ok(Log { path: run.path.clone() });
        }
        if previous {
            let text = format!("previous terminated container {container:?} in pod {name:?} not found");
            return Err(RequestError::bad_request(text));
        }
        let why = match waiting.and_then(|w| w.reason.as_deref()).filter(|reason| !reason.is_empty()) {
            Some("ErrImagePull") => "image can't be pulled",
            Some("ImagePullBackOff") => "trying and failing to pull image",
            Some(reason) => reason,
            None => "ContainerCreating",
        };
        Err(RequestError::bad_request(format!("container {container:?} in pod {name:?} is waiting to start: {why}")))
    }

    /// The runs of a container that began, oldest first: what the runtime holds, what left only a log behind, and what the
    /// API knows to have ended (one that printed nothing leaves no log).
    fn runs(&self, directory: &std::path::Path, container: &str) -> Vec<Run> {
        let known = self.observed.containers.iter().filter(|c| c.name == container);
        let began = known.filter(|c| !matches!(c.state, ContainerState::Created));
        let mut runs: Vec<Run> =
            began.map(|c| Run { attempt: c.attempt, path: c.log_path.clone(), ended: c.state.has_ended() }).collect();
        let files = std::fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
        let held: Vec<u32> =
            self.observed.containers.iter().filter(|c| c.name == container).map(|c| c.attempt).collect();
        for attempt in files.filter_map(|file| path::attempt_of(&file)) {
            if !held.contains(&attempt) && !runs.iter().any(|run| run.attempt == attempt) {
                runs.push(Run { attempt, path: directory.join(format!("{attempt}.log")), ended: true });
            }
        }
        if let Some(status) = self.status(container)
            && status.state.as_ref().is_some_and(|state| state.terminated.is_some())
        {
            let attempt = u32::try_from(status.restart_count).unwrap_or(0);
            if !runs.iter().any(|run| run.attempt >= attempt) {
                runs.push(Run { attempt, path: directory.join(format!("{attempt}.log")), ended: true });
            }
        }
        runs.sort_by_key(|run| run.attempt);
        runs
    }
}

pub struct Log {
    pub path: PathBuf,
}

struct Run {
    attempt: u32,
    path: PathBuf,
    ended: bool,
}

#[cfg(test)]
#[path = "find/tests.rs"]
mod tests;
