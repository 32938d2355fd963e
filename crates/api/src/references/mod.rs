//! Which API objects a pod or a persistent volume refers to: an allow-list of typed fields.
//!
//! The node authorizer, NodeRestriction admission and the agent's check of static pods all read these tables, so that
//! what a node may read and what its mirror pods may name cannot disagree. A string counts by where it is, never by
//! the name of the key it is under: `nodeSelector: {secretName: x}` refers to nothing. The tests compare the tables
//! with the schema in both directions, so that a field that a later Kubernetes adds has to be judged before it ships.

mod offline;

use std::{borrow::Cow, collections::BTreeSet};

use serde_json::Value;

pub use self::offline::api_reference;
use crate::config_versions::{ConfigKind, ConfigSource, ConfigVersions};

/// The kind of an object that a pod refers to by name, in its own namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Referent {
    Secret,
    ConfigMap,
    PersistentVolumeClaim,
    ResourceClaim,
    ServiceAccount,
}

/// An object that a pod refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference<'a> {
    pub to: Referent,
    pub name: Cow<'a, str>,
}

/// A Secret that a persistent volume refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SecretReference<'a> {
    /// `None` where the volume names none: then it is the namespace of the claim it is bound to.
    pub namespace: Option<&'a str>,
    pub name: &'a str,
}

/// Where containers are, below `spec`.
const CONTAINERS: [&str; 3] = ["containers[]", "initContainers[]", "ephemeralContainers[]"];

/// Fields of a container that name objects.
const CONTAINER_FIELDS: [(&str, Referent); 4] = [
    ("env[].valueFrom.secretKeyRef.name", Referent::Secret),
    ("env[].valueFrom.configMapKeyRef.name", Referent::ConfigMap),
    ("envFrom[].secretRef.name", Referent::Secret),
    ("envFrom[].configMapRef.name", Referent::ConfigMap),
];

/// Other fields of a pod's spec that name objects. `[]` stands for every item of a list.
const POD_FIELDS: [(&str, Referent); 17] = [
    ("serviceAccountName", Referent::ServiceAccount),
    ("imagePullSecrets[].name", Referent::Secret),
    ("resourceClaims[].resourceClaimName", Referent::ResourceClaim),
    ("volumes[].azureFile.secretName", Referent::Secret),
    ("volumes[].cephfs.secretRef.name", Referent::Secret),
    ("volumes[].cinder.secretRef.name", Referent::Secret),
    ("volumes[].configMap.name", Referent::ConfigMap),
    ("volumes[].csi.nodePublishSecretRef.name", Referent::Secret),
    ("volumes[].flexVolume.secretRef.name", Referent::Secret),
    ("volumes[].iscsi.secretRef.name", Referent::Secret),
    ("volumes[].persistentVolumeClaim.claimName", Referent::PersistentVolumeClaim),
    ("volumes[].projected.sources[].configMap.name", Referent::ConfigMap),
    ("volumes[].projected.sources[].secret.name", Referent::Secret),
    ("volumes[].rbd.secretRef.name", Referent::Secret),
    ("volumes[].scaleIO.secretRef.name", Referent::Secret),
    ("volumes[].secret.secretName", Referent::Secret),
    ("volumes[].storageos.secretRef.name", Referent::Secret),
];

/// Those of [`POD_FIELDS`] that are volumes made of a ConfigMap or Secret.
const CONFIG_VOLUMES: [&str; 4] = [
    "volumes[].configMap.name",
    "volumes[].projected.sources[].configMap.name",
    "volumes[].projected.sources[].secret.name",
    "volumes[].secret.secretName",
];

/// Fields of a persistent volume's spec that name a Secret, and its namespace, for whoever mounts the volume. What a
/// CSI controller alone uses (`controllerPublishSecretRef`, `controllerExpandSecretRef`) is no node's to read.
const VOLUME_SECRETS: [(&str, &str, &str); 11] = [
    ("azureFile", "secretName", "secretNamespace"),
    ("cephfs.secretRef", "name", "namespace"),
    ("cinder.secretRef", "name", "namespace"),
    ("csi.nodeExpandSecretRef", "name", "namespace"),
    ("csi.nodePublishSecretRef", "name", "namespace"),
    ("csi.nodeStageSecretRef", "name", "namespace"),
    ("flexVolume.secretRef", "name", "namespace"),
    ("iscsi.secretRef", "name", "namespace"),
    ("rbd.secretRef", "name", "namespace"),
    ("scaleIO.secretRef", "name", "namespace"),
    ("storageos.secretRef", "name", "namespace"),
];

