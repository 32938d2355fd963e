//! Snapshots of Cinder volumes: VolumeSnapshots of classes with the driver `cinder.csi.openstack.org`, as upstream's external-snapshotter and the Cinder driver
//! make them together.
//!
//! * [`definitions`]: the three CustomResourceDefinitions, created where nobody has yet
//! * [`requests`]: a VolumeSnapshot gets a VolumeSnapshotContent, and its status
//! * [`contents`]: a VolumeSnapshotContent gets a snapshot in Cinder, through the ledger, and stays until that is gone

pub mod contents;
mod definitions;
pub mod kinds;
pub mod requests;

use std::sync::Arc;

use mainstay_controllers::runtime::Cache;
use tokio_util::sync::CancellationToken;

use self::kinds::{VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContent};
use super::stock_classes;
use crate::context::CloudContext;

/// Upstream's: keep the two objects that are bound to each other.
const SNAPSHOT_FINALIZER: &str = "snapshot.storage.kubernetes.io/volumesnapshot-bound-protection";
const CONTENT_FINALIZER: &str = "snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection";
pub(super) const DEFAULT_CLASS: &str = "snapshot.storage.kubernetes.io/is-default-class";
/// On a VolumeSnapshotContent: volumes of the other mode may be made of it.
pub const ALLOWS_MODE_CHANGE: &str = "snapshot.storage.kubernetes.io/allow-volume-mode-change";

/// The kinds of snapshots. They are empty until their definitions are there, unlike the caches of kinds that every server has.
#[derive(Clone, Default)]
pub struct SnapshotCaches {
    pub snapshots: Arc<Cache<VolumeSnapshot>>,
    pub contents: Arc<Cache<VolumeSnapshotContent>>,
    pub classes: Arc<Cache<VolumeSnapshotClass>>,
}

impl SnapshotCaches {
    /// Has the definitions and a class, and lists and watches the kinds, until it is dropped.
    async fn run(self, context: Arc<CloudContext>) {
        let client = &context.client;
        definitions::ensure(client).await;
        let stop = CancellationToken::new();
        let class = async {
            self.classes.synced().await;
            stock_classes::ensure_snapshot_class(context.clone()).await;
        };
        tokio::join!(
            class,
            self.snapshots.clone().run(client.clone(), stop.clone()),
            self.contents.clone().run(client.clone(), stop.clone()),
            self.classes.clone().run(client.clone(), stop.clone()),
        );
    }

    async fn synced(self) {
        self.snapshots.synced().await;
        self.contents.synced().await;
        self.classes.synced().await;
    }
}
