//! ResourceClaims, ResourceSlices, DeviceClasses and DeviceTaintRules, as allocation reads them.

use std::fmt;

use jiff::Timestamp;
use k8s_openapi::{
    api::resource::v1::{
        DeviceClaim, DeviceClassSpec, DeviceTaintRuleSpec, ResourceClaimConsumerReference, ResourceClaimSpec,
        ResourceClaimStatus, ResourceSliceSpec,
    },
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use serde::{Deserialize, Deserializer, de::IgnoredAny};

use super::{binding::BindingProgress, result::Allocation};
use crate::core::decode::or_default;

/// Namespace and name of a ResourceClaim.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClaimKey {
    pub namespace: String,
    pub name: String,
}

impl ClaimKey {
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for ClaimKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClaimView {
    pub uid: String,
    /// Its `resourceVersion`.
    pub version: u64,
    /// It has a deletion timestamp.
    pub deleting: bool,
    /// The uid of the pod that it was made for.
    pub made_for: Option<String>,
    pub devices: DeviceClaim,
    pub allocation: Option<Allocation>,
    pub reserved_for: Vec<ResourceClaimConsumerReference>,
    pub binding: BindingProgress,
}

impl ClaimView {
    pub fn is_reserved_for(&self, pod_uid: &str) -> bool {
        self.reserved_for.iter().any(|consumer| consumer.uid == pod_uid)
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireClaim {
    metadata: WireClaimMeta,
    #[serde(deserialize_with = "or_default")]
    spec: ResourceClaimSpec,
    #[serde(deserialize_with = "or_default")]
    status: ResourceClaimStatus,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireClaimMeta {
    uid: String,
    resource_version: String,
    deletion_timestamp: Option<IgnoredAny>,
    #[serde(deserialize_with = "or_default")]
    owner_references: Vec<OwnerReference>,
}

impl<'de> Deserialize<'de> for ClaimView {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let WireClaim { metadata, spec, status } = WireClaim::deserialize(from)?;
        let mut pods = metadata
            .owner_references
            .into_iter()
            .filter(|owner| owner.controller == Some(true) && owner.kind == "Pod" && owner.api_version == "v1");
        Ok(Self {
            uid: metadata.uid,
            version: metadata.resource_version.parse().unwrap_or(0),
            deleting: metadata.deletion_timestamp.is_some(),
            made_for: pods.next().map(|owner| owner.uid),
            devices: spec.devices.unwrap_or_default(),
            binding: BindingProgress::new(&status),
            allocation: status.allocation.map(Allocation::new),
            reserved_for: status.reserved_for.unwrap_or_default(),
        })
    }
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct SliceView {
    pub spec: ResourceSliceSpec,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct DeviceClassView {
    metadata: WireClassMeta,
    pub spec: DeviceClassSpec,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireClassMeta {
    creation_timestamp: Option<Timestamp>,
}

impl DeviceClassView {
    /// Microseconds since 1970.
    pub fn created(&self) -> i64 {
        self.metadata.creation_timestamp.map_or(0, Timestamp::as_microsecond)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct DeviceTaintRuleView {
    pub spec: DeviceTaintRuleSpec,
}