/// Every object of its namespace that a pod refers to, some of them more than once.
pub fn pod_references(pod: &Value) -> Vec<Reference<'_>> {
    let spec = &pod["spec"];
    let mut found = Vec::new();
    for (path, to) in POD_FIELDS {
        visit(spec, path, &mut |name| push(&mut found, to, name));
    }
    for list in CONTAINERS {
        visit(spec, list, &mut |container| {
            for (path, to) in CONTAINER_FIELDS {
                visit(container, path, &mut |name| push(&mut found, to, name));
            }
        });
    }
    // Claims that were made of templates: a node cannot write this part of a status.
    visit(&pod["status"], "resourceClaimStatuses[].resourceClaimName", &mut |name| {
        push(&mut found, Referent::ResourceClaim, name);
    });
    visit(&pod["status"], "extendedResourceClaimStatus.resourceClaimName", &mut |name| {
        push(&mut found, Referent::ResourceClaim, name);
    });
    let pod_name = pod["metadata"]["name"].as_str().unwrap_or_default();
    visit(spec, "volumes[]", &mut |volume| {
        // The claim of an ephemeral volume is named after the pod and the volume.
        if let (true, Some(name)) = (volume["ephemeral"].is_object(), volume["name"].as_str()) {
            let name = Cow::Owned(format!("{pod_name}-{name}"));
            found.push(Reference { to: Referent::PersistentVolumeClaim, name });
        }
    });
    found
}

fn push<'v>(found: &mut Vec<Reference<'v>>, to: Referent, name: &'v Value) {
    if let Some(name) = name.as_str().filter(|name| !name.is_empty()) {
        found.push(Reference { to, name: Cow::Borrowed(name) });
    }
}

/// Whether a pod refers to this object of its namespace.
pub fn pod_refers_to(pod: &Value, to: Referent, name: &str) -> bool {
    pod_references(pod).iter().any(|reference| reference.to == to && reference.name == name)
}

/// The ConfigMaps and Secrets that a pod with this spec shows in volumes or has in its environment. Of these it can read versions.
pub fn config_sources(spec: &Value) -> BTreeSet<ConfigSource> {
    let mut found = BTreeSet::new();
    let mut push = |to: Referent, name: &Value| {
        let name = name.as_str().filter(|name| !name.is_empty());
        if let (Some(kind), Some(name)) = (ConfigKind::from_referent(to), name) {
            found.insert(ConfigSource { kind, name: name.to_owned() });
        }
    };
    for (path, to) in POD_FIELDS.into_iter().filter(|(path, _)| CONFIG_VOLUMES.contains(path)) {
        visit(spec, path, &mut |name| push(to, name));
    }
    for list in CONTAINERS {
        visit(spec, list, &mut |container| {
            for (path, to) in CONTAINER_FIELDS {
                visit(container, path, &mut |name| push(to, name));
            }
        });
    }
    found
}

/// The originals for which a pod reads this object: those that it refers to and for which its annotation names the object as their version.
pub fn pod_copies(pod: &Value, kind: ConfigKind, copy: &str) -> Vec<String> {
    let versions = ConfigVersions::from_annotations(&pod["metadata"]["annotations"]);
    if versions.is_empty() {
        return Vec::new();
    }
    let read = config_sources(&pod["spec"])
        .into_iter()
        .filter(|source| source.kind == kind && source.name != copy && versions.resolve(kind, &source.name) == copy);
    read.map(|source| source.name).collect()
}

/// The audiences for which a pod's volumes ask for tokens of its service account; empty for that of the API.
pub fn token_audiences(pod: &Value) -> Vec<&str> {
    let mut audiences = Vec::new();
    visit(&pod["spec"], "volumes[].projected.sources[].serviceAccountToken", &mut |token| {
        if token.is_object() {
            audiences.push(token["audience"].as_str().unwrap_or_default());
        }
    });
    audiences
}

/// Every Secret that whoever mounts a persistent volume needs.
pub fn volume_secrets(volume: &Value) -> Vec<SecretReference<'_>> {
    let mut found = Vec::new();
    for (path, name, namespace) in VOLUME_SECRETS {
        visit(&volume["spec"], path, &mut |reference| {
            let text = |field: &str| reference[field].as_str().filter(|text| !text.is_empty());
            if let Some(name) = text(name) {
                found.push(SecretReference { namespace: text(namespace), name });
            }
        });
    }
    found
}

/// Calls `each` with every value at a path. What has another shape than the path has nothing there.
fn visit<'v>(value: &'v Value, path: &str, each: &mut dyn FnMut(&'v Value)) {
    let (field, rest) = path.split_once('.').unwrap_or((path, ""));
    let (field, list) = field.strip_suffix("[]").map_or((field, false), |field| (field, true));
    let Some(value) = value.get(field) else { return };
    let mut go_on = |value: &'v Value| if rest.is_empty() { each(value) } else { visit(value, rest, each) };
    if list {
        value.as_array().into_iter().flatten().for_each(go_on);
    } else {
        go_on(value);
    }
}

#[cfg(test)]
mod tests;
