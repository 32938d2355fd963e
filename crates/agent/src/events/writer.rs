//! Writes events to the API, in the order they were said.
//!
//! What is said again is counted, not written again; of an object that talks too much, only so much is written. An
//! API that is away is waited for; what was said too long ago by then, and the oldest of too much, is
//! dropped: events are news, not a record.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::json;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{
    QueuedEvent,
    tally::{Tally, Written},
};
use crate::watch_backoff::api_retries;

const DEADLINE: Duration = Duration::from_secs(10);
/// Nobody waits for news older than this.
const STALE: Duration = Duration::from_secs(600);
const MOST_WAITING: usize = 1000;
/// How long is tried to write what is left when asked to stop.
const LAST_WORDS: Duration = Duration::from_secs(1);

pub struct Writer {
    client: Client,
    said: mpsc::Receiver<QueuedEvent>,
    tally: Tally,
    waiting: VecDeque<(QueuedEvent, Instant)>,
}

impl Writer {
    pub fn new(client: Client, node_name: &str, said: mpsc::Receiver<QueuedEvent>) -> Self {
        Self { client, said, tally: Tally::new(node_name), waiting: VecDeque::new() }
    }

    pub async fn run(mut self, stop: CancellationToken) {
        stop.run_until_cancelled(self.follow()).await;
        let rest = async {
            self.take();
            while self.write_next().await.is_ok_and(|wrote| wrote) {}
        };
        let _ = tokio::time::timeout(LAST_WORDS, rest).await;
    }

    async fn follow(&mut self) {
        let mut retries = api_retries();
        loop {
            if self.waiting.is_empty() {
                let Some(said) = self.said.recv().await else { return };
                self.waiting.push_back((said, Instant::now()));
            }
            self.take();
            match tokio::time::timeout(DEADLINE, self.write_next()).await {
                Ok(Ok(_)) => retries.reset(),
                _ => {
                    tokio::time::sleep(retries.record_failure()).await;
                }
            }
        }
    }

    /// All that has been said meanwhile, as far as there is room.
    fn take(&mut self) {
        while let Ok(said) = self.said.try_recv() {
            self.waiting.push_back((said, Instant::now()));
        }
        let surplus = self.waiting.len().saturating_sub(MOST_WAITING);
        self.waiting.drain(..surplus);
        while self.waiting.front().is_some_and(|(_, since)| since.elapsed() > STALE) {
            self.waiting.pop_front();
        }
    }

    /// `false` if nothing waits. An error is worth another try.
    async fn write_next(&mut self) -> Result<bool, kube::Error> {
        let Some((said, since)) = self.waiting.front() else { return Ok(false) };
        let now = Timestamp::now().checked_sub(since.elapsed()).unwrap_or_default();
        let Some(written) = self.tally.count(said, now) else {
            self.waiting.pop_front(); // too much from this one
            return Ok(true);
        };
        match self.write(&written).await {
            Ok(()) => self.tally.keep(written),
            // Refused for good: its namespace is going, or the API does not like it.
            Err(kube::Error::Api(status)) if (400..500).contains(&status.code) && status.code != 429 => {
                tracing::debug!(why = status.message, "an event was refused");
            }
            Err(error) => return Err(error),
        }
        self.waiting.pop_front();
        Ok(true)
    }

    async fn write(&self, written: &Written) -> Result<(), kube::Error> {
        let event = &written.event;
        let namespace = event.metadata.namespace.as_deref().unwrap_or("default");
        let events: Api<Event> = Api::namespaced(self.client.clone(), namespace);
        if written.again {
            let change = json!({
                "count": event.count, "lastTimestamp": event.last_timestamp, "message": event.message,
            });
            let name = event.metadata.name.as_deref().unwrap_or_default();
            match events.patch(name, &PatchParams::default(), &Patch::Merge(change)).await {
                Err(kube::Error::Api(status)) if status.code == 404 => {} // it has expired
                done => return done.map(drop),
            }
        }
        events.create(&PostParams::default(), event).await.map(drop)
    }
}

#[cfg(test)]
mod tests;
