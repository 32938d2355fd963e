//! Writes of a node to its own Node object: refuses labels that attract pods, and changes that would delete the Node.

use serde_json::Value;

use super::{Verdict, equal_or_both_empty};
use crate::objects::guaranteed_update::Part;

const RESTRICTED: &str = "node-restriction.kubernetes.io";
/// Labels in Kubernetes' own name spaces that a node may give itself.
const OWN_LABELS: [&str; 13] = [
    mainstay_api::wellknown::kubernetes::HOSTNAME,
    mainstay_api::wellknown::kubernetes::ZONE,
    mainstay_api::wellknown::kubernetes::REGION,
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    mainstay_api::wellknown::kubernetes::INSTANCE_TYPE,
    "beta.kubernetes.io/instance-type",
    mainstay_api::wellknown::kubernetes::OS,
    mainstay_api::wellknown::kubernetes::ARCH,
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
    "kubernetes.io/role",
    "node.kubernetes.io/exclude-from-external-load-balancers",
];
const OWN_LABEL_SPACES: [&str; 2] = ["kubelet.kubernetes.io", "node.kubernetes.io"];

pub(super) fn create(node: &str, name: &str, object: &Value) -> Verdict {
    let (meta, spec) = (&object["metadata"], &object["spec"]);
    if name != node {
        return Err(super::not_own_node(node, name));
    }
    if !spec["configSource"].is_null() {
        return Err(format!("node {node:?} is not allowed to create pods with a non-nil configSource"));
    }
    // An owner that does not exist would have the Node deleted, a range of another's make others route to this one.
    for (part, field) in [(meta, "ownerReferences"), (meta, "finalizers"), (spec, "podCIDR"), (spec, "podCIDRs")] {
        if !equal_or_both_empty(&part[field], &Value::Null) {
            return Err(format!("node {node:?} is not allowed to set {field}"));
        }
    }
    let labels = forbidden_labels(&meta["labels"], &Value::Null);
    if labels.is_empty() {
        Ok(())
    } else {
        Err(format!("node {node:?} is not allowed to set the following labels: {}", labels.join(", ")))
    }
}

pub(super) fn update(node: &str, part: Part, object: &Value, old: &Value) -> Verdict {
    let differs = |part: &str, field: &str| !equal_or_both_empty(&object[part][field], &old[part][field]);
    if part == Part::Main {
        if !object["spec"]["configSource"].is_null() && differs("spec", "configSource") {
            return Err(format!("node {node:?} is not allowed to update configSource to a new non-nil configSource"));
        }
        for field in ["taints", "unschedulable"] {
            if differs("spec", field) {
                return Err(format!("node {node:?} is not allowed to modify {field}"));
            }
        }
    }
    // With an owner that does not exist the Node would be deleted, and come back without its taints.
    for field in ["ownerReferences", "finalizers"] {
        if differs("metadata", field) {
            return Err(format!("node {node:?} is not allowed to modify {field}"));
        }
    }
    let labels = forbidden_labels(&object["metadata"]["labels"], &old["metadata"]["labels"]);
    if labels.is_empty() { Ok(()) } else { Err(format!("is not allowed to modify labels: {}", labels.join(", "))) }
}

/// Labels that differ and are not for nodes to set.
pub(super) fn forbidden_labels(new: &Value, old: &Value) -> Vec<String> {
    let keys = |labels: &Value| labels.as_object().map(|m| m.keys().cloned().collect::<Vec<_>>()).unwrap_or_default();
    let mut changed: Vec<String> = keys(new).into_iter().chain(keys(old)).filter(|key| new[key] != old[key]).collect();
    changed.sort();
    changed.dedup();
    changed.retain(|label| is_forbidden(label));
    changed
}

pub(super) fn is_forbidden(label: &str) -> bool {
    let space = label.split_once('/').map_or("", |(space, _)| space);
    let within = |name: &str| space == name || space.strip_suffix(name).is_some_and(|rest| rest.ends_with('.'));
    let kubernetes = within("kubernetes.io") || within("k8s.io");
    let own = OWN_LABELS.contains(&label) || OWN_LABEL_SPACES.iter().any(|space| within(space));
    within(RESTRICTED) || (kubernetes && !own)
}
