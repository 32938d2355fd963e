//! Writes allocations and reservations into the status of ResourceClaims.
//!
//! Every write is fenced by the version that was read right before it. A claim that somebody else allocated otherwise, that
//! is being deleted or that is another object by now is a refusal: the pod is scheduled again with what is true then. A
//! conflict alone is not: two pods that share a claim are reserved one after the other. The finalizer that keeps a claim
//! from vanishing while it is allocated is set before the allocation.

use futures::{StreamExt, stream};
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimConsumerReference};
use kube::{Api, Client, api::PostParams};
use mainstay_api::wellknown::finalizer::RESOURCE_CLAIM_PROTECTION;
use mainstay_errors::error_chain;

use crate::{
    bind::{BindRequest, BindResult},
    core::devices::{
        ClaimBinding,
        view::{ClaimKey, ClaimView},
    },
};

/// Pods whose claims are written at once.
const CONCURRENT_PODS: usize = 16;
/// Attempts for one claim while others write it, too.
const ATTEMPTS: usize = 10;
/// The most pods that use a claim at once.
const MAX_CONSUMERS: usize = 256;

/// A claim as the API has it after a write.
#[derive(Clone, Debug)]
pub struct WrittenClaim {
    pub key: ClaimKey,
    pub view: ClaimView,
}

#[derive(Debug, thiserror::Error)]
enum ReserveError {
    #[error("ResourceClaim {claim} {why}")]
    Refused { claim: ClaimKey, why: String },
    #[error("write ResourceClaim {claim}")]
    Api {
        claim: ClaimKey,
        #[source]
        source: kube::Error,
    },
}

impl From<ReserveError> for BindResult {
    fn from(error: ReserveError) -> Self {
        let message = error_chain(&error);
        match error {
            ReserveError::Refused { .. } => Self::Refused { message },
            ReserveError::Api { source: kube::Error::Api(status), .. }
                if (400..500).contains(&status.code) && status.code != 429 =>
            {
                Self::Refused { message }
            }
            ReserveError::Api { .. } => Self::Failed { message },
        }
    }
}

pub struct ClaimWriter {
    client: Client,
}

impl ClaimWriter {
    pub fn new(client: Client) -> Self {
        Self { client }
    }

    /// Allocates and reserves the claims of all pods: why a pod cannot be bound, for each, and what was written.
    pub async fn reserve_all(&self, requests: &[BindRequest]) -> (Vec<Option<BindResult>>, Vec<WrittenClaim>) {
        let each: Vec<_> = requests.iter().map(|request| self.reserve_claims(request)).collect();
        let done: Vec<(Option<BindResult>, Vec<WrittenClaim>)> =
            stream::iter(each).buffered(CONCURRENT_PODS).collect().await;
        let (failures, written): (Vec<_>, Vec<_>) = done.into_iter().unzip();
        (failures, written.into_iter().flatten().collect())
    }

    async fn reserve_claims(&self, request: &BindRequest) -> (Option<BindResult>, Vec<WrittenClaim>) {
        let mut written = Vec::new();
        for claim in &request.claims {
            match self.reserve(request, claim).await {
                Ok(object) => written.extend(view(&claim.claim, &object)),
                Err(error) => return (Some(error.into()), written),
            }
        }
        (None, written)
    }

    async fn reserve(&self, pod: &BindRequest, binding: &ClaimBinding) -> Result<ResourceClaim, ReserveError> {
        let claim = &binding.claim;
        let failed = |source| ReserveError::Api { claim: claim.clone(), source };
        let api: Api<ResourceClaim> = Api::namespaced(self.client.clone(), &claim.namespace);
        let mut attempt = 0;
        loop {
            attempt += 1;
            let current = api.get(&claim.name).await.map_err(failed)?;
            let result = match next_write(current, pod, binding)
                .map_err(|why| ReserveError::Refused { claim: claim.clone(), why })?
            {
                NextWrite::Nothing(object) => return Ok(*object),
                NextWrite::Protect(object) => match api.replace(&claim.name, &PostParams::default(), &object).await {
                    Ok(object) => self.write_status(&api, object, pod, binding).await?,
                    Err(error) => Err(error),
                },
                NextWrite::Status(object) => api.replace_status(&claim.name, &PostParams::default(), &object).await,
            };
            match result {
                Ok(object) => return Ok(object),
                Err(kube::Error::Api(status)) if status.code == 409 && attempt < ATTEMPTS => {}
                Err(error) => return Err(failed(error)),
            }
        }
    }

