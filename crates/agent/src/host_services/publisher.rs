//! Writes the EndpointSlices of this machine's services to the API, and takes away those that are no longer wanted.
//!
//! The slices of this node are watched, so that one that somebody removed (the control plane does while it thinks the node is lost) is
//! written again. A slice that the API refuses is reported and tried again, later each time; the others do not wait for it. While no server
//! answers nothing is lost: what is wanted then is compared with what there is afterwards.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use futures::StreamExt;
use k8s_openapi::api::{
    core::v1::{Namespace, Node},
    discovery::v1::EndpointSlice,
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, ObjectMeta, PostParams, Preconditions},
};
use mainstay_api::host_service::{MANAGED_BY, MANAGER, NAMESPACE, NODE, node_label};
use mainstay_errors::error_chain;
use mainstay_watch::{Event, Watch, WatchOptions};
use tokio::{sync::watch, time::Instant};

use super::slices::is_same;
use crate::watch_backoff::{ApiRetries, WATCH_BACKOFF};

/// What is wanted, by the names of slices.
pub type DesiredSlices = BTreeMap<String, EndpointSlice>;

/// What must stand between two writes of everything that differs, so that two that disagree do not use up a server.
const PAUSE: Duration = Duration::from_millis(200);
/// Longest time without comparing.
const RESYNC: Duration = Duration::from_secs(30);
/// How long a call may take.
const DEADLINE: Duration = Duration::from_secs(10);

pub struct Publisher {
    pub client: Client,
    pub node_name: String,
    /// Nothing is published before the Node exists: what has no node is taken away.
    pub node: watch::Receiver<Option<Node>>,
}

/// The slices of a node.
fn selector(node_name: &str) -> String {
    format!("{MANAGED_BY}={MANAGER},{NODE}={}", node_label(node_name))
}

impl Publisher {
    pub async fn run(mut self, mut desired: watch::Receiver<Option<DesiredSlices>>) {
        if self.node.wait_for(Option::is_some).await.is_err() || desired.wait_for(Option::is_some).await.is_err() {
            return;
        }
        let mut retries = ApiRetries::new(Duration::from_millis(200), Duration::from_secs(10));
        loop {
            // Most machines have no services: those hold no watch.
            if is_empty(&desired) {
                match within(withdraw_all(&self.client, &self.node_name)).await {
                    Ok(_) => retries.reset(),
                    Err(error) => {
                        tracing::debug!(error, "cannot withdraw the services of this machine; will retry");
                        tokio::time::sleep(retries.record_failure()).await;
                        continue;
                    }
                }
                if desired.wait_for(|slices| slices.as_ref().is_some_and(|slices| !slices.is_empty())).await.is_err() {
                    return;
                }
            }
            if self.publish(&mut desired).await.is_none() {
                return;
            }
        }
    }

    /// Until nothing is wanted any more; nothing if there is nobody who could want it.
    async fn publish(&self, desired: &mut watch::Receiver<Option<DesiredSlices>>) -> Option<()> {
        let slices: Api<EndpointSlice> = Api::namespaced(self.client.clone(), NAMESPACE);
        let label_selector = selector(&self.node_name);
        let options = WatchOptions { label_selector, backoff: WATCH_BACKOFF, ..WatchOptions::default() };
        let mut events = Watch::<EndpointSlice>::new(slices.clone(), options);
        let (mut stored, mut due, mut is_failing) = (StoredSlices::default(), None, false);
        let mut retries = ApiRetries::new(Duration::from_millis(200), Duration::from_secs(10));
        while !is_empty(desired) {
            let mut is_new = false;
            tokio::select! {
                event = events.next() => match event? {
                    Ok(event) => stored.take_in(event),
                    Err(error) => {
                        tracing::debug!(error = error_chain(&error), "cannot watch the slices of this node; will retry");
                    }
                },
                changed = desired.changed() => {
                    changed.ok()?;
                    is_new = true;
                }
                () = sleep_until(due) => {}
            }
            let waits = is_failing && !is_new && due.is_some_and(|due| Instant::now() < due);
            if !stored.is_complete || waits {
                continue;
            }
            let wanted = desired.borrow_and_update().clone().unwrap_or_default();
            is_failing = self.write_differences(&slices, &mut stored, &wanted).await;
            let wait = if is_failing { retries.record_failure() } else { RESYNC };
            due = Some(Instant::now() + wait);
            if !is_failing {
                retries.reset();
                tokio::time::sleep(PAUSE).await;
            }
        }
        Some(())
    }

