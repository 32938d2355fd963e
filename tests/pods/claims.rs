//! Pods whose claims are bound only once they have a node, and volumes that this machine cannot have.

use serde_json::json;

use super::{container, manifest, until_running};
use crate::harness::{Kubectl, Version, eventually};

#[test]
fn a_pod_waits_for_its_claim_without_a_warning() {
    let k = Kubectl::with_pods(Version::V1_32);
    let names: Vec<String> = (0..4).map(|n| format!("p{n}")).collect();
    for name in &names {
        let claim = json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}},
        });
        k.create(&claim.to_string());
        let mount = json!({"volumeMounts": [{"name": "data", "mountPath": "/data"}]});
        let volumes = json!([{"name": "data", "persistentVolumeClaim": {"claimName": name}}]);
        let c = container("c", "touch /data/file; exec sleep 1000", mount);
        k.create(&manifest(name, json!({"containers": [c], "volumes": volumes})));
    }
    names.iter().for_each(|name| until_running(&k, name));
    // Events of a pod arrive in order: with the last one, all before it are there.
    for name in &names {
        let reasons = || k.value(&format!("events --field-selector involvedObject.name={name}"), "{.items[*].reason}");
        eventually("its start is recorded", || reasons().contains("Started").then_some(()));
        assert!(!reasons().contains("FailedMount"), "{}", reasons());
    }
}

#[test]
fn a_volume_that_cannot_work_is_refused_at_once_and_says_what_can() {
    let k = Kubectl::with_pods(Version::V1_32);
    let mount = json!({"volumeMounts": [{"name": "v", "mountPath": "/v"}]});
    let pod = |name: &str, volume: serde_json::Value| {
        let c = container("c", "exec sleep 1000", mount.clone());
        k.create(&manifest(name, json!({"containers": [c], "volumes": [volume]})));
    };
    pod(
        "iscsi",
        json!({"name": "v", "iscsi": {"targetPortal": "192.0.2.1:3260", "iqn": "iqn.2001-04.com.example:storage.disk1", "lun": 0}}),
    );
    let message = |name: &str| {
        let events = format!("events --field-selector involvedObject.name={name},reason=FailedMount");
        let output = k.value(&events, "{.items[*].message}");
        (!output.is_empty()).then_some(output)
    };
    let output = eventually("the refusal", || message("iscsi"));
    assert!(output.contains("volumes of type iscsi are not supported; supported are configMap, "), "{output}");
    let can_mount_nfs = std::path::Path::new("/sbin/mount.nfs").exists()
        || std::fs::read_to_string("/proc/filesystems").is_ok_and(|text| text.contains("nfs4"));
    if !can_mount_nfs {
        pod("nfs", json!({"name": "v", "nfs": {"server": "192.0.2.1", "path": "/export"}}));
        let output = eventually("the refusal", || message("nfs"));
        assert!(output.contains("it has neither mount.nfs"), "{output}");
    }
}
