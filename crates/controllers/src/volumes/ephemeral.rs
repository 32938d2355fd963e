//! Claims that are part of a pod: made when the pod is, and gone with it.

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{PersistentVolumeClaim, Pod},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use kube::{Api, Client, api::PostParams};

use super::Key;
use crate::{
    failure::{self, Failure},
    shell::{Controller, Plan},
};

pub struct Ephemeral {
    client: Client,
}

impl Ephemeral {
    pub fn new(client: Client) -> Self {
        Self { client }
    }
}

/// The claims that a pod brings with it.
fn plan(pod: &Pod) -> Vec<PersistentVolumeClaim> {
    if pod.metadata.deletion_timestamp.is_some() {
        return Vec::new();
    }
    let name = pod.metadata.name.clone().unwrap_or_default();
    let owner = OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Pod".to_owned(),
        name: name.clone(),
        uid: pod.metadata.uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    };
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let claims = volumes.filter_map(|volume| {
        let template = volume.ephemeral.as_ref()?.volume_claim_template.as_ref()?;
        let meta = template.metadata.clone().unwrap_or_default();
        Some(PersistentVolumeClaim {
            metadata: ObjectMeta {
                name: Some(format!("{name}-{}", volume.name)),
                labels: meta.labels,
                annotations: meta.annotations,
                owner_references: Some(vec![owner.clone()]),
                ..ObjectMeta::default()
            },
            spec: Some(template.spec.clone()),
            status: None,
        })
    });
    claims.collect()
}

impl Controller for Ephemeral {
    const NAME: &'static str = "ephemeral-volumes";
    type Key = Key;
    type World = Pod;
    type Action = PersistentVolumeClaim;
    type Status = ();

    async fn observe(&self, (namespace, name): &Key) -> Result<Option<Pod>, Failure> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        pods.get_opt(name).await.map_err(Failure::when(format!("look at pod {namespace}/{name}")))
    }

    fn plan(pod: &Pod, _now: Timestamp) -> Plan<PersistentVolumeClaim, ()> {
        Plan::act(plan(pod))
    }

    async fn apply(&self, (namespace, name): &Key, claim: PersistentVolumeClaim) -> Result<(), Failure> {
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), namespace);
        match claims.create(&PostParams::default(), &claim).await {
            Ok(_) => Ok(()),
            // There already; whether it is the pod's own, the agent judges.
            Err(error) if failure::is(&error, 409) => Ok(()),
            Err(error) => Err(Failure::new(format!("make a claim for pod {namespace}/{name}"), error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pods_claims_are_named_after_both_and_owned_by_it() {
        let spec = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "web", "uid": "u"},
            "spec": {"containers": [], "volumes": [
                {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"metadata": {"labels": {"a": "b"}}, "spec": spec}}},
                {"name": "other", "emptyDir": {}},
            ]},
        }))
        .unwrap();
        let [claim] = &plan(&pod)[..] else { panic!("one claim") };
        assert_eq!(claim.metadata.name.as_deref(), Some("web-scratch"));
        assert_eq!(claim.metadata.labels.as_ref().unwrap()["a"], "b");
        assert_eq!(claim.metadata.owner_references.as_ref().unwrap()[0].uid, "u");
        assert_eq!(claim.spec.as_ref().unwrap().access_modes.as_ref().unwrap(), &["ReadWriteOnce"]);
    }
}
