//! Reads the objects of a cluster that have something in the cloud, and deletes them.
//!
//! Works with any Kubernetes cluster: an API group that it does not serve (snapshots, mostly) has no objects. Deletes name the uid, so that an object that was
//! made anew meanwhile is deleted only after the next look.

use std::time::Duration;

use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{PersistentVolume, PersistentVolumeClaim, Pod, Service},
};
use kube::{
    Api, Client,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, Preconditions},
};
use mainstay_errors::error_chain;
use serde_json::json;

use super::{
    notice::Notice,
    objects::{ClusterObjects, ObjectId},
    plan::{Action, ClusterContact},
};

/// How long one look or one delete may take; a cluster that does not answer by then is not available.
const DEADLINE: Duration = Duration::from_secs(30);
const SNAPSHOT_GROUP: &str = "snapshot.storage.k8s.io";

fn snapshot_resource(kind: &str, plural: &str) -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(SNAPSHOT_GROUP, "v1", kind), plural)
}

/// Reads all of it; what the cluster answers instead is part of the result.
pub async fn contact(client: &Client) -> ClusterContact {
    match tokio::time::timeout(DEADLINE, read_objects(client)).await {
        Ok(Ok(objects)) => ClusterContact::Reached(objects),
        Ok(Err(error)) => judge_error(&error),
        Err(_) => ClusterContact::Unavailable(format!("no answer of the cluster's API within {DEADLINE:?}")),
    }
}

/// Any failure to get an answer counts as unavailable, as do answers of an API that does not work. Only a clear refusal does not.
fn judge_error(error: &kube::Error) -> ClusterContact {
    match error {
        kube::Error::Api(status) if status.code < 500 && status.code != 429 && status.code != 408 => {
            ClusterContact::Refused(status.message.clone())
        }
        other => ClusterContact::Unavailable(error_chain(other)),
    }
}

async fn read_objects(client: &Client) -> Result<ClusterObjects, kube::Error> {
    let everything = ListParams::default();
    let version = client.apiserver_version().await?;
    let snapshots = list_dynamic(client, &snapshot_resource("VolumeSnapshot", "volumesnapshots")).await?;
    let contents = list_dynamic(client, &snapshot_resource("VolumeSnapshotContent", "volumesnapshotcontents")).await?;
    let claims = Api::<PersistentVolumeClaim>::all(client.clone()).list(&everything).await?;
    let volumes = Api::<PersistentVolume>::all(client.clone()).list(&everything).await?;
    let services = Api::<Service>::all(client.clone()).list(&everything).await?;
    let pods = Api::<Pod>::all(client.clone()).list(&everything).await?;
    let sets = Api::<StatefulSet>::all(client.clone()).list(&everything).await?;
    Ok(ClusterObjects {
        version: parse_version(&version.major, &version.minor),
        snapshots: snapshots.iter().map(Into::into).collect(),
        contents: contents.iter().map(Into::into).collect(),
        claims: claims.iter().map(Into::into).collect(),
        volumes: volumes.iter().map(Into::into).collect(),
        services: services.iter().map(Into::into).collect(),
        pods: pods.iter().map(Into::into).collect(),
        stateful_sets: sets.iter().map(Into::into).collect(),
    })
}

