//! Services of programs that are not pods: how the EndpointSlices that agents publish for them are named and marked.
//!
//! All of them are in one namespace, [`NAMESPACE`], so that a node can write there and nowhere else: no Service of any other
//! namespace gets endpoints from a node. A slice belongs to one instance of a service on one node. Its name follows from service, node
//! and instance, so that no node can take the name of another's; [`ownership_violation`] says whether a slice is a node's own.

use sha2::{Digest, Sha256};

use serde_json::Value;

use crate::wellknown::kubernetes::SERVICE_NAME;

/// Where all of them are: `<name>.host-services.svc.<domain>`.
pub const NAMESPACE: &str = "host-services";
/// The label of upstream that says who writes a slice.
pub const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
/// The value of [`MANAGED_BY`] on slices of agents, and of the same label on Services that were made for them.
pub const MANAGER: &str = "host-services.mainstay.dev";
/// Label: the node that publishes the slice, as [`node_label`] writes it.
pub const NODE: &str = "mainstay.dev/host-service-node";
/// Label of slices of instances that are not ready: [`CRITICAL`].
pub const HEALTH: &str = "mainstay.dev/host-service-health";
pub const CRITICAL: &str = "critical";
/// Annotation: which instance of the service on its node this is.
pub const ID: &str = "mainstay.dev/host-service-id";
/// Annotation: the addresses of the node's interfaces, as [`format_interfaces`] writes them.
pub const INTERFACES: &str = "mainstay.dev/host-service-interfaces";
/// Annotation: the `meta` of the instance, a JSON object of strings.
pub const META: &str = "mainstay.dev/host-service-meta";

/// Labels are shorter than names of nodes may be.
const LONGEST_LABEL: usize = 63;

/// The node's name, or a digest of a long one.
pub fn node_label(node: &str) -> String {
    if node.len() <= LONGEST_LABEL { node.to_owned() } else { digest(&[node]) }
}

/// The name of the slice of an instance.
pub fn slice_name(service: &str, node: &str, id: &str) -> String {
    format!("{service}-{}", digest(&[node, id]))
}

/// 16 hexadecimal digits; no two lists of texts are read as the same bytes.
fn digest(texts: &[&str]) -> String {
    let mut hash = Sha256::new();
    for text in texts {
        hash.update(text.len().to_be_bytes());
        hash.update(text);
    }
    hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// `eth0=10.0.0.1,eth1=10.1.0.1`
pub fn format_interfaces<'a>(interfaces: impl IntoIterator<Item = (&'a str, std::net::Ipv4Addr)>) -> String {
    let parts: Vec<String> = interfaces.into_iter().map(|(name, address)| format!("{name}={address}")).collect();
    parts.join(",")
}

/// What is not well-formed is left out.
pub fn parse_interfaces(text: &str) -> impl Iterator<Item = (&str, std::net::Ipv4Addr)> {
    text.split(',').filter_map(|part| {
        let (name, address) = part.split_once('=')?;
        Some((name, address.parse().ok()?)).filter(|_| !name.is_empty())
    })
}

/// Why a node may not write this slice, which has this name and namespace; nothing if it is one of its own.
pub fn ownership_violation(node: &str, namespace: Option<&str>, name: &str, slice: &Value) -> Option<String> {
    if namespace != Some(NAMESPACE) {
        return Some(format!("can only write EndpointSlices of the namespace {NAMESPACE:?}"));
    }
    let meta = &slice["metadata"];
    let label = |key: &str| meta["labels"][key].as_str().unwrap_or_default();
    if label(MANAGED_BY) != MANAGER || label(NODE) != node_label(node) {
        return Some(format!("can only write EndpointSlices whose labels {MANAGED_BY:?} and {NODE:?} name the node"));
    }
    let id = meta["annotations"][ID].as_str().unwrap_or_default();
    if name != slice_name(label(SERVICE_NAME), node, id) {
        return Some("can only write EndpointSlices that are named after their service, node and instance".to_owned());
    }
    let is_empty = |field: &str| meta[field].as_array().is_none_or(Vec::is_empty);
    if !is_empty("ownerReferences") || !is_empty("finalizers") {
        return Some("can only write EndpointSlices without owners and finalizers".to_owned());
    }
    let mut endpoints = slice["endpoints"].as_array().into_iter().flatten();
    let foreign = endpoints.any(|endpoint| endpoint["nodeName"] != node);
    foreign.then(|| "can only write endpoints whose nodeName is the node".to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn slice(node: &str) -> Value {
        json!({
            "metadata": {
                "labels": {MANAGED_BY: MANAGER, NODE: node, SERVICE_NAME: "mysql"},
                "annotations": {ID: "mysql-1"},
            },
            "endpoints": [{"addresses": ["10.0.0.1"], "nodeName": node}],
        })
    }

    #[test]
    fn names_tell_nodes_and_instances_apart() {
        let name = slice_name("mysql", "a", "mysql");
        assert!(name.starts_with("mysql-") && name.len() == "mysql-".len() + 16, "{name}");
        assert_ne!(slice_name("mysql", "ab", "c"), slice_name("mysql", "a", "bc"));
        assert_eq!(node_label("a"), "a");
        assert_eq!(node_label(&"x".repeat(100)).len(), 16);
    }

    #[test]
    fn interfaces_come_back() {
        let interfaces = [("eth0", [10, 0, 0, 1].into()), ("eth1.5", [10, 1, 0, 1].into())];
        let text = format_interfaces(interfaces);
        assert_eq!(text, "eth0=10.0.0.1,eth1.5=10.1.0.1");
        assert_eq!(parse_interfaces(&text).collect::<Vec<_>>(), interfaces);
        assert_eq!(parse_interfaces("=10.0.0.1,x,y=z,").count(), 0);
    }

    #[test]
    fn a_node_writes_slices_of_its_own_and_no_others() {
        let name = slice_name("mysql", "a", "mysql-1");
        let judge = |namespace: &str, name: &str, slice: &Value| ownership_violation("a", Some(namespace), name, slice);
        assert_eq!(judge(NAMESPACE, &name, &slice("a")), None);
        assert!(judge("default", &name, &slice("a")).unwrap().contains("of the namespace \"host-services\""));
        assert!(judge(NAMESPACE, &name, &slice("b")).unwrap().contains("name the node"));
        let others = slice_name("mysql", "b", "mysql-1");
        assert!(judge(NAMESPACE, &others, &slice("a")).unwrap().contains("named after"));
        for (pointer, value, why) in [
            ("/metadata/labels/kubernetes.io~1service-name", json!("other"), "named after"),
            ("/metadata/annotations/mainstay.dev~1host-service-id", json!("other"), "named after"),
            ("/endpoints/0/nodeName", json!("b"), "nodeName"),
            ("/endpoints/0/nodeName", Value::Null, "nodeName"),
        ] {
            let mut changed = slice("a");
            *changed.pointer_mut(pointer).unwrap() = value;
            assert!(judge(NAMESPACE, &name, &changed).is_some_and(|found| found.contains(why)), "{pointer}");
        }
        let mut owned = slice("a");
        owned["metadata"]["finalizers"] = json!(["x"]);
        assert!(judge(NAMESPACE, &name, &owned).unwrap().contains("finalizers"));
    }
}
