//! `storage.k8s.io/v1`.

use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment};

use super::builder::of;
use crate::{descriptor::Descriptor, table::storage as table};

pub fn kinds() -> Vec<Descriptor> {
    vec![
        of::<CSIDriver>().columns(&table::CSI_DRIVERS).generation(),
        of::<CSINode>().columns(&table::CSI_NODES),
        of::<CSIStorageCapacity>().columns(&table::CSI_STORAGE_CAPACITIES),
        of::<StorageClass>().columns(&table::STORAGE_CLASSES).short("sc"),
        of::<VolumeAttachment>().columns(&table::VOLUME_ATTACHMENTS).status(),
    ]
}
