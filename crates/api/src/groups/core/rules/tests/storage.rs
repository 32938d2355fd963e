//! Volumes and claims.

use super::*;

fn claim(spec: Value) -> Value {
    let sound = json!({"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
    named("PersistentVolumeClaim", with(&sound, json!({ "spec": spec })))
}

fn volume(spec: Value) -> Value {
    let sound = json!({"spec": {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}}});
    let volume = with(&sound, json!({ "spec": spec }));
    with(&json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "v"}}), volume)
}

#[test]
fn a_claim_is_completed() {
    assert_completes::<PersistentVolumeClaimRules>(
        claim(
            json!({"dataSource": {"kind": "PersistentVolumeClaim", "name": "old"}, "resources": {"requests": {"storage": "1024Mi"}}}),
        ),
        named(
            "PersistentVolumeClaim",
            json!({
                "spec": {
                    "accessModes": ["ReadWriteOnce"],
                    "dataSource": {"kind": "PersistentVolumeClaim", "name": "old"},
                    "dataSourceRef": {"kind": "PersistentVolumeClaim", "name": "old"},
                    "resources": {"requests": {"storage": "1Gi"}},
                    "volumeMode": "Filesystem",
                },
                "status": {"phase": "Pending"},
            }),
        ),
    );
}

#[test]
fn claims_are_refused_with_upstreams_messages() {
    assert_refused::<PersistentVolumeClaimRules>(
        named("PersistentVolumeClaim", json!({"spec": {"volumeMode": "Tape"}})),
        &[
            "spec.accessModes: Required value: at least 1 access mode is required",
            "spec.resources[storage]: Required value",
            r#"spec.volumeMode: Unsupported value: "Tape": supported values: "Block", "Filesystem""#,
        ],
    );
    assert_refused::<PersistentVolumeClaimRules>(
        claim(json!({
            "accessModes": ["ReadWriteOncePod", "ReadWriteOnce", "WriteOnly"],
            "resources": {"requests": {"storage": "0"}},
            "dataSource": {"kind": "Snapshot", "name": "s"},
        })),
        &[
            r#"spec.accessModes: Unsupported value: "WriteOnly": supported values: "ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod""#,
            "spec.accessModes: Forbidden: may not use ReadWriteOncePod with other access modes",
            r#"spec.resources[storage]: Invalid value: "0": must be greater than zero"#,
            r#"spec.dataSource: Invalid value: "Snapshot": must be 'PersistentVolumeClaim' when referencing the default apiGroup"#,
            r#"spec.dataSourceRef: Invalid value: "Snapshot": must be 'PersistentVolumeClaim' when referencing the default apiGroup"#,
        ],
    );
}

/// A stored claim, updated: both are complete, `old` has the given status.
fn updated(status: Value, change: Value) -> Vec<String> {
    let old = with(&completed::<PersistentVolumeClaimRules>(claim(json!({}))), json!({ "status": status }));
    let mut new = with(&old, change);
    let errors = crate::strategy::Typed::<PersistentVolumeClaimRules>::new().update(&mut new, &old);
    errors.iter().map(ToString::to_string).collect()
}

const IMMUTABLE: &str = "spec: Forbidden: spec is immutable after creation except resources.requests and \
     volumeAttributesClassName for bound claims";

#[test]
fn a_claim_is_bound_once_and_grows() {
    let bound = json!({"phase": "Bound", "capacity": {"storage": "1Gi"}});
    let size = |size: &str| json!({"spec": {"resources": {"requests": {"storage": size}}}});
    assert_eq!(updated(json!({}), json!({"spec": {"volumeName": "v"}})), [""; 0]);
    assert_eq!(updated(json!({}), json!({"spec": {"storageClassName": "fast"}})), [""; 0]);
    assert_eq!(updated(bound.clone(), size("2Gi")), [""; 0]);
    assert_eq!(
        updated(json!({}), size("2Gi")),
        [format!("{IMMUTABLE}\n  resources.requests.storage: \"1Gi\" -> \"2Gi\"")]
    );
    assert_eq!(
        updated(bound.clone(), size("512Mi")),
        ["spec.resources.requests.storage: Forbidden: field can not be less than status.capacity"]
    );
    assert_eq!(
        updated(bound, json!({"spec": {"accessModes": ["ReadWriteMany"]}})),
        [format!("{IMMUTABLE}\n  accessModes[0]: \"ReadWriteOnce\" -> \"ReadWriteMany\"")]
    );
    assert_eq!(
        updated(json!({}), json!({"metadata": {"annotations": {"volume.beta.kubernetes.io/storage-class": "x"}}})),
        [r#"metadata.annotations.volume.beta.kubernetes.io/storage-class: Invalid value: "x": field is immutable"#]
    );
}

#[test]
fn a_volume_is_completed() {
    assert_completes::<PersistentVolumeRules>(
        volume(json!({"hostPath": {"path": "/data"}})),
        json!({
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": "v"},
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "capacity": {"storage": "1Gi"},
                "hostPath": {"path": "/data", "type": ""},
                "persistentVolumeReclaimPolicy": "Retain",
                "volumeMode": "Filesystem",
            },
            "status": {"phase": "Pending"},
        }),
    );
}

