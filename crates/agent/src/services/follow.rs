//! The objects of one kind as they come and go, from the API; kept in a file for a start without one.

use std::{collections::BTreeSet, fmt::Debug, path::PathBuf, pin::pin, time::Duration};

use futures::StreamExt;
use kube::{
    Api, Resource,
    runtime::{
        WatchStreamExt,
        watcher::{self, Event, watcher},
    },
};
use mainstay_errors::error_chain;
use mainstay_network::catalogue::Key;
use serde::{Serialize, de::DeserializeOwned};
use tokio::{sync::mpsc, time::Instant};

use super::checkpoint::WatchCheckpoint;
use crate::watch_backoff::WatchBackoff;

/// How long the API is waited for before what was kept is believed.
const PATIENCE: Duration = Duration::from_secs(1);
/// Objects listed at once: few, for one of them may be long.
const PAGE: u32 = 100;

pub enum News<K> {
    Is(K),
    Gone(Key),
    /// Everything there is has been told of; what is not among these is gone.
    Complete(BTreeSet<Key>),
    /// The server was lost, and with it what it remembered of us.
    Interrupted,
}

/// What a kind must be to be followed.
pub trait Followed:
    Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned + Send + Sync + 'static
{
}
impl<K> Followed for K where
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

/// Tells until nobody listens. What the API says is kept; if it says nothing at first, what was kept is told.
pub async fn follow<K: Followed>(api: Api<K>, file: PathBuf, told: mpsc::Sender<News<K>>) {
    let mut kept = WatchCheckpoint::<K>::at(file);
    let config = watcher::Config::default().page_size(PAGE);
    let mut events = pin!(watcher(api, config).backoff(WatchBackoff::default()));
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
                    if recall(&kept, &told).await.is_none() {
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
                kept.begin();
                Some(())
            }
            Some(Ok(Event::InitApply(object))) => {
                listed.insert(key(&object));
                kept.put(&object);
                told.send(News::Is(object)).await.ok()
            }
            Some(Ok(Event::InitDone)) => {
                informed = true;
                kept.complete();
                told.send(News::Complete(std::mem::take(&mut listed))).await.ok()
            }
            Some(Ok(Event::Apply(object))) => {
                kept.put(&object);
                told.send(News::Is(object)).await.ok()
            }
            Some(Ok(Event::Delete(object))) => {
                kept.remove(&key(&object));
                told.send(News::Gone(key(&object))).await.ok()
            }
            Some(Err(error)) => {
                tracing::debug!(error = error_chain(&error), kind = %K::kind(&()), "cannot follow; will follow again");
                told.send(News::Interrupted).await.ok()
            }
        };
        if sent.is_none() {
            return;
        }
    }
}

/// Tells what an earlier process was told, if anything.
async fn recall<K: Followed>(kept: &WatchCheckpoint<K>, told: &mpsc::Sender<News<K>>) -> Option<()> {
    let Some(objects) = kept.read() else { return Some(()) };
    tracing::info!(kind = %K::kind(&()), count = objects.len(), "the API does not answer; going by what it last said");
    let all = objects.iter().map(key).collect();
    for object in objects {
        told.send(News::Is(object)).await.ok()?;
    }
    told.send(News::Complete(all)).await.ok()
}