    /// Says whether something could not be written.
    async fn write_differences(
        &self,
        slices: &Api<EndpointSlice>,
        stored: &mut StoredSlices,
        wanted: &DesiredSlices,
    ) -> bool {
        let mut failed = false;
        for (name, slice) in wanted {
            let before = stored.slices.get(name);
            if before.is_some_and(|before| is_same(before, slice)) {
                continue;
            }
            match within(self.write(slices, before, slice)).await {
                Ok(written) => drop(stored.slices.insert(name.clone(), written)),
                Err(error) => {
                    failed = true;
                    let service = slice.metadata.name.as_deref().unwrap_or_default();
                    tracing::warn!(slice = service, %error, "cannot publish a service of this machine; will retry");
                }
            }
        }
        let surplus: BTreeSet<String> =
            stored.slices.keys().filter(|name| !wanted.contains_key(*name)).cloned().collect();
        for name in surplus {
            let uid = stored.slices.get(&name).and_then(|slice| slice.metadata.uid.clone());
            match within(delete(slices, &name, uid)).await {
                Ok(()) => drop(stored.slices.remove(&name)),
                Err(error) => {
                    failed = true;
                    tracing::warn!(slice = name, %error, "cannot withdraw a service of this machine; will retry");
                }
            }
        }
        failed
    }

    async fn write(
        &self,
        slices: &Api<EndpointSlice>,
        before: Option<&EndpointSlice>,
        slice: &EndpointSlice,
    ) -> kube::Result<EndpointSlice> {
        let params = PostParams::default();
        if let Some(before) = before {
            let mut slice = slice.clone();
            slice.metadata.resource_version = before.resource_version();
            slice.metadata.uid = before.uid();
            return slices.replace(&slice.name_any(), &params, &slice).await;
        }
        match slices.create(&params, slice).await {
            Err(kube::Error::Api(status)) if status.code == 404 => {
                self.create_namespace().await?;
                slices.create(&params, slice).await
            }
            created => created,
        }
    }

    /// The first machine with a service makes it.
    async fn create_namespace(&self) -> kube::Result<()> {
        let meta = ObjectMeta { name: Some(NAMESPACE.to_owned()), ..ObjectMeta::default() };
        let namespace = Namespace { metadata: meta, ..Namespace::default() };
        match Api::<Namespace>::all(self.client.clone()).create(&PostParams::default(), &namespace).await {
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
            created => created.map(drop),
        }
    }
}

fn is_empty(desired: &watch::Receiver<Option<DesiredSlices>>) -> bool {
    desired.borrow().as_ref().is_none_or(BTreeMap::is_empty)
}

async fn within<T>(call: impl Future<Output = kube::Result<T>>) -> Result<T, String> {
    match tokio::time::timeout(DEADLINE, call).await {
        Ok(result) => result.map_err(|error| error_chain(&error)),
        Err(_) => Err("the API does not answer".to_owned()),
    }
}

async fn delete(slices: &Api<EndpointSlice>, name: &str, uid: Option<String>) -> kube::Result<()> {
    let preconditions = Some(Preconditions { uid, ..Preconditions::default() });
    match slices.delete(name, &DeleteParams { preconditions, ..DeleteParams::default() }).await {
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
        deleted => deleted.map(drop),
    }
}

/// Takes all services of a node out of the API, for a machine that ends. What fails is left to the control plane.
pub async fn withdraw_all(client: &Client, node_name: &str) -> kube::Result<usize> {
    let slices: Api<EndpointSlice> = Api::namespaced(client.clone(), NAMESPACE);
    let own = slices.list(&ListParams::default().labels(&selector(node_name))).await?;
    for slice in &own.items {
        delete(&slices, &slice.name_any(), slice.uid()).await?;
    }
    Ok(own.items.len())
}

/// The same within a time, for the end of the agent: what fails is logged.
pub async fn withdraw_services(client: &Client, node_name: &str) {
    if let Err(error) = within(withdraw_all(client, node_name)).await {
        tracing::warn!(error, "cannot withdraw the services of this machine; the control plane will");
    }
}

async fn sleep_until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// What the API has of this node.
#[derive(Default)]
struct StoredSlices {
    slices: DesiredSlices,
    listed: DesiredSlices,
    is_complete: bool,
}

impl StoredSlices {
    fn take_in(&mut self, event: Event<EndpointSlice>) {
        match event {
            Event::Init => self.listed.clear(),
            Event::InitApply(slice) => drop(self.listed.insert(slice.name_any(), slice)),
            Event::InitDone => {
                self.slices = std::mem::take(&mut self.listed);
                self.is_complete = true;
            }
            Event::Apply(slice) => drop(self.slices.insert(slice.name_any(), slice)),
            Event::Delete(slice) => drop(self.slices.remove(&slice.name_any())),
        }
    }
}
