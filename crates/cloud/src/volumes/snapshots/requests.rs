//! The controller of VolumeSnapshots: binds each to a VolumeSnapshotContent, says what became of that, and goes after it.

pub mod plan;

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{ObjectReference, PersistentVolumeClaim},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
};
use mainstay_controllers::runtime::{ApiError, Controller, Limits, ObjectKey, Outcomes, Plan, Runnable, error};
use mainstay_events::EventNote;
use serde_json::json;

use self::plan::{Action, BoundContent, ClassChoice, SourceVolume, StatusChange, World, content_name};
use super::{
    CONTENT_FINALIZER, DEFAULT_CLASS, SnapshotCaches,
    kinds::{
        API_VERSION, ContentSource, ContentSpec, ContentStatus, SnapshotError, VolumeSnapshot, VolumeSnapshotClass,
        VolumeSnapshotContent,
    },
};
use crate::{
    context::CloudContext,
    volumes::{COMPONENT, DRIVER, claims::source, volume_handle},
};

const KIND: &str = "VolumeSnapshot";

pub struct SnapshotRequests {
    context: Arc<CloudContext>,
    caches: SnapshotCaches,
}

pub fn controller(context: &Arc<CloudContext>) -> Runnable {
    let (queue, caches) = (context.queue::<SnapshotRequests>(), context.snapshots.clone());
    caches.snapshots.on_change({
        let queue = queue.clone();
        move |change| queue.add(change.key.clone())
    });
    caches.contents.on_change({
        let queue = queue.clone();
        move |change| {
            let Some(content) = change.latest() else { return };
            let ObjectReference { namespace: Some(namespace), name: Some(name), .. } =
                &content.spec.volume_snapshot_ref
            else {
                return;
            };
            queue.add(ObjectKey::new(namespace, name));
        }
    });
    let controller = Arc::new(SnapshotRequests { context: context.clone(), caches: caches.clone() });
    let runnable = context.runnable(controller, queue, Limits::default()).after(caches.clone().synced());
    runnable.alongside(caches.run(context.clone()))
}

fn is_default(class: &VolumeSnapshotClass) -> bool {
    class.metadata.annotations.as_ref().is_some_and(|all| all.get(DEFAULT_CLASS).is_some_and(|value| value == "true"))
}

impl SnapshotRequests {
    fn api(&self, namespace: &str) -> Api<VolumeSnapshot> {
        Api::namespaced(self.context.client.clone(), namespace)
    }

    fn contents(&self) -> Api<VolumeSnapshotContent> {
        Api::all(self.context.client.clone())
    }

    fn volume(&self, namespace: &str, claim: &str) -> SourceVolume {
        let Some(found) = self.context.caches.claims.get(&ObjectKey::new(namespace, claim)) else {
            return SourceVolume::NotReady { why: format!("there is no PersistentVolumeClaim {claim}") };
        };
        let volume = found.spec.as_ref().and_then(|spec| spec.volume_name.clone()).unwrap_or_default();
        let Some(volume) = self.context.caches.volumes.get(&ObjectKey::new("", volume)) else {
            return SourceVolume::NotReady { why: format!("PersistentVolumeClaim {claim} is not bound") };
        };
        match volume_handle(&volume) {
            Some(handle) => SourceVolume::Cinder {
                handle: handle.to_owned(),
                mode: volume.spec.as_ref().and_then(|spec| spec.volume_mode.clone()),
            },
            None => SourceVolume::OfAnother,
        }
    }

    fn class(&self, snapshot: &VolumeSnapshot, volume: &SourceVolume) -> ClassChoice {
        let found = |class: &VolumeSnapshotClass, is_chosen: bool| {
            if class.driver == DRIVER {
                let (name, policy) = (class.metadata.name.clone().unwrap_or_default(), class.deletion_policy);
                ClassChoice::Ours { name, policy, is_chosen }
            } else {
                ClassChoice::OfAnother
            }
        };
        if let Some(name) = &snapshot.spec.volume_snapshot_class_name {
            return match self.caches.classes.get(&ObjectKey::new("", name)) {
                Some(class) => found(&class, false),
                None => ClassChoice::Missing {
                    why: format!("spec.volumeSnapshotClassName: there is no VolumeSnapshotClass {name}"),
                },
            };
        }
        // The default class is that of the volume's driver: only of our own volumes it is ours.
        if !matches!(volume, SourceVolume::Cinder { .. }) {
            return ClassChoice::Unknown;
        }
        match &self.caches.classes.select(|class| class.driver == DRIVER && is_default(class))[..] {
            [class] => found(class, true),
            [] => ClassChoice::Missing {
                why: format!(
                    "spec.volumeSnapshotClassName: not set, and no VolumeSnapshotClass of {DRIVER} is the default"
                ),
            },
            several => ClassChoice::Missing {
                why: format!("spec.volumeSnapshotClassName: not set, and {} classes are the default", several.len()),
            },
        }
    }

