//! The end of PersistentVolumes of Cinder: they stay until Cinder really has no such volume.
//!
//! A volume may hang in `deleting` for as long as it likes: its PersistentVolume is visible all the while, and goes at the first look that finds no volume.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::{
    core::v1::{ObjectReference, PersistentVolume},
    storage::v1::VolumeAttachment,
};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
};
use mainstay_api::cloud::cloud_resource::ResourceType;
use mainstay_controllers::runtime::{ApiError, Controller, Limits, ObjectKey, Plan, Runnable, error};
use mainstay_events::EventNote;
use serde_json::json;

use super::{COMPONENT, DRIVER, FINALIZER, PROVISIONED_BY, volume_handle};
use crate::{
    context::{CloudContext, Pace},
    ledger::{LedgerEntry, ResourceDriver, drivers::VolumeDriver},
    openstack::{CloudError, block_storage::NewVolume},
};

/// While Cinder refuses.
const REFUSED_POLL: SignedDuration = SignedDuration::from_secs(60);
const PROTECTION: &str = mainstay_api::wellknown::finalizer::PV_PROTECTION;

pub struct CinderVolumes {
    context: Arc<CloudContext>,
}

pub fn controller(context: &Arc<CloudContext>) -> Runnable {
    let queue = context.queue::<CinderVolumes>();
    context.caches.volumes.on_change({
        let queue = queue.clone();
        move |change| {
            if change.after.is_some_and(|volume| volume_handle(volume).is_some()) {
                queue.add(change.key.name.clone());
            }
        }
    });
    context.runnable(Arc::new(CinderVolumes { context: context.clone() }), queue, Limits::default())
}

#[derive(Clone, Debug, Default)]
pub struct World {
    version: String,
    uid: String,
    is_deleting: bool,
    finalizers: Vec<String>,
    /// The volume was provisioned by us, and its policy is to delete it.
    deletes_volume: bool,
    is_released: bool,
    /// A VolumeAttachment is still there: Cinder would refuse.
    is_attached: bool,
    /// What Cinder says of the volume; nothing if it has none, or need not be asked.
    status: Option<String>,
    pace: Pace,
}

#[derive(Debug, PartialEq)]
pub enum Action {
    RemoveVolume,
    ReportFailure { status: String },
    DeleteObject { uid: String },
    SetFinalizers { version: String, finalizers: Vec<String> },
}

impl World {
    /// Nobody uses it, and it is not to be retained.
    fn is_to_be_removed(&self) -> bool {
        let is_free = self.is_released || (self.is_deleting && !self.finalizers.iter().any(|own| own == PROTECTION));
        self.deletes_volume && is_free
    }
}

fn plan(world: &World, now: Timestamp) -> Plan<Action, ()> {
    let has_finalizer = world.finalizers.iter().any(|own| own == FINALIZER);
    let release = || Action::SetFinalizers {
        version: world.version.clone(),
        finalizers: world.finalizers.iter().filter(|own| *own != FINALIZER).cloned().collect(),
    };
    if !world.is_to_be_removed() {
        let is_retained = world.is_deleting && !world.deletes_volume && has_finalizer;
        return Plan::act(is_retained.then(release));
    }
    if world.is_attached {
        return Plan { requeue_at: Some(now + world.pace.poll), ..Plan::default() };
    }
    match world.status.as_deref() {
        None if !world.is_deleting => Plan::act([Action::DeleteObject { uid: world.uid.clone() }]),
        None => Plan::act(has_finalizer.then(release)),
        Some("deleting") => Plan { requeue_at: Some(now + world.pace.poll), ..Plan::default() },
        Some(status) if status.starts_with("error_deleting") => {
            let failure = Action::ReportFailure { status: status.to_owned() };
            Plan { requeue_at: Some(now + REFUSED_POLL), ..Plan::act([failure]) }
        }
        Some(_) => Plan { requeue_at: Some(now + world.pace.poll), ..Plan::act([Action::RemoveVolume]) },
    }
}

fn in_cloud(doing: impl Into<String>) -> impl FnOnce(CloudError) -> ApiError {
    move |source| ApiError::other(doing, source)
}

impl CinderVolumes {
    fn driver(&self) -> Result<VolumeDriver, ApiError> {
        let session = self.context.clouds.own_session();
        let session = session.map_err(|error| ApiError::other("read the configuration of the cloud", error))?;
        Ok(VolumeDriver { session, volume: NewVolume::default() })
    }

    fn entry(&self, id: &str) -> Option<LedgerEntry> {
        let found = self.context.caches.resources.select(|entry| {
            let known = entry.status.as_ref().is_some_and(|status| status.id == id);
            entry.spec.resource == ResourceType::Volume && known
        });
        found.first().map(|entry| LedgerEntry::from((**entry).clone()))
    }

    fn api(&self) -> Api<PersistentVolume> {
        Api::all(self.context.client.clone())
    }

    fn record_failure(&self, name: &str, message: String) {
        let involved = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("PersistentVolume".to_owned()),
            name: Some(name.to_owned()),
            ..ObjectReference::default()
        };
        self.context.events.record_as(COMPONENT, involved, EventNote::warning("VolumeFailedDelete", message));
    }

    async fn remove_volume(&self, id: &str) -> Result<(), ApiError> {
        let driver = self.driver()?;
        match self.entry(id) {
            Some(entry) => match self.context.ledger.remove(&entry, &driver).await {
                Ok(_) => Ok(()),
                Err(error) => Err(error.into_api_error(format!("remove volume {id}"))),
            },
            None => driver.delete(id).await.map_err(in_cloud(format!("delete volume {id}"))),
        }
    }
}

