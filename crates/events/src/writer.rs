//! Writes recorded events to the API: one task, at most a few rounds a second; what is recorded meanwhile is correlated.

use std::time::Duration;

use futures::StreamExt;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::core::v1::{Event, EventSource as Source},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use mainstay_backoff::Backoff;
use serde_json::json;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio_util::sync::CancellationToken;

use crate::{
    correlator::{Correlator, EventWrite},
    recorder::Occurrence,
};

/// Between two rounds of writing.
const ROUND: Duration = Duration::from_millis(250);
/// Between two rounds while the API cannot be reached.
const RETRY: Backoff = Backoff::new(ROUND, Duration::from_secs(5), 0.0);
const CONCURRENT_WRITES: usize = 16;
/// A write that takes longer counts as one that the API did not answer.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// When asked to stop, how long what was recorded may still be written.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);
/// What waits for an API that cannot be reached: no more events than these, and none older than this.
const MOST_UNWRITTEN: usize = 1000;
const LONGEST_WAIT: SignedDuration = SignedDuration::from_mins(10);

pub struct EventWriter {
    recorded: UnboundedReceiver<Occurrence>,
}

impl EventWriter {
    pub(crate) fn new(recorded: UnboundedReceiver<Occurrence>) -> Self {
        Self { recorded }
    }

    /// The next recorded event, for tests that need no API.
    pub fn try_next(&mut self) -> Option<Occurrence> {
        self.recorded.try_recv().ok()
    }

    /// Writes until asked to stop or until every recorder is gone, then flushes.
    pub async fn run(mut self, client: Client, stop: CancellationToken) {
        let (mut outbox, mut batch, mut failures) = (Outbox::default(), Vec::new(), 0);
        loop {
            if outbox.unwritten.is_empty() {
                match stop.run_until_cancelled(self.recorded.recv_many(&mut batch, 10_000)).await {
                    Some(1..) => {}
                    Some(0) | None => break,
                }
            }
            batch.extend(std::iter::from_fn(|| self.try_next()).take(10_000));
            outbox.add(batch.drain(..), Timestamp::now());
            let Some(reached) = stop.run_until_cancelled(outbox.write(&client)).await else { break };
            failures = if reached { 0 } else { failures + 1 };
            let pause = if reached { ROUND } else { RETRY.ceiling(failures) };
            stop.run_until_cancelled(tokio::time::sleep(pause)).await;
        }
        self.recorded.close();
        outbox.add(std::iter::from_fn(|| self.try_next()), Timestamp::now());
        let _ = tokio::time::timeout(FLUSH_TIMEOUT, outbox.write(&client)).await;
    }
}

/// Events that are to be written, the oldest first. What is being written stays here until it is, so that a write can be
/// given up at any point.
#[derive(Default)]
struct Outbox {
    correlator: Correlator,
    unwritten: Vec<EventWrite>,
}

impl Outbox {
    fn add(&mut self, occurrences: impl Iterator<Item = Occurrence>, now: Timestamp) {
        for write in self.correlator.correlate(occurrences, now) {
            // The newer write has the higher count of the same event.
            match self.unwritten.iter_mut().find(|waiting| waiting.name == write.name) {
                Some(waiting) => *waiting = write,
                None => self.unwritten.push(write),
            }
        }
        self.unwritten.retain(|write| now.duration_since(write.last) < LONGEST_WAIT);
        let surplus = self.unwritten.len().saturating_sub(MOST_UNWRITTEN);
        self.unwritten.drain(..surplus);
    }

    /// Writes all, or as far as the API can be reached. Says whether it could.
    async fn write(&mut self, client: &Client) -> bool {
        let writes = futures::stream::iter(self.unwritten.clone()).map(async |write| {
            let uid = tokio::time::timeout(WRITE_TIMEOUT, write_event(client, &write)).await;
            (write, uid.unwrap_or(Err(Unreachable)))
        });
        let mut written = std::pin::pin!(writes.buffer_unordered(CONCURRENT_WRITES));
        while let Some((write, uid)) = written.next().await {
            let Ok(uid) = uid else { return false };
            self.correlator.set_written(&write.occurrence, &write.name, uid);
            self.unwritten.retain(|waiting| waiting.name != write.name);
        }
        true
    }
}

