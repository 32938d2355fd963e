//! Which nodes the PersistentVolumeClaims of a pod allow.
//!
//! A bound claim restricts its pods to the nodes of its volume's node affinity. A claim of a class with
//! `WaitForFirstConsumer` restricts nothing: the volume will be provisioned where the pod is. Any other claim has to be
//! bound first.

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::Value;

use crate::core::{decode, view::NodeTerm};

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ClaimView {
    metadata: ClaimMeta,
    spec: ClaimSpec,
    status: ClaimStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ClaimMeta {
    deletion_timestamp: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ClaimSpec {
    volume_name: Option<String>,
    storage_class_name: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct ClaimStatus {
    phase: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct VolumeView {
    spec: VolumeSpec,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct VolumeSpec {
    node_affinity: Option<VolumeNodeAffinity>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct VolumeNodeAffinity {
    required: Option<Value>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StorageClassView {
    volume_binding_mode: Option<String>,
}

/// What the claims of one pod require.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeRequirements {
    /// For each volume, one of its terms has to match.
    pub terms: Vec<Vec<NodeTerm>>,
    /// What has to happen before the pod can be scheduled.
    pub missing: Vec<String>,
}

#[derive(Default)]
pub struct VolumeCache {
    /// By namespace and name.
    pub claims: HashMap<(String, String), ClaimView>,
    pub volumes: HashMap<String, VolumeView>,
    pub classes: HashMap<String, StorageClassView>,
}

impl VolumeCache {
    pub fn requirements(&self, namespace: &str, claims: &[String]) -> VolumeRequirements {
        let mut requirements = VolumeRequirements::default();
        for name in claims {
            match self.claim_requirement(namespace, name) {
                Ok(Some(terms)) => requirements.terms.push(terms),
                Ok(None) => {}
                Err(missing) => {
                    if !requirements.missing.contains(&missing) {
                        requirements.missing.push(missing);
                    }
                }
            }
        }
        requirements
    }

    fn claim_requirement(&self, namespace: &str, name: &str) -> Result<Option<Vec<NodeTerm>>, String> {
        let Some(claim) = self.claims.get(&(namespace.to_owned(), name.to_owned())) else {
            return Err(format!("persistentvolumeclaim {name:?} not found"));
        };
        if claim.metadata.deletion_timestamp.is_some() {
            return Err(format!("persistentvolumeclaim {name:?} is being deleted"));
        }
        if claim.status.phase.as_deref() == Some("Lost") {
            return Err(format!("persistentvolumeclaim {name:?} lost its volume"));
        }
        let Some(volume) = claim.spec.volume_name.as_deref().filter(|name| !name.is_empty()) else {
            let class = claim.spec.storage_class_name.as_deref().unwrap_or_default();
            let mode = self.classes.get(class).and_then(|class| class.volume_binding_mode.as_deref());
            return match mode {
                Some("WaitForFirstConsumer") => Ok(None),
                _ => Err("pod has unbound immediate PersistentVolumeClaims".to_owned()),
            };
        };
        let Some(volume) = self.volumes.get(volume) else {
            return Err(format!("persistentvolume {volume:?} not found"));
        };
        let required = volume.spec.node_affinity.as_ref().and_then(|affinity| affinity.required.as_ref());
        // Terms that cannot be decoded match no node, rather than every node.
        Ok(required.map(|required| decode::node_selector_terms(required.to_string().as_bytes()).unwrap_or_default()))
    }
}

#[cfg(test)]
mod tests {
    use mainstay_api::matching::NodeTerm as _;
    use serde_json::json;

    use super::*;

    fn volumes() -> VolumeCache {
        let claim = |value: Value| serde_json::from_value::<ClaimView>(value).unwrap();
        let on_n1 = json!({ "spec": { "nodeAffinity": { "required": { "nodeSelectorTerms": [
            { "matchFields": [{ "key": "metadata.name", "operator": "In", "values": ["n1"] }] },
        ] } } } });
        let named = |name: &str| ("ns".to_owned(), name.to_owned());
        VolumeCache {
            claims: [
                (named("bound"), claim(json!({ "metadata": {}, "spec": { "volumeName": "local" } }))),
                (named("anywhere"), claim(json!({ "metadata": {}, "spec": { "volumeName": "free" } }))),
                (named("later"), claim(json!({ "metadata": {}, "spec": { "storageClassName": "local-path" } }))),
                (named("now"), claim(json!({ "metadata": {}, "spec": { "storageClassName": "fast" }, "status": {} }))),
                (named("going"), claim(json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } }))),
                (named("broken"), claim(json!({ "spec": { "volumeName": "gone" } }))),
            ]
            .into(),
            volumes: [
                ("local".to_owned(), serde_json::from_value(on_n1).unwrap()),
                ("free".to_owned(), serde_json::from_value(json!({ "spec": {} })).unwrap()),
            ]
            .into(),
            classes: [
                (
                    "local-path".to_owned(),
                    StorageClassView { volume_binding_mode: Some("WaitForFirstConsumer".to_owned()) },
                ),
                ("fast".to_owned(), StorageClassView { volume_binding_mode: Some("Immediate".to_owned()) }),
            ]
            .into(),
        }
    }

    fn requirements(claims: &[&str]) -> VolumeRequirements {
        volumes().requirements("ns", &claims.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn a_bound_claim_restricts_nodes_and_one_that_waits_for_its_consumer_does_not() {
        let found = requirements(&["bound", "anywhere", "later"]);
        assert_eq!((found.terms.len(), found.missing), (1, vec![]));
        let labels = Default::default();
        assert!(found.terms[0][0].matches("n1", &labels) && !found.terms[0][0].matches("n2", &labels));
    }

    #[test]
    fn missing_objects_are_named() {
        for (claim, expected) in [
            ("none", "persistentvolumeclaim \"none\" not found"),
            ("now", "pod has unbound immediate PersistentVolumeClaims"),
            ("going", "persistentvolumeclaim \"going\" is being deleted"),
            ("broken", "persistentvolume \"gone\" not found"),
        ] {
            assert_eq!(requirements(&[claim, claim]).missing, [expected]);
        }
    }
}
