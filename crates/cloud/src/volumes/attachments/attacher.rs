//! The attacher: attaches and detaches Cinder volumes through Nova, as VolumeAttachments say.

pub mod plan;

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::{core::v1::Node, storage::v1::VolumeAttachment};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use mainstay_api::{
    cinder::{DEVICE_PATH, DRIVER, is_in_use, server_id, volume_handle},
    node_loss::says_unique_pods_ended,
    wellknown::taint::OUT_OF_SERVICE,
};
use mainstay_controllers::runtime::{ApiError, Controller, Limits, ObjectKey, Outcomes, Plan, Runnable, error};
use mainstay_events::EventNote;
use serde_json::{Value, json};

use self::plan::{Action, CinderView, NodeView, RecordedStatus, ServerView, World};
use super::{FINALIZER, HANDLE, record_pod_event, users, volume_name};
use crate::{
    context::CloudContext,
    openstack::{CloudError, Session, block_storage::Volume},
};

pub struct CinderAttacher {
    context: Arc<CloudContext>,
}

pub fn controller(context: &Arc<CloudContext>) -> Runnable {
    let queue = context.queue::<CinderAttacher>();
    context.caches.attachments.on_change({
        let queue = queue.clone();
        move |change| {
            if change.after.is_some_and(|own| own.spec.attacher == DRIVER) {
                queue.add(change.key.name.clone());
            }
        }
    });
    // Whether a volume may be detached depends on its node.
    context.caches.nodes.on_change({
        let (queue, attachments) = (queue.clone(), context.caches.attachments.clone());
        move |change| {
            let node = change.key.name.as_str();
            let of_node = attachments.select(|own| own.spec.attacher == DRIVER && own.spec.node_name == node);
            let unsettled = of_node.iter().filter(|own| own.metadata.deletion_timestamp.is_some() || !is_attached(own));
            unsettled.for_each(|own| queue.add(own.metadata.name.clone().unwrap_or_default()));
        }
    });
    context.runnable(Arc::new(CinderAttacher { context: context.clone() }), queue, Limits::default())
}

pub(super) fn is_attached(attachment: &VolumeAttachment) -> bool {
    attachment.status.as_ref().is_some_and(|status| status.attached)
}

/// The device that is recorded; empty if none is.
pub(super) fn recorded_device(attachment: &VolumeAttachment) -> &str {
    let metadata = attachment.status.as_ref().and_then(|status| status.attachment_metadata.as_ref());
    metadata.and_then(|metadata| metadata.get(DEVICE_PATH)).map(String::as_str).unwrap_or_default()
}

fn recorded_status(attachment: &VolumeAttachment) -> RecordedStatus {
    let message = |error: &Option<k8s_openapi::api::storage::v1::VolumeError>| error.as_ref()?.message.clone();
    let status = attachment.status.clone().unwrap_or_default();
    RecordedStatus {
        attached: status.attached,
        device: recorded_device(attachment).to_owned(),
        attach_error: message(&status.attach_error),
        detach_error: message(&status.detach_error),
    }
}

fn node_view(node: &Node, handle: &str) -> NodeView {
    let mut taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    NodeView {
        server: server_id(node).map(str::to_owned),
        is_volume_in_use: is_in_use(node, handle),
        is_out_of_service: taints.any(|taint| taint.key == OUT_OF_SERVICE),
        unique_pods_ended: says_unique_pods_ended(node),
    }
}

fn in_cloud(doing: impl Into<String>) -> impl FnOnce(CloudError) -> ApiError {
    move |source| ApiError::other(doing, source)
}

impl CinderAttacher {
    fn session(&self) -> Result<Session, ApiError> {
        self.context.clouds.own_session().map_err(|error| ApiError::other("read the configuration of the cloud", error))
    }

    fn api(&self) -> Api<VolumeAttachment> {
        Api::all(self.context.client.clone())
    }

    /// The Cinder volume of an attachment.
    fn handle(&self, attachment: &VolumeAttachment) -> Option<String> {
        let annotations = attachment.metadata.annotations.as_ref();
        let noted = annotations.and_then(|all| all.get(HANDLE)).cloned();
        noted.or_else(|| {
            let volume = self.context.caches.volumes.get(&ObjectKey::new("", volume_name(attachment)?))?;
            volume_handle(&volume).map(str::to_owned)
        })
    }

