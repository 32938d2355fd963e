//! Provisioning: the volume that is created for a claim, a directory of one node.

use k8s_openapi::{
    api::{
        core::v1::{
            LocalVolumeSource, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, ObjectReference,
            PersistentVolume, PersistentVolumeClaim, PersistentVolumeSpec, VolumeNodeAffinity,
        },
        storage::v1::StorageClass,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use super::{PROVISIONED_BY, PROVISIONER, VOLUME_PROTECTION, matching::NodeInfo};

/// What a directory of one node cannot be.
pub fn refused(claim: &PersistentVolumeClaim) -> Option<&'static str> {
    let spec = claim.spec.as_ref()?;
    let modes = spec.access_modes.as_deref().unwrap_or_default();
    if modes.iter().any(|mode| mode == "ReadWriteMany" || mode == "ReadOnlyMany") {
        Some("volumes of local-path belong to one node: only ReadWriteOnce and ReadWriteOncePod are possible")
    } else if spec.volume_mode.as_deref() == Some("Block") {
        Some("volumes of local-path are directories: volumeMode Block is not possible")
    } else if spec.data_source.is_some() || spec.data_source_ref.is_some() {
        Some("volumes of local-path begin empty: a dataSource is not possible")
    } else if spec.selector.is_some() {
        Some("volumes are made without labels: a selector is not possible")
    } else if spec.volume_attributes_class_name.as_deref().is_some_and(|class| !class.is_empty()) {
        Some("volumes of local-path have no attributes: a volumeAttributesClassName is not possible")
    } else {
        None
    }
}

/// The name follows from the claim, so that making it twice makes it once.
pub fn volume(
    claim: &PersistentVolumeClaim,
    class: &StorageClass,
    node: &NodeInfo,
    directory: &str,
) -> PersistentVolume {
    let name = format!("pvc-{}", claim.metadata.uid.as_deref().unwrap_or_default());
    let spec = claim.spec.clone().unwrap_or_default();
    let storage = spec.resources.and_then(|resources| resources.requests?.remove("storage")).unwrap_or_default();
    // By name: two nodes may call themselves the same.
    let here = NodeSelectorRequirement {
        key: "metadata.name".to_owned(),
        operator: "In".to_owned(),
        values: Some(vec![node.name.clone()]),
    };
    let term = NodeSelectorTerm { match_expressions: None, match_fields: Some(vec![here]) };
    PersistentVolume {
        metadata: ObjectMeta {
            annotations: Some([(PROVISIONED_BY.to_owned(), PROVISIONER.to_owned())].into()),
            finalizers: Some(vec![VOLUME_PROTECTION.to_owned()]),
            name: Some(name.clone()),
            ..ObjectMeta::default()
        },
        spec: Some(PersistentVolumeSpec {
            access_modes: spec.access_modes,
            capacity: Some([("storage".to_owned(), storage)].into()),
            claim_ref: Some(reference(claim)),
            local: Some(LocalVolumeSource {
                fs_type: None,
                path: format!("{}/{name}", directory.trim_end_matches('/')),
            }),
            node_affinity: Some(VolumeNodeAffinity {
                required: Some(NodeSelector { node_selector_terms: vec![term] }),
            }),
            persistent_volume_reclaim_policy: class.reclaim_policy.clone().or(Some("Delete".to_owned())),
            storage_class_name: class.metadata.name.clone(),
            volume_mode: Some("Filesystem".to_owned()),
            ..PersistentVolumeSpec::default()
        }),
        status: None,
    }
}

pub fn reference(claim: &PersistentVolumeClaim) -> ObjectReference {
    let meta = &claim.metadata;
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("PersistentVolumeClaim".to_owned()),
        namespace: meta.namespace.clone(),
        name: meta.name.clone(),
        uid: meta.uid.clone(),
        resource_version: meta.resource_version.clone(),
        field_path: None,
    }
}
