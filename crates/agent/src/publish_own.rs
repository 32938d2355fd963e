//! Writes objects that this node alone owns: its Offer, its ServiceTable.

use kube::{Api, api::PostParams};
use mainstay_api::own_object::{NodeObject, OwnKind};
use serde::{Serialize, de::DeserializeOwned};

/// Replaces the object, or creates it: the server may have lost what it does not store. Returns it as it is stored.
pub async fn publish_own<S>(api: &Api<NodeObject<S>>, object: &NodeObject<S>) -> kube::Result<NodeObject<S>>
where
    S: OwnKind<Scope = k8s_openapi::ClusterResourceScope>
        + Clone
        + std::fmt::Debug
        + Default
        + Serialize
        + DeserializeOwned,
{
    let params = PostParams::default();
    let name = object.metadata.name.as_deref().unwrap_or_default();
    match api.replace(name, &params, object).await {
        Err(kube::Error::Api(status)) if status.code == 404 => api.create(&params, object).await,
        answer => answer,
    }
}
