//! Watches the metadata of the objects of every resource, once for all controllers that deal with all kinds.
//!
//! One watch per resource, with bookmarks, of metadata only. Events go to subscribers at once and nothing is kept: a
//! subscriber keeps what it needs. The set of resources follows discovery, which is repeated when a definition of
//! resources changes, when somebody misses a kind, and slowly in any case.

use std::{collections::HashMap, sync::Arc, time::Duration};

use futures::StreamExt;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Client;
use mainstay_watch::{Event, Watch, WatchOptions};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    discovery::{DiscoveryCache, ServerResource, ServerResources},
    object_meta::PartialMeta,
    outage::Outage,
};

/// How often discovery is repeated when nothing suggests a change.
const REDISCOVERY: Duration = Duration::from_secs(300);
/// How soon it is repeated when something does; changes of definitions come in bursts.
const AFTER_CHANGE: Duration = Duration::from_millis(250);
/// How soon it is repeated after a failure.
const AFTER_FAILURE: Duration = Duration::from_secs(2);
/// Many and short-lived, and neither own nor are owned; or another view of objects that are watched anyway.
const NOT_WATCHED: [(&str, &str); 5] = [
    ("", "events"),
    ("events.k8s.io", "events"),
    ("kubernikus.sap.cc", "klusters"),
    ("mainstay.dev", "offers"),
    ("mainstay.dev", "servicetables"),
];

pub enum MetadataEvent {
    /// A list of a resource begins...
    ListBegan,
    /// An object is there, new or changed.
    Applied(ObjectMeta),
    Deleted(ObjectMeta),
    /// ...and ends: what was not applied in between is not there.
    ListEnded,
    /// The server no longer has the resource.
    ResourceRemoved,
}

type Subscriber = Box<dyn Fn(&Arc<ServerResource>, &MetadataEvent) + Send + Sync>;

pub struct MetadataWatch {
    client: Client,
    discovery: Arc<DiscoveryCache>,
    subscribers: Mutex<Arc<Vec<Subscriber>>>,
    watched: Mutex<HashMap<(String, String), WatchedResource>>,
    synced: watch::Sender<bool>,
    /// Counts discoveries that added resources.
    added: watch::Sender<u64>,
}

struct WatchedResource {
    resource: Arc<ServerResource>,
    stop: CancellationToken,
    listed: bool,
}

impl MetadataWatch {
    pub fn new(client: Client, discovery: Arc<DiscoveryCache>) -> Arc<Self> {
        let (synced, added) = (watch::Sender::new(false), watch::Sender::new(0));
        Arc::new(Self { client, discovery, subscribers: Mutex::default(), watched: Mutex::default(), synced, added })
    }

    /// Calls `subscriber` with every event. Subscribers add keys to work queues; they do no work.
    pub fn on_event(&self, subscriber: impl Fn(&Arc<ServerResource>, &MetadataEvent) + Send + Sync + 'static) {
        let mut subscribers = self.subscribers.lock();
        let all = Arc::get_mut(&mut subscribers).expect("subscribers are added before the watch begins");
        all.push(Box::new(subscriber));
    }

    /// Whether every resource has been listed once.
    pub fn synced(&self) -> watch::Receiver<bool> {
        self.synced.subscribe()
    }

    /// Changes whenever resources were added.
    pub fn resources_added(&self) -> watch::Receiver<u64> {
        self.added.subscribe()
    }

