//! Attaching Cinder volumes to the servers of nodes whose pods use them.
//!
//! As upstream, a VolumeAttachment is the record of an attachment: it exists, with a finalizer, before Nova is asked to attach, and until Nova and Cinder show
//! no attachment any more. So a crash between any two steps leaves nothing unknown.
//!
//! * [`requests`]: which VolumeAttachments there are to be, by the pods that use a volume: at most one for each volume, so no second node gets a volume
//!   before the first has lost it; [`requests::plan`] decides
//! * [`attacher`]: attaches and detaches as VolumeAttachments say; [`attacher::plan`] decides, and says when a volume of a lost node may be detached
//! * [`node_report`]: `status.volumesAttached` of nodes
//! * [`pod_claims`]: pods, as far as they say which claims they use where
//!
//! Who mounts and who detaches never cross: an agent first writes the volume to `status.volumesInUse` of its Node, then reads the VolumeAttachment, and mounts only if it is
//! not being deleted. The controller first deletes the VolumeAttachment, then reads the Node, and detaches only if the volume is not in use. Whichever came first, the other sees it.

pub mod attacher;
pub mod node_report;
pub mod pod_claims;
pub mod requests;

use k8s_openapi::api::{core::v1::ObjectReference, storage::v1::VolumeAttachment};
use mainstay_api::cinder::DRIVER;
use mainstay_events::EventNote;

use self::pod_claims::PodClaims;
use crate::context::CloudContext;

/// Keeps a VolumeAttachment until the cloud shows no attachment; as upstream's attacher names it.
pub const FINALIZER: &str = "external-attacher/cinder-csi-openstack-org";
/// On a VolumeAttachment: the Cinder volume, also after its PersistentVolume is gone.
const HANDLE: &str = "mainstay.dev/volume-handle";
/// Who says so in events, as upstream.
const COMPONENT: &str = "attachdetach-controller";

/// The PersistentVolume that a VolumeAttachment of ours is of.
fn volume_name(attachment: &VolumeAttachment) -> Option<&str> {
    let spec = &attachment.spec;
    spec.source.persistent_volume_name.as_deref().filter(|_| spec.attacher == DRIVER)
}

/// Unfinished pods on nodes that use the claim of a PersistentVolume.
fn users(context: &CloudContext, volume: &str) -> Vec<std::sync::Arc<PodClaims>> {
    let volume = context.caches.volumes.get(&mainstay_controllers::runtime::ObjectKey::new("", volume));
    let claim = volume.as_ref().and_then(|volume| volume.spec.as_ref()?.claim_ref.clone());
    let Some((namespace, name)) = claim.and_then(|claim| claim.namespace.zip(claim.name)) else { return Vec::new() };
    context.caches.pods.select(|pod| pod.is_on_node() && pod.uses(&namespace, &name))
}

fn record_pod_event(context: &CloudContext, pod: &PodClaims, note: EventNote) {
    let meta = &pod.metadata;
    let involved = ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        namespace: meta.namespace.clone(),
        name: meta.name.clone(),
        uid: meta.uid.clone(),
        ..ObjectReference::default()
    };
    context.events.record_as(COMPONENT, involved, note);
}
