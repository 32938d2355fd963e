//! Events of the controllers: what was done for whom, and what could not be.
//!
//! Saying something costs the speaker nothing: a single task writes, at most a few times a second,
//! and what is said meanwhile is gathered. The same thing said again raises a count. Beyond
//! ten different messages of one reason about one object within ten minutes, further ones share one
//! event whose message begins with `(combined from similar events)`. Five thousand new pods of a
//! ReplicaSet are therefore some dozen writes, and no count is lost.
//!
//! Nothing depends on events: one that cannot be written is not written.

use std::{sync::Arc, time::Duration};

use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Event, EventSource, ObjectReference},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio_util::sync::CancellationToken;

use super::owner::Owner;
use crate::failure;

mod gather;

use gather::{Gathered, Gatherer};

/// Between two rounds of writing.
const PAUSE: Duration = Duration::from_millis(250);
/// Writes under way at once.
const ABREAST: usize = 16;
/// When asked to stop, how long what was said may still be written.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Something said about an object.
#[derive(Clone, Debug)]
pub struct Said {
    pub about: ObjectReference,
    pub component: &'static str,
    pub warning: bool,
    pub reason: &'static str,
    pub message: String,
}

/// Where controllers say what happens.
#[derive(Clone)]
pub struct Events {
    said: UnboundedSender<Said>,
    unwritten: Arc<Mutex<Option<UnboundedReceiver<Said>>>>,
}

impl Default for Events {
    fn default() -> Self {
        let (said, unwritten) = mpsc::unbounded_channel();
        Self { said, unwritten: Arc::new(Mutex::new(Some(unwritten))) }
    }
}

impl Events {
    pub fn normal(&self, owner: &Owner, reason: &'static str, message: impl Into<String>) {
        self.say(Said::by(owner, false, reason, message.into()));
    }

    pub fn warning(&self, owner: &Owner, reason: &'static str, message: impl Into<String>) {
        self.say(Said::by(owner, true, reason, message.into()));
    }

    pub fn say(&self, said: Said) {
        let _ = self.said.send(said); // nobody writes any more
    }

    /// Writes what is said until asked to stop. Only the first call does anything.
    pub async fn write(&self, client: Client, stop: CancellationToken) {
        let Some(mut unwritten) = self.unwritten.lock().take() else { return };
        let mut gatherer = Gatherer::default();
        let mut said = Vec::new();
        while stop.run_until_cancelled(unwritten.recv_many(&mut said, 10_000)).await.is_some() {
            write_all(&client, &mut gatherer, &mut said).await;
            stop.run_until_cancelled(tokio::time::sleep(PAUSE)).await;
        }
        unwritten.close();
        while let Ok(last) = unwritten.try_recv() {
            said.push(last);
        }
        let _ = tokio::time::timeout(LAST_WORDS, write_all(&client, &mut gatherer, &mut said)).await;
    }
}

impl Said {
    fn by(owner: &Owner, warning: bool, reason: &'static str, message: String) -> Self {
        Self { about: owner.subject(), component: owner.kind.component, warning, reason, message }
    }
}

async fn write_all(client: &Client, gatherer: &mut Gatherer, said: &mut Vec<Said>) {
    let gathered = gatherer.gather(said.drain(..), Timestamp::now());
    let writes = gathered.into_iter().map(|event| write(client, event));
    futures::stream::iter(writes).buffer_unordered(ABREAST).for_each(|()| async {}).await;
}

async fn write(client: &Client, event: Gathered) {
    let namespace = match event.said.about.namespace.as_deref() {
        Some(namespace) if !namespace.is_empty() => namespace.to_owned(),
        _ => "default".to_owned(),
    };
    let events: Api<Event> = Api::namespaced(client.clone(), &namespace);
    if event.known {
        let change = json!({
            "count": event.count, "lastTimestamp": Time(event.last), "message": event.said.message,
        });
        match events.patch_metadata(&event.name, &PatchParams::default(), &Patch::Merge(change)).await {
            Err(error) if failure::is(&error, 404) => {} // it expired: written anew
            result => return told(result.map(drop)),
        }
    }
    let Said { about, component, warning, reason, message } = event.said;
    let event = Event {
        metadata: ObjectMeta { name: Some(event.name), namespace: Some(namespace), ..ObjectMeta::default() },
        type_: Some(if warning { "Warning" } else { "Normal" }.to_owned()),
        reason: Some(reason.to_owned()),
        message: Some(message),
        involved_object: about,
        source: Some(EventSource { component: Some(component.to_owned()), host: None }),
        reporting_component: Some(component.to_owned()),
        reporting_instance: Some(String::new()),
        first_timestamp: Some(Time(event.first)),
        last_timestamp: Some(Time(event.last)),
        count: Some(event.count),
        ..Event::default()
    };
    told(events.create(&PostParams::default(), &event).await.map(drop));
}

fn told(result: Result<(), kube::Error>) {
    match result {
        Ok(()) => {}
        Err(error) if failure::namespace_goes(&error) => {}
        Err(error) => tracing::debug!(%error, "an event was not written"),
    }
}
