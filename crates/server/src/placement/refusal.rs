//! Refusals: a node gives back a pod that it cannot run.
//!
//! Only what never started can be given back: from then on its status is the node's to report.

use serde::Deserialize;
use serde_json::{Value, json};

use super::{TOPOLOGY, set_condition};
use crate::objects::metadata;

/// The annotation that says who refused last, for whoever places the pod again.
pub const REFUSED_BY: &str = mainstay_api::wellknown::mainstay::REFUSED_BY;
/// Annotations about what the pod was given of that machine: host ports, and parts of pools of roles.
const GIVEN: [&str; 3] = [
    mainstay_api::wellknown::mainstay::ASSIGNED_HOST_PORT,
    mainstay_api::wellknown::mainstay::ASSIGNED_HOST_PORT_BY_NAME,
    mainstay_api::wellknown::mainstay::ROLE_RESOURCES,
];

/// What a node says about a pod that it refuses.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Refusal {
    pub uid: String,
    /// `OutOfcpu`, `NodePorts`.
    #[serde(default)]
    pub reason: String,
    #[serde(default)]
    pub message: String,
}

/// Why a pod stays where it is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RefusalError {
    #[error("Precondition failed: UID in precondition: {given}, UID in object meta: {stored}")]
    Another { given: String, stored: String },
    #[error("pod {name} is not on node {node:?}")]
    Elsewhere { name: String, node: String },
    #[error("pod {name} has started already")]
    Started { name: String },
    #[error("pod {name} is being deleted")]
    Going { name: String },
}

impl Refusal {
    /// As the pod's condition and event say it.
    pub fn message_for(&self, node: &str) -> String {
        match (self.reason.as_str(), self.message.as_str()) {
            ("", "") => format!("node {node} refused"),
            ("", why) | (why, "") => format!("node {node} refused: {why}"),
            (reason, message) => format!("node {node} refused: {reason}: {message}"),
        }
    }
}

/// The pod without its node. `node` is who refuses; `None` stands for whichever node it is on.
pub fn without_node(old: &Value, refusal: &Refusal, node: Option<&str>, now: &str) -> Result<Value, RefusalError> {
    let name = metadata::string_field(old, "name").unwrap_or_default().to_owned();
    let stored = metadata::string_field(old, "uid").unwrap_or_default();
    if refusal.uid != stored {
        return Err(RefusalError::Another { given: refusal.uid.clone(), stored: stored.to_owned() });
    }
    let on = old["spec"]["nodeName"].as_str().unwrap_or_default();
    let node = node.unwrap_or(on);
    if on.is_empty() || on != node {
        return Err(RefusalError::Elsewhere { name, node: node.to_owned() });
    }
    if metadata::string_field(old, "deletionTimestamp").is_some() {
        return Err(RefusalError::Going { name });
    }
    let status = &old["status"];
    let containers = ["containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"];
    let any = |field: &str| status[field].as_array().is_some_and(|statuses| !statuses.is_empty());
    if status["startTime"].is_string() || containers.into_iter().any(any) {
        return Err(RefusalError::Started { name });
    }
    let mut pod = old.clone();
    if let Some(spec) = pod["spec"].as_object_mut() {
        spec.remove("nodeName");
    }
    if let Some(annotations) = pod["metadata"]["annotations"].as_object_mut() {
        annotations.retain(|key, _| !GIVEN.iter().any(|prefix| key.starts_with(prefix)));
    }
    if let Some(labels) = pod["metadata"]["labels"].as_object_mut() {
        labels.retain(|key, _| !TOPOLOGY.contains(&key.as_str()));
    }
    pod["metadata"]["annotations"][REFUSED_BY] = json!(node);
    let condition = json!({
        "type": "PodScheduled", "status": "False", "reason": "Refused", "message": refusal.message_for(node),
        "lastProbeTime": null, "lastTransitionTime": now,
    });
    set_condition(&mut pod["status"], condition);
    Ok(pod)
}
