//! The controller of claims of Cinder classes: provisions and grows their volumes.

pub mod plan;
pub mod source;

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{
        CSIPersistentVolumeSource, ObjectReference, PersistentVolume, PersistentVolumeClaim, PersistentVolumeSpec, Pod,
    },
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::ObjectMeta},
};
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use mainstay_api::cloud::cloud_resource::{ResourceOwner, ResourceType};
use mainstay_controllers::runtime::{ApiError, Controller, Limits, ObjectKey, Outcomes, Plan, Runnable, error};
use mainstay_events::EventNote;
use serde_json::json;

use self::plan::{
    Action, Backing, CinderView, ClaimView, ClassView, CopySource, PersistentVolumeView, ResizePending, SourceView,
    World,
};
use super::{COMPONENT, DRIVER, FINALIZER, PROVISIONED_BY, size_in_gib, stock_classes, volume_handle};
use crate::{
    context::CloudContext,
    ledger::{Intent, LedgerEntry, LedgerError, drivers::VolumeDriver},
    openstack::{CloudError, Session, block_storage::NewVolume},
};

const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";

pub struct CinderClaims {
    context: Arc<CloudContext>,
}

pub fn controller(context: &Arc<CloudContext>) -> Runnable {
    let queue = context.queue::<CinderClaims>();
    context.caches.claims.on_change({
        let queue = queue.clone();
        move |change| queue.add(change.key.clone())
    });
    // Entries whose claim vanished have nobody else who would look.
    context.caches.resources.on_change({
        let queue = queue.clone();
        move |change| {
            let Some(entry) = change.latest().filter(|_| !change.own) else { return };
            if entry.spec.owner.kind == "PersistentVolumeClaim" {
                queue.add(ObjectKey::new(&entry.spec.owner.namespace, &entry.spec.owner.name));
            }
        }
    });
    context.caches.storage_classes.on_change({
        let (queue, claims) = (queue.clone(), context.caches.claims.clone());
        move |change| {
            let name = change.key.name.as_str();
            let of_class = claims.select(|claim| class_name(claim) == Some(name));
            of_class.iter().for_each(|claim| queue.add(ObjectKey::from_meta(&claim.metadata)));
        }
    });
    let runnable = context.runnable(Arc::new(CinderClaims { context: context.clone() }), queue, Limits::default());
    runnable.alongside(stock_classes::ensure_storage_classes(context.clone()))
}

fn class_name(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.spec.as_ref()?.storage_class_name.as_deref()
}

fn refusal(claim: &PersistentVolumeClaim) -> Option<&'static str> {
    let spec = claim.spec.as_ref()?;
    let modes = spec.access_modes.as_deref().unwrap_or_default();
    if modes.iter().any(|mode| mode == "ReadWriteMany" || mode == "ReadOnlyMany") {
        Some("a Cinder volume is attached to one server: only ReadWriteOnce and ReadWriteOncePod are possible")
    } else if spec.selector.is_some() {
        Some("volumes are made without labels: a selector is not possible")
    } else if spec.volume_attributes_class_name.as_deref().is_some_and(|class| !class.is_empty()) {
        Some(
            "Cinder volumes are of the type that their StorageClass names: a volumeAttributesClassName is not possible",
        )
    } else {
        None
    }
}

fn requested(claim: &PersistentVolumeClaim) -> u64 {
    let spec = claim.spec.as_ref();
    let requests = spec.and_then(|spec| spec.resources.as_ref()?.requests.as_ref());
    requests.and_then(|requests| size_in_gib(&requests.get("storage")?.0)).unwrap_or(1)
}

fn claim_view(claim: &PersistentVolumeClaim) -> ClaimView {
    let volume = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref()).unwrap_or_default();
    let mut conditions = claim.status.iter().flat_map(|status| status.conditions.iter().flatten());
    ClaimView {
        version: claim.metadata.resource_version.clone().unwrap_or_default(),
        is_deleting: claim.metadata.deletion_timestamp.is_some(),
        is_bound: !volume.is_empty(),
        size_gib: requested(claim),
        refusal: refusal(claim),
        is_resize_reported: conditions.any(|condition| condition.type_ == "FileSystemResizePending"),
    }
}

