//! The only pods a node creates: mirror pods, which show its static pods and refer to nothing else of the API.

use mainstay_api::{references, wellknown::kubernetes::MIRROR_POD};
use serde_json::Value;

use super::Verdict;

/// Judges a new pod by a node whose Node has this uid.
pub(super) fn check_mirror_pod(node: &str, uid: &str, pod: &Value) -> Verdict {
    if pod["metadata"]["annotations"].get(MIRROR_POD).is_none() {
        return Err(format!("pod does not have {MIRROR_POD:?} annotation, node {node:?} can only create mirror pods"));
    }
    if pod["spec"]["nodeName"] != node {
        return Err(format!("node {node:?} can only create pods with spec.nodeName set to itself"));
    }
    let owners = pod["metadata"]["ownerReferences"].as_array().map(Vec::as_slice).unwrap_or_default();
    let owner = match owners {
        [owner] => owner,
        [] => return Err(format!("node {node:?} can only create pods with an owner reference set to itself")),
        _ => return Err(format!("node {node:?} can only create pods with a single owner reference set to itself")),
    };
    if owner["apiVersion"] != "v1" || owner["kind"] != "Node" || owner["name"] != node {
        return Err(format!("node {node:?} can only create pods with an owner reference set to itself"));
    }
    if owner["controller"] != true {
        return Err(format!("node {node:?} can only create pods with a controller owner reference set to itself"));
    }
    if owner["blockOwnerDeletion"] == true {
        return Err(format!("node {node:?} must not set blockOwnerDeletion on an owner reference"));
    }
    let given = owner["uid"].as_str().unwrap_or_default();
    if given != uid {
        return Err(format!("node {node} UID mismatch: expected {given} got {uid}"));
    }
    match references::api_reference(pod) {
        Some(resource) => Err(format!("node {node:?} can not create pods that reference {resource}")),
        None => Ok(()),
    }
}
