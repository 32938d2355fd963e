//! Hooks: what runs after a container starts and before it is stopped.
//!
//! A hook that a container does not survive, or that takes longer than it may, failed; what follows from that
//! is for the caller to say.

use std::{net::IpAddr, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::{Container, LifecycleHandler, Pod};
use mainstay_runtime::{ContainerId, Runtime, RuntimeError};

use crate::probe::{http_get, port, target_host, tcp};

const USER_AGENT: &str = "kube-lifecycle/1.37";

/// How much of a hook command's output its event shows.
const OUTPUT_LIMIT: usize = 1024;

/// How much longer than its limit the runtime may take to end a command.
const SLACK: Duration = Duration::from_secs(10);

/// For one HTTP request or connection of a hook that has no limit of its own.
const ONE_REQUEST: Duration = Duration::from_secs(60);

pub struct Hooks {
    runtime: Arc<dyn Runtime>,
}

#[derive(Debug, thiserror::Error)]
#[error("{why}")]
pub struct HookError {
    pub why: String,
}

pub struct HookTarget<'a> {
    pub pod: &'a Pod,
    pub container: &'a str,
    pub id: &'a ContainerId,
    pub address: Option<IpAddr>,
}

impl Hooks {
    pub fn new(runtime: Arc<dyn Runtime>) -> Self {
        Self { runtime }
    }

    /// Runs one hook to its end, or for `limit` if there is one.
    pub async fn run(
        &self,
        at: HookTarget<'_>,
        hook: &LifecycleHandler,
        limit: Option<Duration>,
    ) -> Result<(), HookError> {
        let (what, done) = if let Some(exec) = &hook.exec {
            let command = exec.command.as_deref().unwrap_or_default();
            (format!("Exec lifecycle hook ([{}])", command.join(" ")), self.exec(&at, command, limit).await)
        } else if let Some(get) = &hook.http_get {
            let what = format!("HTTP lifecycle hook ({})", get.path.as_deref().unwrap_or_default());
            let request = http_get::Request::new(get, &container(&at), at.address, USER_AGENT);
            let done = match request {
                // As upstream: any response counts, whatever its status.
                Ok(request) => request.send(limit.unwrap_or(ONE_REQUEST)).await.map(drop),
                Err(why) => Err(why),
            };
            (what, done)
        } else if let Some(socket) = &hook.tcp_socket {
            let to = target_host(socket.host.as_deref(), at.address)
                .and_then(|host| Ok((host, port(&socket.port, &container(&at))?)));
            let done = match to {
                Ok((host, port)) => tcp::connect(&host, port, limit.unwrap_or(ONE_REQUEST)).await.map(drop),
                Err(why) => Err(why),
            };
            ("TCP lifecycle hook".to_owned(), done)
        } else if let Some(sleep) = &hook.sleep {
            let wanted = Duration::from_secs(u64::try_from(sleep.seconds).unwrap_or(0));
            tokio::time::sleep(limit.map_or(wanted, |limit| wanted.min(limit))).await;
            let done = match limit {
                Some(limit) if wanted > limit => Err("container terminated before sleep hook finished".into()),
                Some(_) | None => Ok(()),
            };
            (format!("Sleep lifecycle hook ({})", sleep.seconds), done)
        } else {
            ("Lifecycle hook".to_owned(), Err("it says nothing to do".to_owned()))
        };
        done.map_err(|why| HookError {
            why: format!(
                "{what} for Container {:?} in Pod {:?} failed - error: {why}",
                at.container,
                full_name(at.pod)
            ),
        })
    }

    async fn exec(&self, at: &HookTarget<'_>, command: &[String], limit: Option<Duration>) -> Result<(), String> {
        let run = self.runtime.exec(at.id, command, limit, OUTPUT_LIMIT);
        let done = match limit {
            Some(limit) => tokio::time::timeout(limit.saturating_add(SLACK), run).await.ok(),
            None => Some(run.await),
        };
        match done {
            None | Some(Err(RuntimeError::Timeout { .. })) => Err(format!("command {:?} timed out", command.join(" "))),
            Some(Err(error)) => Err(error.to_string()),
            Some(Ok(output)) if output.exit_code == 0 => Ok(()),
            Some(Ok(output)) => {
                let stderr_text = String::from_utf8_lossy(&output.stderr);
                let all = [&output.stdout[..], &output.stderr[..]].concat();
                Err(format!(
                    "command '{}' exited with {}: {stderr_text}, message: {:?}",
                    command.join(" "),
                    output.exit_code,
                    String::from_utf8_lossy(&all)
                ))
            }
        }
    }
}

/// The container whose hook it is, for the names of its ports.
fn container(at: &HookTarget<'_>) -> Container {
    let spec = at.pod.spec.as_ref();
    let mut all = spec.into_iter().flat_map(|spec| spec.containers.iter().chain(spec.init_containers.iter().flatten()));
    all.find(|container| container.name == at.container).cloned().unwrap_or_default()
}

/// `name_namespace(uid)`, as upstream writes pods.
pub fn full_name(pod: &Pod) -> String {
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    let meta = &pod.metadata;
    format!("{}_{}({})", text(&meta.name), text(&meta.namespace), text(&meta.uid))
}

#[cfg(test)]
mod tests;