fn persistent_volume_view(volume: &PersistentVolume) -> Option<PersistentVolumeView> {
    let capacity = volume.spec.as_ref()?.capacity.as_ref();
    Some(PersistentVolumeView {
        name: volume.metadata.name.clone()?,
        version: volume.metadata.resource_version.clone().unwrap_or_default(),
        size_gib: capacity.and_then(|capacity| size_in_gib(&capacity.get("storage")?.0)).unwrap_or_default(),
        handle: volume_handle(volume)?.to_owned(),
    })
}

fn in_cloud(doing: impl Into<String>) -> impl FnOnce(CloudError) -> ApiError {
    move |source| ApiError::other(doing, source)
}

impl CinderClaims {
    fn session(&self) -> Result<Session, ApiError> {
        self.context.clouds.own_session().map_err(|error| ApiError::other("read the configuration of the cloud", error))
    }

    fn class(&self, claim: &PersistentVolumeClaim) -> Option<ClassView> {
        let class = self.context.caches.storage_classes.get(&ObjectKey::new("", class_name(claim)?))?;
        (class.provisioner == DRIVER).then(|| ClassView {
            name: class.metadata.name.clone().unwrap_or_default(),
            is_immediate: class.volume_binding_mode.as_deref().unwrap_or("Immediate") == "Immediate",
            parameters: class.parameters.clone().unwrap_or_default(),
            reclaim_policy: class.reclaim_policy.clone().unwrap_or_else(|| "Delete".to_owned()),
            allows_expansion: class.allow_volume_expansion == Some(true),
        })
    }

    /// Entries of claims of this name, by the uid of the claim.
    fn entries(&self, key: &ObjectKey) -> Vec<LedgerEntry> {
        let of_name = self.context.caches.resources.select(|entry| {
            let (spec, owner) = (&entry.spec, &entry.spec.owner);
            spec.resource == ResourceType::Volume
                && owner.kind == "PersistentVolumeClaim"
                && owner.namespace == key.namespace
                && owner.name == key.name
        });
        of_name.iter().map(|entry| LedgerEntry::from((**entry).clone())).collect()
    }

