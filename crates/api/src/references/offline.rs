//! Whether a pod can run without the API: what static pods have to.

use serde_json::Value;

use super::{Referent, pod_references};

/// Volumes that need no object of the API. Secrets that some of them name are found as references.
const OFFLINE_VOLUMES: [&str; 22] = [
    "awsElasticBlockStore",
    "azureDisk",
    "cephfs",
    "cinder",
    "downwardAPI",
    "emptyDir",
    "fc",
    "flexVolume",
    "flocker",
    "gcePersistentDisk",
    "gitRepo",
    "hostPath",
    "image",
    "iscsi",
    "nfs",
    "photonPersistentDisk",
    "portworxVolume",
    "quobyte",
    "rbd",
    "scaleIO",
    "storageos",
    "vsphereVolume",
];

/// The resource of which a pod needs an object, in upstream's words, if it needs any. A volume of a type that is not
/// known counts as such a need.
pub fn api_reference(pod: &Value) -> Option<String> {
    let references = pod_references(pod);
    let refers = |to: Referent| references.iter().any(|reference| reference.to == to);
    for (to, resource) in [
        (Referent::ServiceAccount, "serviceaccounts"),
        (Referent::Secret, "secrets"),
        (Referent::ConfigMap, "configmaps"),
    ] {
        if refers(to) {
            return Some(resource.to_owned());
        }
    }
    let spec = &pod["spec"];
    // The older name of `serviceAccountName`, which defaulting copies there.
    if spec["serviceAccount"].as_str().is_some_and(|name| !name.is_empty()) {
        return Some("serviceaccounts".to_owned());
    }
    let items = |field: &str| spec[field].as_array().map(Vec::as_slice).unwrap_or_default();
    if !items("imagePullSecrets").is_empty() {
        return Some("secrets".to_owned());
    }
    if !items("resourceClaims").is_empty() {
        return Some("resourceclaims".to_owned());
    }
    items("volumes").iter().find_map(volume_reference)
}

fn volume_reference(volume: &Value) -> Option<String> {
    let name = volume["name"].as_str().unwrap_or_default();
    let sources = volume.as_object().into_iter().flatten().filter(|(key, value)| *key != "name" && !value.is_null());
    sources.into_iter().find_map(|(key, source)| {
        let resource = match key.as_str() {
            offline if OFFLINE_VOLUMES.contains(&offline) => return None,
            "configMap" => "configmaps (via configmap volumes)",
            "secret" => "secrets (via secret volumes)",
            "csi" => "csidrivers (via CSI volumes)",
            "glusterfs" => "endpoints (via glusterFS volumes)",
            "persistentVolumeClaim" => "persistentvolumeclaims",
            "ephemeral" => "persistentvolumeclaims (via ephemeral volumes)",
            "azureFile" => "secrets (via azureFile volumes)",
            "projected" => {
                return source["sources"].as_array().into_iter().flatten().find_map(|s| projection_reference(name, s));
            }
            unknown => return Some(format!("an object of unknown kind (via {unknown} volume {name:?})")),
        };
        Some(resource.to_owned())
    })
}

fn projection_reference(volume: &str, projection: &Value) -> Option<String> {
    let sources = projection.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null());
    sources.into_iter().find_map(|(key, _)| {
        let resource = match key.as_str() {
            "downwardAPI" => return None,
            "configMap" => "configmaps (via projected volumes)",
            "secret" => "secrets (via projected volumes)",
            "serviceAccountToken" => "serviceaccounts (via projected volumes)",
            "clusterTrustBundle" => "clustertrustbundles",
            "podCertificate" => "podcertificates",
            unknown => {
                return Some(format!("an object of unknown kind (via {unknown} of projected volume {volume:?})"));
            }
        };
        Some(resource.to_owned())
    })
}
