//! Writes recorded events to the API: one task, at most a few rounds a second; what is recorded meanwhile is correlated.

use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Event, EventSource as Source},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::json;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio_util::sync::CancellationToken;

use crate::{
    correlator::{Correlator, EventWrite},
    recorder::Occurrence,
};

/// Between two rounds of writing.
const ROUND: Duration = Duration::from_millis(250);
const CONCURRENT_WRITES: usize = 16;
/// When asked to stop, how long what was recorded may still be written.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

pub struct EventWriter {
    recorded: UnboundedReceiver<Occurrence>,
}

impl EventWriter {
    pub(crate) fn new(recorded: UnboundedReceiver<Occurrence>) -> Self {
        Self { recorded }
    }

    /// Writes until asked to stop or until every recorder is gone, then flushes.
    pub async fn run(mut self, client: Client, stop: CancellationToken) {
        let (mut correlator, mut batch) = (Correlator::default(), Vec::new());
        while let Some(1..) = stop.run_until_cancelled(self.recorded.recv_many(&mut batch, 10_000)).await {
            write_batch(&client, &mut correlator, &mut batch).await;
            stop.run_until_cancelled(tokio::time::sleep(ROUND)).await;
        }
        self.recorded.close();
        while let Ok(last) = self.recorded.try_recv() {
            batch.push(last);
        }
        let _ = tokio::time::timeout(FLUSH_TIMEOUT, write_batch(&client, &mut correlator, &mut batch)).await;
    }
}

async fn write_batch(client: &Client, correlator: &mut Correlator, batch: &mut Vec<Occurrence>) {
    let writes = correlator.correlate(batch.drain(..), Timestamp::now());
    let written = futures::stream::iter(writes).map(async |write| {
        let uid = write_event(client, &write).await;
        (write, uid)
    });
    let mut written = std::pin::pin!(written.buffer_unordered(CONCURRENT_WRITES));
    while let Some((write, uid)) = written.next().await {
        correlator.set_written(&write.occurrence, &write.name, uid);
    }
}

/// Raises the count of the event that was created before, or creates it. Says which event there is now.
async fn write_event(client: &Client, write: &EventWrite) -> Option<String> {
    let namespace = write.occurrence.involved.namespace.clone().filter(|namespace| !namespace.is_empty());
    let namespace = namespace.unwrap_or_else(|| "default".to_owned());
    let events: Api<Event> = Api::namespaced(client.clone(), &namespace);
    if let Some(uid) = &write.uid {
        let change = json!({
            "metadata": { "uid": uid }, "count": write.count, "lastTimestamp": Time(write.last),
            "message": write.occurrence.note.message,
        });
        match events.patch_metadata(&write.name, &PatchParams::default(), &Patch::Merge(change)).await {
            Ok(_) => return Some(uid.clone()),
            // It expired, or its name belongs to another by now: written anew.
            Err(kube::Error::Api(status)) if status.code == 404 || status.code == 409 => {}
            Err(error) => {
                tracing::debug!(%error, event = write.name, "cannot raise the count of an event; it is dropped");
                return Some(uid.clone());
            }
        }
    }
    match events.create(&PostParams::default(), &event(write, namespace)).await {
        Ok(created) => created.metadata.uid,
        Err(error) => {
            tracing::debug!(%error, event = write.name, "cannot create an event; it is dropped");
            None
        }
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
