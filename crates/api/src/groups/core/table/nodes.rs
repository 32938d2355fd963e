//! The row of a node.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde_json::Value;

use crate::table::{
    Columns,
    column::{AGE, NAME, text as column, wide},
    duration::UNKNOWN,
    read::{NONE, age, condition, flag, join, list, map, name, text, text_or},
};

pub static NODES: Columns = Columns {
    definitions: &[
        NAME,
        column("Status", "Whether it is ready, and whether it takes new pods."),
        column("Roles", "What it is for, from its labels."),
        AGE,
        column("Version", "The version its agent reports."),
        wide(column("Internal-IP", "Its address within the cluster.")),
        wide(column("External-IP", "Its address from outside.")),
        wide(column("OS-Image", "Its operating system.")),
        wide(column("Kernel-Version", "Its kernel.")),
        wide(column("Container-Runtime", "What runs its containers.")),
    ],
    cells: node,
};

fn node(object: &Value, now: Timestamp) -> Vec<Value> {
    let address = |kind| {
        let addresses = list(object, "/status/addresses");
        addresses
            .iter()
            .find(|address| text(address, "/type") == kind)
            .map_or(NONE, |address| text(address, "/address"))
    };
    vec![
        name(object),
        status(object).into(),
        join(roles(object), NONE).into(),
        age(object, now),
        text(object, "/status/nodeInfo/kubeletVersion").into(),
        address("InternalIP").into(),
        address("ExternalIP").into(),
        text_or(object, "/status/nodeInfo/osImage", UNKNOWN).into(),
        text_or(object, "/status/nodeInfo/kernelVersion", UNKNOWN).into(),
        text_or(object, "/status/nodeInfo/containerRuntimeVersion", UNKNOWN).into(),
    ]
}

fn status(object: &Value) -> String {
    let ready = match condition(object, "Ready") {
        Some("True") => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    };
    if flag(object, "/spec/unschedulable") { format!("{ready},SchedulingDisabled") } else { ready.to_owned() }
}

/// From `node-role.kubernetes.io/<role>` and `kubernetes.io/role=<role>`.
fn roles(object: &Value) -> BTreeSet<&str> {
    let labels = map(object, "/metadata/labels").into_iter().flatten();
    labels
        .filter_map(|(label, value)| match label.strip_prefix("node-role.kubernetes.io/") {
            Some(role) => Some(role),
            None if label == "kubernetes.io/role" => value.as_str(),
            None => None,
        })
        .filter(|role| !role.is_empty())
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::table::testing::row;

    #[test]
    fn a_node_shows_status_roles_and_system() {
        let object = json!({
            "metadata": {"labels": {
                "node-role.kubernetes.io/worker": "",
                "node-role.kubernetes.io/": "",
                "kubernetes.io/role": "control-plane",
                "other": "x",
            }},
            "spec": {"unschedulable": true},
            "status": {
                "conditions": [{"type": "DiskPressure", "status": "False"}, {"type": "Ready", "status": "True"}],
                "addresses": [{"type": "Hostname", "address": "n1"}, {"type": "InternalIP", "address": "10.0.0.1"}],
                "nodeInfo": {
                    "kubeletVersion": "v1.37.0", "osImage": "Debian 13",
                    "kernelVersion": "6.12", "containerRuntimeVersion": "mainstay://0.1",
                },
            },
        });
        assert_eq!(
            row(&NODES, object),
            json!([
                "x",
                "Ready,SchedulingDisabled",
                "control-plane,worker",
                "5m",
                "v1.37.0",
                "10.0.0.1",
                "<none>",
                "Debian 13",
                "6.12",
                "mainstay://0.1",
            ])
        );
    }

    #[test]
    fn a_node_that_has_not_reported_is_unknown_and_one_not_ready_says_so() {
        assert_eq!(
            row(&NODES, json!({})),
            json!(["x", "Unknown", "<none>", "5m", "", "<none>", "<none>", "<unknown>", "<unknown>", "<unknown>"])
        );
        for not_true in ["False", "Unknown"] {
            let object = json!({"status": {"conditions": [{"type": "Ready", "status": not_true}]}});
            assert_eq!(status(&object), "NotReady");
        }
    }
}
