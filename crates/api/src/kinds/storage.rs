//! `storage.k8s.io/v1`.

use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment};

use super::builder::of;
use crate::descriptor::Descriptor;

pub fn kinds() -> Vec<Descriptor> {
    vec![
        of::<CSIDriver>().generation(),
        of::<CSINode>(),
        of::<CSIStorageCapacity>(),
        of::<StorageClass>().short("sc"),
        of::<VolumeAttachment>().status(),
    ]
}
