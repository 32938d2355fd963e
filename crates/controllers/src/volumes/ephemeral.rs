//! Ephemeral volumes: creates the claims that are part of a pod; they are owned by it and go with it.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{PersistentVolumeClaim, Pod as FullPod},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use kube::{Api, api::PostParams};

use crate::{
    objects::pod::Pod,
    runtime::{ApiError, Context, Controller, Limits, ObjectKey, Plan, Runnable, error},
};

pub struct EphemeralVolumes {
    context: Arc<Context>,
}

pub fn controller(context: &Arc<Context>) -> Runnable {
    let queue = context.queue::<EphemeralVolumes>();
    context.caches.pods.on_change({
        let queue = queue.clone();
        move |change| {
            // What a pod asks for does not change: once is enough.
            let uid = |pod: &Pod| pod.uid().to_owned();
            if change.after.is_some() && change.before.map(uid) != change.after.map(uid) {
                queue.add(change.key.clone());
            }
        }
    });
    context.runnable(Arc::new(EphemeralVolumes { context: context.clone() }), queue, Limits::default())
}

/// The claims that a pod brings with it.
fn plan(pod: &FullPod) -> Vec<PersistentVolumeClaim> {
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

impl Controller for EphemeralVolumes {
    const NAME: &'static str = "ephemeral_volume";
    type Key = ObjectKey;
    type World = FullPod;
    type Action = PersistentVolumeClaim;
    type Outcome = ();
    type Status = ();

    async fn observe(&self, ObjectKey { namespace, name }: &ObjectKey) -> Result<Option<FullPod>, ApiError> {
        let pods: Api<FullPod> = Api::namespaced(self.context.client.clone(), namespace);
        pods.get_opt(name).await.map_err(ApiError::when(format!("read pod {namespace}/{name}")))
    }

    fn plan(pod: &FullPod, _now: Timestamp) -> Plan<PersistentVolumeClaim, ()> {
        Plan::act(plan(pod))
    }

    async fn apply(
        &self,
        ObjectKey { namespace, name }: &ObjectKey,
        claim: PersistentVolumeClaim,
    ) -> Result<(), ApiError> {
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.context.client.clone(), namespace);
        match claims.create(&PostParams::default(), &claim).await {
            Ok(_) => Ok(()),
            // There already; whether it is the pod's own, the agent judges.
            Err(error) if error::has_code(&error, 409) => Ok(()),
            Err(error) => Err(ApiError::new(format!("create a claim for pod {namespace}/{name}"), error)),
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
        let pod: FullPod = serde_json::from_value(json!({
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
