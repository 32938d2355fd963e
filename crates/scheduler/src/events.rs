//! Events about pods, in the scheduler's name.
//!
//! An event is named by what it says, so the same said again, even after a restart, counts up the one there is.

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

/// Who places pods that do not say who is to.
pub const SCHEDULER: &str = "default-scheduler";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    Normal,
    Warning,
}

/// What is told of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    pub pod: PodKey,
    pub uid: String,
    pub tone: Tone,
    pub reason: &'static str,
    pub message: String,
}

#[derive(Clone)]
pub struct Events(Client);

impl Events {
    pub fn new(client: Client) -> Self {
        Self(client)
    }

    /// Tells it. What cannot be told is not worth failing for.
    pub async fn tell(&self, note: &Note) {
        let events: Api<Event> = Api::namespaced(self.0.clone(), &note.pod.namespace);
        let now = Time(Timestamp::now());
        let told = match events.create(&PostParams::default(), &event(note, &now)).await {
            Err(kube::Error::Api(status)) if status.code == 409 => count_up(&events, &name(note), &now).await,
            other => other.map(drop),
        };
        if let Err(error) = told {
            tracing::debug!(pod = %note.pod, uid = note.uid, %error, "cannot write an event");
        }
    }
}

async fn count_up(events: &Api<Event>, name: &str, now: &Time) -> Result<(), kube::Error> {
    let times = events.get(name).await?.count.unwrap_or(1) + 1;
    let patch = Patch::Merge(json!({ "count": times, "lastTimestamp": now }));
    events.patch(name, &PatchParams::default(), &patch).await.map(drop)
}

fn name(note: &Note) -> String {
    let mut hasher = DefaultHasher::new();
    (&note.uid, note.reason, &note.message).hash(&mut hasher);
    format!("{}.{:016x}", note.pod.name, hasher.finish())
}

fn event(note: &Note, now: &Time) -> Event {
    Event {
        metadata: ObjectMeta {
            name: Some(name(note)),
            namespace: Some(note.pod.namespace.clone()),
            ..ObjectMeta::default()
        },
        involved_object: ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            namespace: Some(note.pod.namespace.clone()),
            name: Some(note.pod.name.clone()),
            uid: Some(note.uid.clone()),
            ..ObjectReference::default()
        },
        type_: Some(if note.tone == Tone::Normal { "Normal" } else { "Warning" }.to_owned()),
        reason: Some(note.reason.to_owned()),
        message: Some(note.message.clone()),
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
    fn an_event_is_named_by_what_it_says() {
        let note = |uid: &str, message: &str| Note {
            pod: PodKey::new("ns", "p"),
            uid: uid.to_owned(),
            tone: Tone::Warning,
            reason: "FailedScheduling",
            message: message.to_owned(),
        };
        assert_eq!(name(&note("u", "no room")), name(&note("u", "no room")));
        assert_ne!(name(&note("u", "no room")), name(&note("u", "no machine")));
        assert_ne!(name(&note("u", "no room")), name(&note("v", "no room")), "another pod of that name");
        let event = event(&note("u", "no room"), &Time(Timestamp::UNIX_EPOCH));
        assert_eq!(event.involved_object.uid.as_deref(), Some("u"));
        assert_eq!((event.type_.as_deref(), event.count), (Some("Warning"), Some(1)));
    }
}
