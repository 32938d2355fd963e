//! Events about claims. One and the same is written once: its name follows from what it says.

use std::hash::{DefaultHasher, Hash, Hasher};

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Event, EventSource, ObjectReference},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use kube::{Api, Client, api::PostParams};

use crate::failure;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Say {
    pub warning: bool,
    pub reason: &'static str,
    pub message: String,
}

/// Nothing depends on events: one that cannot be written is not written.
pub async fn say(client: &Client, about: ObjectReference, say: Say) {
    let namespace = about.namespace.clone().unwrap_or_default();
    let mut hash = DefaultHasher::new();
    (&about.uid, say.reason, &say.message).hash(&mut hash);
    let now = Some(Time(Timestamp::now()));
    let event = Event {
        metadata: ObjectMeta {
            name: Some(format!("{}.{:016x}", about.name.as_deref().unwrap_or_default(), hash.finish())),
            namespace: Some(namespace.clone()),
            ..ObjectMeta::default()
        },
        type_: Some(if say.warning { "Warning" } else { "Normal" }.to_owned()),
        reason: Some(say.reason.to_owned()),
        message: Some(say.message),
        involved_object: ObjectReference { resource_version: None, ..about },
        source: Some(EventSource { component: Some("persistentvolume-controller".to_owned()), host: None }),
        first_timestamp: now.clone(),
        last_timestamp: now,
        count: Some(1),
        ..Event::default()
    };
    let events: Api<Event> = Api::namespaced(client.clone(), &namespace);
    match events.create(&PostParams::default(), &event).await {
        Ok(_) => {}
        Err(error) if failure::is(&error, 409) => {}
        Err(error) => tracing::debug!(%error, "an event was not written"),
    }
}
