//! Names that controllers of an OpenStack cloud and agents share for Cinder volumes: the driver, its VolumeAttachments, and volumes in the status of nodes.

use k8s_openapi::api::core::v1::{Node, PersistentVolume};
use sha2::{Digest, Sha256};

/// The provisioner of classes, and the driver of volumes, as upstream's CSI plugin names itself.
pub const DRIVER: &str = "cinder.csi.openstack.org";
/// In `status.attachmentMetadata` of a VolumeAttachment: the device that Nova names, as upstream's plugin has it.
pub const DEVICE_PATH: &str = "DevicePath";
/// Before the id of a server in `spec.providerID` of nodes.
const PROVIDER: &str = "openstack:///";

/// The Cinder volume behind a PersistentVolume, if it is one.
pub fn volume_handle(volume: &PersistentVolume) -> Option<&str> {
    let source = volume.spec.as_ref()?.csi.as_ref()?;
    (source.driver == DRIVER).then_some(source.volume_handle.as_str())
}

/// The name of the VolumeAttachment of a volume and a node, as upstream's kubelet expects it.
pub fn attachment_name(handle: &str, node: &str) -> String {
    let digest = Sha256::digest(format!("{handle}{DRIVER}{node}"));
    let digits: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("csi-{digits}")
}

/// How `status.volumesInUse` and `status.volumesAttached` of nodes name a volume, as upstream.
pub fn unique_volume_name(handle: &str) -> String {
    format!("kubernetes.io/csi/{DRIVER}^{handle}")
}

/// The Nova server of a node, by its `spec.providerID`: `openstack:///UUID`, or `openstack://REGION/UUID`.
pub fn server_id(node: &Node) -> Option<&str> {
    let id = node.spec.as_ref()?.provider_id.as_deref()?;
    let rest = id.strip_prefix(PROVIDER).or_else(|| id.strip_prefix("openstack://")?.split_once('/').map(|(_, id)| id));
    rest.filter(|id| !id.is_empty() && !id.contains('/'))
}

/// Whether the agent of a node says that it has the volume mounted, or is about to mount it.
pub fn is_in_use(node: &Node, handle: &str) -> bool {
    let name = unique_volume_name(handle);
    node.status.iter().flat_map(|status| status.volumes_in_use.iter().flatten()).any(|own| *own == name)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(provider_id: &str) -> Node {
        serde_json::from_value(json!({"metadata": {"name": "n"}, "spec": {"providerID": provider_id},
            "status": {"volumesInUse": ["kubernetes.io/csi/cinder.csi.openstack.org^v1"]}}))
        .unwrap()
    }

    #[test]
    fn servers_are_named_with_and_without_a_region() {
        assert_eq!(server_id(&node("openstack:///1f5f4c1a")), Some("1f5f4c1a"));
        assert_eq!(server_id(&node("openstack://RegionOne/1f5f4c1a")), Some("1f5f4c1a"));
        for foreign in ["", "openstack:///", "aws:///eu/i-1", "openstack:///a/b"] {
            assert_eq!(server_id(&node(foreign)), None, "{foreign}");
        }
    }

    #[test]
    fn attachments_are_named_as_upstream_names_them() {
        // printf 'vol-1cinder.csi.openstack.orgnode-1' | sha256sum
        let name = attachment_name("vol-1", "node-1");
        assert_eq!(name, "csi-a602f78040a2a8832d60c30aa449a6d91fe68ca173cdc23c5a8bb227d928beaf");
        assert_ne!(name, attachment_name("vol-1", "node-2"));
    }

    #[test]
    fn volumes_in_use_are_found_by_their_handle() {
        assert!(is_in_use(&node(""), "v1") && !is_in_use(&node(""), "v2"));
    }
}
