//! Entries of the ledger: their names and tags, which follow from what is wanted and by whom.

use std::fmt;

use jiff::Timestamp;
use mainstay_api::cloud::cloud_resource::{CloudResource, ResourceOwner, ResourcePhase, ResourceType};
use sha2::{Digest, Sha256};

use super::ATTEMPTED;

/// The item of metadata that holds the tag, where a service has metadata.
pub const TAG_KEY: &str = "mainstay.dev/tag";
const TAG_PREFIX: &str = "mainstay";

/// Which cluster a tag belongs to: several may share a project.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterId(String);

impl ClusterId {
    /// From the uid of `kube-system`.
    pub fn from_uid(uid: &str) -> Self {
        Self(uid.chars().filter(|each| each.is_ascii_alphanumeric()).take(12).collect())
    }

    /// Whether a tag is one of this cluster's.
    pub fn owns(&self, tag: &str) -> bool {
        let rest = tag.strip_prefix(TAG_PREFIX).and_then(|rest| rest.strip_prefix(':'));
        rest.and_then(|rest| rest.split_once(':')).is_some_and(|(cluster, _)| cluster == self.0)
    }
}

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What is to be created, and for whom.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Intent {
    /// The cloud, as the configuration names it.
    pub cloud: String,
    pub project: String,
    pub resource: ResourceType,
    /// Its name in the cloud.
    pub name: String,
    /// Tells several of one type and owner apart.
    pub slot: String,
    /// What it is part of, where it has no id of its own.
    pub parent: String,
    pub owner: ResourceOwner,
}

impl Intent {
    fn digest(&self) -> String {
        let mut hash = Sha256::new();
        for part in [&self.owner.uid, &format!("{:?}", self.resource), &self.slot, &self.cloud] {
            hash.update(part.as_bytes());
            hash.update([0]);
        }
        hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
    }

    /// The name of its entry.
    pub fn entry_name(&self) -> String {
        format!("{}-{}", format!("{:?}", self.resource).to_lowercase(), self.digest())
    }

    /// The tag that it is created with: at most 60 characters, as Nova wants.
    pub fn tag(&self, cluster: &ClusterId) -> String {
        format!("{TAG_PREFIX}:{cluster}:{}", self.digest())
    }
}

/// An entry, as far as it is acted on.
#[derive(Clone, Debug, PartialEq)]
pub struct LedgerEntry {
    pub name: String,
    pub uid: String,
    pub version: String,
    pub resource: ResourceType,
    pub cloud: String,
    /// The resource's name in the cloud.
    pub cloud_name: String,
    pub parent: String,
    pub tag: String,
    pub owner: ResourceOwner,
    pub phase: ResourcePhase,
    /// Once it is known.
    pub id: Option<String>,
    pub message: String,
    /// When its create was last tried.
    pub attempted: Timestamp,
}

impl From<CloudResource> for LedgerEntry {
    fn from(object: CloudResource) -> Self {
        let CloudResource { metadata, spec, status, .. } = object;
        let status = status.unwrap_or_default();
        let annotation = metadata.annotations.as_ref().and_then(|all| all.get(ATTEMPTED)?.parse().ok());
        let attempted = annotation.or(metadata.creation_timestamp.map(|time| time.0)).unwrap_or_default();
        Self {
            name: metadata.name.unwrap_or_default(),
            uid: metadata.uid.unwrap_or_default(),
            version: metadata.resource_version.unwrap_or_default(),
            resource: spec.resource,
            cloud: spec.cloud,
            cloud_name: spec.name,
            parent: spec.parent,
            tag: spec.tag,
            owner: spec.owner,
            phase: status.phase,
            id: Some(status.id).filter(|id| !id.is_empty()),
            message: status.message,
            attempted,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_tags_follow_from_owner_type_and_slot() {
        let owner = ResourceOwner { uid: "u".into(), ..ResourceOwner::default() };
        let intent = Intent { owner, resource: ResourceType::FloatingIP, slot: "a".into(), ..Intent::default() };
        let cluster = ClusterId::from_uid("0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9");
        assert_eq!(intent.entry_name(), Intent { name: "other".into(), ..intent.clone() }.entry_name());
        assert!(intent.entry_name().starts_with("floatingip-"));
        assert_ne!(intent.entry_name(), Intent { slot: "b".into(), ..intent.clone() }.entry_name());
        let tag = intent.tag(&cluster);
        assert!(tag.starts_with("mainstay:0a1b2c3d4e5f:") && tag.len() <= 60, "{tag}");
        assert!(cluster.owns(&tag));
        assert!(!ClusterId::from_uid("ffffffffffff").owns(&tag));
        assert!(!cluster.owns("mainstay") && !cluster.owns("") && !cluster.owns("mainstay:0a1b2c3d4e5f"));
    }
}
