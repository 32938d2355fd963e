//! Nodes of Klusters: one watch per Kluster that runs, is upgraded or goes, closed when the Kluster is gone.

use std::{collections::HashMap, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Node;
use mainstay_controllers::runtime::{Cache, Change};
use parking_lot::Mutex;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::members::NodeView;
use crate::{
    kluster_access::KlusterClient,
    watch_weight::{MOST_BYTES, WatchWeight},
};

/// How long the first list of a kluster's Nodes may take.
const SYNC_LIMIT: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
#[error("the kluster's Nodes were not listed within {SYNC_LIMIT:?}")]
pub struct NotSynced;

#[derive(Default)]
pub struct NodeObservatory {
    watches: Mutex<HashMap<String, NodeWatch>>,
    tasks: TaskTracker,
}

struct NodeWatch {
    server: String,
    cache: Arc<Cache<Node>>,
    stop: CancellationToken,
    weight: Arc<WatchWeight>,
}

impl Drop for NodeWatch {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl NodeObservatory {
    /// The Nodes of a kluster. `wake` is called when one comes or goes, becomes ready or not, or is cordoned or not.
    pub async fn nodes(
        &self,
        kluster_uid: &str,
        access: &KlusterClient,
        wake: impl Fn() + Send + Sync + 'static,
    ) -> Result<Vec<Arc<Node>>, NotSynced> {
        let cache = self.watch(kluster_uid, access, wake);
        tokio::time::timeout(SYNC_LIMIT, cache.synced()).await.map_err(|_| NotSynced)?;
        if let Some(watch) = self.watches.lock().get_mut(kluster_uid).filter(|watch| watch.weight.is_exceeded()) {
            watch.cache = Arc::new(Cache::new()); // never filled: nothing is known from now on
            return Err(NotSynced);
        }
        let mut nodes = cache.all();
        nodes.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
        Ok(nodes)
    }

    fn watch(&self, uid: &str, access: &KlusterClient, wake: impl Fn() + Send + Sync + 'static) -> Arc<Cache<Node>> {
        let mut watches = self.watches.lock();
        if let Some(watch) = watches.get(uid).filter(|watch| watch.server == access.server) {
            return watch.cache.clone();
        }
        let (cache, stop) = (Arc::new(Cache::<Node>::new()), CancellationToken::new());
        let weight = Arc::<WatchWeight>::default();
        let (own_weight, ended) = (weight.clone(), stop.clone());
        cache.on_change(move |change: Change<'_, Node>| {
            if own_weight.observe(&change, MOST_BYTES) {
                ended.cancel();
            }
            let state = |node: Option<&Node>| node.map(|node| (is_ready(node), is_cordoned(node)));
            if state(change.before) != state(change.after) {
                wake();
            }
        });
        self.tasks.spawn(cache.clone().run(access.client.clone(), stop.clone()));
        let watch = NodeWatch { server: access.server.clone(), cache: cache.clone(), stop, weight };
        watches.insert(uid.to_owned(), watch);
        cache
    }

    /// Closes the watch of a Kluster that is gone.
    pub fn close(&self, kluster_uid: &str) {
        self.watches.lock().remove(kluster_uid);
    }

    /// How many watches are open.
    pub fn open_watches(&self) -> usize {
        self.watches.lock().len()
    }
}

pub fn is_ready(node: &Node) -> bool {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

fn is_cordoned(node: &Node) -> bool {
    node.spec.as_ref().and_then(|spec| spec.unschedulable).unwrap_or(false)
}

impl From<&Node> for NodeView {
    fn from(node: &Node) -> Self {
        Self {
            name: node.metadata.name.clone().unwrap_or_default(),
            uid: node.metadata.uid.clone().unwrap_or_default(),
            unschedulable: is_cordoned(node),
            ready: is_ready(node),
        }
    }
}
