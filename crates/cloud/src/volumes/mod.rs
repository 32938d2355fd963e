//! Claims as Cinder volumes: provisioned for claims of classes with the provisioner `cinder.csi.openstack.org`, grown with them, and removed by reclaim policy.
//!
//! * [`claims`]: the volume of a claim, through the ledger, and its growth; [`plan`](claims::plan) decides
//! * [`attachments`]: attaches volumes to the servers of nodes whose pods use them; the agents there mount them
//! * [`snapshots`]: VolumeSnapshots of them
//! * [`stock_classes`]: the StorageClasses and the VolumeSnapshotClass that there are from the start
//! * [`lifecycle`]: the end of a PersistentVolume: it stays until Cinder really has no such volume

pub mod attachments;
pub mod claims;
pub mod lifecycle;
pub mod snapshots;
mod stock_classes;

pub use mainstay_api::cinder::{DRIVER, volume_handle};

/// Upstream's: a PersistentVolume with it stays until its volume is gone.
pub const FINALIZER: &str = "external-provisioner.volume.kubernetes.io/finalizer";
const PROVISIONED_BY: &str = mainstay_api::wellknown::kubernetes::PROVISIONED_BY;
const COMPONENT: &str = DRIVER;

/// GiB, rounded up, as Cinder counts.
pub fn size_in_gib(quantity: &str) -> Option<u64> {
    let bytes = mainstay_api::quantity::Quantity::parse(quantity).ok()?.value();
    let gib = (bytes.max(1) + (1 << 30) - 1) >> 30;
    u64::try_from(gib).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_rounded_up_to_gib() {
        for (text, gib) in [("1Gi", 1), ("1", 1), ("1.5Gi", 2), ("1025Mi", 2), ("10G", 10), ("0", 1)] {
            assert_eq!(size_in_gib(text), Some(gib), "{text}");
        }
        assert_eq!(size_in_gib("many"), None);
    }
}
