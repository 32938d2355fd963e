//! Columns of `resource.k8s.io/v1`.

use crate::table::{
    Columns,
    column::{AGE, NAME, text as column},
    read::{UNSET, age, deleting, list, name, present, text, text_or},
};

pub static RESOURCE_CLAIMS: Columns = Columns {
    definitions: &[NAME, column("State", "Whether devices are allocated, and whether pods use them."), AGE],
    cells: |object, now| {
        let mut states = Vec::new();
        if deleting(object) {
            states.push("deleted");
        }
        match present(object, "/status/allocation") {
            Some(_) => states.push("allocated"),
            None if states.is_empty() => states.push("pending"),
            None => {}
        }
        if !list(object, "/status/reservedFor").is_empty() {
            states.push("reserved");
        }
        vec![name(object), states.join(",").into(), age(object, now)]
    },
};

pub static RESOURCE_SLICES: Columns = Columns {
    definitions: &[
        NAME,
        column("Node", "The node that has the devices."),
        column("Driver", "The driver that offers them."),
        column("Pool", "The pool they belong to."),
        AGE,
    ],
    cells: |object, now| {
        vec![
            name(object),
            text_or(object, "/spec/nodeName", UNSET).into(),
            text(object, "/spec/driver").into(),
            text(object, "/spec/pool/name").into(),
            age(object, now),
        ]
    },
};

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::table::testing::row;

    #[test]
    fn claims_tell_whether_they_have_devices_and_users() {
        let status = json!({"allocation": {}, "reservedFor": [{}]});
        assert_eq!(row(&RESOURCE_CLAIMS, json!({})), json!(["x", "pending", "5m"]));
        assert_eq!(row(&RESOURCE_CLAIMS, json!({"status": status})), json!(["x", "allocated,reserved", "5m"]));
    }

    #[test]
    fn slices_tell_whose_devices_they_are() {
        let slice = json!({"spec": {"nodeName": "n1", "driver": "gpu.example.com", "pool": {"name": "n1"}}});
        assert_eq!(row(&RESOURCE_SLICES, slice), json!(["x", "n1", "gpu.example.com", "n1", "5m"]));
    }
}
