//! Records Events about pods, as `default-scheduler`.
//!
//! The name of an Event is derived from its content, so that the same Event again, even after a restart, raises the count
//! of the one there is.

use std::hash::{DefaultHasher, Hash, Hasher};

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Event, EventSource, ObjectReference},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::json;

use crate::core::view::PodKey;

/// The scheduler of pods that do not name one.
pub const SCHEDULER: &str = "default-scheduler";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventType {
    Normal,
    Warning,
}

/// An Event about a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodEvent {
    pub pod: PodKey,
    pub uid: String,
    pub type_: EventType,
    pub reason: &'static str,
    pub message: String,
}

#[derive(Clone)]
pub struct EventRecorder(Client);

impl EventRecorder {
    pub fn new(client: Client) -> Self {
        Self(client)
    }

    /// Writes the Event. An Event that cannot be written is logged and dropped.
    pub async fn record(&self, event: &PodEvent) {
        let events: Api<Event> = Api::namespaced(self.0.clone(), &event.pod.namespace);
        let now = Time(Timestamp::now());
        let written = match events.create(&PostParams::default(), &build_event(event, &now)).await {
            Err(kube::Error::Api(status)) if status.code == 409 => {
                increment_count(&events, &event_name(event), &now).await
            }
            other => other.map(drop),
        };
        if let Err(error) = written {
            tracing::debug!(pod = %event.pod, uid = event.uid, %error, "cannot write an Event");
        }
    }
}

async fn increment_count(events: &Api<Event>, name: &str, now: &Time) -> Result<(), kube::Error> {
    let times = events.get(name).await?.count.unwrap_or(1) + 1;
    let patch = Patch::Merge(json!({ "count": times, "lastTimestamp": now }));
    events.patch(name, &PatchParams::default(), &patch).await.map(drop)
}

fn event_name(event: &PodEvent) -> String {
    let mut hasher = DefaultHasher::new();
    (&event.uid, event.reason, &event.message).hash(&mut hasher);
    format!("{}.{:016x}", event.pod.name, hasher.finish())
}

fn build_event(event: &PodEvent, now: &Time) -> Event {
    Event {
        metadata: ObjectMeta {
            name: Some(event_name(event)),
            namespace: Some(event.pod.namespace.clone()),
            ..ObjectMeta::default()
        },
        involved_object: ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            namespace: Some(event.pod.namespace.clone()),
            name: Some(event.pod.name.clone()),
            uid: Some(event.uid.clone()),
            ..ObjectReference::default()
        },
        type_: Some(if event.type_ == EventType::Normal { "Normal" } else { "Warning" }.to_owned()),
        reason: Some(event.reason.to_owned()),
        message: Some(event.message.clone()),
        count: Some(1),
        first_timestamp: Some(now.clone()),
        last_timestamp: Some(now.clone()),
        source: Some(EventSource { component: Some(SCHEDULER.to_owned()), host: None }),
        reporting_component: Some(SCHEDULER.to_owned()),
        ..Event::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_named_by_its_content() {
        let event = |uid: &str, message: &str| PodEvent {
            pod: PodKey::new("ns", "p"),
            uid: uid.to_owned(),
            type_: EventType::Warning,
            reason: "FailedScheduling",
            message: message.to_owned(),
        };
        assert_eq!(event_name(&event("u", "no room")), event_name(&event("u", "no room")));
        assert_ne!(event_name(&event("u", "no room")), event_name(&event("u", "no node")));
        assert_ne!(event_name(&event("u", "no room")), event_name(&event("v", "no room")), "another pod of that name");
        let event = build_event(&event("u", "no room"), &Time(Timestamp::UNIX_EPOCH));
        assert_eq!(event.involved_object.uid.as_deref(), Some("u"));
        assert_eq!((event.type_.as_deref(), event.count), (Some("Warning"), Some(1)));
    }
}
