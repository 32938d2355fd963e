//! What happens to the objects of every kind, by metadata, seen once for everybody.
//!
//! One watch per resource, with bookmarks, of metadata only. What is seen goes to a sink at once
//! and is not kept here: a sink keeps what it needs. The set of resources follows the server's;
//! it is asked again when a definition of resources changes, when somebody misses a kind, and
//! slowly in any case.

use std::{collections::HashMap, sync::Arc, time::Duration};

use futures::StreamExt;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{
    Client,
    runtime::{
        WatchStreamExt,
        watcher::{self, DefaultBackoff, Event},
    },
};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::catalogue::{Catalogue, Kinds, Resource};

/// How often the server is asked for its resources when nothing suggests a change.
const SLOWLY: Duration = Duration::from_secs(300);
/// How soon it is asked when something does; changes of definitions come in bursts.
const SOON: Duration = Duration::from_millis(250);
/// How soon it is asked again if it did not answer.
const AGAIN: Duration = Duration::from_secs(2);

/// Something seen.
pub enum Seen {
    /// A complete account of a resource begins...
    Begin,
    /// An object is there, new or changed.
    Present(ObjectMeta),
    Gone(ObjectMeta),
    /// ...and ends: what was not mentioned in between is not there.
    End,
    /// The server no longer has the resource.
    Dropped,
}

pub trait Sink: Send + Sync + 'static {
    fn seen(&self, resource: &Arc<Resource>, seen: Seen);
    /// Resources were added.
    fn added(&self);
}

pub struct Monitor {
    client: Client,
    catalogue: Arc<Catalogue>,
    sink: Arc<dyn Sink>,
    followed: Mutex<HashMap<(String, String), Followed>>,
    complete: watch::Sender<bool>,
}

struct Followed {
    resource: Arc<Resource>,
    stop: CancellationToken,
    complete: bool,
}

impl Monitor {
    pub fn new(client: Client, catalogue: Arc<Catalogue>, sink: Arc<dyn Sink>) -> Arc<Self> {
        let complete = watch::Sender::new(false);
        Arc::new(Self { client, catalogue, sink, followed: Mutex::default(), complete })
    }

    /// Whether every resource has been accounted for once.
    pub fn complete(&self) -> watch::Receiver<bool> {
        self.complete.subscribe()
    }

    /// Follows everything until asked to stop.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        let tasks = TaskTracker::new();
        loop {
            let pause = match Kinds::discover(&self.client).await {
                Ok(kinds) => {
                    let kinds = Arc::new(kinds);
                    self.catalogue.set(kinds.clone());
                    self.follow(&kinds, &tasks, &stop);
                    SLOWLY
                }
                Err(failure) => {
                    tracing::warn!(why = failure.chain(), "cannot learn which resources there are; will ask again");
                    AGAIN
                }
            };
            let stopped = tokio::select! {
                () = stop.cancelled() => true,
                () = tokio::time::sleep(pause) => false,
                () = self.catalogue.missed.notified() => stop.run_until_cancelled(tokio::time::sleep(SOON)).await.is_none(),
            };
            if stopped {
                break;
            }
        }
        tasks.close();
        tasks.wait().await;
    }

    /// Starts to follow what is new and ends what is gone. A resource whose group did not answer
    /// is not gone.
    fn follow(self: &Arc<Self>, kinds: &Kinds, tasks: &TaskTracker, stop: &CancellationToken) {
        let wanted = |resource: &Resource| {
            // Many and short-lived, and neither owns nor is owned.
            let fleeting = [
                ("", "events"),
                ("events.k8s.io", "events"),
                ("mainstay.dev", "offers"),
                ("mainstay.dev", "servicetables"),
            ];
            let verbs = ["list", "watch", "get", "delete"].iter().all(|verb| resource.can(verb));
            verbs && !fleeting.iter().any(|(group, plural)| resource.is(group, plural))
        };
        let mut added = false;
        {
            let mut followed = self.followed.lock();
            for resource in kinds.resources.iter().filter(|r| wanted(r)) {
                let key = (resource.api.group.clone(), resource.api.plural.clone());
                match followed.get(&key) {
                    Some(known) if known.resource == *resource => continue,
                    Some(changed) => changed.stop.cancel(),
                    None => {}
                }
                let stop = stop.child_token();
                let entry = Followed { resource: resource.clone(), stop: stop.clone(), complete: false };
                followed.insert(key, entry);
                tasks.spawn(self.clone().follow_one(resource.clone(), stop));
                added = true;
            }
            followed.retain(|(group, plural), known| {
                let there = kinds.resources.iter().any(|r| r.is(group, plural) && wanted(r));
                let unsure = kinds.silent.iter().any(|(silent, _)| silent.split('/').next() == Some(group));
                if !there && !unsure {
                    known.stop.cancel();
                    self.sink.seen(&known.resource, Seen::Dropped);
                }
                there || unsure
            });
        }
        if added {
            self.sink.added();
        }
    }

    async fn follow_one(self: Arc<Self>, resource: Arc<Resource>, stop: CancellationToken) {
        let api = resource.api(&self.client, None);
        let events = kube::runtime::watcher(api, watcher::Config::default()).backoff(DefaultBackoff::default());
        let mut events = std::pin::pin!(events);
        while let Some(Some(event)) = stop.run_until_cancelled(events.next()).await {
            let seen = match event {
                Ok(Event::Init) => Seen::Begin,
                Ok(Event::InitApply(object) | Event::Apply(object)) => Seen::Present(object.metadata),
                Ok(Event::Delete(object)) => Seen::Gone(object.metadata),
                Ok(Event::InitDone) => Seen::End,
                Err(error) => {
                    tracing::debug!(%resource, %error, "a watch failed; will watch again");
                    continue;
                }
            };
            let end = matches!(seen, Seen::End);
            if stop.is_cancelled() {
                return;
            }
            self.sink.seen(&resource, seen);
            if end {
                self.completed(&resource);
            }
        }
    }

    fn completed(&self, resource: &Resource) {
        let mut followed = self.followed.lock();
        if let Some(known) = followed.get_mut(&(resource.api.group.clone(), resource.api.plural.clone())) {
            known.complete = true;
        }
        if followed.values().all(|known| known.complete) {
            self.complete.send_replace(true);
        }
    }
}
