//! The controller of VolumeSnapshotContents: has their snapshots in Cinder, says what Cinder says of them, and keeps the object until Cinder has none.

pub mod plan;

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::{api::core::v1::ObjectReference, apimachinery::pkg::apis::meta::v1::Time};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use mainstay_api::cloud::cloud_resource::{ResourceOwner, ResourceType};
use mainstay_controllers::runtime::{ApiError, Controller, Limits, ObjectKey, Outcomes, Plan, Runnable, error};
use mainstay_events::EventNote;
use serde_json::json;

use self::plan::{Action, Backing, CinderView, StatusChange, World};
use super::{
    SnapshotCaches,
    kinds::{API_VERSION, SnapshotError, VolumeSnapshotContent},
};
use crate::{
    context::CloudContext,
    ledger::{Intent, LedgerEntry, ResourceDriver, drivers::SnapshotDriver},
    openstack::{CloudError, Session},
    volumes::{COMPONENT, DRIVER},
};

const KIND: &str = "VolumeSnapshotContent";

pub struct SnapshotContents {
    context: Arc<CloudContext>,
    caches: SnapshotCaches,
}

pub fn controller(context: &Arc<CloudContext>) -> Runnable {
    let (queue, caches) = (context.queue::<SnapshotContents>(), context.snapshots.clone());
    caches.contents.on_change({
        let queue = queue.clone();
        move |change| queue.add(change.key.name.clone())
    });
    // A content goes after its VolumeSnapshot.
    caches.snapshots.on_change({
        let queue = queue.clone();
        move |change| {
            let bound = change.latest().and_then(|own| own.status.bound_volume_snapshot_content_name.clone());
            bound.into_iter().for_each(|name| queue.add(name));
        }
    });
    let controller = Arc::new(SnapshotContents { context: context.clone(), caches: caches.clone() });
    context.runnable(controller, queue, Limits::default()).after(caches.synced())
}

fn in_cloud(doing: impl Into<String>) -> impl FnOnce(CloudError) -> ApiError {
    move |source| ApiError::other(doing, source)
}

impl SnapshotContents {
    fn session(&self) -> Result<Session, ApiError> {
        self.context.clouds.own_session().map_err(|error| ApiError::other("read the configuration of the cloud", error))
    }

    fn api(&self) -> Api<VolumeSnapshotContent> {
        Api::all(self.context.client.clone())
    }

    /// The content of this name, if it is one of ours.
    fn content(&self, name: &str) -> Option<Arc<VolumeSnapshotContent>> {
        self.caches.contents.get(&ObjectKey::new("", name)).filter(|content| content.spec.driver == DRIVER)
    }

    fn entry(&self, content: &VolumeSnapshotContent) -> Option<LedgerEntry> {
        let entries = self.context.ledger.entries_of(content.metadata.uid.as_deref()?);
        entries.into_iter().find(|entry| entry.resource == ResourceType::Snapshot)
    }

    fn driver(&self, volume: &str, name: &str) -> Result<SnapshotDriver, ApiError> {
        Ok(SnapshotDriver { session: self.session()?, volume: volume.to_owned(), name: name.to_owned() })
    }

    /// Its VolumeSnapshot is there, and nobody deletes that.
    fn has_live_snapshot(&self, content: &VolumeSnapshotContent) -> bool {
        let reference = &content.spec.volume_snapshot_ref;
        let text = |part: &Option<String>| part.clone().unwrap_or_default();
        let snapshot = self.caches.snapshots.get(&ObjectKey::new(text(&reference.namespace), text(&reference.name)));
        snapshot.is_some_and(|own| own.metadata.uid == reference.uid && own.metadata.deletion_timestamp.is_none())
    }

    async fn ensure_snapshot(&self, content: &VolumeSnapshotContent, volume: &str) -> Result<(), ApiError> {
        let session = self.session()?;
        let (meta, reference) = (&content.metadata, &content.spec.volume_snapshot_ref);
        let object_name = meta.name.clone().unwrap_or_default();
        // As upstream names them: `snapshot-` and the uid of the VolumeSnapshot.
        let name = format!("snapshot-{}", reference.uid.as_deref().unwrap_or(&object_name));
        let intent = Intent {
            cloud: self.context.clouds.own_name().to_owned(),
            project: session.project_id().await.map_err(in_cloud("log in"))?,
            resource: ResourceType::Snapshot,
            name: name.clone(),
            owner: ResourceOwner {
                api_version: API_VERSION.to_owned(),
                kind: KIND.to_owned(),
                namespace: String::new(),
                name: object_name,
                uid: meta.uid.clone().unwrap_or_default(),
            },
            ..Intent::default()
        };
        let driver = SnapshotDriver { session, volume: volume.to_owned(), name };
        match self.context.ledger.ensure(&intent, &driver).await {
            Ok(_) => Ok(()),
            Err(error) if error.settles_at().is_some() => Ok(()),
            Err(error) => Err(error.into_api_error("create the snapshot in the cloud")),
        }
    }

    async fn remove_snapshot(&self, content: &VolumeSnapshotContent) -> Result<(), ApiError> {
        let driver = self.driver("", "")?;
        if let Some(entry) = self.entry(content) {
            return match self.context.ledger.remove(&entry, &driver).await {
                Ok(_) => Ok(()),
                Err(error) if error.settles_at().is_some() => Ok(()),
                Err(error) => Err(error.into_api_error("remove the snapshot in the cloud")),
            };
        }
        match content.spec.source.snapshot_handle.as_ref().or(content.status.snapshot_handle.as_ref()) {
            Some(id) => driver.delete(id).await.map_err(in_cloud(format!("delete snapshot {id}"))),
            None => Ok(()),
        }
    }

