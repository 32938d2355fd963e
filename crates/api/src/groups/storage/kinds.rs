//! `storage.k8s.io/v1`.

use k8s_openapi::api::storage::v1::{
    CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment, VolumeAttributesClass,
};

use super::{
    rules::{CSIDriverRules, CSINodeRules, StorageClassRules, VolumeAttachmentRules, VolumeAttributesClassRules},
    table,
};
use crate::{
    descriptor::{Descriptor, SelectableField},
    groups::builder::{describe, field},
};

/// A node follows those that name it.
const VOLUME_ATTACHMENT_FIELDS: &[SelectableField] = &[field("spec.nodeName", &["spec", "nodeName"])];

pub fn kinds() -> Vec<Descriptor> {
    vec![
        describe::<CSIDriver>().rules::<CSIDriverRules>().columns(&table::CSI_DRIVERS).generation(),
        describe::<CSINode>().rules::<CSINodeRules>().columns(&table::CSI_NODES).status(),
        describe::<CSIStorageCapacity>().columns(&table::CSI_STORAGE_CAPACITIES),
        describe::<StorageClass>().rules::<StorageClassRules>().columns(&table::STORAGE_CLASSES).short("sc"),
        describe::<VolumeAttachment>()
            .rules::<VolumeAttachmentRules>()
            .columns(&table::VOLUME_ATTACHMENTS)
            .status()
            .select(VOLUME_ATTACHMENT_FIELDS),
        describe::<VolumeAttributesClass>()
            .rules::<VolumeAttributesClassRules>()
            .columns(&table::VOLUME_ATTRIBUTES_CLASSES)
            .short("vac"),
    ]
}
