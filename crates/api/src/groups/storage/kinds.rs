//! `storage.k8s.io/v1`.

use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment};

use super::{
    rules::{CSIDriverRules, CSINodeRules, StorageClassRules, VolumeAttachmentRules},
    table,
};
use crate::{descriptor::Descriptor, groups::builder::of};

pub fn kinds() -> Vec<Descriptor> {
    vec![
        of::<CSIDriver>().rules::<CSIDriverRules>().columns(&table::CSI_DRIVERS).generation(),
        of::<CSINode>().rules::<CSINodeRules>().columns(&table::CSI_NODES),
        of::<CSIStorageCapacity>().columns(&table::CSI_STORAGE_CAPACITIES),
        of::<StorageClass>().rules::<StorageClassRules>().columns(&table::STORAGE_CLASSES).short("sc"),
        of::<VolumeAttachment>().rules::<VolumeAttachmentRules>().columns(&table::VOLUME_ATTACHMENTS).status(),
    ]
}
