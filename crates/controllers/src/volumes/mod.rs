//! Persistent volumes: binds claims to volumes, provisions volumes on nodes, and reclaims them.
//!
//! * [`claims`]: binding and provisioning for one claim, decided in [`plan`](claims::plan); [`matching`]: which volume
//!   suits a claim
//! * [`provision`]: the volume for a claim that no existing one suits: a directory of the node on which the first pod
//!   that uses the claim was scheduled
//! * [`volume_lifecycle`]: the phase of a volume, its protection, and its deletion once it is released
//! * [`ephemeral`]: claims that are part of a pod
//! * [`attributes_class`]: VolumeAttributesClasses that are deleted wait for claims and volumes that name them
//!
//! Every step is derived from what is observed: the volume first names its claim, which nobody else can then take,
//! then the claim names its volume. Whoever is interrupted finds where to go on. Claims, volumes and pods are read from
//! the API when they are reconciled, because a binding is for good; the caches say only whom a change concerns.
//!
//! The directory itself is the business of the agent of that node: it is made when first used, and removed when the
//! volume is deleted, which a finalizer of the agent's waits for.

pub mod attributes_class;
pub mod claims;
pub mod ephemeral;
mod matching;
mod provision;
pub mod volume_lifecycle;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};

use crate::runtime::ObjectKey;

/// The finalizer of a claim that pods may be using.
pub const CLAIM_PROTECTION: &str = mainstay_api::wellknown::finalizer::PVC_PROTECTION;
/// The finalizer of a volume that is bound.
pub const VOLUME_PROTECTION: &str = mainstay_api::wellknown::finalizer::PV_PROTECTION;
/// The finalizer of a VolumeAttributesClass that claims or volumes may name.
pub const CLASS_PROTECTION: &str = mainstay_api::wellknown::finalizer::VAC_PROTECTION;
pub const PROVISIONER: &str = mainstay_api::wellknown::mainstay::LOCAL_PATH;
/// The finalizer of a volume whose directory exists; the agent of its node takes it off.
pub const ON_DISK: &str = mainstay_api::wellknown::mainstay::LOCAL_PATH;
/// Says of a Node where its agent keeps volumes.
pub const DIRECTORY: &str = mainstay_api::wellknown::mainstay::VOLUMES;
const PROVISIONED_BY: &str = mainstay_api::wellknown::kubernetes::PROVISIONED_BY;
const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
const DEFAULT_CLASS: &str = mainstay_api::wellknown::kubernetes::DEFAULT_STORAGE_CLASS;

const COMPONENT: &str = "persistentvolume-controller";

/// The claim that a volume names.
fn claim_of(volume: &PersistentVolume) -> Option<ObjectKey> {
    let claim = volume.spec.as_ref()?.claim_ref.as_ref()?;
    Some(ObjectKey::new(claim.namespace.clone()?, claim.name.clone()?))
}

/// Whether pods, volumes and classes matter to a claim: it is not bound yet, or about to go.
fn is_pending(claim: &PersistentVolumeClaim) -> bool {
    let volume = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref()).unwrap_or_default();
    claim.metadata.deletion_timestamp.is_some() || volume.is_empty()
}
