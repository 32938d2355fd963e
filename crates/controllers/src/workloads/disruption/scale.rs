//! How many pods the owners of some pods want in all.
//!
//! Of a ReplicaSet that a Deployment controls the Deployment is asked, so that a rollout does not make
//! the number change. Kinds that are not known here are asked by their `scale`.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Client;

use crate::{
    objects::pod::Pod,
    runtime::{
        ApiError, Caches, Context, ObjectKey, controller_of, error,
        scale_client::{self, ScaleError, ScaleReference},
    },
};

/// The sum over distinct owners, or why it cannot be known; and how many pods have no owner.
pub async fn expected_pods(
    context: &Context,
    namespace: &str,
    pods: &[Arc<Pod>],
) -> Result<(Result<i64, String>, usize), ApiError> {
    let (mut wanted, mut unmanaged) = (BTreeMap::<String, i64>::new(), 0);
    for pod in pods {
        let owners = pod.metadata.owner_references.iter().flatten();
        let Some(owner) = owners.into_iter().find(|owner| owner.controller == Some(true)) else {
            unmanaged += 1;
            continue;
        };
        if wanted.contains_key(&owner.uid) {
            continue;
        }
        let found = match known(&context.caches, namespace, owner) {
            OwnerScale::Wants(uid, count) => Ok((uid, count)),
            OwnerScale::Nowhere => Err(format!("found no controllers for pod {:?}", pod.name())),
            OwnerScale::Unknown => by_scale(&context.client, namespace, owner, pod).await?,
        };
        match found {
            // Under its own uid too: the next pod of the same owner need not ask again.
            Ok((uid, count)) if uid != owner.uid => {
                wanted.insert(owner.uid.clone(), 0);
                wanted.insert(uid, count);
            }
            Ok((uid, count)) => drop(wanted.insert(uid, count)),
            Err(why) => return Ok((Err(why), unmanaged)),
        }
    }
    Ok((Ok(wanted.values().sum()), unmanaged))
}

enum OwnerScale {
    /// Who it really is, and how many it wants.
    Wants(String, i64),
    Nowhere,
    /// Of a kind that is not known here.
    Unknown,
}

fn known(caches: &Caches, namespace: &str, owner: &OwnerReference) -> OwnerScale {
    let key = ObjectKey::new(namespace, &owner.name);
    let group = owner.api_version.split_once('/').map_or("", |(group, _)| group);
    let wants = |replicas: Option<i32>| OwnerScale::Wants(owner.uid.clone(), replicas.unwrap_or(1).into());
    let same = |meta: &kube::api::ObjectMeta| meta.uid.as_deref() == Some(owner.uid.as_str());
    match (group, owner.kind.as_str()) {
        ("apps", "ReplicaSet") => {
            let Some(set) = caches.replica_sets.get(&key).filter(|set| same(&set.metadata)) else {
                return OwnerScale::Nowhere;
            };
            let Some(above) = controller_of(&set.metadata) else {
                return wants(set.spec.replicas);
            };
            let owners = set.metadata.owner_references.iter().flatten();
            let Some(named) = owners.into_iter().find(|owner| owner.uid == above && owner.kind == "Deployment") else {
                return wants(set.spec.replicas);
            };
            let deployment = caches.deployments.get(&ObjectKey::new(namespace, &named.name));
            let deployment = deployment.filter(|it| it.metadata.uid.as_deref() == Some(above));
            deployment.map_or(OwnerScale::Nowhere, |deployment| {
                OwnerScale::Wants(above.to_owned(), deployment.spec.replicas.unwrap_or(1).into())
            })
        }
        ("apps", "StatefulSet") => {
            let set = caches.stateful_sets.get(&key).filter(|set| same(&set.metadata));
            set.map_or(OwnerScale::Nowhere, |set| wants(set.spec.replicas))
        }
        ("", "ReplicationController") => {
            let set = caches.replication_controllers.get(&key).filter(|set| same(&set.metadata));
            set.map_or(OwnerScale::Nowhere, |set| wants(set.spec.replicas))
        }
        _ => OwnerScale::Unknown,
    }
}

/// Asks the API for the owner's `scale`.
async fn by_scale(
    client: &Client,
    namespace: &str,
    owner: &OwnerReference,
    pod: &Pod,
) -> Result<Result<(String, i64), String>, ApiError> {
    let nobody = || format!("found no controllers for pod {:?}", pod.name());
    let target = ScaleReference { namespace, api_version: &owner.api_version, kind: &owner.kind, name: &owner.name };
    match scale_client::get(client, target).await {
        Ok((_, scale)) if scale.metadata.uid.as_deref() == Some(owner.uid.as_str()) => {
            let replicas = scale.spec.and_then(|spec| spec.replicas).unwrap_or(0);
            Ok(Ok((owner.uid.clone(), replicas.into())))
        }
        Ok(_) | Err(ScaleError::NoKind { .. }) => Ok(Err(nobody())),
        Err(error @ ScaleError::NotScalable { .. }) => Ok(Err(error.to_string())),
        Err(ScaleError::Api(error)) if error::has_code(&error, 404) => Ok(Err(nobody())),
        Err(ScaleError::Api(error)) => {
            Err(ApiError::new(format!("get the scale of {} {namespace}/{}", owner.kind, owner.name), error))
        }
    }
}