    /// A claim whose volume is still to be made of this snapshot.
    fn is_in_use(&self, key: &ObjectKey) -> bool {
        let waits = |claim: &PersistentVolumeClaim| {
            let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
            claim.metadata.namespace.as_deref() == Some(&key.namespace)
                && phase == Some("Pending")
                && source::snapshot_name(claim).is_some_and(|name| name == key.name)
        };
        !self.context.caches.claims.select(waits).is_empty()
    }

    fn record_failure(&self, snapshot: &VolumeSnapshot, reason: &'static str, message: String) {
        let involved = ObjectReference {
            api_version: Some(API_VERSION.to_owned()),
            kind: Some(KIND.to_owned()),
            namespace: snapshot.metadata.namespace.clone(),
            name: snapshot.metadata.name.clone(),
            uid: snapshot.metadata.uid.clone(),
            ..ObjectReference::default()
        };
        self.context.events.record_as(COMPONENT, involved, EventNote::warning(reason, message));
    }

    fn new_content(snapshot: &VolumeSnapshot, action: &plan::NewContent) -> VolumeSnapshotContent {
        let meta = &snapshot.metadata;
        let plan::NewContent { class, policy, volume, mode } = action;
        VolumeSnapshotContent {
            api_version: API_VERSION.to_owned(),
            kind: "VolumeSnapshotContent".to_owned(),
            metadata: ObjectMeta {
                name: Some(content_name(meta.uid.as_deref().unwrap_or_default())),
                finalizers: Some(vec![CONTENT_FINALIZER.to_owned()]),
                ..ObjectMeta::default()
            },
            spec: ContentSpec {
                deletion_policy: *policy,
                driver: DRIVER.to_owned(),
                source: ContentSource { volume_handle: Some(volume.clone()), snapshot_handle: None },
                source_volume_mode: mode.clone(),
                volume_snapshot_class_name: Some(class.clone()),
                volume_snapshot_ref: ObjectReference {
                    api_version: Some(API_VERSION.to_owned()),
                    kind: Some(KIND.to_owned()),
                    namespace: meta.namespace.clone(),
                    name: meta.name.clone(),
                    uid: meta.uid.clone(),
                    resource_version: meta.resource_version.clone(),
                    field_path: None,
                },
            },
            status: ContentStatus::default(),
        }
    }
}

fn bound_content(content: &VolumeSnapshotContent, snapshot: &VolumeSnapshot) -> BoundContent {
    let (reference, meta) = (&content.spec.volume_snapshot_ref, &snapshot.metadata);
    BoundContent {
        name: content.metadata.name.clone().unwrap_or_default(),
        uid: content.metadata.uid.clone().unwrap_or_default(),
        version: content.metadata.resource_version.clone().unwrap_or_default(),
        is_deleting: content.metadata.deletion_timestamp.is_some(),
        policy: content.spec.deletion_policy,
        is_of_cinder: content.spec.driver == DRIVER,
        names_snapshot: reference.namespace == meta.namespace && reference.name == meta.name,
        bound_uid: reference.uid.clone().filter(|uid| !uid.is_empty()),
        status: content.status.clone(),
    }
}

impl Controller for SnapshotRequests {
    const NAME: &'static str = "cinder-snapshots";
    type Key = ObjectKey;
    type World = World;
    type Action = Action;
    type Outcome = ();
    type Status = StatusChange;

