//! Cinder volumes: waits for their attachment to this machine, mounts their filesystems, and says which of them are in use.
//!
//! * [`disk`]: a volume as a disk of this machine: its device, its filesystem, mounting and growing it
//! * [`record`]: which pods use which volumes, on disk: `<agent's directory>/attached/<volume>`, with the mount and a file for each pod
//! * [`in_use`]: `status.volumesInUse` of the Node
//!
//! A volume is written to the Node as in use before its attachment is looked at for the last time, and is mounted only if that is not being ended. Controllers end an
//! attachment first and look at the Node then: so a volume is never detached below a mount, unless its machine is lost (`docs/node-loss.md`).

pub mod disk;
pub mod in_use;
pub mod record;

use std::{path::PathBuf, sync::Arc, time::Duration};

use k8s_openapi::api::{
    core::v1::{PersistentVolume, PersistentVolumeClaim},
    storage::v1::VolumeAttachment,
};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use mainstay_api::{
    cinder::{DEVICE_PATH, attachment_name, volume_handle},
    quantity::Quantity,
};
use mainstay_errors::error_chain;
use mainstay_runtime::PodUid;
use serde_json::json;

use self::{disk::Disk, in_use::VolumesInUse, record::DiskRecords};
use super::PlanFailure;
use crate::{objects::Objects, settings::Settings};

const ANSWER: Duration = Duration::from_secs(8);
const RESIZE_PENDING: &str = "FileSystemResizePending";

/// The Cinder volumes of this machine.
#[derive(Clone)]
pub struct CinderDisks {
    node: String,
    by_id: PathBuf,
    records: DiskRecords,
    in_use: Arc<VolumesInUse>,
}

/// A claim whose volume is larger than it says: its filesystem is to grow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimGrowth {
    pub namespace: String,
    pub claim: String,
    /// As the PersistentVolume has it.
    pub capacity: String,
}

impl CinderDisks {
    pub fn new(settings: &Settings, objects: &Objects) -> Self {
        let records = DiskRecords::within(&settings.directory);
        let in_use = VolumesInUse::new(objects.client().clone(), &settings.node_name, records.clone());
        let (node, by_id) = (settings.node_name.clone(), settings.disks_by_id.clone());
        Self { node, by_id, records, in_use: Arc::new(in_use) }
    }

    pub fn records(&self) -> &DiskRecords {
        &self.records
    }

    pub fn in_use(&self) -> Arc<VolumesInUse> {
        self.in_use.clone()
    }

    /// The disk of a PersistentVolume that is attached to this machine, and reserved for the pod.
    pub(super) async fn reserve(
        &self,
        objects: &Objects,
        pod: &PodUid,
        volume: &PersistentVolume,
        claim: &PersistentVolumeClaim,
        is_in_place: bool,
    ) -> Result<Disk, PlanFailure> {
        let name = volume.metadata.name.as_deref().unwrap_or_default();
        let Some(handle) = volume_handle(volume) else {
            return Err(PlanFailure::Refused(format!("persistentvolume {name:?} is not of Cinder")));
        };
        let attachments = objects.attachments(pod).await;
        let attachments =
            attachments.map_err(|lack| PlanFailure::from_object_error(lack, || "volume attachments".to_owned()))?;
        let attachment = attachments.get(&attachment_name(handle, &self.node));
        let device = match attachment {
            Some(attachment) => attached_device(name, &self.node, attachment),
            None => Err(not_attached(name, &self.node, None)),
        };
        let mut disk = Disk::new(volume, claim, self.by_id.clone(), self.records.mount_point(handle));
        if is_in_place && self.records.is_used_by(handle, pod, disk.is_block) {
            // Nobody unmounts below a pod, whatever becomes of the attachment.
            disk.device_hint = device.unwrap_or_default();
            return Ok(disk);
        }
        disk.device_hint = device.map_err(PlanFailure::Pending)?;
        let (records, own, user) = (self.records.clone(), handle.to_owned(), pod.clone());
        on_disk(move || records.add(&own, &user)).await?;
        if let Err(why) = self.in_use.write_now().await {
            return Err(PlanFailure::Unreachable(format!("cannot report volume {name:?} as in use: {why}")));
        }
        match self.confirm(objects, handle, name).await {
            Ok(()) => Ok(disk),
            Err(failure) => {
                // Not mounted by anybody, it may be detached.
                let (records, own, user) = (self.records.clone(), handle.to_owned(), pod.clone());
                on_disk(move || records.remove(&own, &user)).await?;
                self.in_use.write_soon();
                Err(failure)
            }
        }
    }

    /// Reads the attachment once more, from the API itself.
    async fn confirm(&self, objects: &Objects, handle: &str, volume: &str) -> Result<(), PlanFailure> {
        let api: Api<VolumeAttachment> = Api::all(objects.client().clone());
        match tokio::time::timeout(ANSWER, api.get(&attachment_name(handle, &self.node))).await {
            Ok(Ok(attachment)) => {
                attached_device(volume, &self.node, &attachment).map(drop).map_err(PlanFailure::Pending)
            }
            // Whether it is another's or not there is the same to a node.
            Ok(Err(kube::Error::Api(status))) if matches!(status.code, 403 | 404) => {
                Err(PlanFailure::Pending(not_attached(volume, &self.node, None)))
            }
            Ok(Err(error)) => Err(PlanFailure::Unreachable(error_chain(&error))),
            Err(_) => Err(PlanFailure::Unreachable("the API does not answer".to_owned())),
        }
    }
}

