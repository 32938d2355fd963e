//! Matching of volumes and claims: classes, mode, size, access modes, labels, node. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    NodeSelectorTerm, PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimSpec,
};
use mainstay_api::{
    matching::{NodeTerm, UNLABELLED},
    quantity::Quantity as Amount,
    validation::{labels, resources},
};

/// A node, as far as volumes are choosy about it.
#[derive(Clone, Debug, Default)]
pub struct NodeInfo {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    /// Where its agent keeps volumes, once it has reported that.
    pub directory: Option<String>,
}

/// The smallest volume that suits; of several, the first by name, so that looking twice chooses the same.
pub fn choose<'a>(
    claim: &PersistentVolumeClaim,
    volumes: &'a [PersistentVolume],
    node: Option<&NodeInfo>,
) -> Option<&'a PersistentVolume> {
    let suits = |volume: &&PersistentVolume| is_free(volume) && why_not(claim, volume, node).is_none();
    let size = |volume: &PersistentVolume| (capacity(volume), volume.metadata.name.clone());
    volumes.iter().filter(suits).min_by(|a, b| size(a).cmp(&size(b)))
}

/// The volume that was made or set aside for this very claim.
pub fn promised<'a>(claim: &PersistentVolumeClaim, volumes: &'a [PersistentVolume]) -> Option<&'a PersistentVolume> {
    volumes.iter().find(|volume| names(volume, claim) && volume.metadata.deletion_timestamp.is_none())
}

/// Whether the volume names the claim. Without a uid, any claim of this name is meant.
pub fn names(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref()).is_some_and(|reference| {
        reference.namespace == claim.metadata.namespace
            && reference.name == claim.metadata.name
            && (reference.uid.as_deref().unwrap_or_default().is_empty() || reference.uid == claim.metadata.uid)
    })
}

pub fn is_free(volume: &PersistentVolume) -> bool {
    volume.metadata.deletion_timestamp.is_none()
        && volume.spec.as_ref().is_some_and(|spec| spec.claim_ref.is_none())
        && volume.status.as_ref().and_then(|status| status.phase.as_deref()) != Some("Released")
}

/// What keeps a volume from serving a claim.
pub fn why_not(
    claim: &PersistentVolumeClaim,
    volume: &PersistentVolume,
    node: Option<&NodeInfo>,
) -> Option<&'static str> {
    let missing = PersistentVolumeClaimSpec::default();
    let wanted = claim.spec.as_ref().unwrap_or(&missing);
    let Some(offer) = &volume.spec else { return Some("the volume has no spec") };
    let mode = |mode: &Option<String>| mode.clone().unwrap_or_else(|| "Filesystem".to_owned());
    let modes = |modes: &Option<Vec<String>>| modes.clone().unwrap_or_default();
    let class = |class: &Option<String>| class.clone().unwrap_or_default();
    if class(&wanted.storage_class_name) != class(&offer.storage_class_name) {
        Some("the storageClasses do not match")
    } else if class(&wanted.volume_attributes_class_name) != class(&offer.volume_attributes_class_name) {
        Some("the volumeAttributesClasses do not match")
    } else if mode(&wanted.volume_mode) != mode(&offer.volume_mode) {
        Some("the volumeModes do not match")
    } else if capacity(volume) < requested(claim) {
        Some("the requested size is too big")
    } else if !modes(&wanted.access_modes).iter().all(|mode| modes(&offer.access_modes).contains(mode)) {
        Some("the access modes do not match")
    } else if wanted
        .selector
        .as_ref()
        .is_some_and(|selector| !labels::matches(selector, volume.metadata.labels.as_ref().unwrap_or(&UNLABELLED)))
    {
        Some("the labels do not match")
    } else if node.is_some_and(|node| !reaches(volume, node)) {
        Some("the volume cannot be reached from the pod's node")
    } else {
        None
    }
}

/// Whether a volume can be used on a node.
pub fn reaches(volume: &PersistentVolume, node: &NodeInfo) -> bool {
    let required = volume.spec.as_ref().and_then(|spec| spec.node_affinity.as_ref()?.required.as_ref());
    let matches = |term: &NodeSelectorTerm| term.matches(&node.name, &node.labels);
    required.is_none_or(|selector| selector.node_selector_terms.iter().any(matches))
}

fn capacity(volume: &PersistentVolume) -> Amount {
    volume.spec.as_ref().and_then(|spec| resources::find(&spec.capacity, "storage")).unwrap_or_default()
}

pub fn requested(claim: &PersistentVolumeClaim) -> Amount {
    let resources = claim.spec.as_ref().and_then(|spec| spec.resources.as_ref());
    resources.and_then(|wanted| resources::find(&wanted.requests, "storage")).unwrap_or_default()
}
