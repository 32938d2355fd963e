//! The observatory: one client and one cache of Nodes per Kluster, shared by all controllers that look at machines.
//!
//! A Kluster is observed while it is Running, Upgrading or Terminating and its API has a kubeconfig here. The watch ends, and the
//! cache with it, when the Kluster goes or gets other credentials; a watch that breaks is taken up again by the cache itself. Whoever asks for Nodes
//! waits for the first list for at most five seconds, and is told if there is none: Nodes that are not known are never taken for none.

use std::{collections::HashMap, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Node;
use kube::Client;
use mainstay_controllers::runtime::{Cache, Change, EventRecorder, ObjectKey};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    bounded_client::{MOST_BYTES, bounded_client},
    kluster_kubeconfig::client_config,
    watch_weight::{MOST_BYTES as MOST_NODE_BYTES, WatchWeight},
};

/// How long the first list of Nodes is waited for.
const SYNC_LIMIT: Duration = Duration::from_secs(5);

/// A cluster whose Nodes are watched.
#[derive(Clone)]
pub struct ObservedCluster {
    pub client: Client,
    pub nodes: Arc<Cache<Node>>,
    /// Writes to that cluster's API.
    pub events: EventRecorder,
}

struct Observation {
    cluster: ObservedCluster,
    credentials: [u8; 32],
    stop: CancellationToken,
    weight: Arc<WatchWeight>,
}

type Listener = Arc<dyn Fn(&ObjectKey) + Send + Sync>;

#[derive(Default)]
pub struct NodeObservatory {
    observations: Mutex<HashMap<ObjectKey, Observation>>,
    listeners: Mutex<Vec<Listener>>,
    tasks: TaskTracker,
}

#[derive(Debug, thiserror::Error)]
pub enum ObserveError {
    #[error("the kubeconfig of kluster {0:?} cannot be used")]
    Kubeconfig(ObjectKey, #[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("the Nodes of kluster {0:?} could not be listed within 5 s")]
    NotSynced(ObjectKey),
    #[error("the Nodes of kluster {0:?} are larger than {most} MiB together: they are not looked at", most = MOST_NODE_BYTES >> 20)]
    TooLarge(ObjectKey),
}

impl NodeObservatory {
    /// Calls `listener` with the key of a Kluster whenever one of its Nodes changes.
    pub fn on_change(&self, listener: impl Fn(&ObjectKey) + Send + Sync + 'static) {
        self.listeners.lock().push(Arc::new(listener));
    }

    /// The cluster with these credentials, observed from now on if it was not; waits until its Nodes are known.
    pub async fn observe(&self, key: &ObjectKey, kubeconfig: &str) -> Result<ObservedCluster, ObserveError> {
        let credentials: [u8; 32] = Sha256::digest(kubeconfig.as_bytes()).into();
        let known = self
            .observations
            .lock()
            .get(key)
            .filter(|known| known.credentials == credentials)
            .map(|known| known.cluster.clone());
        let cluster = match known {
            Some(cluster) => cluster,
            None => {
                let client = connect(kubeconfig).await.map_err(|error| ObserveError::Kubeconfig(key.clone(), error))?;
                self.open(key, client, credentials)
            }
        };
        let synced = tokio::time::timeout(SYNC_LIMIT, cluster.nodes.synced()).await;
        if self.is_too_large(key) {
            return Err(ObserveError::TooLarge(key.clone()));
        }
        match synced {
            Ok(()) => Ok(cluster),
            Err(_) => Err(ObserveError::NotSynced(key.clone())),
        }
    }

    /// Whether the Nodes of a Kluster are too large; what is known of them is given up then.
    fn is_too_large(&self, key: &ObjectKey) -> bool {
        let mut observations = self.observations.lock();
        let Some(known) = observations.get_mut(key).filter(|known| known.weight.is_exceeded()) else { return false };
        known.cluster.nodes = Arc::new(Cache::new());
        true
    }

