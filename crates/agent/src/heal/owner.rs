//! The controller of a pod and the set it belongs to.

use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::OwnerReference};

/// The controller that makes another pod when this one goes; together its pods are a set.
pub fn controller(pod: &Pod) -> Option<&OwnerReference> {
    let owners = pod.metadata.owner_references.as_deref().unwrap_or_default();
    owners.iter().find(|owner| owner.controller == Some(true) && owner.kind != "Node")
}

/// Whether the controller would put the next one elsewhere.
pub fn may_move(pod: &Pod) -> bool {
    controller(pod).is_some_and(|owner| owner.kind != "DaemonSet")
}

/// `ReplicaSet web-1`, or the pod itself.
pub fn describe_owner(pod: &Pod) -> String {
    match controller(pod) {
        Some(owner) => format!("{} {}", owner.kind, owner.name),
        None => format!("Pod {}", pod.metadata.name.as_deref().unwrap_or_default()),
    }
}

/// What identifies pods of the same set that were made from the same template.
pub fn template(pod: &Pod) -> String {
    let revision = pod.metadata.labels.as_ref().and_then(|labels| labels.get("controller-revision-hash"));
    format!("{}/{}", set(pod), revision.map_or("", String::as_str))
}

/// What identifies the set: the controller's uid, or the pod's own.
pub fn set(pod: &Pod) -> String {
    let own = || pod.metadata.uid.clone().unwrap_or_default();
    controller(pod).map_or_else(own, |owner| owner.uid.clone())
}