    async fn observe(&self, key: &ObjectKey) -> Result<Option<World>, ApiError> {
        let Some(snapshot) = self.caches.snapshots.get(key) else { return Ok(None) };
        let (meta, source) = (&snapshot.metadata, &snapshot.spec.source);
        let uid = meta.uid.clone().unwrap_or_default();
        let volume = match &source.persistent_volume_claim_name {
            Some(claim) => self.volume(&key.namespace, claim),
            None => SourceVolume::OfAnother,
        };
        let content = source.volume_snapshot_content_name.clone().unwrap_or_else(|| content_name(&uid));
        let content = self.caches.contents.get(&ObjectKey::new("", content));
        Ok(Some(World {
            version: meta.resource_version.clone().unwrap_or_default(),
            is_deleting: meta.deletion_timestamp.is_some(),
            finalizers: meta.finalizers.clone().unwrap_or_default(),
            class: self.class(&snapshot, &volume),
            content: content.as_deref().map(|content| bound_content(content, &snapshot)),
            named_content: source.volume_snapshot_content_name.clone(),
            is_in_use: meta.deletion_timestamp.is_some() && self.is_in_use(key),
            status: snapshot.status.clone(),
            uid,
            volume,
        }))
    }

    fn plan(world: &World, now: Timestamp) -> Plan<Action, StatusChange> {
        plan::plan(world, now)
    }

    async fn apply(&self, key: &ObjectKey, action: Action) -> Result<(), ApiError> {
        let Some(snapshot) = self.caches.snapshots.get(key) else { return Ok(()) };
        let doing = format!("{} of {KIND} {key:?}", action.doing());
        let result = match action {
            Action::Prepare { version, finalizers, class } => {
                let mut patch = json!({"metadata": {"resourceVersion": version, "finalizers": finalizers}});
                if let Some(class) = class {
                    patch["spec"] = json!({ "volumeSnapshotClassName": class });
                }
                let (api, params) = (self.api(&key.namespace), PatchParams::default());
                let written = api.patch(&key.name, &params, &Patch::Merge(patch)).await;
                written.map(|written| self.caches.snapshots.wrote(written))
            }
            Action::CreateContent(new) => {
                let content = Self::new_content(&snapshot, &new);
                let created = self.contents().create(&PostParams::default(), &content).await;
                created.map(|created| self.caches.contents.wrote(created))
            }
            Action::BindContent { name, version, uid } => {
                let patch = json!({"metadata": {"resourceVersion": version},
                                   "spec": {"volumeSnapshotRef": {"uid": uid}}});
                let written = self.contents().patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await;
                written.map(|written| self.caches.contents.wrote(written))
            }
            Action::DeleteContent { name, uid } => {
                let preconditions = Preconditions { uid: Some(uid), resource_version: None };
                let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
                self.contents().delete(&name, &params).await.map(drop)
            }
            Action::Fail { reason, message } => {
                self.record_failure(&snapshot, reason, message);
                Ok(())
            }
        };
        match result {
            Ok(()) => Ok(()),
            // Changed, made or gone meanwhile: that change comes back to this.
            Err(failure) if [404, 409].iter().any(|code| error::has_code(&failure, *code)) => Ok(()),
            Err(failure) => Err(ApiError::new(doing, failure)),
        }
    }

    async fn report(&self, key: &ObjectKey, change: StatusChange, _: &Outcomes<()>) -> Result<(), ApiError> {
        let StatusChange { uid, bound, created_at, is_ready, restore_size, problem } = change;
        let error = problem.map(|message| SnapshotError { message, time: Some(Time(self.context.clock.now())) });
        let status = json!({
            "boundVolumeSnapshotContentName": bound, "creationTime": created_at.map(Time), "readyToUse": is_ready,
            "restoreSize": restore_size, "error": error,
        });
        let patch = Patch::Merge(json!({"metadata": {"uid": uid}, "status": status}));
        match self.api(&key.namespace).patch_status(&key.name, &PatchParams::default(), &patch).await {
            Ok(written) => {
                self.caches.snapshots.wrote(written);
                Ok(())
            }
            Err(failure) if [404, 409].iter().any(|code| error::has_code(&failure, *code)) => Ok(()),
            Err(failure) => Err(ApiError::new(format!("write the status of {KIND} {key:?}"), failure)),
        }
    }
}