    /// After the finalizer was set: what it answered is the version to go on from.
    async fn write_status(
        &self,
        api: &Api<ResourceClaim>,
        object: ResourceClaim,
        pod: &BindRequest,
        binding: &ClaimBinding,
    ) -> Result<Result<ResourceClaim, kube::Error>, ReserveError> {
        let claim = &binding.claim;
        match next_write(object, pod, binding).map_err(|why| ReserveError::Refused { claim: claim.clone(), why })? {
            NextWrite::Nothing(object) | NextWrite::Protect(object) => Ok(Ok(*object)),
            NextWrite::Status(object) => Ok(api.replace_status(&claim.name, &PostParams::default(), &object).await),
        }
    }

    /// Clears an allocation that nobody but this pod uses, so that the claim can be allocated elsewhere. Whatever stands
    /// against it is seen by the watch.
    pub async fn deallocate(&self, claim: &ClaimKey, version: u64, pod_uid: &str) {
        let api: Api<ResourceClaim> = Api::namespaced(self.client.clone(), &claim.namespace);
        let Ok(mut object) = api.get(&claim.name).await else { return };
        let status = object.status.get_or_insert_default();
        let is_own = status.reserved_for.iter().flatten().all(|consumer| consumer.uid == pod_uid);
        if object.metadata.resource_version.as_deref() != Some(version.to_string().as_str()) || !is_own {
            return;
        }
        (status.allocation, status.reserved_for, status.devices) = (None, None, None);
        match api.replace_status(&claim.name, &PostParams::default(), &object).await {
            Ok(_) => tracing::info!(%claim, "deallocated a claim whose devices keep its pod from other nodes"),
            Err(error) => tracing::debug!(%claim, %error, "cannot deallocate a claim"),
        }
    }
}

/// The next step to a claim that is allocated as decided and reserved for the pod.
#[derive(Debug)]
enum NextWrite {
    Nothing(Box<ResourceClaim>),
    /// Sets the finalizer.
    Protect(Box<ResourceClaim>),
    Status(Box<ResourceClaim>),
}

fn next_write(mut object: ResourceClaim, pod: &BindRequest, binding: &ClaimBinding) -> Result<NextWrite, String> {
    if object.metadata.uid.as_deref() != Some(&binding.uid) {
        return Err("was replaced by another".to_owned());
    }
    if object.metadata.deletion_timestamp.is_some() {
        return Err("is being deleted".to_owned());
    }
    let status = object.status.get_or_insert_default();
    if let Some(allocation) = &status.allocation
        && *allocation != *binding.allocation
    {
        return Err("was allocated otherwise meanwhile".to_owned());
    }
    let consumers = status.reserved_for.get_or_insert_default();
    let is_reserved = consumers.iter().any(|consumer| consumer.uid == pod.uid);
    if status.allocation.is_some() && is_reserved {
        return Ok(NextWrite::Nothing(Box::new(object)));
    }
    if !is_reserved && consumers.len() >= MAX_CONSUMERS {
        return Err(format!("is in use by {MAX_CONSUMERS} pods already"));
    }
    let finalizers = object.metadata.finalizers.get_or_insert_default();
    if !finalizers.iter().any(|own| own == RESOURCE_CLAIM_PROTECTION) {
        finalizers.push(RESOURCE_CLAIM_PROTECTION.to_owned());
        return Ok(NextWrite::Protect(Box::new(object)));
    }
    if !is_reserved {
        consumers.push(ResourceClaimConsumerReference {
            api_group: None,
            resource: "pods".to_owned(),
            name: pod.pod.name.clone(),
            uid: pod.uid.clone(),
        });
    }
    status.allocation = Some((*binding.allocation).clone());
    Ok(NextWrite::Status(Box::new(object)))
}