    async fn has_consumer(&self, claim: &PersistentVolumeClaim, key: &ObjectKey) -> Result<bool, ApiError> {
        if claim.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(SELECTED_NODE)) {
            return Ok(true);
        }
        let pods: Api<Pod> = Api::namespaced(self.context.client.clone(), &key.namespace);
        let pods = pods.list(&ListParams::default()).await;
        let pods = pods.map_err(ApiError::when(format!("list pods of {}", key.namespace)))?;
        Ok(pods.items.iter().any(|pod| {
            let Some(spec) = &pod.spec else { return false };
            let mut volumes = spec.volumes.iter().flatten().filter_map(|own| own.persistent_volume_claim.as_ref());
            spec.node_name.as_deref().is_some_and(|node| !node.is_empty())
                && volumes.any(|source| source.claim_name == key.name)
        }))
    }

    fn record_event(&self, key: &ObjectKey, uid: &str, note: EventNote) {
        let involved = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("PersistentVolumeClaim".to_owned()),
            namespace: Some(key.namespace.clone()),
            name: Some(key.name.clone()),
            uid: Some(uid.to_owned()),
            ..ObjectReference::default()
        };
        self.context.events.record_as(COMPONENT, involved, note);
    }

    fn driver(&self, volume: NewVolume) -> Result<VolumeDriver, ApiError> {
        Ok(VolumeDriver { session: self.session()?, volume })
    }

    async fn ensure_volume(
        &self,
        key: &ObjectKey,
        claim: &PersistentVolumeClaim,
        class: &ClassView,
        size: u64,
        source: Option<CopySource>,
    ) -> Result<(), ApiError> {
        let session = self.session()?;
        let uid = claim.metadata.uid.clone().unwrap_or_default();
        let name = persistent_volume_name(&uid);
        let parameter = |name: &str| class.parameters.get(name).filter(|value| !value.is_empty()).cloned();
        let (source_volume, snapshot_id) = match source {
            Some(CopySource::Volume(id)) => (Some(id), None),
            Some(CopySource::Snapshot(id)) => (None, Some(id)),
            None => (None, None),
        };
        let volume = NewVolume {
            name: name.clone(),
            size,
            metadata: [("kubernetes.io/created-for/pvc/name".to_owned(), key.name.clone())].into(),
            description: Some(format!("Claim {}/{}", key.namespace, key.name)),
            volume_type: parameter("type"),
            availability_zone: parameter("availability"),
            source_volume,
            snapshot_id,
        };
        let intent = Intent {
            cloud: self.context.clouds.own_name().to_owned(),
            project: session.project_id().await.map_err(in_cloud("log in"))?,
            resource: ResourceType::Volume,
            name,
            owner: ResourceOwner {
                api_version: "v1".to_owned(),
                kind: "PersistentVolumeClaim".to_owned(),
                namespace: key.namespace.clone(),
                name: key.name.clone(),
                uid,
            },
            ..Intent::default()
        };
        settled(self.context.ledger.ensure(&intent, &VolumeDriver { session, volume }).await.map(drop))
    }

    async fn remove(&self, entry: &LedgerEntry) -> Result<(), ApiError> {
        settled(self.context.ledger.remove(entry, &self.driver(NewVolume::default())?).await.map(drop))
    }
}

/// What is still unsettled is looked at again soon, and is no failure.
fn settled(result: Result<(), LedgerError>) -> Result<(), ApiError> {
    match result {
        Err(error) if error.settles_at().is_some() => Ok(()),
        other => other.map_err(|error| error.into_api_error("change the volume in the cloud")),
    }
}

/// The name follows from the claim, so that making it twice makes it once.
pub fn persistent_volume_name(claim_uid: &str) -> String {
    format!("pvc-{claim_uid}")
}

fn persistent_volume(claim: &PersistentVolumeClaim, class: &ClassView, id: &str, size: u64) -> PersistentVolume {
    let (meta, spec) = (&claim.metadata, claim.spec.clone().unwrap_or_default());
    let file_system = class.parameters.get("csi.storage.k8s.io/fstype").cloned().unwrap_or_else(|| "ext4".to_owned());
    let is_block = spec.volume_mode.as_deref() == Some("Block");
    PersistentVolume {
        metadata: ObjectMeta {
            name: Some(persistent_volume_name(meta.uid.as_deref().unwrap_or_default())),
            annotations: Some([(PROVISIONED_BY.to_owned(), DRIVER.to_owned())].into()),
            finalizers: Some(vec![FINALIZER.to_owned()]),
            ..ObjectMeta::default()
        },
        spec: Some(PersistentVolumeSpec {
            access_modes: spec.access_modes,
            capacity: Some([("storage".to_owned(), Quantity(format!("{size}Gi")))].into()),
            claim_ref: Some(ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("PersistentVolumeClaim".to_owned()),
                namespace: meta.namespace.clone(),
                name: meta.name.clone(),
                uid: meta.uid.clone(),
                resource_version: meta.resource_version.clone(),
                field_path: None,
            }),
            csi: Some(CSIPersistentVolumeSource {
                driver: DRIVER.to_owned(),
                volume_handle: id.to_owned(),
                fs_type: (!is_block).then_some(file_system),
                ..CSIPersistentVolumeSource::default()
            }),
            persistent_volume_reclaim_policy: Some(class.reclaim_policy.clone()),
            storage_class_name: Some(class.name.clone()),
            volume_mode: spec.volume_mode.or(Some("Filesystem".to_owned())),
            ..PersistentVolumeSpec::default()
        }),
        status: None,
    }
}

