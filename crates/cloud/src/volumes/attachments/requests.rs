//! The controller of requests for attachments: creates and deletes the VolumeAttachments of each Cinder volume, by the pods that use it.

pub mod plan;

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::{
    api::storage::v1::{VolumeAttachment, VolumeAttachmentSource, VolumeAttachmentSpec},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api,
    api::{DeleteParams, PostParams, Preconditions},
};
use mainstay_api::cinder::{DRIVER, attachment_name, volume_handle};
use mainstay_controllers::runtime::{ApiError, Controller, Limits, ObjectKey, Plan, Runnable, error};
use mainstay_events::EventNote;

use self::plan::{Action, AttachmentView, PodView, World};
use super::{FINALIZER, HANDLE, record_pod_event, users, volume_name};
use crate::context::CloudContext;

pub struct AttachmentRequests {
    context: Arc<CloudContext>,
}

pub fn controller(context: &Arc<CloudContext>) -> Runnable {
    let queue = context.queue::<AttachmentRequests>();
    context.caches.volumes.on_change({
        let queue = queue.clone();
        move |change| {
            if change.latest().is_some_and(|volume| volume_handle(volume).is_some()) {
                queue.add(change.key.name.clone());
            }
        }
    });
    context.caches.attachments.on_change({
        let queue = queue.clone();
        move |change| {
            if let Some(volume) = change.latest().and_then(volume_name) {
                queue.add(volume.to_owned());
            }
        }
    });
    context.caches.pods.on_change({
        let (queue, claims) = (queue.clone(), context.caches.claims.clone());
        move |change| {
            let Some(pod) = change.latest() else { return };
            let state = |pod: Option<&super::PodClaims>| pod.map(super::PodClaims::is_on_node).unwrap_or_default();
            if state(change.before) == state(change.after) {
                return;
            }
            for claim in pod.claims() {
                let namespace = pod.metadata.namespace.clone().unwrap_or_default();
                let claim = claims.get(&ObjectKey::new(namespace, claim));
                if let Some(volume) = claim.and_then(|claim| claim.spec.as_ref()?.volume_name.clone()) {
                    queue.add(volume);
                }
            }
        }
    });
    context.runnable(Arc::new(AttachmentRequests { context: context.clone() }), queue, Limits::default())
}

fn new_attachment(volume: &str, handle: &str, node: &str) -> VolumeAttachment {
    VolumeAttachment {
        metadata: ObjectMeta {
            name: Some(attachment_name(handle, node)),
            annotations: Some([(HANDLE.to_owned(), handle.to_owned())].into()),
            finalizers: Some(vec![FINALIZER.to_owned()]),
            ..ObjectMeta::default()
        },
        spec: VolumeAttachmentSpec {
            attacher: DRIVER.to_owned(),
            node_name: node.to_owned(),
            source: VolumeAttachmentSource {
                persistent_volume_name: Some(volume.to_owned()),
                ..VolumeAttachmentSource::default()
            },
        },
        status: None,
    }
}

impl AttachmentRequests {
    fn api(&self) -> Api<VolumeAttachment> {
        Api::all(self.context.client.clone())
    }
}

impl Controller for AttachmentRequests {
    const NAME: &'static str = "cinder-attachment-requests";
    type Key = String;
    type World = World;
    type Action = Action;
    type Outcome = ();
    type Status = ();

    async fn observe(&self, name: &String) -> Result<Option<World>, ApiError> {
        let volume = self.context.caches.volumes.get(&ObjectKey::new("", name));
        let attachments = self.context.caches.attachments.select(|own| volume_name(own) == Some(name));
        let is_attachable = volume
            .is_some_and(|volume| volume_handle(&volume).is_some() && volume.metadata.deletion_timestamp.is_none());
        let pods = users(&self.context, name);
        let pods = pods.iter().map(|pod| PodView {
            key: ObjectKey::from_meta(&pod.metadata),
            uid: pod.metadata.uid.clone().unwrap_or_default(),
            node: pod.node().to_owned(),
            created: pod.metadata.creation_timestamp.as_ref().map(|time| time.0).unwrap_or_default(),
        });
        let attachments = attachments.iter().map(|own| AttachmentView {
            name: own.metadata.name.clone().unwrap_or_default(),
            uid: own.metadata.uid.clone().unwrap_or_default(),
            node: own.spec.node_name.clone(),
            is_deleting: own.metadata.deletion_timestamp.is_some(),
        });
        Ok(Some(World { is_attachable, pods: pods.collect(), attachments: attachments.collect() }))
    }

    fn plan(world: &World, _: Timestamp) -> Plan<Action, ()> {
        plan::plan(world)
    }

    async fn apply(&self, name: &String, action: Action) -> Result<(), ApiError> {
        match action {
            Action::Create { node } => {
                let volume = self.context.caches.volumes.get(&ObjectKey::new("", name));
                let Some(handle) = volume.as_deref().and_then(volume_handle) else { return Ok(()) };
                match self.api().create(&PostParams::default(), &new_attachment(name, handle, &node)).await {
                    Ok(created) => {
                        self.context.caches.attachments.wrote(created);
                        Ok(())
                    }
                    Err(failure) => Err(ApiError::new(format!("create the attachment of {name} to {node}"), failure)),
                }
            }
            Action::Delete { name, uid } => {
                let preconditions = Preconditions { uid: Some(uid), resource_version: None };
                let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
                match self.api().delete(&name, &params).await {
                    Ok(_) => Ok(()),
                    Err(failure) if error::has_code(&failure, 404) => Ok(()),
                    Err(failure) => Err(ApiError::new(format!("delete attachment {name}"), failure)),
                }
            }
            Action::ReportMultiAttach { pod, node } => {
                let message = format!(
                    "Multi-Attach error for volume {name:?} Volume is already exclusively attached to one node and can't be \
                     attached to another: node {node:?} has it"
                );
                if let Some(pod) = self.context.caches.pods.get(&pod) {
                    record_pod_event(&self.context, &pod, EventNote::warning("FailedAttachVolume", message));
                }
                Ok(())
            }
        }
    }
}