impl Controller for CinderVolumes {
    const NAME: &'static str = "cinder-volumes";
    type Key = String;
    type World = World;
    type Action = Action;
    type Outcome = ();
    type Status = ();

    async fn observe(&self, name: &String) -> Result<Option<World>, ApiError> {
        let Some(volume) = self.context.caches.volumes.get(&ObjectKey::new("", name)) else { return Ok(None) };
        let Some(id) = volume_handle(&volume) else { return Ok(None) };
        let (meta, spec) = (&volume.metadata, volume.spec.as_ref());
        let policy = spec.and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref());
        let by = meta.annotations.as_ref().and_then(|all| all.get(PROVISIONED_BY));
        let phase = volume.status.as_ref().and_then(|status| status.phase.as_deref());
        let is_of_volume = |attachment: &VolumeAttachment| {
            attachment.spec.source.persistent_volume_name.as_deref() == Some(name.as_str())
        };
        let mut world = World {
            version: meta.resource_version.clone().unwrap_or_default(),
            uid: meta.uid.clone().unwrap_or_default(),
            is_deleting: meta.deletion_timestamp.is_some(),
            finalizers: meta.finalizers.clone().unwrap_or_default(),
            deletes_volume: policy == Some("Delete") && by.is_some_and(|by| by == DRIVER),
            is_released: matches!(phase, Some("Released" | "Failed")),
            is_attached: !self.context.caches.attachments.select(is_of_volume).is_empty(),
            status: None,
            pace: self.context.pace,
        };
        if world.is_to_be_removed() && !world.is_attached {
            let found = self.driver()?.session.block_storage().show_volume(id).await;
            let found = found.map_err(in_cloud(format!("look at volume {id} of PersistentVolume {name}")))?;
            world.status = found.map(|volume| volume.status);
            // Seen gone: the ledger too.
            if let (None, Some(entry)) = (&world.status, self.entry(id)) {
                self.context.ledger.gone(&entry).await?;
            }
        }
        Ok(Some(world))
    }

    fn plan(world: &World, now: Timestamp) -> Plan<Action, ()> {
        plan(world, now)
    }

    async fn apply(&self, name: &String, action: Action) -> Result<(), ApiError> {
        let id = self.context.caches.volumes.get(&ObjectKey::new("", name));
        let id = id.as_deref().and_then(volume_handle).unwrap_or_default().to_owned();
        let result = match action {
            Action::RemoveVolume => {
                let removed = self.remove_volume(&id).await;
                if let Err(error) = &removed {
                    self.record_failure(name, error.chain());
                }
                return removed;
            }
            Action::ReportFailure { status } => {
                let message = format!(
                    "Cinder could not delete volume {id}: it is {status:?} there. An administrator of the cloud has to reset it."
                );
                self.record_failure(name, message);
                return Ok(());
            }
            Action::DeleteObject { uid } => {
                let preconditions = Preconditions { uid: Some(uid), resource_version: None };
                let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
                self.api().delete(name, &params).await.map(drop)
            }
            Action::SetFinalizers { version, finalizers } => {
                let patch = json!({"metadata": {"resourceVersion": version, "finalizers": finalizers}});
                self.api().patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.map(drop)
            }
        };
        match result {
            Ok(()) => Ok(()),
            Err(failure) if error::has_code(&failure, 404) => Ok(()),
            Err(failure) => Err(ApiError::new(format!("end PersistentVolume {name}"), failure)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> Timestamp {
        "2026-01-01T00:00:00Z".parse().unwrap()
    }

    fn released(status: Option<&str>) -> World {
        World {
            version: "7".into(),
            uid: "u".into(),
            finalizers: vec![FINALIZER.into()],
            deletes_volume: true,
            is_released: true,
            status: status.map(str::to_owned),
            ..World::default()
        }
    }

    #[test]
    fn the_object_stays_until_cinder_has_no_volume() {
        assert_eq!(plan(&released(Some("available")), now()).actions, [Action::RemoveVolume]);
        let waiting = plan(&released(Some("deleting")), now());
        assert!(waiting.actions.is_empty() && waiting.requeue_at == Some(now() + Pace::default().poll));
        assert_eq!(plan(&released(None), now()).actions, [Action::DeleteObject { uid: "u".into() }]);
        let deleting = World { is_deleting: true, ..released(None) };
        assert_eq!(plan(&deleting, now()).actions, [Action::SetFinalizers { version: "7".into(), finalizers: vec![] }]);
    }

    #[test]
    fn an_attached_volume_is_not_deleted() {
        let attached = plan(&World { is_attached: true, ..released(None) }, now());
        assert!(attached.actions.is_empty() && attached.requeue_at.is_some());
    }

    #[test]
    fn a_volume_that_cinder_cannot_delete_is_reported_for_ever() {
        let failed = plan(&released(Some("error_deleting")), now());
        assert_eq!(failed.actions, [Action::ReportFailure { status: "error_deleting".into() }]);
        assert!(failed.requeue_at.is_some());
    }

    #[test]
    fn what_is_bound_or_retained_is_left_alone() {
        let bound = World { is_released: false, ..released(Some("in-use")) };
        assert_eq!(plan(&bound, now()), Plan::default());
        let finalizers = vec![FINALIZER.to_owned(), PROTECTION.to_owned()];
        let protected = World { is_deleting: true, finalizers, ..bound.clone() };
        assert_eq!(plan(&protected, now()), Plan::default(), "a pod uses it");
        let retained = World { deletes_volume: false, ..released(None) };
        assert_eq!(plan(&retained, now()), Plan::default());
        let deleted = World { is_deleting: true, ..retained };
        assert!(matches!(plan(&deleted, now()).actions[..], [Action::SetFinalizers { .. }]));
    }
}