impl Controller for CinderClaims {
    const NAME: &'static str = "cinder-claims";
    type Key = ObjectKey;
    type World = World;
    type Action = Action;
    type Outcome = ();
    type Status = ResizePending;

    async fn observe(&self, key: &ObjectKey) -> Result<Option<World>, ApiError> {
        let claim = self.context.caches.claims.get(key);
        let uid = claim.as_ref().and_then(|claim| claim.metadata.uid.clone());
        let volume_of = |uid: &str| self.context.caches.volumes.get(&ObjectKey::new("", persistent_volume_name(uid)));
        let (current, others): (Vec<_>, Vec<_>) =
            self.entries(key).into_iter().partition(|entry| Some(&entry.owner.uid) == uid.as_ref());
        let is_abandoned = |entry: &LedgerEntry| volume_of(&entry.owner.uid).is_none();
        let mut abandoned: Vec<_> = others.into_iter().filter(is_abandoned).map(|entry| entry.name).collect();
        let Some(claim) = claim else {
            return Ok((!abandoned.is_empty()).then(|| World {
                abandoned,
                pace: self.context.pace,
                ..World::default()
            }));
        };
        let Some(class) = self.class(&claim) else {
            return Ok((!abandoned.is_empty()).then(|| World {
                abandoned,
                pace: self.context.pace,
                ..World::default()
            }));
        };
        let view = claim_view(&claim);
        let volume_name = claim.spec.as_ref().and_then(|spec| spec.volume_name.clone()).unwrap_or_default();
        let persistent_volume = if view.is_bound {
            self.context.caches.volumes.get(&ObjectKey::new("", volume_name))
        } else {
            volume_of(uid.as_deref().unwrap_or_default())
        };
        let persistent_volume = persistent_volume.as_deref().and_then(persistent_volume_view);
        let grows = view.is_bound
            && class.allows_expansion
            && persistent_volume.as_ref().is_some_and(|volume| volume.size_gib < view.size_gib);
        // Cinder is asked only where its word decides something.
        let id = match (&persistent_volume, view.is_bound) {
            (Some(volume), true) if grows => Some(volume.handle.clone()),
            (None, false) => current.first().and_then(|entry| entry.id.clone()),
            _ => None,
        };
        let backing = match id {
            None => Backing::None,
            Some(id) => {
                let doing = format!("look at the volume of claim {key:?}");
                match self.session()?.block_storage().show_volume(&id).await.map_err(in_cloud(doing))? {
                    None => Backing::Lost,
                    Some(found) => Backing::Present(CinderView { id, status: found.status, size_gib: found.size }),
                }
            }
        };
        if view.is_deleting && !view.is_bound && persistent_volume.is_none() {
            abandoned.extend(current.into_iter().map(|entry| entry.name));
        }
        let waits = !view.is_bound && !class.is_immediate && persistent_volume.is_none();
        let has_consumer = waits && self.has_consumer(&claim, key).await?;
        let source = if view.is_bound { SourceView::Empty } else { self.source(&claim) };
        let (claim, class, pace) = (Some(view), Some(class), self.context.pace);
        Ok(Some(World { claim, class, has_consumer, persistent_volume, source, backing, abandoned, pace }))
    }

    fn plan(world: &World, now: Timestamp) -> Plan<Action, ResizePending> {
        plan::plan(world, now)
    }