    fn open(&self, key: &ObjectKey, client: Client, credentials: [u8; 32]) -> ObservedCluster {
        let mut observations = self.observations.lock();
        if let Some(known) = observations.get(key).filter(|known| known.credentials == credentials) {
            return known.cluster.clone(); // somebody else was faster
        }
        let (nodes, stop) = (Arc::new(Cache::new()), CancellationToken::new());
        let listeners = self.listeners.lock().clone();
        let weight = Arc::<WatchWeight>::default();
        nodes.on_change({
            let (key, weight, stop) = (key.clone(), weight.clone(), stop.clone());
            move |change: Change<'_, Node>| {
                if weight.observe(&change, MOST_NODE_BYTES) && !stop.is_cancelled() {
                    tracing::warn!(kluster = ?key, "the Nodes of a Kluster are too large together; they are not looked at any more");
                    stop.cancel();
                }
                listeners.iter().for_each(|listener| listener(&key));
            }
        });
        let (events, writer) = EventRecorder::new();
        self.tasks.spawn(nodes.clone().run(client.clone(), stop.clone()));
        self.tasks.spawn(writer.run(client.clone(), stop.clone()));
        let cluster = ObservedCluster { client, nodes, events };
        let observation = Observation { cluster: cluster.clone(), credentials, stop, weight };
        if let Some(old) = observations.insert(key.clone(), observation) {
            old.stop.cancel();
        }
        cluster
    }

    /// Ends the watch of a Kluster that went.
    pub fn close(&self, key: &ObjectKey) {
        if let Some(observation) = self.observations.lock().remove(key) {
            observation.stop.cancel();
        }
    }

    /// Ends all watches, and returns when their tasks have.
    pub async fn close_all(&self) {
        for (_, observation) in self.observations.lock().drain() {
            observation.stop.cancel();
        }
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// How many clusters are observed, and how many tasks do that.
    pub fn counts(&self) -> (usize, usize) {
        (self.observations.lock().len(), self.tasks.len())
    }
}

impl Drop for NodeObservatory {
    fn drop(&mut self) {
        self.observations.lock().values().for_each(|observation| observation.stop.cancel());
    }
}

async fn connect(kubeconfig: &str) -> Result<Client, Box<dyn std::error::Error + Send + Sync>> {
    Ok(bounded_client(client_config(kubeconfig).await?, MOST_BYTES)?)
}

#[cfg(test)]
mod tests {
    use kube::{Api, api::PostParams};
    use mainstay_testing::{TestApi, until};

    use super::*;

    fn key(n: usize) -> ObjectKey {
        ObjectKey::new("kubernikus", format!("kluster-{n}"))
    }

    #[tokio::test]
    async fn every_kluster_has_one_watch_and_none_is_left_after_it() {
        let api = TestApi::start(&[]).await;
        let observatory = NodeObservatory::default();
        let changed = Arc::<Mutex<Vec<ObjectKey>>>::default();
        observatory.on_change({
            let changed = changed.clone();
            move |key| changed.lock().push(key.clone())
        });
        let clusters: Vec<ObservedCluster> = (0..100)
            .map(|n| {
                let cluster = observatory.open(&key(n), api.client("test"), [0; 32]);
                observatory.open(&key(n), api.client("test"), [0; 32]);
                cluster
            })
            .collect();
        assert_eq!(observatory.counts(), (100, 200), "a watch and a writer of events each");
        let nodes: Api<Node> = Api::all(api.client("test"));
        let node = Node {
            metadata: kube::api::ObjectMeta { name: Some("n".into()), ..Default::default() },
            ..Node::default()
        };
        nodes.create(&PostParams::default(), &node).await.unwrap();
        until("everybody knows the node", async || clusters.iter().all(|cluster| !cluster.nodes.all().is_empty()))
            .await;
        assert!((0..100).all(|n| changed.lock().contains(&key(n))));
        // Other credentials are another watch, and the old one ends.
        observatory.open(&key(0), api.client("test"), [1; 32]);
        until("the old watch ended", async || observatory.counts() == (100, 200)).await;
        (0..100).for_each(|n| observatory.close(&key(n)));
        until("all watches ended", async || observatory.counts() == (0, 0)).await;
        api.stop.cancel();
    }

    #[tokio::test]
    async fn a_kubeconfig_that_is_none_is_said_and_leaves_nothing() {
        let observatory = NodeObservatory::default();
        let error = observatory.observe(&key(1), "nonsense").await.err().unwrap();
        assert!(matches!(error, ObserveError::Kubeconfig(..)), "{error}");
        assert_eq!(observatory.counts(), (0, 0));
    }
}
