//! A watch on all objects of one kind, with a checkpoint for a start while no server answers.

use std::{collections::BTreeSet, fmt::Debug, path::PathBuf, time::Duration};

use futures::StreamExt;
use kube::{Api, Resource};
use mainstay_errors::error_chain;
use mainstay_network::catalogue::Key;
use mainstay_watch::{Event, Watch, WatchOptions};
use serde::{Serialize, de::DeserializeOwned};
use tokio::{sync::mpsc, time::Instant};

use super::checkpoint::WatchCheckpoint;
use crate::watch_backoff::WATCH_BACKOFF;

/// How long the API is waited for before what was kept is believed.
const PATIENCE: Duration = Duration::from_secs(1);
/// Objects listed at once: few, for one of them may be long.
const PAGE: u32 = 100;

pub enum WatchUpdate<K> {
    /// A list begins: until it is complete, what is applied is some of it, in the order of names.
    Listing,
    Applied(K),
    Deleted(Key),
    /// The list is complete: what is not among these keys is gone.
    Synced(BTreeSet<Key>),
    /// The watch was lost: the next server may know nothing of this node.
    Interrupted,
}

/// What a kind must be to be watched.
pub trait WatchedKind:
    Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned + Send + Sync + 'static
{
}
impl<K> WatchedKind for K where
    K: Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned + Send + Sync + 'static
{
}

pub fn key<K: Resource>(object: &K) -> Key {
    let meta = object.meta();
    Key::new(meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default())
}

pub fn version<K: Resource>(object: &K) -> u64 {
    object.meta().resource_version.as_deref().and_then(|version| version.parse().ok()).unwrap_or(0)
}

/// Sends changes until nobody receives them. What the API sends is saved; while it does not answer at first, what was saved is sent.
pub async fn follow<K: WatchedKind>(api: Api<K>, file: PathBuf, updates: mpsc::Sender<WatchUpdate<K>>) {
    let mut saved = WatchCheckpoint::<K>::open(file);
    let options = WatchOptions { page_size: PAGE, backoff: WATCH_BACKOFF, ..WatchOptions::default() };
    let mut events = Watch::<K>::new(api, options);
    let patience = Instant::now() + PATIENCE;
    let (mut listed, mut informed) = (BTreeSet::new(), false);
    loop {
        let event = if informed {
            events.next().await
        } else {
            match tokio::time::timeout_at(patience, events.next()).await {
                Ok(event) => event,
                Err(_) => {
                    informed = true;
                    if recall(&saved, &updates).await.is_none() {
                        return;
                    }
                    continue;
                }
            }
        };
        let sent = match event {
            None => return,
            Some(Ok(Event::Init)) => {
                listed.clear();
                saved.begin();
                updates.send(WatchUpdate::Listing).await.ok()
            }
            Some(Ok(Event::InitApply(object))) => {
                listed.insert(key(&object));
                saved.insert(&object);
                updates.send(WatchUpdate::Applied(object)).await.ok()
            }
            Some(Ok(Event::InitDone)) => {
                informed = true;
                saved.complete();
                updates.send(WatchUpdate::Synced(std::mem::take(&mut listed))).await.ok()
            }
            Some(Ok(Event::Apply(object))) => {
                saved.insert(&object);
                updates.send(WatchUpdate::Applied(object)).await.ok()
            }
            Some(Ok(Event::Delete(object))) => {
                saved.remove(&key(&object));
                updates.send(WatchUpdate::Deleted(key(&object))).await.ok()
            }
            Some(Err(error)) => {
                tracing::debug!(error = error_chain(&error), kind = %K::kind(&()), "cannot follow; will follow again");
                updates.send(WatchUpdate::Interrupted).await.ok()
            }
        };
        if sent.is_none() {
            return;
        }
    }
}

/// Sends what an earlier process saved, if anything.
async fn recall<K: WatchedKind>(saved: &WatchCheckpoint<K>, updates: &mpsc::Sender<WatchUpdate<K>>) -> Option<()> {
    let Some(objects) = saved.read() else { return Some(()) };
    tracing::info!(kind = %K::kind(&()), count = objects.len(), "the API does not answer; using the checkpoint");
    let all = objects.iter().map(key).collect();
    for object in objects {
        updates.send(WatchUpdate::Applied(object)).await.ok()?;
    }
    updates.send(WatchUpdate::Synced(all)).await.ok()?;
    updates.send(WatchUpdate::Listing).await.ok() // of the API, whenever it answers
}