    /// The node as the API has it now, not as it was when the cache heard of it: agents rely on it.
    async fn current_node(&self, name: &str) -> Result<Option<Node>, ApiError> {
        let nodes: Api<Node> = Api::all(self.context.client.clone());
        nodes.get_opt(name).await.map_err(ApiError::when(format!("get node {name}")))
    }

    async fn server_view(&self, session: &Session, server: &str, handle: &str) -> Result<ServerView, ApiError> {
        let doing = || format!("look at server {server}");
        let Some(found) = session.compute().show_server(server).await.map_err(in_cloud(doing()))? else {
            return Ok(ServerView::Gone);
        };
        let attachments = match session.compute().list_volume_attachments(server).await {
            Ok(attachments) => attachments,
            Err(error) if error.is_not_found() => return Ok(ServerView::Gone),
            Err(error) => return Err(in_cloud(doing())(error)),
        };
        let device = attachments.into_iter().find(|own| own.volume_id == handle).map(|own| own.device);
        Ok(ServerView::Present { status: found.status, device })
    }

    /// Servers of other nodes that have the volume though nothing says that they are to, and that do not use it.
    async fn strays(&self, volume: &Volume, handle: &str, own: &str) -> Result<Vec<String>, ApiError> {
        let mut strays = Vec::new();
        for server in volume.attachments.iter().map(|attachment| attachment.server_id.as_str()) {
            let nodes = self.context.caches.nodes.select(|node| server_id(node) == Some(server));
            let [node] = &nodes[..] else { continue };
            let name = node.metadata.name.clone().unwrap_or_default();
            let has_record = |attachment: &VolumeAttachment| {
                attachment.spec.node_name == name && self.handle(attachment).as_deref() == Some(handle)
            };
            if server == own || !self.context.caches.attachments.select(has_record).is_empty() {
                continue;
            }
            if self.current_node(&name).await?.is_some_and(|node| !is_in_use(&node, handle)) {
                strays.push(server.to_owned());
            }
        }
        Ok(strays)
    }

    /// Tells the pods that wait for the volume.
    fn record_failure(&self, attachment: &VolumeAttachment, why: &str) {
        let Some(volume) = volume_name(attachment) else { return };
        let message = format!("AttachVolume.Attach failed for volume {volume:?} : {why}");
        let users = users(&self.context, volume);
        for pod in users.iter().filter(|pod| pod.node() == attachment.spec.node_name) {
            record_pod_event(&self.context, pod, EventNote::warning("FailedAttachVolume", message.clone()));
        }
    }

    async fn write_status(&self, name: &str, status: Value) -> Result<(), ApiError> {
        let patch = Patch::Merge(json!({ "status": status }));
        match self.api().patch_status(name, &PatchParams::default(), &patch).await {
            Ok(written) => {
                self.context.caches.attachments.wrote(written);
                Ok(())
            }
            Err(failure) if error::has_code(&failure, 404) => Ok(()),
            Err(failure) => Err(ApiError::new(format!("write the status of attachment {name}"), failure)),
        }
    }

    /// An error as VolumeAttachments have it.
    fn volume_error(&self, message: &str) -> Value {
        json!({ "message": message, "time": self.context.clock.now().to_string() })
    }

    async fn set_finalizers(&self, attachment: &VolumeAttachment, has_own: bool) -> Result<(), ApiError> {
        let meta = &attachment.metadata;
        let (name, own) = (meta.name.clone().unwrap_or_default(), FINALIZER.to_owned());
        let mut finalizers: Vec<&String> = meta.finalizers.iter().flatten().filter(|other| **other != own).collect();
        if has_own {
            finalizers.push(&own);
        }
        let patch = json!({"metadata": {"resourceVersion": meta.resource_version, "finalizers": finalizers}});
        match self.api().patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await {
            Ok(_) => Ok(()),
            Err(failure) if error::has_code(&failure, 404) => Ok(()),
            Err(failure) => Err(ApiError::new(format!("change the finalizers of attachment {name}"), failure)),
        }
    }
}

impl Controller for CinderAttacher {
    const NAME: &'static str = "cinder-attacher";
    type Key = String;
    type World = World;
    type Action = Action;
    type Outcome = ();
    type Status = RecordedStatus;