    fn record_failure(&self, content: &VolumeSnapshotContent, reason: &'static str, message: String) {
        let involved = ObjectReference {
            api_version: Some(API_VERSION.to_owned()),
            kind: Some(KIND.to_owned()),
            name: content.metadata.name.clone(),
            uid: content.metadata.uid.clone(),
            ..ObjectReference::default()
        };
        self.context.events.record_as(COMPONENT, involved, EventNote::warning(reason, message));
    }

    async fn write_status(&self, name: &str, uid: &str, status: serde_json::Value) -> Result<(), ApiError> {
        // By uid: a content of the same name that was created later is another one.
        let patch = json!({"metadata": {"uid": uid}, "status": status});
        match self.api().patch_status(name, &PatchParams::default(), &Patch::Merge(patch)).await {
            Ok(written) => {
                self.caches.contents.wrote(written);
                Ok(())
            }
            Err(failure) if [404, 409].iter().any(|code| error::has_code(&failure, *code)) => Ok(()),
            Err(failure) => Err(ApiError::new(format!("write the status of {KIND} {name}"), failure)),
        }
    }
}

impl Controller for SnapshotContents {
    const NAME: &'static str = "cinder-snapshot-contents";
    type Key = String;
    type World = World;
    type Action = Action;
    type Outcome = ();
    type Status = StatusChange;

    async fn observe(&self, name: &String) -> Result<Option<World>, ApiError> {
        let Some(content) = self.content(name) else { return Ok(None) };
        let entry = self.entry(&content);
        let mut world = World {
            version: content.metadata.resource_version.clone().unwrap_or_default(),
            is_deleting: content.metadata.deletion_timestamp.is_some(),
            finalizers: content.metadata.finalizers.clone().unwrap_or_default(),
            policy: content.spec.deletion_policy,
            source: content.spec.source.clone(),
            status: content.status.clone(),
            has_live_snapshot: self.has_live_snapshot(&content),
            has_entry: entry.is_some(),
            backing: Backing::None,
            pace: self.context.pace,
        };
        // Cinder is asked only where its word decides something.
        let id = entry.and_then(|entry| entry.id).or_else(|| content.spec.source.snapshot_handle.clone());
        if let Some(id) = id.or_else(|| content.status.snapshot_handle.clone())
            && world.needs_backing()
        {
            let doing = format!("look at the snapshot of {KIND} {name}");
            world.backing = match self.session()?.block_storage().show_snapshot(&id).await.map_err(in_cloud(doing))? {
                None => Backing::Lost { id },
                Some(found) => Backing::Present(CinderView {
                    id,
                    status: found.status,
                    size_gib: found.size,
                    created_at: found.created_at,
                }),
            };
        }
        Ok(Some(world))
    }

    fn plan(world: &World, now: Timestamp) -> Plan<Action, StatusChange> {
        plan::plan(world, now)
    }

    async fn apply(&self, name: &String, action: Action) -> Result<(), ApiError> {
        let Some(content) = self.content(name) else { return Ok(()) };
        match action {
            Action::SetFinalizers { version, finalizers } => {
                let patch = json!({"metadata": {"resourceVersion": version, "finalizers": finalizers}});
                match self.api().patch(name, &PatchParams::default(), &Patch::Merge(patch)).await {
                    Ok(written) => {
                        self.caches.contents.wrote(written);
                        Ok(())
                    }
                    Err(failure) if error::has_code(&failure, 404) => Ok(()),
                    Err(failure) => Err(ApiError::new(format!("set the finalizers of {KIND} {name}"), failure)),
                }
            }
            Action::EnsureSnapshot { volume } => {
                let result = self.ensure_snapshot(&content, &volume).await;
                if let Err(error) = &result {
                    let message = format!("Failed to create snapshot: {}", error.chain());
                    self.record_failure(&content, "SnapshotCreationFailed", message.clone());
                    let error = SnapshotError { message, time: Some(Time(self.context.clock.now())) };
                    let uid = content.metadata.uid.as_deref().unwrap_or_default();
                    self.write_status(name, uid, json!({"readyToUse": false, "error": error})).await?;
                }
                result
            }
            Action::RemoveSnapshot => {
                let result = self.remove_snapshot(&content).await;
                if let Err(error) = &result {
                    self.record_failure(&content, "SnapshotDeleteError", error.chain());
                }
                result
            }
            Action::ReportFailure { message } => {
                self.record_failure(&content, "SnapshotDeleteError", message);
                Ok(())
            }
        }
    }

    async fn report(&self, name: &String, change: StatusChange, _: &Outcomes<()>) -> Result<(), ApiError> {
        let Some(content) = self.content(name) else { return Ok(()) };
        let StatusChange { handle, is_ready, created_at, restore_size, problem } = change;
        let error = problem.map(|message| SnapshotError { message, time: Some(Time(self.context.clock.now())) });
        let creation_time = created_at.map(|time| i64::try_from(time.as_nanosecond()).unwrap_or_default());
        let status = json!({
            "snapshotHandle": handle, "readyToUse": is_ready, "creationTime": creation_time,
            "restoreSize": restore_size, "error": error,
        });
        self.write_status(name, content.metadata.uid.as_deref().unwrap_or_default(), status).await
    }
}
