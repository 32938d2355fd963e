//! Follows the stored CustomResourceDefinitions: makes the kinds they define, and keeps their status up to date.
//!
//! Every server does so. What one server writes another sees by the watch; a status that two of them would write is written once, since
//! the second finds it as it should be.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use futures::{FutureExt, future::BoxFuture};
use mainstay_api::crd;
use mainstay_backoff::{Backoff, RetryState};
use mainstay_store::{List, Revision, StoreError, WatchEvent};
use serde_json::Value;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{PREFIX, Writer, deletion};
use crate::{
    api::{Api, Target},
    handler::Handler,
    http::status::ApiResult,
    objects::guaranteed_update::{Ownership, Part, guaranteed_update},
};

const RETRY: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5), 0.5);

/// Reads all definitions; returns the revision as of which they are known.
pub async fn load(api: &Api) -> Result<Revision, StoreError> {
    let listing = api.store.list(List { prefix: PREFIX, ..List::default() }).await?;
    let entries = listing.entries.iter();
    let all = entries.map(|entry| (entry.key.strip_prefix(PREFIX).unwrap_or(&entry.key), entry.modified, &entry.value));
    api.served.observe_all(listing.revision, all);
    Ok(listing.revision)
}

/// Follows the changes until `stop`; reads everything again whenever it may have missed some.
pub async fn follow(handler: Arc<Handler>, stop: CancellationToken) {
    let mut retry = RetryState::new(RETRY);
    let tasks = Tasks {
        handler: handler.clone(),
        stop: stop.clone(),
        running: TaskTracker::new(),
        deleting: Default::default(),
    };
    let tasks = Arc::new(tasks);
    while !stop.is_cancelled() {
        let followed = stop.run_until_cancelled(follow_once(&tasks, &mut retry)).await;
        let Some(Err(error)) = followed else { break };
        tracing::debug!(%error, "the watch of CustomResourceDefinitions ended; it is opened anew");
        let delay = retry.record_failure(fastrand::f64());
        stop.run_until_cancelled(tokio::time::sleep(delay)).await;
    }
    tasks.running.close();
    tasks.running.wait().await;
}

async fn follow_once(tasks: &Arc<Tasks>, retry: &mut RetryState) -> Result<(), StoreError> {
    let api = &tasks.handler.api;
    let revision = load(api).await?;
    let mut watch = api.store.watch(PREFIX, revision).await?;
    retry.reset();
    tasks.look_at_all().await;
    loop {
        let WatchEvent::Changes(changes) = watch.next().await? else { continue };
        let mut freed = false;
        for change in changes {
            let name = change.key.strip_prefix(PREFIX).unwrap_or(&change.key);
            api.served.observe(name, change.revision, change.current.as_ref().map(|entry| &entry.value));
            match &change.current {
                Some(entry) => tasks.look_at(name, &entry.value).await,
                None => freed = true,
            }
        }
        // Names of what is gone may be what others wait for.
        if freed {
            tasks.look_at_all().await;
        }
    }
}

/// What is done about definitions, beside the watch.
struct Tasks {
    handler: Arc<Handler>,
    stop: CancellationToken,
    running: TaskTracker,
    /// Definitions whose objects are being deleted.
    deleting: parking_lot::Mutex<BTreeSet<String>>,
}

impl Tasks {
    async fn look_at_all(self: &Arc<Self>) {
        match self.handler.api.store.list(List { prefix: PREFIX, ..List::default() }).await {
            Ok(listing) => {
                for entry in &listing.entries {
                    let name = entry.key.strip_prefix(PREFIX).unwrap_or(&entry.key);
                    self.look_at(name, &entry.value).await;
                }
            }
            Err(error) => tracing::debug!(%error, "cannot list CustomResourceDefinitions"),
        }
    }

    async fn look_at(self: &Arc<Self>, name: &str, definition: &[u8]) {
        let Ok(definition) = serde_json::from_slice::<Value>(definition) else { return };
        if definition["metadata"]["deletionTimestamp"].is_string() {
            self.delete_instances(name);
        } else if let Err(error) = self.settle(name, &definition).await {
            tracing::warn!(
                definition = name,
                error = error.message(),
                "cannot write the status of a CustomResourceDefinition"
            );
        }
    }

    /// Writes the status that a definition should have, if it has another.
    fn settle<'a>(&'a self, name: &'a str, definition: &'a Value) -> BoxFuture<'a, ApiResult<()>> {
        async move {
            let api = &self.handler.api;
            let group = definition["spec"]["group"].as_str().unwrap_or_default();
            let wanted = crd::status::plan(definition, &api.served.taken_names(group, name), crate::api::now());
            if wanted == definition["status"] {
                return Ok(());
            }
            let (writer, target) = (Writer::new(), definition_target(api, name)?);
            let request = writer.request(api, &target);
            // The status is completed on every write of a definition; an unchanged object asks for just that.
            let written =
                guaranteed_update(&request, Part::Status, Ownership::Kept, false, |old| Ok(old.clone())).await;
            match written {
                Err(error) if error.code() == http::StatusCode::NOT_FOUND => Ok(()),
                other => other.map(drop),
            }
        }
        .boxed()
    }

    fn delete_instances(self: &Arc<Self>, name: &str) {
        if !self.deleting.lock().insert(name.to_owned()) {
            return;
        }
        let (this, name) = (self.clone(), name.to_owned());
        self.running.spawn(async move {
            let stop = this.stop.clone();
            stop.run_until_cancelled(deletion::delete_definition(&this.handler.api, &name)).await;
            this.deleting.lock().remove(&name);
        });
    }
}

/// A definition as the target of a request of our own.
pub(super) fn definition_target(api: &Api, name: &str) -> ApiResult<Target> {
    let d = api.registry.find(crd::GROUP, "v1", crd::PLURAL).cloned();
    let d = d.ok_or_else(crate::http::status::ApiError::no_such_path)?;
    Ok(Target { d, namespace: None, name: name.to_owned() })
}
