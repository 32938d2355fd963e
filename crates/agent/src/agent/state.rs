//! The state of an agent for people: every sandbox and container that its runtime holds.

use std::sync::Arc;

use mainstay_runtime::{ContainerState, Runtime};

use super::Agent;

/// Outlives the start of the agent's parts.
pub struct AgentState {
    runtime: Arc<dyn Runtime>,
}

impl Agent {
    pub fn state(&self) -> AgentState {
        AgentState { runtime: self.log_rotation.runtime.clone() }
    }
}

impl AgentState {
    /// A line for each sandbox and each container, with the pod and its uid.
    pub async fn describe(&self) -> Vec<String> {
        let observed = match self.runtime.observe(None).await {
            Ok(observed) => observed,
            Err(error) => return vec![format!("the runtime does not answer: {error}")],
        };
        let sandboxes = observed.sandboxes.iter().map(|sandbox| {
            let (pod, ready) = (&sandbox.pod, if sandbox.ready { "ready" } else { "not ready" });
            let addresses: Vec<String> = sandbox.addresses.iter().map(ToString::to_string).collect();
            let (namespace, name, uid) = (&pod.namespace, &pod.name, &pod.uid);
            format!("sandbox {} of pod {namespace}/{name} ({uid}): {ready} {}", sandbox.id, addresses.join(","))
        });
        let containers = observed.containers.iter().map(|container| {
            let pod = &container.pod;
            let state = match &container.state {
                ContainerState::Created => "created".to_owned(),
                ContainerState::Unknown => "unknown".to_owned(),
                ContainerState::Running { started_at } => format!("running since {started_at}"),
                ContainerState::Exited { finished_at, exit_code, .. } => {
                    format!("ended at {finished_at} with exit code {exit_code}")
                }
            };
            let (namespace, name, uid) = (&pod.namespace, &pod.name, &pod.uid);
            let attempt = container.attempt;
            format!("container {} of pod {namespace}/{name} ({uid}), attempt {attempt}: {state}", container.name)
        });
        sandboxes.chain(containers).collect()
    }
}
