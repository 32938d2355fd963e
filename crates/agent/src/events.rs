//! Events about pods, containers and the node, recorded as upstream's kubelet does.

use std::borrow::Cow;

use k8s_openapi::api::core::v1::{Node, ObjectReference, Pod};
use kube::Resource;
pub use mainstay_events::EventType;
use mainstay_events::{EventNote, EventWriter, Recorder};

/// As upstream: what filters events by who reports them knows this name.
const COMPONENT: &str = "kubelet";

/// Records events without ever making the caller wait.
#[derive(Clone)]
pub struct Events(Recorder);

impl Events {
    /// A recorder for the agent of a node, and the writer that must run for its events to appear.
    pub fn new(node_name: &str) -> (Self, EventWriter) {
        let (recorder, writer) = Recorder::new(COMPONENT, node_name);
        (Self(recorder), writer)
    }

    pub fn pod(
        &self,
        pod: &Pod,
        event_type: EventType,
        reason: impl Into<Cow<'static, str>>,
        message: impl Into<String>,
    ) {
        self.record(pod.object_ref(&()), event_type, reason.into(), message.into());
    }

    /// About one container: `spec.containers{web}` tells which.
    pub fn container(
        &self,
        pod: &Pod,
        name: &str,
        event_type: EventType,
        reason: impl Into<Cow<'static, str>>,
        message: impl Into<String>,
    ) {
        let field_path = Some(format!("spec.{}{{{name}}}", container_list(pod, name)));
        let involved = ObjectReference { field_path, ..pod.object_ref(&()) };
        self.record(involved, event_type, reason.into(), message.into());
    }

    pub fn node(
        &self,
        node: &Node,
        event_type: EventType,
        reason: impl Into<Cow<'static, str>>,
        message: impl Into<String>,
    ) {
        self.record(node.object_ref(&()), event_type, reason.into(), message.into());
    }

    fn record(&self, involved: ObjectReference, event_type: EventType, reason: Cow<'static, str>, message: String) {
        let (name, uid) = (involved.name.as_deref().unwrap_or_default(), involved.uid.as_deref().unwrap_or_default());
        tracing::info!(object = name, uid, %reason, "{message}");
        self.0.record(involved, EventNote { event_type, reason, message });
    }
}

/// The field of a pod's spec that lists the container.
fn container_list(pod: &Pod, name: &str) -> &'static str {
    let Some(spec) = &pod.spec else { return "containers" };
    if spec.init_containers.iter().flatten().any(|container| container.name == name) {
        "initContainers"
    } else if spec.ephemeral_containers.iter().flatten().any(|container| container.name == name) {
        "ephemeralContainers"
    } else {
        "containers"
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use k8s_openapi::api::core::v1::Event;
    use kube::{Api, api::ListParams};
    use serde_json::json;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::testing::{api, severable, until};

    #[tokio::test(start_paused = true)]
    async fn what_happens_while_the_api_is_away_is_recorded_once_it_is_back() {
        let client = api(&["default"]).await;
        let (cut_off, severed) = severable(client.clone());
        let (events, writer) = Events::new("m1");
        let stop = CancellationToken::new();
        let task = tokio::spawn(writer.run(cut_off, stop.clone()));
        let pod: Pod = serde_json::from_value(json!({
            "metadata": { "name": "web", "namespace": "default", "uid": "u" },
            "spec": { "containers": [], "initContainers": [{ "name": "first" }] },
        }))
        .unwrap();
        let all: Api<Event> = Api::namespaced(client, "default");
        let listed = async || all.list(&ListParams::default()).await.unwrap().items;

        severed.store(true, Ordering::SeqCst);
        events.container(&pod, "first", EventType::Warning, "Failed", "it failed");
        events.container(&pod, "first", EventType::Warning, "Failed", "it failed");
        tokio::time::sleep(std::time::Duration::from_secs(30)).await;
        assert!(listed().await.is_empty());
        severed.store(false, Ordering::SeqCst);
        until("the event is there", async || listed().await.len() == 1).await;
        let event = listed().await.remove(0);
        assert_eq!((event.count, event.message.as_deref()), (Some(2), Some("it failed")));
        assert_eq!(event.involved_object.field_path.as_deref(), Some("spec.initContainers{first}"));
        let source = event.source.unwrap();
        assert_eq!((source.component.as_deref(), source.host.as_deref()), (Some("kubelet"), Some("m1")));
        stop.cancel();
        task.await.unwrap();
    }
}
