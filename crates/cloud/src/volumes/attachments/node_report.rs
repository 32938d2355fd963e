//! `status.volumesAttached` of nodes: the Cinder volumes that are attached to each, with their devices, as upstream reports them.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{AttachedVolume, Node};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use mainstay_api::cinder::{DRIVER, unique_volume_name, volume_handle};
use mainstay_controllers::runtime::{ApiError, Controller, Limits, ObjectKey, Outcomes, Plan, Runnable, error};
use serde_json::json;

use super::{
    attacher::{is_attached, recorded_device},
    volume_name,
};
use crate::context::CloudContext;

pub struct AttachedVolumesReport {
    context: Arc<CloudContext>,
}

pub fn controller(context: &Arc<CloudContext>) -> Runnable {
    let queue = context.queue::<AttachedVolumesReport>();
    context.caches.attachments.on_change({
        let queue = queue.clone();
        move |change| {
            if let Some(own) = change.latest().filter(|own| own.spec.attacher == DRIVER) {
                queue.add(own.spec.node_name.clone());
            }
        }
    });
    context.runnable(Arc::new(AttachedVolumesReport { context: context.clone() }), queue, Limits::default())
}

#[derive(Clone, Debug, Default)]
pub struct World {
    version: String,
    /// As the Node says, of all drivers.
    reported: Vec<AttachedVolume>,
    /// As VolumeAttachments say.
    attached: Vec<AttachedVolume>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct AttachedVolumes {
    version: String,
    volumes: Vec<AttachedVolume>,
}

fn plan(world: &World) -> Plan<(), AttachedVolumes> {
    let is_ours = |volume: &&AttachedVolume| volume.name.starts_with(&unique_volume_name(""));
    let mut volumes: Vec<AttachedVolume> = world.reported.iter().filter(|own| !is_ours(own)).cloned().collect();
    volumes.extend(world.attached.iter().cloned());
    volumes.sort_by(|a, b| a.name.cmp(&b.name));
    let mut reported = world.reported.clone();
    reported.sort_by(|a, b| a.name.cmp(&b.name));
    let changed = AttachedVolumes { version: world.version.clone(), volumes };
    Plan { status: (changed.volumes != reported).then_some(changed), ..Plan::default() }
}

impl Controller for AttachedVolumesReport {
    const NAME: &'static str = "cinder-attached-volumes";
    type Key = String;
    type World = World;
    type Action = ();
    type Outcome = ();
    type Status = AttachedVolumes;

    async fn observe(&self, name: &String) -> Result<Option<World>, ApiError> {
        let Some(node) = self.context.caches.nodes.get(&ObjectKey::new("", name)) else { return Ok(None) };
        let of_node = |own: &k8s_openapi::api::storage::v1::VolumeAttachment| {
            own.spec.node_name == *name && is_attached(own) && volume_name(own).is_some()
        };
        let attached = self.context.caches.attachments.select(of_node);
        let attached = attached.iter().filter_map(|own| {
            let volume = self.context.caches.volumes.get(&ObjectKey::new("", volume_name(own)?))?;
            let name = unique_volume_name(volume_handle(&volume)?);
            Some(AttachedVolume { name, device_path: recorded_device(own).to_owned() })
        });
        let reported = node.status.as_ref().and_then(|status| status.volumes_attached.clone()).unwrap_or_default();
        let version = node.metadata.resource_version.clone().unwrap_or_default();
        Ok(Some(World { version, reported, attached: attached.collect() }))
    }

    fn plan(world: &World, _: Timestamp) -> Plan<(), AttachedVolumes> {
        plan(world)
    }

    async fn apply(&self, _: &String, (): ()) -> Result<(), ApiError> {
        Ok(())
    }

    async fn report(&self, name: &String, status: AttachedVolumes, _: &Outcomes<()>) -> Result<(), ApiError> {
        let nodes: Api<Node> = Api::all(self.context.client.clone());
        let patch =
            json!({"metadata": {"resourceVersion": status.version}, "status": {"volumesAttached": status.volumes}});
        match nodes.patch_status(name, &PatchParams::default(), &Patch::Merge(patch)).await {
            Ok(written) => {
                self.context.caches.nodes.wrote(written);
                Ok(())
            }
            Err(failure) if error::has_code(&failure, 404) => Ok(()),
            Err(failure) => Err(ApiError::new(format!("write the attached volumes of node {name}"), failure)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume(name: &str) -> AttachedVolume {
        AttachedVolume { name: name.into(), device_path: "/dev/vdb".into() }
    }

    #[test]
    fn volumes_of_other_drivers_stay() {
        let (ours, foreign) = (volume(&unique_volume_name("v")), volume("kubernetes.io/csi/other^x"));
        let world = World { version: "7".into(), reported: vec![foreign.clone()], attached: vec![ours.clone()] };
        let both = vec![ours.clone(), foreign.clone()];
        let volumes = plan(&world).status.unwrap().volumes;
        assert_eq!(volumes, both);
        assert_eq!(plan(&World { reported: both.clone(), ..world.clone() }).status, None);
        let detached = World { reported: both, attached: vec![], ..world };
        assert_eq!(plan(&detached).status.unwrap().volumes, [foreign]);
    }
}
