//! Columns of `storage.k8s.io/v1`.

use jiff::Timestamp;
use serde_json::Value;

use crate::{
    table::{
        Column, Columns,
        column::{AGE, NAME, boolean, integer, text as column},
        read::{NONE, UNSET, age, flag, join, list, map, name, present, scalar, text, text_or, texts},
    },
    wellknown::kubernetes::DEFAULT_STORAGE_CLASS,
};

pub static CSI_DRIVERS: Columns = Columns {
    definitions: &[
        NAME,
        boolean("AttachRequired", "Whether volumes are attached before they are mounted."),
        boolean("PodInfoOnMount", "Whether the driver is told which pod it mounts for."),
        boolean("StorageCapacity", "Whether the driver reports its capacity."),
        column("TokenRequests", "Audiences of the tokens it is given."),
        boolean("RequiresRepublish", "Whether mounts are refreshed from time to time."),
        column("Modes", "Volume lifecycles it supports."),
        AGE,
    ],
    cells: csi_driver,
};

pub static CSI_NODES: Columns = Columns {
    definitions: &[NAME, integer("Drivers", "Drivers on the node."), AGE],
    cells: |object, now| vec![name(object), list(object, "/spec/drivers").len().into(), age(object, now)],
};

pub static CSI_STORAGE_CAPACITIES: Columns = Columns {
    definitions: &[
        NAME,
        column("StorageClassName", "The class it tells the capacity of."),
        column("Capacity", "What is left."),
    ],
    cells: |object, _| {
        let capacity = scalar(object, "/capacity").unwrap_or_else(|| UNSET.to_owned());
        vec![name(object), text(object, "/storageClassName").into(), capacity.into()]
    },
};

pub static STORAGE_CLASSES: Columns = Columns {
    definitions: &[
        NAME,
        column("Provisioner", "Who makes volumes of the class."),
        column("ReclaimPolicy", "What becomes of a volume when its claim is gone."),
        column("VolumeBindingMode", "Whether a volume is made at once or for its first pod."),
        column("AllowVolumeExpansion", "Whether claims may grow."),
        AGE,
    ],
    cells: storage_class,
};

pub static VOLUME_ATTACHMENTS: Columns = Columns {
    definitions: &[
        NAME,
        Column { format: "name", ..column("Attacher", "The driver that attaches.") },
        column("PV", "The volume."),
        column("Node", "The node it is attached to."),
        boolean("Attached", "Whether it is attached yet."),
        AGE,
    ],
    cells: |object, now| {
        vec![
            name(object),
            text(object, "/spec/attacher").into(),
            text(object, "/spec/source/persistentVolumeName").into(),
            text(object, "/spec/nodeName").into(),
            flag(object, "/status/attached").into(),
            age(object, now),
        ]
    },
};

fn csi_driver(object: &Value, now: Timestamp) -> Vec<Value> {
    let attach = object.pointer("/spec/attachRequired").and_then(Value::as_bool).unwrap_or(true);
    let tokens = match present(object, "/spec/tokenRequests") {
        Some(_) => join(texts(list(object, "/spec/tokenRequests"), "/audience"), ""),
        None => UNSET.to_owned(),
    };
    vec![
        name(object),
        attach.into(),
        flag(object, "/spec/podInfoOnMount").into(),
        flag(object, "/spec/storageCapacity").into(),
        tokens.into(),
        flag(object, "/spec/requiresRepublish").into(),
        join(texts(list(object, "/spec/volumeLifecycleModes"), ""), NONE).into(),
        age(object, now),
    ]
}

fn storage_class(object: &Value, now: Timestamp) -> Vec<Value> {
    const DEFAULT: [&str; 2] = [DEFAULT_STORAGE_CLASS, "storageclass.beta.kubernetes.io/is-default-class"];
    let annotations = map(object, "/metadata/annotations");
    let default = DEFAULT.iter().any(|name| annotations.and_then(|a| a.get(*name)).is_some_and(|v| v == "true"));
    vec![
        format!("{}{}", text(object, "/metadata/name"), if default { " (default)" } else { "" }).into(),
        text(object, "/provisioner").into(),
        text_or(object, "/reclaimPolicy", "Delete").into(),
        text_or(object, "/volumeBindingMode", "Immediate").into(),
        flag(object, "/allowVolumeExpansion").into(),
        age(object, now),
    ]
}

pub static VOLUME_ATTRIBUTES_CLASSES: Columns = Columns {
    definitions: &[NAME, column("DriverName", "The driver that its parameters are for."), AGE],
    cells: |object, now| vec![name(object), text(object, "/driverName").into(), age(object, now)],
};

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::table::testing::row;

    #[test]
    fn the_default_class_says_so() {
        let object = json!({
            "metadata": {"name": "fast", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
            "provisioner": "local",
            "allowVolumeExpansion": true,
        });
        assert_eq!(
            row(&STORAGE_CLASSES, object),
            json!(["fast (default)", "local", "Delete", "Immediate", true, "5m"])
        );
        let object =
            json!({"provisioner": "p", "reclaimPolicy": "Retain", "volumeBindingMode": "WaitForFirstConsumer"});
        assert_eq!(row(&STORAGE_CLASSES, object), json!(["x", "p", "Retain", "WaitForFirstConsumer", false, "5m"]));
    }

    #[test]
    fn drivers_show_what_they_need() {
        let object = json!({"spec": {"volumeLifecycleModes": ["Persistent", "Ephemeral"]}});
        assert_eq!(
            row(&CSI_DRIVERS, object),
            json!(["x", true, false, false, "<unset>", false, "Persistent,Ephemeral", "5m"])
        );
        let object =
            json!({"spec": {"attachRequired": false, "tokenRequests": [{"audience": "a"}, {"audience": "b"}]}});
        assert_eq!(row(&CSI_DRIVERS, object), json!(["x", false, false, false, "a,b", false, "<none>", "5m"]));
        assert_eq!(row(&CSI_NODES, json!({"spec": {"drivers": [{}, {}]}})), json!(["x", 2, "5m"]));
    }

    #[test]
    fn capacities_and_attachments() {
        let object = json!({"storageClassName": "fast", "capacity": "1Gi"});
        assert_eq!(row(&CSI_STORAGE_CAPACITIES, object), json!(["x", "fast", "1Gi"]));
        assert_eq!(row(&CSI_STORAGE_CAPACITIES, json!({})), json!(["x", "", "<unset>"]));
        let object = json!({
            "spec": {"attacher": "d", "nodeName": "n", "source": {"persistentVolumeName": "v"}},
            "status": {"attached": true},
        });
        assert_eq!(row(&VOLUME_ATTACHMENTS, object), json!(["x", "d", "v", "n", true, "5m"]));
    }
}
