//! Objects as upstream's API server stores them: in protobuf, some in an API version that is older than the one it serves.
//!
//! An older version is read as the newer one where the fields kept their numbers. Where they did not, the difference is here:
//! backends of an Ingress, and the topology of an endpoint.

use serde_json::{Map, Value, json};

use super::{Payload, Read, Wire, int_or_string, text};

/// The older versions that upstream stores, and the version as which each is read.
const OLDER: &[(&str, &str, &str)] = &[
    ("batch/v1beta1", "CronJob", "batch/v1"),
    ("discovery.k8s.io/v1beta1", "EndpointSlice", "discovery.k8s.io/v1"),
    ("networking.k8s.io/v1beta1", "Ingress", "networking.k8s.io/v1"),
    ("extensions/v1beta1", "Ingress", "networking.k8s.io/v1"),
    ("networking.k8s.io/v1beta1", "IngressClass", "networking.k8s.io/v1"),
    ("networking.k8s.io/v1beta1", "IPAddress", "networking.k8s.io/v1"),
    ("networking.k8s.io/v1beta1", "ServiceCIDR", "networking.k8s.io/v1"),
    ("node.k8s.io/v1beta1", "RuntimeClass", "node.k8s.io/v1"),
    ("policy/v1beta1", "PodDisruptionBudget", "policy/v1"),
    ("admissionregistration.k8s.io/v1beta1", "MutatingWebhookConfiguration", "admissionregistration.k8s.io/v1"),
    ("admissionregistration.k8s.io/v1beta1", "ValidatingWebhookConfiguration", "admissionregistration.k8s.io/v1"),
    ("certificates.k8s.io/v1beta1", "CertificateSigningRequest", "certificates.k8s.io/v1"),
    ("coordination.k8s.io/v1beta1", "Lease", "coordination.k8s.io/v1"),
    ("rbac.authorization.k8s.io/v1beta1", "ClusterRole", "rbac.authorization.k8s.io/v1"),
    ("rbac.authorization.k8s.io/v1beta1", "ClusterRoleBinding", "rbac.authorization.k8s.io/v1"),
    ("rbac.authorization.k8s.io/v1beta1", "Role", "rbac.authorization.k8s.io/v1"),
    ("rbac.authorization.k8s.io/v1beta1", "RoleBinding", "rbac.authorization.k8s.io/v1"),
    ("scheduling.k8s.io/v1beta1", "PriorityClass", "scheduling.k8s.io/v1"),
    ("storage.k8s.io/v1beta1", "CSIDriver", "storage.k8s.io/v1"),
    ("storage.k8s.io/v1beta1", "CSINode", "storage.k8s.io/v1"),
    ("storage.k8s.io/v1beta1", "CSIStorageCapacity", "storage.k8s.io/v1"),
    ("storage.k8s.io/v1alpha1", "CSIStorageCapacity", "storage.k8s.io/v1"),
    ("storage.k8s.io/v1beta1", "StorageClass", "storage.k8s.io/v1"),
    ("storage.k8s.io/v1beta1", "VolumeAttachment", "storage.k8s.io/v1"),
];

pub const INGRESS_BACKEND: &str = "io.k8s.api.networking.v1.IngressBackend";

/// The version as which a stored object is read.
pub fn readable_version<'a>(version: &'a str, kind: &str) -> &'a str {
    OLDER.iter().find(|(older, of, _)| *older == version && *of == kind).map_or(version, |(.., newer)| newer)
}

/// The Service of a backend of `v1beta1`, which is not a message of its own there.
pub fn beta_backend(bytes: &[u8]) -> Read<Option<Value>> {
    let (mut name, mut port) = (None, Value::Null);
    for field in Wire::new(bytes) {
        match field? {
            (1, payload) => name = Some(text(payload)?).filter(|name| !name.is_empty()),
            (2, Payload::Bytes(bytes)) => port = int_or_string(bytes)?,
            _ => {}
        }
    }
    let port = if port.is_string() { json!({ "name": port }) } else { json!({ "number": port }) };
    Ok(name.map(|name| json!({ "name": name, "port": port })))
}

/// What the newer version says elsewhere, said there; and what upstream adds to whatever it reads.
pub fn complete(version: &str, kind: &str, object: &mut Value) {
    match (version, kind) {
        ("discovery.k8s.io/v1beta1", "EndpointSlice") => {
            let endpoints = object["endpoints"].as_array_mut().into_iter().flatten();
            endpoints.filter_map(Value::as_object_mut).for_each(move_topology);
        }
        // Upstream leaves it out of a new one, and adds it whenever it reads one.
        ("v1", "PersistentVolume" | "PersistentVolumeClaim") if object["status"].get("phase").is_none() => {
            object["status"]["phase"] = json!("Pending");
        }
        _ => {}
    }
}

/// `nodeName` and `zone` were labels of the topology.
fn move_topology(endpoint: &mut Map<String, Value>) {
    let Some(Value::Object(mut topology)) = endpoint.remove("deprecatedTopology") else { return };
    for (label, field) in [("kubernetes.io/hostname", "nodeName"), ("topology.kubernetes.io/zone", "zone")] {
        if let Some(value) = topology.remove(label) {
            endpoint.entry(field).or_insert(value);
        }
    }
    if !topology.is_empty() {
        endpoint.insert("deprecatedTopology".to_owned(), Value::Object(topology));
    }
}
