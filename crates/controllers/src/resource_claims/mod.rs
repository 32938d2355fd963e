//! ResourceClaims: those that are made of templates for pods, and what becomes of claims when pods end.
//!
//! * [`templates`]: one pod: makes the claims that its templates ask for, and names them in its status
//! * [`reservations`]: one claim: takes away reservations of pods that are gone, deallocates a claim that nobody uses, and
//!   deletes one that was made for a pod that ended
//! * [`device_taints`]: one claim: evicts its pods when one of its devices gets a NoExecute taint
//! * [`taint_rule_status`]: one DeviceTaintRule: how many pods have to go for it
//!
//! The scheduler allocates. The finalizer that it sets keeps an allocated claim from vanishing; it goes with the allocation.
//! Both controllers decide from caches that read their own writes; whether a pod is really gone is asked of the API, since
//! the scheduler may reserve a claim for a pod that the cache does not have yet.

pub mod device_taints;
pub mod reservations;
pub mod taint_rule_status;
pub mod templates;

use k8s_openapi::api::resource::v1::ResourceClaim;

use crate::{
    objects::pod::Pod,
    runtime::{Context, ObjectKey},
};

const COMPONENT: &str = "resource_claim";
const PROTECTION: &str = mainstay_api::wellknown::finalizer::RESOURCE_CLAIM_PROTECTION;
/// On a claim that was made for a pod: the name by which the pod calls it.
const POD_CLAIM_NAME: &str = "resource.kubernetes.io/pod-claim-name";

/// The caches of this kind are apart from the others: they are waited for here.
async fn synced(context: std::sync::Arc<Context>) {
    context.device_caches.claims.synced().await;
    context.device_caches.templates.synced().await;
    context.device_caches.slices.synced().await;
    context.device_caches.taint_rules.synced().await;
}

/// No container of the pod runs, or ever will.
fn is_done(pod: &Pod) -> bool {
    pod.is_finished() || (pod.is_being_deleted() && pod.spec.node_name.is_empty())
}

/// The claims of a pod, as far as they are known by name.
fn claims_of(pod: &Pod, namespace: &str) -> Vec<ObjectKey> {
    let names = pod.spec.resource_claims.iter().filter_map(|own| pod.resource_claim_name(own));
    names.chain(pod.extended_resource_claim()).map(|name| ObjectKey::new(namespace, name)).collect()
}

/// The name and uid of the pod that a claim was made for.
fn owning_pod(claim: &ResourceClaim) -> Option<(&str, &str)> {
    let owners = claim.metadata.owner_references.iter().flatten();
    let mut pods =
        owners.filter(|owner| owner.controller == Some(true) && owner.api_version == "v1" && owner.kind == "Pod");
    pods.next().map(|owner| (owner.name.as_str(), owner.uid.as_str()))
}

fn is_protected(claim: &ResourceClaim) -> bool {
    claim.metadata.finalizers.iter().flatten().any(|own| own == PROTECTION)
}