/// A kind that is not served has no objects.
async fn list_dynamic(client: &Client, resource: &ApiResource) -> Result<Vec<DynamicObject>, kube::Error> {
    match Api::<DynamicObject>::all_with(client.clone(), resource).list(&ListParams::default()).await {
        Ok(list) => Ok(list.items),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Vendors write `16+`.
fn parse_version(major: &str, minor: &str) -> Option<(u32, u32)> {
    let number = |text: &str| text.chars().take_while(char::is_ascii_digit).collect::<String>().parse().ok();
    Some((number(major)?, number(minor)?))
}

/// Carries out one action of the cluster; the cloud's own are not for it. An object that is gone, or another one by now, needs nothing.
pub async fn apply(client: &Client, action: &Action) -> Result<(), kube::Error> {
    let call = async {
        match action {
            Action::DeleteSnapshot(id) => {
                let resource = snapshot_resource("VolumeSnapshot", "volumesnapshots");
                delete(&Api::<DynamicObject>::namespaced_with(client.clone(), &id.namespace, &resource), id).await
            }
            Action::DeleteClaim(id) => {
                delete(&Api::<PersistentVolumeClaim>::namespaced(client.clone(), &id.namespace), id).await
            }
            Action::DeleteService(id) => delete(&Api::<Service>::namespaced(client.clone(), &id.namespace), id).await,
            Action::DeletePod(id) => delete(&Api::<Pod>::namespaced(client.clone(), &id.namespace), id).await,
            Action::ScaleDown(id) => {
                let sets: Api<StatefulSet> = Api::namespaced(client.clone(), &id.namespace);
                let scale = json!({ "metadata": { "uid": id.uid }, "spec": { "replicas": 0 } });
                sets.patch(&id.name, &PatchParams::default(), &Patch::Merge(scale)).await.map(|_| ())
            }
            Action::DeleteInCloud { .. } => Ok(()),
        }
    };
    let result = tokio::time::timeout(DEADLINE, call).await;
    match result.unwrap_or_else(|_| Err(kube::Error::Service("no answer in time".into()))) {
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
        other => other,
    }
}

async fn delete<K>(api: &Api<K>, id: &ObjectId) -> Result<(), kube::Error>
where
    K: Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    let preconditions = Some(Preconditions { uid: Some(id.uid.clone()), resource_version: None });
    let params = DeleteParams { preconditions, ..DeleteParams::background() };
    api.delete(&id.name, &params).await.map(|_| ())
}

/// The operation that an action is part of, for the metrics.
pub fn operation_name(action: &Action) -> &'static str {
    match action {
        Action::DeleteSnapshot(_) => "DeleteSnapshots",
        Action::DeleteClaim(_) => "DeletePersistentVolumeClaims",
        Action::DeleteService(_) => "DeleteServices",
        Action::ScaleDown(_) | Action::DeletePod(_) => "ReleaseClaims",
        Action::DeleteInCloud { .. } => "DeleteOrphans",
    }
}

/// What is told about an object that was deleted, or could not be.
pub fn describe_result(action: &Action, result: Result<(), String>) -> Option<Notice> {
    let (what, id, successful, failed) = match action {
        Action::DeleteSnapshot(id) => ("volume snapshot", id, "SuccessfulDeorbitSnapshot", "FailedDeorbitSnapshot"),
        Action::DeleteClaim(id) => ("persistent volume claim", id, "SuccessfulDeorbitPVC", "FailedDeorbitPVC"),
        Action::DeleteService(id) => {
            ("service of type LoadBalancer", id, "SuccessfulDeorbitService", "FailedDeorbitService")
        }
        Action::ScaleDown(_) | Action::DeletePod(_) | Action::DeleteInCloud { .. } => return None,
    };
    Some(match result {
        Ok(()) => Notice::normal(successful, format!("Successfully deleted {what}: {id}")),
        Err(why) => Notice::warning(failed, format!("Failed to delete {what} {id}: {why}")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn api_error(code: u16) -> kube::Error {
        let status = json!({ "kind": "Status", "code": code, "message": "m", "status": "Failure", "reason": "" });
        kube::Error::Api(Box::new(serde_json::from_value(status).unwrap()))
    }

    #[test]
    fn everything_but_a_clear_refusal_is_an_outage() {
        for (error, is_outage) in [
            (api_error(504), true),
            (api_error(500), true),
            (api_error(429), true),
            (kube::Error::Service("connection refused".into()), true),
            (kube::Error::LinesCodecMaxLineLengthExceeded, true),
            (api_error(403), false),
            (api_error(401), false),
        ] {
            let is_unavailable = matches!(judge_error(&error), ClusterContact::Unavailable(_));
            assert_eq!(is_unavailable, is_outage, "{error}");
        }
    }

    #[test]
    fn versions_of_vendors_are_read() {
        assert_eq!(parse_version("1", "16+"), Some((1, 16)));
        assert_eq!(parse_version("1", "36"), Some((1, 36)));
        assert_eq!(parse_version("", ""), None);
    }
}