/// Work that may wait for the disk.
async fn on_disk(work: impl FnOnce() -> std::io::Result<()> + Send + 'static) -> Result<(), PlanFailure> {
    let done = tokio::task::spawn_blocking(work).await.map_err(std::io::Error::other).flatten();
    done.map_err(|error| PlanFailure::Refused(error.to_string()))
}

/// The device that an attachment names, which may be none; or why the volume cannot be used yet.
fn attached_device(volume: &str, node: &str, attachment: &VolumeAttachment) -> Result<String, String> {
    let status = attachment.status.as_ref();
    if attachment.metadata.deletion_timestamp.is_some() {
        return Err(format!("volume {volume:?} is being detached from node {node:?}"));
    }
    if !status.is_some_and(|status| status.attached) {
        let error = status.and_then(|status| status.attach_error.as_ref()?.message.as_deref());
        return Err(not_attached(volume, node, error));
    }
    let metadata = status.and_then(|status| status.attachment_metadata.as_ref());
    Ok(metadata.and_then(|metadata| metadata.get(DEVICE_PATH)).cloned().unwrap_or_default())
}

fn not_attached(volume: &str, node: &str, error: Option<&str>) -> String {
    match error {
        Some(error) => format!("AttachVolume.Attach failed for volume {volume:?} : {error}"),
        None => format!("volume {volume:?} is not attached to node {node:?} yet"),
    }
}

fn storage(
    quantities: Option<&std::collections::BTreeMap<String, k8s_openapi::apimachinery::pkg::api::resource::Quantity>>,
) -> Option<&str> {
    quantities?.get("storage").map(|quantity| quantity.0.as_str())
}

/// Whether the volume is larger than its claim says.
pub(super) fn growth(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> Option<ClaimGrowth> {
    let bytes = |text: &str| Quantity::parse(text).ok().map(|quantity| quantity.value());
    let capacity = storage(volume.spec.as_ref()?.capacity.as_ref())?;
    let status = claim.status.as_ref()?;
    let is_pending = status.conditions.iter().flatten().any(|condition| condition.type_ == RESIZE_PENDING);
    let is_larger = bytes(capacity) > storage(status.capacity.as_ref()).and_then(bytes);
    (is_pending || is_larger).then(|| ClaimGrowth {
        namespace: claim.metadata.namespace.clone().unwrap_or_default(),
        claim: claim.metadata.name.clone().unwrap_or_default(),
        capacity: capacity.to_owned(),
    })
}

/// Says in the claim that its filesystem has grown.
pub(super) async fn report_growth(objects: &Objects, growth: &ClaimGrowth) -> Result<(), String> {
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(objects.client().clone(), &growth.namespace);
    let gone = [RESIZE_PENDING, "Resizing"].map(|condition| json!({"$patch": "delete", "type": condition}));
    let patch = Patch::Strategic(json!({"status": {"capacity": {"storage": growth.capacity}, "conditions": gone}}));
    let params = PatchParams::default();
    let written = claims.patch_status(&growth.claim, &params, &patch);
    match tokio::time::timeout(ANSWER, written).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(error_chain(&error)),
        Err(_) => Err("the API does not answer".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn attachment(value: Value) -> VolumeAttachment {
        let mut object = json!({"metadata": {"name": "csi-x"}, "spec": {"attacher": "cinder.csi.openstack.org", "nodeName": "n", "source": {}}});
        for (key, value) in value.as_object().unwrap() {
            object[key] = value.clone();
        }
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn a_volume_is_used_only_while_it_is_attached_and_stays_so() {
        let device = |value: Value| attached_device("pv", "n", &attachment(value));
        let attached = json!({"attached": true, "attachmentMetadata": {"DevicePath": "/dev/vdb"}});
        assert_eq!(device(json!({"status": attached})), Ok("/dev/vdb".to_owned()));
        assert_eq!(device(json!({"status": {"attached": true}})), Ok(String::new()));
        assert_eq!(device(json!({})).unwrap_err(), "volume \"pv\" is not attached to node \"n\" yet");
        let failed = json!({"attached": false, "attachError": {"message": "no such server"}});
        assert_eq!(
            device(json!({"status": failed})).unwrap_err(),
            "AttachVolume.Attach failed for volume \"pv\" : no such server"
        );
        let deleting = json!({"name": "csi-x", "deletionTimestamp": "2026-01-01T00:00:00Z"});
        assert!(device(json!({"metadata": deleting, "status": attached})).unwrap_err().contains("is being detached"));
    }

    #[test]
    fn a_claim_grows_when_its_volume_is_larger_or_a_resize_is_pending() {
        let grows = |claimed: &str, capacity: &str, pending: bool| {
            let conditions = if pending { json!([{"type": RESIZE_PENDING, "status": "True"}]) } else { json!([]) };
            let volume = json!({"metadata": {"name": "pv"}, "spec": {"capacity": {"storage": capacity}}});
            let claim = json!({"metadata": {"namespace": "ns", "name": "data"},
                "status": {"capacity": {"storage": claimed}, "conditions": conditions}});
            growth(&serde_json::from_value(volume).unwrap(), &serde_json::from_value(claim).unwrap())
        };
        assert_eq!(grows("1Gi", "1Gi", false), None);
        assert_eq!(grows("1Gi", "2Gi", false).unwrap().capacity, "2Gi");
        assert_eq!(grows("2Gi", "2Gi", true).unwrap().claim, "data");
    }
}