#[test]
fn volumes_are_refused_with_upstreams_messages() {
    assert_refused::<PersistentVolumeRules>(
        json!({"metadata": {"name": "v"}, "spec": {"persistentVolumeReclaimPolicy": "Forget"}}),
        &[
            "spec.accessModes: Required value",
            "spec.capacity: Required value",
            r#"spec.capacity: Unsupported value: {}: supported values: "storage""#,
            r#"spec.persistentVolumeReclaimPolicy: Unsupported value: "Forget": supported values: "Delete", "Recycle", "Retain""#,
            "spec: Required value: must specify a volume type",
        ],
    );
    assert_refused::<PersistentVolumeRules>(
        volume(json!({"local": {"path": "/a"}, "nfs": {"server": "s", "path": "/"}})),
        &["spec.local: Forbidden: may not specify more than 1 volume type"],
    );
    assert_refused::<PersistentVolumeRules>(
        volume(json!({"local": {"path": "/a"}})),
        &["spec.nodeAffinity: Required value: Local volume requires node affinity"],
    );
    assert_refused::<PersistentVolumeRules>(
        volume(json!({"hostPath": {"path": "/"}, "persistentVolumeReclaimPolicy": "Recycle"})),
        &["spec.persistentVolumeReclaimPolicy: Forbidden: may not be 'recycle' for a hostPath mount of '/'"],
    );
    assert_refused::<PersistentVolumeRules>(
        volume(json!({"csi": {"driver": "d.example.com", "volumeHandle": "", "nodePublishSecretRef": {"name": "s"}}})),
        &["spec.csi.volumeHandle: Required value", "spec.csi.nodePublishSecretRef.namespace: Required value"],
    );
}

#[test]
fn where_the_data_is_never_changes() {
    let base = volume(json!({"hostPath": {"path": "/data"}}));
    assert_update::<PersistentVolumeRules>(&base, json!({"spec": {"persistentVolumeReclaimPolicy": "Delete"}}), &[]);
    assert_update::<PersistentVolumeRules>(&base, json!({"spec": {"claimRef": {"name": "c"}}}), &[]);
    assert_update::<PersistentVolumeRules>(
        &base,
        json!({"spec": {"hostPath": {"path": "/other"}, "volumeMode": "Block"}}),
        &[
            "spec.persistentvolumesource: Forbidden: spec.persistentvolumesource is immutable after creation\n  hostPath.path: \"/data\" -> \"/other\"",
            r#"volumeMode: Invalid value: "Block": field is immutable"#,
        ],
    );
    let csi = volume(json!({"csi": {"driver": "d.example.com", "volumeHandle": "h"}}));
    let secret = json!({"name": "s", "namespace": "n"});
    assert_update::<PersistentVolumeRules>(&csi, json!({"spec": {"csi": {"controllerExpandSecretRef": secret}}}), &[]);
}

#[test]
fn the_affinity_of_a_volume_may_only_get_newer_names() {
    let zone = |key: &str| json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [{"key": key, "operator": "Exists"}]}]}});
    let base =
        volume(json!({"hostPath": {"path": "/data"}, "nodeAffinity": zone("failure-domain.beta.kubernetes.io/zone")}));
    let change = |key: &str| json!({"spec": {"nodeAffinity": zone(key)}});
    assert_update::<PersistentVolumeRules>(&base, change("topology.kubernetes.io/zone"), &[]);
    assert_update::<PersistentVolumeRules>(
        &base,
        change("rack"),
        &[
            r#"nodeAffinity: Invalid value: {"required":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"rack","operator":"Exists"}]}]}}: field is immutable, except for updating from beta label to GA"#,
        ],
    );
}