/// The API did not answer, or asks to come back later.
struct Unreachable;

/// Raises the count of the event that was created before, or creates it. Says which event there is now.
async fn write_event(client: &Client, write: &EventWrite) -> Result<Option<String>, Unreachable> {
    let namespace = write.occurrence.involved.namespace.clone().filter(|namespace| !namespace.is_empty());
    let namespace = namespace.unwrap_or_else(|| "default".to_owned());
    let events: Api<Event> = Api::namespaced(client.clone(), &namespace);
    if let Some(uid) = &write.uid {
        let change = json!({
            "metadata": { "uid": uid }, "count": write.count, "lastTimestamp": Time(write.last),
            "message": write.occurrence.note.message,
        });
        match events.patch_metadata(&write.name, &PatchParams::default(), &Patch::Merge(change)).await {
            Ok(_) => return Ok(Some(uid.clone())),
            // It expired, or its name belongs to another by now: written anew.
            Err(kube::Error::Api(status)) if status.code == 404 || status.code == 409 => {}
            Err(error) if is_transient(&error) => return Err(Unreachable),
            Err(error) => {
                tracing::debug!(%error, event = write.name, "cannot raise the count of an event; it is dropped");
                return Ok(Some(uid.clone()));
            }
        }
    }
    match events.create(&PostParams::default(), &event(write, namespace)).await {
        Ok(created) => Ok(created.metadata.uid),
        Err(error) if is_transient(&error) => Err(Unreachable),
        Err(error) => {
            tracing::debug!(%error, event = write.name, "cannot create an event; it is dropped");
            Ok(None)
        }
    }
}

fn is_transient(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => status.code == 429 || status.code >= 500,
        _ => true,
    }
}

fn event(write: &EventWrite, namespace: String) -> Event {
    let Occurrence { source, involved, note } = &write.occurrence;
    Event {
        metadata: ObjectMeta { name: Some(write.name.clone()), namespace: Some(namespace), ..ObjectMeta::default() },
        type_: Some(note.event_type.as_str().to_owned()),
        reason: Some(note.reason.clone().into_owned()),
        message: Some(note.message.clone()),
        involved_object: involved.clone(),
        source: Some(Source {
            component: Some(source.component.clone().into_owned()),
            host: Some(source.instance.to_string()).filter(|host| !host.is_empty()),
        }),
        reporting_component: Some(source.component.clone().into_owned()),
        reporting_instance: Some(source.instance.to_string()),
        first_timestamp: Some(Time(write.first)),
        last_timestamp: Some(Time(write.last)),
        count: Some(write.count),
        ..Event::default()
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ObjectReference;

    use super::*;
    use crate::recorder::{EventNote, EventSource};

    #[test]
    fn an_event_names_its_component_its_instance_and_the_part_it_is_about() {
        let involved = ObjectReference { field_path: Some("spec.containers{a}".into()), ..ObjectReference::default() };
        let occurrence = Occurrence {
            source: EventSource { component: "kubelet".into(), instance: "node-1".into() },
            involved,
            note: EventNote::warning("BackOff", "Back-off restarting failed container"),
        };
        let (first, last) = (Timestamp::UNIX_EPOCH, Timestamp::UNIX_EPOCH);
        let write = EventWrite { name: "web.1".into(), uid: None, occurrence, count: 3, first, last };
        let event = event(&write, "ns".into());
        let source = event.source.unwrap();
        assert_eq!((source.component.as_deref(), source.host.as_deref()), (Some("kubelet"), Some("node-1")));
        assert_eq!(event.reporting_instance.as_deref(), Some("node-1"));
        assert_eq!(event.involved_object.field_path.as_deref(), Some("spec.containers{a}"));
        assert_eq!((event.type_.as_deref(), event.count), (Some("Warning"), Some(3)));
    }
}