    async fn apply(&self, key: &ObjectKey, action: Action) -> Result<(), ApiError> {
        let claim = self.context.caches.claims.get(key);
        let uid = claim.as_ref().and_then(|claim| claim.metadata.uid.clone()).unwrap_or_default();
        let entries = self.entries(key);
        let volumes: Api<PersistentVolume> = Api::all(self.context.client.clone());
        let failed = |why: String| EventNote::warning("ProvisioningFailed", why);
        match action {
            Action::RemoveAbandoned { entry } => match entries.iter().find(|own| own.name == entry) {
                Some(entry) => self.remove(entry).await,
                None => Ok(()),
            },
            Action::RemoveVolume { why } => {
                let Some(entry) = entries.iter().find(|entry| entry.owner.uid == uid) else { return Ok(()) };
                let message = format!("volume {} is replaced: {why}", entry.id.as_deref().unwrap_or_default());
                self.record_event(key, &uid, failed(message));
                self.remove(entry).await
            }
            Action::Refuse { why } => {
                self.record_event(key, &uid, failed(why));
                Ok(())
            }
            Action::EnsureVolume { size_gib, source } => {
                let Some((claim, class)) = claim.as_ref().and_then(|claim| Some((claim, self.class(claim)?))) else {
                    return Ok(());
                };
                let result = self.ensure_volume(key, claim, &class, size_gib, source).await;
                if let Err(error) = &result {
                    self.record_event(key, &uid, failed(format!("failed to provision volume: {}", error.chain())));
                }
                result
            }
            Action::CreatePersistentVolume { id, size_gib } => {
                let Some((claim, class)) = claim.as_ref().and_then(|claim| Some((claim, self.class(claim)?))) else {
                    return Ok(());
                };
                let volume = persistent_volume(claim, &class, &id, size_gib);
                match volumes.create(&PostParams::default(), &volume).await {
                    Ok(created) => {
                        let name = created.metadata.name.clone().unwrap_or_default();
                        let note = EventNote::normal(
                            "ProvisioningSucceeded",
                            format!("Successfully provisioned volume {name}"),
                        );
                        self.record_event(key, &uid, note);
                        self.context.caches.volumes.wrote(created);
                        Ok(())
                    }
                    Err(failure) if error::has_code(&failure, 409) => Ok(()), // provisioned before
                    Err(failure) => Err(ApiError::new(format!("create the PersistentVolume of {key:?}"), failure)),
                }
            }
            Action::Extend { id, size_gib } => {
                let result = self.session()?.block_storage().extend_volume(&id, size_gib).await;
                if let Err(error) = &result {
                    let message = format!("resize volume {id}: {}", error.message());
                    self.record_event(key, &uid, EventNote::warning("VolumeResizeFailed", message));
                }
                result.map_err(in_cloud(format!("extend the volume of claim {key:?}")))
            }
            Action::SetCapacity { name, version, size_gib } => {
                let capacity = json!({"storage": format!("{size_gib}Gi")});
                let patch = json!({"metadata": {"resourceVersion": version}, "spec": {"capacity": capacity}});
                match volumes.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await {
                    Ok(written) => {
                        self.context.caches.volumes.wrote(written);
                        Ok(())
                    }
                    Err(failure) => Err(ApiError::new(format!("set the capacity of volume {name}"), failure)),
                }
            }
        }
    }

    async fn report(&self, key: &ObjectKey, status: ResizePending, _: &Outcomes<()>) -> Result<(), ApiError> {
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.context.client.clone(), &key.namespace);
        let message = "Waiting for user to (re-)start a pod to finish file system resize of volume on node.";
        let condition = json!({
            "type": "FileSystemResizePending", "status": "True", "message": message,
            "lastTransitionTime": self.context.clock.now().to_string(),
        });
        let patch = json!({"metadata": {"resourceVersion": status.version}, "status": {"conditions": [condition]}});
        match claims.patch_status(&key.name, &PatchParams::default(), &Patch::Strategic(patch)).await {
            Ok(written) => {
                self.context.caches.claims.wrote(written);
                Ok(())
            }
            Err(failure) if error::has_code(&failure, 404) => Ok(()),
            Err(failure) => Err(ApiError::new(format!("write the status of claim {key:?}"), failure)),
        }
    }
}