    async fn observe(&self, name: &String) -> Result<Option<World>, ApiError> {
        let Some(attachment) = self.context.caches.attachments.get(&ObjectKey::new("", name)) else { return Ok(None) };
        let meta = &attachment.metadata;
        let is_deleting = meta.deletion_timestamp.is_some();
        let has_finalizer = meta.finalizers.iter().flatten().any(|own| own == FINALIZER);
        let Some(handle) = self.handle(&attachment).filter(|_| !is_deleting || has_finalizer) else { return Ok(None) };
        let session = self.session()?;
        let node_name = &attachment.spec.node_name;
        let node = if is_deleting {
            self.current_node(node_name).await?
        } else {
            self.context.caches.nodes.get(&ObjectKey::new("", node_name)).map(|node| (*node).clone())
        };
        let node = node.map(|node| node_view(&node, &handle));
        let volume = session.block_storage().show_volume(&handle).await;
        let volume = volume.map_err(in_cloud(format!("look at volume {handle}")))?;
        let of_volume = || volume.as_ref()?.attachments.first().map(|attachment| attachment.server_id.clone());
        let server_id = match &node {
            Some(node) => node.server.clone(),
            // Nobody else may have the volume while this attachment is recorded.
            None => of_volume().filter(|_| is_deleting),
        };
        let server = match &server_id {
            Some(server) => self.server_view(&session, server, &handle).await?,
            None => ServerView::Unknown,
        };
        let strays = match (&volume, &server_id) {
            (Some(volume), Some(own)) if !is_deleting => self.strays(volume, &handle, own).await?,
            _ => Vec::new(),
        };
        let volume = volume.map(|volume| CinderView {
            status: volume.status,
            servers: volume.attachments.into_iter().map(|attachment| attachment.server_id).collect(),
        });
        let (recorded, pace) = (recorded_status(&attachment), self.context.pace);
        Ok(Some(World { is_deleting, has_finalizer, recorded, node, server_id, server, volume, strays, pace }))
    }

    fn plan(world: &World, now: Timestamp) -> Plan<Action, RecordedStatus> {
        plan::plan(world, now)
    }

    async fn apply(&self, name: &String, action: Action) -> Result<(), ApiError> {
        let Some(attachment) = self.context.caches.attachments.get(&ObjectKey::new("", name)) else { return Ok(()) };
        let Some(handle) = self.handle(&attachment) else { return Ok(()) };
        match action {
            Action::AddFinalizer => self.set_finalizers(&attachment, true).await,
            Action::RemoveFinalizer => self.set_finalizers(&attachment, false).await,
            Action::Attach { server } => match self.session()?.compute().attach_volume(&server, &handle).await {
                Ok(_) => Ok(()),
                Err(error) => {
                    self.record_failure(&attachment, &error.message());
                    let status = json!({"attached": false, "attachError": self.volume_error(&error.message())});
                    self.write_status(name, status).await?;
                    Err(in_cloud(format!("attach volume {handle} to server {server}"))(error))
                }
            },
            Action::Detach { server, why } => {
                let node = &attachment.spec.node_name;
                if why.is_forced() {
                    tracing::warn!(volume = handle, server, node, ?why, "detach a volume that was not unmounted");
                }
                match self.session()?.compute().detach_volume(&server, &handle).await {
                    Ok(_) => Ok(()),
                    Err(error) => {
                        let error_status = json!({"detachError": self.volume_error(&error.message())});
                        self.write_status(name, error_status).await?;
                        Err(in_cloud(format!("detach volume {handle} from server {server}"))(error))
                    }
                }
            }
        }
    }

    async fn report(&self, name: &String, status: RecordedStatus, _: &Outcomes<()>) -> Result<(), ApiError> {
        if let (Some(why), Some(attachment)) =
            (&status.attach_error, self.context.caches.attachments.get(&ObjectKey::new("", name)))
        {
            self.record_failure(&attachment, why);
        }
        let error = |message: &Option<String>| message.as_deref().map(|message| self.volume_error(message));
        let device = (!status.device.is_empty()).then(|| json!({DEVICE_PATH: status.device}));
        self.write_status(
            name,
            json!({
                "attached": status.attached, "attachmentMetadata": device,
                "attachError": error(&status.attach_error), "detachError": error(&status.detach_error),
            }),
        )
        .await
    }
}
