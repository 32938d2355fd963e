//! Events about pods, in the scheduler's name.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Client,
    runtime::events::{Event, EventType, Recorder, Reporter},
};

use crate::core::view::PodKey;

/// Who places pods that do not say who is to.
pub const SCHEDULER: &str = "default-scheduler";

#[derive(Clone)]
pub struct Events(Recorder);

impl Events {
    pub fn new(client: Client) -> Self {
        Self(Recorder::new(client, Reporter { controller: SCHEDULER.into(), instance: None }))
    }

    /// Tells something about a pod. What cannot be told is not worth failing for.
    pub async fn pod(&self, pod: &PodKey, uid: &str, type_: EventType, reason: &str, action: &str, note: String) {
        let about = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            namespace: Some(pod.namespace.clone()),
            name: Some(pod.name.clone()),
            uid: Some(uid.to_owned()),
            ..ObjectReference::default()
        };
        let event =
            Event { type_, reason: reason.to_owned(), note: Some(note), action: action.to_owned(), secondary: None };
        if let Err(error) = self.0.publish(&event, &about).await {
            tracing::debug!(%pod, uid, %error, "cannot write an event");
        }
    }
}
