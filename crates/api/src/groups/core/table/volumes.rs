//! Rows of volumes and of claims to them.

use jiff::Timestamp;
use serde_json::Value;

use crate::{
    table::{
        Columns,
        column::{AGE, NAME, text as column, wide},
        read::{UNSET, age, deleting, join, list, map, name, scalar, text, text_or, texts},
    },
    wellknown::kubernetes::BETA_STORAGE_CLASS,
};

pub static PERSISTENT_VOLUMES: Columns = Columns {
    definitions: &[
        NAME,
        column("Capacity", "How much it holds."),
        column("Access Modes", "How it may be mounted."),
        column("Reclaim Policy", "What becomes of it when its claim is gone."),
        column("Status", "Whether it is available, bound, released."),
        column("Claim", "The claim it is bound to."),
        column("StorageClass", "Its class."),
        column("VolumeAttributesClass", "The class of its attributes."),
        column("Reason", "Why it is in its state."),
        AGE,
        wide(column("VolumeMode", "File system or block device.")),
    ],
    cells: volume,
};

pub static PERSISTENT_VOLUME_CLAIMS: Columns = Columns {
    definitions: &[
        NAME,
        column("Status", "Whether it is pending, bound, lost."),
        column("Volume", "The volume it is bound to."),
        column("Capacity", "How much that holds."),
        column("Access Modes", "How that may be mounted."),
        column("StorageClass", "The class asked for."),
        column("VolumeAttributesClass", "The class of attributes asked for."),
        AGE,
        wide(column("VolumeMode", "File system or block device.")),
    ],
    cells: claim,
};

fn volume(object: &Value, now: Timestamp) -> Vec<Value> {
    let claim = match map(object, "/spec/claimRef") {
        Some(_) => format!("{}/{}", text(object, "/spec/claimRef/namespace"), text(object, "/spec/claimRef/name")),
        None => String::new(),
    };
    vec![
        name(object),
        storage(object, "/spec/capacity/storage"),
        modes(list(object, "/spec/accessModes")).into(),
        text(object, "/spec/persistentVolumeReclaimPolicy").into(),
        phase(object),
        claim.into(),
        class(object),
        text_or(object, "/spec/volumeAttributesClassName", UNSET).into(),
        text(object, "/status/reason").into(),
        age(object, now),
        text_or(object, "/spec/volumeMode", UNSET).into(),
    ]
}

fn claim(object: &Value, now: Timestamp) -> Vec<Value> {
    let volume = text(object, "/spec/volumeName");
    let (capacity, access) = if volume.is_empty() {
        ("".into(), String::new())
    } else {
        (storage(object, "/status/capacity/storage"), modes(list(object, "/status/accessModes")))
    };
    vec![
        name(object),
        phase(object),
        volume.into(),
        capacity,
        access.into(),
        class(object),
        text_or(object, "/spec/volumeAttributesClassName", UNSET).into(),
        age(object, now),
        text_or(object, "/spec/volumeMode", UNSET).into(),
    ]
}

fn phase(object: &Value) -> Value {
    if deleting(object) { "Terminating".into() } else { text(object, "/status/phase").into() }
}

fn storage(object: &Value, pointer: &str) -> Value {
    scalar(object, pointer).unwrap_or_else(|| "0".to_owned()).into()
}

/// The annotation was there before the field.
fn class(object: &Value) -> Value {
    let annotation = map(object, "/metadata/annotations").and_then(|a| a.get(BETA_STORAGE_CLASS));
    annotation.and_then(Value::as_str).unwrap_or_else(|| text(object, "/spec/storageClassName")).into()
}

/// In upstream's order, each once, whatever the order in the object.
fn modes(modes: &[Value]) -> String {
    const SHORT: [(&str, &str); 4] =
        [("ReadWriteOnce", "RWO"), ("ReadOnlyMany", "ROX"), ("ReadWriteMany", "RWX"), ("ReadWriteOncePod", "RWOP")];
    join(SHORT.into_iter().filter(|(long, _)| texts(modes, "").any(|mode| mode == *long)).map(|(_, short)| short), "")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::table::testing::row;

    #[test]
    fn a_volume_shows_its_claim() {
        let object = json!({
            "spec": {
                "capacity": {"storage": "10Gi"},
                "accessModes": ["ReadWriteMany", "ReadWriteOnce", "ReadWriteOnce"],
                "persistentVolumeReclaimPolicy": "Retain",
                "claimRef": {"namespace": "default", "name": "data"},
                "storageClassName": "fast",
                "volumeMode": "Filesystem",
            },
            "status": {"phase": "Bound"},
        });
        assert_eq!(
            row(&PERSISTENT_VOLUMES, object),
            json!([
                "x",
                "10Gi",
                "RWO,RWX",
                "Retain",
                "Bound",
                "default/data",
                "fast",
                "<unset>",
                "",
                "5m",
                "Filesystem"
            ])
        );
        let object = json!({"metadata": {"deletionTimestamp": "2025-01-01T00:00:00Z"}, "status": {"phase": "Failed", "reason": "why"}});
        assert_eq!(
            row(&PERSISTENT_VOLUMES, object),
            json!(["x", "0", "", "", "Terminating", "", "", "<unset>", "why", "5m", "<unset>"])
        );
    }

    #[test]
    fn a_claim_shows_what_it_got_once_it_has_a_volume() {
        let mut object = json!({
            "metadata": {"annotations": {"volume.beta.kubernetes.io/storage-class": "old"}},
            "spec": {"accessModes": ["ReadWriteOncePod"], "resources": {"requests": {"storage": "1Gi"}}},
            "status": {"phase": "Pending"},
        });
        assert_eq!(
            row(&PERSISTENT_VOLUME_CLAIMS, object.clone()),
            json!(["x", "Pending", "", "", "", "old", "<unset>", "5m", "<unset>"])
        );
        object["spec"]["volumeName"] = "v".into();
        object["status"] =
            json!({"phase": "Bound", "capacity": {"storage": "2Gi"}, "accessModes": ["ReadWriteOncePod"]});
        assert_eq!(
            row(&PERSISTENT_VOLUME_CLAIMS, object),
            json!(["x", "Bound", "v", "2Gi", "RWOP", "old", "<unset>", "5m", "<unset>"])
        );
    }
}