fn view(key: &ClaimKey, object: &ResourceClaim) -> Option<WrittenClaim> {
    let view = serde_json::from_value(serde_json::to_value(object).ok()?).ok()?;
    Some(WrittenClaim { key: key.clone(), view })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::core::{devices::Allocation, view::PodKey};

    fn device(name: &str) -> Value {
        json!({ "devices": { "results": [{ "request": "r", "driver": "d", "pool": "n1", "device": name }] } })
    }

    fn step(claim: Value) -> String {
        let object: ResourceClaim = serde_json::from_value(claim).unwrap();
        let pod = BindRequest {
            pod: PodKey::new("ns", "p"),
            uid: "p-uid".to_owned(),
            node: "n1".to_owned(),
            offer_uid: String::new(),
            annotations: Default::default(),
            claims: vec![],
        };
        let allocation = Allocation::new(serde_json::from_value(device("gpu-0")).unwrap());
        let binding = ClaimBinding { claim: ClaimKey::new("ns", "c"), uid: "u".to_owned(), allocation };
        match next_write(object, &pod, &binding) {
            Err(why) => why,
            Ok(NextWrite::Nothing(_)) => "nothing".to_owned(),
            Ok(NextWrite::Protect(object)) => format!("finalizers {:?}", object.metadata.finalizers.unwrap()),
            Ok(NextWrite::Status(object)) => {
                let status = object.status.unwrap();
                let users: Vec<String> = status.reserved_for.unwrap().into_iter().map(|user| user.name).collect();
                format!("allocated {} for {}", status.allocation.is_some(), users.join(" "))
            }
        }
    }

    #[test]
    fn a_claim_is_protected_then_allocated_and_reserved_at_once() {
        let bare = json!({ "metadata": { "name": "c", "uid": "u" }, "spec": {} });
        assert_eq!(step(bare), "finalizers [\"resource.kubernetes.io/delete-protection\"]");
        let held = ["resource.kubernetes.io/delete-protection"];
        let claim =
            |status: Value| json!({ "metadata": { "uid": "u", "finalizers": held }, "spec": {}, "status": status });
        assert_eq!(step(claim(json!({}))), "allocated true for p");
        let other = json!({ "resource": "pods", "name": "q", "uid": "q-uid" });
        let shared = claim(json!({ "allocation": device("gpu-0"), "reservedFor": [other] }));
        assert_eq!(step(shared), "allocated true for q p");
        let own = json!({ "resource": "pods", "name": "p", "uid": "p-uid" });
        assert_eq!(step(claim(json!({ "allocation": device("gpu-0"), "reservedFor": [own] }))), "nothing");
    }

    #[test]
    fn what_changed_meanwhile_is_refused() {
        let elsewhere = json!({ "metadata": { "uid": "u" }, "spec": {}, "status": { "allocation": device("gpu-1") } });
        assert_eq!(step(elsewhere), "was allocated otherwise meanwhile");
        assert_eq!(step(json!({ "metadata": { "uid": "v" }, "spec": {} })), "was replaced by another");
        let going = json!({ "metadata": { "uid": "u", "deletionTimestamp": "2026-01-01T00:00:00Z" }, "spec": {} });
        assert_eq!(step(going), "is being deleted");
        let users: Vec<Value> =
            (0..256).map(|n| json!({ "resource": "pods", "name": "q", "uid": n.to_string() })).collect();
        let full = json!({ "metadata": { "uid": "u" }, "spec": {}, "status": {
            "allocation": device("gpu-0"), "reservedFor": users,
        } });
        assert_eq!(step(full), "is in use by 256 pods already");
    }
}
