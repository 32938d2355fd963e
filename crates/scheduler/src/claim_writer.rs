//! Writes allocations and reservations into the status of ResourceClaims.
//!
//! Every write is fenced by the version that was read right before it. A claim that somebody else allocated otherwise, that
//! is being deleted or that is another object by now is a refusal: the pod is scheduled again with what is true then. A
//! conflict alone is not: two pods that share a claim are reserved one after the other. The finalizer that keeps a claim
//! from vanishing while it is allocated is set before the allocation.
//!
//! A claim for extended resources is made here, for the pod that has them, and named in the pod's status before the pod is
//! bound.

use std::time::Duration;

use futures::{StreamExt, stream};
use jiff::Timestamp;
use k8s_openapi::{
    api::resource::v1::{AllocationResult, ResourceClaim, ResourceClaimConsumerReference},
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::{
    Api, Client,
    api::{Patch, PostParams},
};
use mainstay_api::wellknown::finalizer::RESOURCE_CLAIM_PROTECTION;
use mainstay_errors::error_chain;
use serde_json::json;

use crate::{
    bind::{BindRequest, BindResult},
    core::devices::{
        BindingProgress, ClaimBinding,
        extended::ExtendedClaim,
        view::{ClaimKey, ClaimView},
    },
    pod_requests,
};

/// On a claim for extended resources of a pod.
const EXTENDED_RESOURCE_CLAIM: &str = "resource.kubernetes.io/extended-resource-claim";

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
    #[error("name ResourceClaim {claim} in the status of its pod")]
    PodStatus {
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
            | ReserveError::PodStatus { source: kube::Error::Api(status), .. }
                if (400..500).contains(&status.code) && status.code != 429 =>
            {
                Self::Refused { message }
            }
            ReserveError::Api { .. } | ReserveError::PodStatus { .. } => Self::Failed { message },
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
        let (mut written, mut waits_since) = (Vec::new(), None::<Timestamp>);
        for claim in &request.claims {
            match self.reserve(request, claim).await {
                Ok(object) => {
                    waits_since = waits_since.into_iter().chain(pending_since(&object)).min();
                    written.extend(view(&claim.claim, &object));
                }
                Err(error) => return (Some(error.into()), written),
            }
        }
        let waiting = waits_since.map(|since| BindResult::Waiting {
            allocated_for: Duration::try_from(Timestamp::now().duration_since(since)).unwrap_or_default(),
        });
        (waiting, written)
    }

    async fn reserve(&self, pod: &BindRequest, binding: &ClaimBinding) -> Result<ResourceClaim, ReserveError> {
        let claim = &binding.claim;
        let failed = |source| ReserveError::Api { claim: claim.clone(), source };
        let api: Api<ResourceClaim> = Api::namespaced(self.client.clone(), &claim.namespace);
        let mut attempt = 0;
        loop {
            attempt += 1;
            let current = match (api.get(&claim.name).await, &binding.extended) {
                (Err(kube::Error::Api(status)), Some(extended)) if status.code == 404 => {
                    api.create(&PostParams::default(), &extended_claim(pod, extended)).await
                }
                (current, _) => current,
            };
            let current = match current {
                // Somebody was faster.
                Err(kube::Error::Api(status)) if status.code == 409 && attempt < ATTEMPTS => continue,
                current => current.map_err(failed)?,
            };
            if let Some(extended) = &binding.extended {
                if !is_made_for(&current, pod) {
                    let why = "was not made for this pod".to_owned();
                    return Err(ReserveError::Refused { claim: claim.clone(), why });
                }
                self.name_extended_claim(pod, claim, extended).await?;
            }
            let result = match next_write(current, pod, binding, Timestamp::now())
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
        match next_write(object, pod, binding, Timestamp::now())
            .map_err(|why| ReserveError::Refused { claim: claim.clone(), why })?
        {
            NextWrite::Nothing(object) | NextWrite::Protect(object) => Ok(Ok(*object)),
            NextWrite::Status(object) => Ok(api.replace_status(&claim.name, &PostParams::default(), &object).await),
        }
    }

    /// Kubelets and controllers find the claim by it.
    async fn name_extended_claim(
        &self,
        pod: &BindRequest,
        claim: &ClaimKey,
        extended: &ExtendedClaim,
    ) -> Result<(), ReserveError> {
        let status = json!({ "resourceClaimName": claim.name, "requestMappings": extended.mappings });
        let change = json!({ "metadata": { "uid": pod.uid }, "status": { "extendedResourceClaimStatus": status } });
        let patched = pod_requests::patch_status(&self.client, &pod.pod, &Patch::Merge(&change)).await;
        patched.map_err(|source| ReserveError::PodStatus { claim: claim.clone(), source })
    }

    /// Clears an allocation that nobody but this pod uses, so that the claim can be allocated elsewhere. If others use it,
    /// the pod's reservation alone ends. Whatever stands against it is seen by the watch.
    pub async fn deallocate(&self, claim: &ClaimKey, version: u64, pod_uid: &str) -> Option<WrittenClaim> {
        let api: Api<ResourceClaim> = Api::namespaced(self.client.clone(), &claim.namespace);
        let mut object = api.get(&claim.name).await.ok()?;
        if object.metadata.resource_version.as_deref() != Some(version.to_string().as_str()) {
            return None;
        }
        release(&mut object, pod_uid);
        match api.replace_status(&claim.name, &PostParams::default(), &object).await {
            Ok(written) => {
                tracing::info!(%claim, pod_uid, "gave back a claim that its pod cannot use where it is allocated");
                view(claim, &written)
            }
            Err(error) => {
                tracing::debug!(%claim, %error, "cannot deallocate a claim");
                None
            }
        }
    }
}

/// Ends the pod's use of a claim, and the allocation with the last use.
fn release(object: &mut ResourceClaim, pod_uid: &str) {
    let status = object.status.get_or_insert_default();
    let others: Vec<_> =
        status.reserved_for.take().into_iter().flatten().filter(|consumer| consumer.uid != pod_uid).collect();
    if others.is_empty() {
        (status.allocation, status.devices) = (None, None);
    } else {
        status.reserved_for = Some(others);
    }
}

/// Since when the devices of a claim are allocated, if they are not ready, or failed.
fn pending_since(claim: &ResourceClaim) -> Option<Timestamp> {
    let status = claim.status.as_ref()?;
    if BindingProgress::new(status) == BindingProgress::Ready {
        return None;
    }
    let allocated = status.allocation.as_ref()?.allocation_timestamp.as_ref().map(|time| time.0);
    Some(allocated.unwrap_or_else(Timestamp::now))
}

fn extended_claim(pod: &BindRequest, extended: &ExtendedClaim) -> ResourceClaim {
    let owner = json!({ "apiVersion": "v1", "kind": "Pod", "name": pod.pod.name, "uid": pod.uid, "controller": true });
    let claim = json!({
        "metadata": {
            "namespace": pod.pod.namespace, "name": extended.name, "generateName": extended.generate_name,
            "ownerReferences": [owner], "annotations": { EXTENDED_RESOURCE_CLAIM: "true" },
        },
        "spec": { "devices": { "requests": extended.requests } },
    });
    serde_json::from_str(&claim.to_string()).unwrap_or_default()
}

fn is_made_for(claim: &ResourceClaim, pod: &BindRequest) -> bool {
    let owners = claim.metadata.owner_references.iter().flatten();
    owners.into_iter().any(|owner| owner.controller == Some(true) && owner.kind == "Pod" && owner.uid == pod.uid)
}

/// The next step to a claim that is allocated as decided and reserved for the pod.
#[derive(Debug)]
enum NextWrite {
    Nothing(Box<ResourceClaim>),
    /// Sets the finalizer.
    Protect(Box<ResourceClaim>),
    Status(Box<ResourceClaim>),
}

fn next_write(
    mut object: ResourceClaim,
    pod: &BindRequest,
    binding: &ClaimBinding,
    now: Timestamp,
) -> Result<NextWrite, String> {
    if !binding.uid.is_empty() && object.metadata.uid.as_deref() != Some(&binding.uid) {
        return Err("was replaced by another".to_owned());
    }
    if object.metadata.deletion_timestamp.is_some() {
        return Err("is being deleted".to_owned());
    }
    let status = object.status.get_or_insert_default();
    if let Some(allocation) = &status.allocation
        && !binding.allocation.is_same(allocation)
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
    if status.allocation.is_none() {
        let allocation_timestamp = Some(Time(now));
        status.allocation = Some(AllocationResult { allocation_timestamp, ..(*binding.allocation).clone() });
    }
    Ok(NextWrite::Status(Box::new(object)))
}

fn view(key: &ClaimKey, object: &ResourceClaim) -> Option<WrittenClaim> {
    let view = serde_json::from_str(&serde_json::to_string(object).ok()?).ok()?;
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
        let claim = ClaimKey::new("ns", "c");
        let binding = ClaimBinding { claim, uid: "u".to_owned(), allocation, extended: None };
        match next_write(object, &pod, &binding, Timestamp::UNIX_EPOCH) {
            Err(why) => why,
            Ok(NextWrite::Nothing(_)) => "nothing".to_owned(),
            Ok(NextWrite::Protect(object)) => format!("finalizers {:?}", object.metadata.finalizers.unwrap()),
            Ok(NextWrite::Status(object)) => {
                let status = object.status.unwrap();
                let users: Vec<String> = status.reserved_for.unwrap().into_iter().map(|user| user.name).collect();
                let since = status.allocation.unwrap().allocation_timestamp.map(|time| time.0.to_string());
                format!("allocated {} for {}", since.unwrap_or("before".to_owned()), users.join(" "))
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
        assert_eq!(step(claim(json!({}))), "allocated 1970-01-01T00:00:00Z for p");
        let other = json!({ "resource": "pods", "name": "q", "uid": "q-uid" });
        let shared = claim(json!({ "allocation": device("gpu-0"), "reservedFor": [other] }));
        assert_eq!(step(shared), "allocated before for q p");
        let own = json!({ "resource": "pods", "name": "p", "uid": "p-uid" });
        assert_eq!(step(claim(json!({ "allocation": device("gpu-0"), "reservedFor": [own] }))), "nothing");
    }

    #[test]
    fn an_allocation_ends_with_its_last_user() {
        let users = |all: &[&str]| -> Vec<Value> {
            all.iter().map(|uid| json!({ "resource": "pods", "name": uid, "uid": uid })).collect()
        };
        for (before, after, is_allocated) in
            [(&["p", "q"][..], &["q"][..], true), (&["p"], &[], false), (&[], &[], false)]
        {
            let status = json!({ "allocation": device("gpu-0"), "reservedFor": users(before), "devices": [] });
            let mut claim: ResourceClaim = serde_json::from_value(json!({ "spec": {}, "status": status })).unwrap();
            release(&mut claim, "p");
            let status = claim.status.unwrap();
            let left: Vec<String> = status.reserved_for.into_iter().flatten().map(|user| user.uid).collect();
            assert_eq!(
                (left, status.allocation.is_some()),
                (after.iter().map(|uid| (*uid).to_owned()).collect(), is_allocated)
            );
        }
    }

    #[test]
    fn a_claim_for_extended_resources_belongs_to_its_pod() {
        let pod = BindRequest {
            pod: PodKey::new("ns", "p"),
            uid: "p-uid".to_owned(),
            node: "n1".to_owned(),
            offer_uid: String::new(),
            annotations: Default::default(),
            claims: vec![],
        };
        let extended = ExtendedClaim {
            name: "p-extended-resources-bcdfg".to_owned(),
            generate_name: "p-extended-resources-".to_owned(),
            ..ExtendedClaim::default()
        };
        let claim = extended_claim(&pod, &extended);
        assert_eq!(claim.metadata.name.as_deref(), Some("p-extended-resources-bcdfg"));
        assert_eq!(claim.metadata.annotations.as_ref().unwrap()[EXTENDED_RESOURCE_CLAIM], "true");
        assert!(is_made_for(&claim, &pod));
        assert!(!is_made_for(&claim, &BindRequest { uid: "other".to_owned(), ..pod }));
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