    /// Watches until asked to stop.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        let tasks = TaskTracker::new();
        let mut failing = false;
        loop {
            let Some(discovered) = stop.run_until_cancelled(ServerResources::discover(&self.client)).await else {
                break;
            };
            let pause = match discovered {
                Ok(resources) => {
                    if std::mem::take(&mut failing) {
                        tracing::info!("discovery of resources works again");
                    }
                    let resources = Arc::new(resources);
                    self.discovery.set(resources.clone());
                    self.follow(&resources, &tasks, &stop);
                    REDISCOVERY
                }
                Err(error) => {
                    if !std::mem::replace(&mut failing, true) {
                        tracing::warn!(error = error.chain(), "cannot discover resources; retrying");
                    }
                    AFTER_FAILURE
                }
            };
            let stopped = tokio::select! {
                () = stop.cancelled() => true,
                () = tokio::time::sleep(pause) => false,
                () = self.discovery.stale.notified() => {
                    stop.run_until_cancelled(tokio::time::sleep(AFTER_CHANGE)).await.is_none()
                }
            };
            if stopped {
                break;
            }
        }
        tasks.close();
        tasks.wait().await;
    }

    /// Starts to watch what is new and ends what is gone. A resource whose group failed discovery is not gone.
    fn follow(self: &Arc<Self>, resources: &ServerResources, tasks: &TaskTracker, stop: &CancellationToken) {
        let wanted = |resource: &ServerResource| {
            let verbs = ["list", "watch", "get", "delete"].iter().all(|verb| resource.can(verb));
            verbs && !NOT_WATCHED.iter().any(|(group, plural)| resource.is_named(group, plural))
        };
        let mut added = false;
        {
            let mut watched = self.watched.lock();
            for resource in resources.resources.iter().filter(|r| wanted(r)) {
                let key = (resource.api.group.clone(), resource.api.plural.clone());
                match watched.get(&key) {
                    Some(known) if known.resource == *resource => continue,
                    Some(changed) => changed.stop.cancel(),
                    None => {}
                }
                let stop = stop.child_token();
                let entry = WatchedResource { resource: resource.clone(), stop: stop.clone(), listed: false };
                watched.insert(key, entry);
                tasks.spawn(self.clone().watch_resource(resource.clone(), stop));
                added = true;
            }
            watched.retain(|(group, plural), known| {
                let there = resources.resources.iter().any(|r| r.is_named(group, plural) && wanted(r));
                let failed = resources.failed_groups.iter().any(|(failed, _)| failed.split('/').next() == Some(group));
                if !there && !failed {
                    known.stop.cancel();
                    self.publish(&known.resource, &MetadataEvent::ResourceRemoved);
                }
                there || failed
            });
        }
        if added {
            self.added.send_modify(|count| *count += 1);
        }
    }

    async fn watch_resource(self: Arc<Self>, resource: Arc<ServerResource>, stop: CancellationToken) {
        let api = resource.api(&self.client, None);
        let mut events =
            Watch::<PartialMeta>::new(api, WatchOptions { metadata_only: true, ..WatchOptions::default() });
        let mut outage = Outage::new(resource.clone());
        while let Some(Some(event)) = stop.run_until_cancelled(events.next()).await {
            let event = match event {
                Ok(Event::Init) => MetadataEvent::ListBegan,
                Ok(Event::InitApply(object) | Event::Apply(object)) => MetadataEvent::Applied(object.metadata),
                Ok(Event::Delete(object)) => MetadataEvent::Deleted(object.metadata),
                Ok(Event::InitDone) => MetadataEvent::ListEnded,
                Err(error) => {
                    outage.failed(&error);
                    continue;
                }
            };
            if stop.is_cancelled() {
                return;
            }
            if !matches!(event, MetadataEvent::ListBegan) {
                outage.worked();
            }
            self.publish(&resource, &event);
            if matches!(event, MetadataEvent::ListEnded) {
                self.listed(&resource);
            }
        }
    }

    fn publish(&self, resource: &Arc<ServerResource>, event: &MetadataEvent) {
        let subscribers = self.subscribers.lock().clone();
        subscribers.iter().for_each(|subscriber| subscriber(resource, event));
    }

    fn listed(&self, resource: &ServerResource) {
        let mut watched = self.watched.lock();
        if let Some(known) = watched.get_mut(&(resource.api.group.clone(), resource.api.plural.clone())) {
            known.listed = true;
        }
        if watched.values().all(|known| known.listed) {
            self.synced.send_replace(true);
        }
    }
}
