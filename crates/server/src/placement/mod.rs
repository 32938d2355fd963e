//! Binding of pods to nodes, and its undoing when a node refuses the pod: the change of the pod, and when it is refused.
//!
//! Placing is the busiest write there is, so it is done on the stored bytes: what stays is copied. Pods that are laid
//! out in a way this does not know are taken apart and put together again, with the same result.

pub mod event;
mod refusal;
#[cfg(test)]
mod tests;

pub use refusal::{Refusal, RefusalError, without_node};

use bytes::Bytes;
use mainstay_api::wellknown::kubernetes;
use serde_json::{Map, Value, json};

use crate::objects::{
    json_members::{self, Member},
    metadata,
    object::Wire,
};

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Placement<'a> {
    /// Empty if any pod of that name will do.
    pub uid: &'a str,
    pub node: &'a str,
    /// Put on the pod, over what it has.
    pub annotations: &'a [(&'a str, &'a str)],
    /// Likewise: see [`topology_labels`].
    pub labels: &'a [(&'a str, &'a str)],
}

/// Labels that a pod has from its node, so that programs in it can know where they are; as upstream's PodTopologyLabels has them.
const TOPOLOGY: [&str; 2] = [kubernetes::REGION, kubernetes::ZONE];

/// The labels of a node that its pods get.
pub fn topology_labels(node: &Value) -> Vec<(&'static str, &str)> {
    let labels = &node["metadata"]["labels"];
    TOPOLOGY.into_iter().filter_map(|key| Some((key, labels[key].as_str()?))).collect()
}

/// Why a pod is not bound to its node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlacementError {
    #[error("Precondition failed: UID in precondition: {given}, UID in object meta: {stored}")]
    Another { given: String, stored: String },
    #[error("pod {name} is being deleted, cannot be assigned to a host")]
    Going { name: String },
    #[error("pod {name} is already assigned to node {node:?}")]
    Placed { name: String, node: String },
    #[error("pod {name} has non-empty .spec.schedulingGates")]
    Gated { name: String },
    #[error("stored pod cannot be parsed: {why}")]
    Unreadable { why: String },
}

/// What decides whether a pod can be bound.
struct BindingState<'a> {
    name: &'a str,
    uid: &'a str,
    going: bool,
    node: &'a str,
    gated: bool,
}

impl BindingState<'_> {
    fn check(&self, placement: &Placement<'_>) -> Result<(), PlacementError> {
        let name = || self.name.to_owned();
        if !placement.uid.is_empty() && placement.uid != self.uid {
            return Err(PlacementError::Another { given: placement.uid.to_owned(), stored: self.uid.to_owned() });
        }
        if self.going {
            return Err(PlacementError::Going { name: name() });
        }
        if !self.node.is_empty() {
            return Err(PlacementError::Placed { name: name(), node: self.node.to_owned() });
        }
        if self.gated {
            return Err(PlacementError::Gated { name: name() });
        }
        Ok(())
    }
}

/// The stored bytes of the pod on its node.
pub fn placed_bytes(pod: &Bytes, placement: &Placement<'_>, now: &str) -> Result<Bytes, PlacementError> {
    match splice_node(pod, placement, now) {
        Some(done) => done,
        None => {
            let fields = serde_json::from_slice::<Map<String, Value>>(pod);
            let pod = Value::Object(fields.map_err(|error| PlacementError::Unreadable { why: error.to_string() })?);
            with_node(&pod, placement, now).map(|pod| Wire::encode(&pod).json().clone())
        }
    }
}

/// The pod on its node.
pub fn with_node(old: &Value, placement: &Placement<'_>, now: &str) -> Result<Value, PlacementError> {
    let state = BindingState {
        name: metadata::string_field(old, "name").unwrap_or_default(),
        uid: metadata::string_field(old, "uid").unwrap_or_default(),
        going: metadata::string_field(old, "deletionTimestamp").is_some(),
        node: old["spec"]["nodeName"].as_str().unwrap_or_default(),
        gated: old["spec"]["schedulingGates"].as_array().is_some_and(|gates| !gates.is_empty()),
    };
    state.check(placement)?;
    let mut pod = old.clone();
    pod["spec"]["nodeName"] = json!(placement.node);
    for (key, value) in placement.annotations {
        pod["metadata"]["annotations"][*key] = json!(value);
    }
    for (key, value) in placement.labels {
        pod["metadata"]["labels"][*key] = json!(value);
    }
    set_condition(&mut pod["status"], scheduled_condition(now));
    Ok(pod)
}

fn scheduled_condition(now: &str) -> Value {
    json!({ "type": "PodScheduled", "status": "True", "lastProbeTime": null, "lastTransitionTime": now })
}

