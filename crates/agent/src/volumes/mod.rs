//! A pod's volumes as directories and mounts of this machine.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Pod;
use mainstay_runtime::PodUid;

pub struct Volumes {}

#[derive(Debug, thiserror::Error)]
#[error("MountVolume.SetUp failed for volume {volume:?} : {why}")]
pub struct VolumeError {
    pub volume: String,
    pub why: String,
}

impl Volumes {
    /// Makes every volume of the pod present and current. Harmless when repeated; called before the pod's
    /// first container and again whenever the pod is woken.
    pub async fn ready(&self, _pod: &Pod) -> Result<(), VolumeError> {
        todo!()
    }

    /// Unmounts and removes what `ready` made, from what is on disk alone. A mount that will not go away is an
    /// error, and nothing below it is touched.
    pub async fn release(&self, _pod: &PodUid) -> Result<(), VolumeError> {
        todo!()
    }

    /// Pods that have something on disk.
    pub fn held(&self) -> BTreeSet<PodUid> {
        todo!()
    }
}
