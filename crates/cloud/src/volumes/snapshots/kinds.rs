//! The kinds of the group `snapshot.storage.k8s.io`, as upstream's external-snapshotter defines them.

use k8s_openapi::{
    ClusterResourceScope, ListableResource, Metadata, NamespaceResourceScope, Resource,
    api::core::v1::ObjectReference,
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use serde::{Deserialize, Serialize};

pub const GROUP: &str = "snapshot.storage.k8s.io";
pub const API_VERSION: &str = "snapshot.storage.k8s.io/v1";

macro_rules! snapshot_kind {
    ($type:ident, $list:literal, $plural:literal, $scope:ty) => {
        impl Resource for $type {
            const API_VERSION: &'static str = API_VERSION;
            const GROUP: &'static str = GROUP;
            const KIND: &'static str = stringify!($type);
            const VERSION: &'static str = "v1";
            const URL_PATH_SEGMENT: &'static str = $plural;
            type Scope = $scope;
        }

        impl ListableResource for $type {
            const LIST_KIND: &'static str = $list;
        }

        impl Metadata for $type {
            type Ty = ObjectMeta;

            fn metadata(&self) -> &ObjectMeta {
                &self.metadata
            }

            fn metadata_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }
    };
}

snapshot_kind!(VolumeSnapshot, "VolumeSnapshotList", "volumesnapshots", NamespaceResourceScope);
snapshot_kind!(VolumeSnapshotContent, "VolumeSnapshotContentList", "volumesnapshotcontents", ClusterResourceScope);
snapshot_kind!(VolumeSnapshotClass, "VolumeSnapshotClassList", "volumesnapshotclasses", ClusterResourceScope);

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct VolumeSnapshot {
    #[serde(default)]
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub spec: SnapshotSpec,
    #[serde(default)]
    pub status: SnapshotStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SnapshotSpec {
    pub source: SnapshotSource,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_snapshot_class_name: Option<String>,
}

/// One of the two.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SnapshotSource {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub persistent_volume_claim_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_snapshot_content_name: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SnapshotStatus {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bound_volume_snapshot_content_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub creation_time: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready_to_use: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restore_size: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<SnapshotError>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SnapshotError {
    pub message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<Time>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeSnapshotContent {
    #[serde(default)]
    pub api_version: String,
    #[serde(default)]
    pub kind: String,
    #[serde(default)]
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub spec: ContentSpec,
    #[serde(default)]
    pub status: ContentStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContentSpec {
    pub deletion_policy: DeletionPolicy,
    pub driver: String,
    pub source: ContentSource,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_volume_mode: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_snapshot_class_name: Option<String>,
    pub volume_snapshot_ref: ObjectReference,
}

/// A volume that is to be snapshotted, or a snapshot that is there already.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContentSource {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_handle: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot_handle: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeletionPolicy {
    Delete,
    #[default]
    Retain,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContentStatus {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot_handle: Option<String>,
    /// In nanoseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub creation_time: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready_to_use: Option<bool>,
    /// In bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restore_size: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<SnapshotError>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeSnapshotClass {
    #[serde(default)]
    pub api_version: String,
    #[serde(default)]
    pub kind: String,
    #[serde(default)]
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub driver: String,
    #[serde(default)]
    pub deletion_policy: DeletionPolicy,
}

impl VolumeSnapshotClass {
    /// A class with this driver that has an annotation with the value `true`.
    pub fn annotated(name: &str, driver: &str, annotation: &str) -> Self {
        Self {
            api_version: API_VERSION.to_owned(),
            kind: "VolumeSnapshotClass".to_owned(),
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                annotations: Some([(annotation.to_owned(), "true".to_owned())].into()),
                ..ObjectMeta::default()
            },
            driver: driver.to_owned(),
            deletion_policy: DeletionPolicy::Delete,
        }
    }
}