/// Puts a condition last, in place of any of its type.
fn set_condition(status: &mut Value, condition: Value) {
    let conditions = match &mut status["conditions"] {
        Value::Array(conditions) => std::mem::take(conditions),
        _ => Vec::new(),
    };
    let others = conditions.into_iter().filter(|other| other["type"] != condition["type"]);
    status["conditions"] = others.chain([condition.clone()]).collect();
}

/// [`placed_bytes`] without taking the pod apart. `None` if it is laid out in an unknown way.
fn splice_node(pod: &[u8], placement: &Placement<'_>, now: &str) -> Option<Result<Bytes, PlacementError>> {
    let top = json_members::parse_members(pod)?;
    if top.iter().any(|(name, _)| !["kind", "apiVersion", "metadata", "spec", "status"].contains(name)) {
        return None;
    }
    let meta = json_members::parse_members(json_members::find(&top, "metadata")?)?;
    let spec = json_members::parse_members(json_members::find(&top, "spec")?)?;
    let text_of = |name: &str| json_members::plain_string(json_members::find(&meta, name)?);
    let (name, uid) = (text_of("name")?, text_of("uid")?);
    let node = match json_members::find(&spec, "nodeName") {
        None => "",
        Some(node) => json_members::plain_string(node).filter(|node| !node.is_empty())?,
    };
    let gates = present(&spec, "schedulingGates");
    if meta.iter().any(|(name, _)| *name == "resourceVersion") {
        return None;
    }
    let state = BindingState {
        name,
        uid,
        going: present(&meta, "deletionTimestamp").is_some(),
        node,
        gated: gates.is_some_and(|gates| gates != b"[]"),
    };
    if let Err(why) = state.check(placement) {
        return Some(Err(why));
    }
    let status = json_members::find(&top, "status").unwrap_or(b"{}");
    let mut status: Value = serde_json::from_slice(status).ok()?;
    set_condition(&mut status, scheduled_condition(now));
    let annotations = splice_texts(json_members::find(&meta, "annotations"), placement.annotations)?;
    let labels = splice_texts(json_members::find(&meta, "labels"), placement.labels)?;

    let mut out = Vec::with_capacity(pod.len() + 256);
    out.push(b'{');
    for name in ["kind", "apiVersion"] {
        if let Some(value) = json_members::find(&top, name) {
            write_member(&mut out, name, value);
            out.push(b',');
        }
    }
    out.extend_from_slice(b"\"metadata\":");
    let changes = [("annotations", &annotations), ("labels", &labels)].into_iter();
    let changes: Vec<_> = changes.filter_map(|(name, value)| Some((name, value.as_deref()?))).collect();
    write_with(&mut out, &meta, &changes);
    out.extend_from_slice(b",\"spec\":");
    write_with(&mut out, &spec, &[("nodeName", json!(placement.node).to_string().as_bytes())]);
    out.extend_from_slice(b",\"status\":");
    serde_json::to_writer(&mut out, &status).ok()?;
    out.push(b'}');
    Some(Ok(out.into()))
}

fn present<'a>(members: &[Member<'a>], name: &str) -> Option<&'a [u8]> {
    json_members::find(members, name).filter(|value| *value != b"null")
}

/// Annotations or labels with these put over them, as bytes; `None` inside if nothing changes.
#[expect(clippy::option_option, reason = "unknown layout, or nothing to change")]
fn splice_texts(old: Option<&[u8]>, added: &[(&str, &str)]) -> Option<Option<Vec<u8>>> {
    if added.is_empty() {
        return Some(None);
    }
    let mut all: Map<String, Value> = match old {
        None => Map::new(),
        Some(old) => serde_json::from_slice(old).ok()?,
    };
    all.extend(added.iter().map(|(key, value)| ((*key).to_owned(), json!(value))));
    Some(Some(serde_json::to_vec(&all).ok()?))
}

/// Writes an object with some members set, which are in the order of their names, each at its place in that order.
fn write_with(out: &mut Vec<u8>, members: &[Member<'_>], changes: &[(&str, &[u8])]) {
    out.push(b'{');
    let mut first = true;
    let mut write = |out: &mut Vec<u8>, name: &str, value: &[u8]| {
        if !std::mem::take(&mut first) {
            out.push(b',');
        }
        write_member(out, name, value);
    };
    let mut waiting = changes.iter().peekable();
    for (own, kept) in members.iter().filter(|(own, _)| !changes.iter().any(|(name, _)| name == own)) {
        while let Some((name, value)) = waiting.next_if(|(name, _)| name < own) {
            write(out, name, value);
        }
        write(out, own, kept);
    }
    for (name, value) in waiting {
        write(out, name, value);
    }
    out.push(b'}');
}

fn write_member(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    out.push(b'"');
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b"\":");
    out.extend_from_slice(value);
}
