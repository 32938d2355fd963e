//! Pods, as far as they say which claims they use on which node.

use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use mainstay_api::{narrow, narrow::or_default};
use serde::{Deserialize, Deserializer, de::IgnoredAny};

#[derive(Clone, Debug, Default, Deserialize)]
pub struct PodClaims {
    #[serde(deserialize_with = "lean")]
    pub metadata: ObjectMeta,
    #[serde(default)]
    spec: Spec,
    #[serde(default)]
    status: Status,
}

narrow!(PodClaims, Pod);

/// Without what takes the most memory: there may be very many pods.
fn lean<'de, D: Deserializer<'de>>(metadata: D) -> Result<ObjectMeta, D::Error> {
    let metadata = ObjectMeta::deserialize(metadata)?;
    Ok(ObjectMeta { managed_fields: None, labels: None, annotations: None, owner_references: None, ..metadata })
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    node_name: String,
    #[serde(deserialize_with = "or_default")]
    volumes: Vec<Volume>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Volume {
    name: String,
    persistent_volume_claim: Option<Claim>,
    ephemeral: Option<IgnoredAny>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Claim {
    claim_name: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    phase: String,
}

impl PodClaims {
    pub fn node(&self) -> &str {
        &self.spec.node_name
    }

    /// Bound to a node, and not finished there.
    pub fn is_on_node(&self) -> bool {
        !self.spec.node_name.is_empty() && !matches!(self.status.phase.as_str(), "Succeeded" | "Failed")
    }

    /// The names of its claims; those of ephemeral volumes are named after the pod.
    pub fn claims(&self) -> impl Iterator<Item = String> {
        let pod = self.metadata.name.as_deref().unwrap_or_default();
        self.spec.volumes.iter().filter_map(move |volume| match (&volume.persistent_volume_claim, &volume.ephemeral) {
            (Some(claim), _) => Some(claim.claim_name.clone()),
            (None, Some(_)) => Some(format!("{pod}-{}", volume.name)),
            (None, None) => None,
        })
    }

    pub fn uses(&self, namespace: &str, claim: &str) -> bool {
        self.metadata.namespace.as_deref() == Some(namespace) && self.claims().any(|own| own == claim)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn claims_are_those_named_and_those_of_ephemeral_volumes() {
        let pod = json!({
            "metadata": {"namespace": "shop", "name": "db-0"},
            "spec": {"nodeName": "n1", "volumes": [{"name": "a", "persistentVolumeClaim": {"claimName": "data"}},
                {"name": "b", "ephemeral": {"volumeClaimTemplate": {}}}, {"name": "c", "emptyDir": {}}]},
            "status": {"phase": "Running"},
        });
        let mut pod: PodClaims = serde_json::from_value(pod).unwrap();
        assert_eq!(pod.claims().collect::<Vec<_>>(), ["data", "db-0-b"]);
        assert!(pod.is_on_node() && pod.uses("shop", "db-0-b") && !pod.uses("other", "data"));
        pod.status.phase = "Failed".into();
        assert!(!pod.is_on_node());
    }
}
