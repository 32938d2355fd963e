//! Columns of `mainstay.dev/v1`.

use serde_json::Value;

use crate::{
    config_template::CURRENT,
    machine::ACCOUNTED,
    quantity::Quantity,
    table::{
        Columns,
        column::{AGE, NAME, text as column, wide},
        read::{NONE, age, int, join, list, name, scalar, texts},
    },
};

pub static CONFIG_TEMPLATES: Columns = Columns {
    definitions: &[
        NAME,
        column("Output", "The ConfigMap or Secret, and its key, that the result is written to."),
        column("Version", "The last good version, which the output holds."),
        column("Status", "Whether the newest version is current, on its way, or was taken back."),
        column("Consumers", "How many consumers have the wanted version, of how many."),
        AGE,
    ],
    cells: |object, now| {
        let output = ["configMap", "secret"].iter().find_map(|kind| {
            let field = |field: &str| scalar(object, &format!("/spec/output/{kind}/{field}"));
            Some(format!("{}/{}[{}]", kind.to_lowercase(), field("name")?, field("key")?))
        });
        let consumers = |field: &str| int(object, &format!("/status/consumers/{field}"));
        let current = list(object, "/status/conditions").iter().find(|condition| condition["type"] == CURRENT);
        let reason = current.and_then(|condition| condition["reason"].as_str()).unwrap_or("Pending");
        vec![
            name(object),
            output.unwrap_or_else(|| NONE.to_owned()).into(),
            scalar(object, "/status/version").unwrap_or_else(|| NONE.to_owned()).into(),
            reason.into(),
            format!("{}/{}", consumers("updated"), consumers("total")).into(),
            age(object, now),
        ]
    },
};

pub static OFFERS: Columns = Columns {
    definitions: &[
        NAME,
        column("CPU", "The processors that are free."),
        column("Memory", "The memory that is free."),
        column("Pods", "How many more pods the machine takes."),
        column("Ports", "The host ports that are free for pods that ask for any."),
        column("Pools", "What is free for each role, if the machine reserves parts of itself for roles."),
        column("TTL", "How long the offer is good for once received."),
        AGE,
        wide(column("Explicit-Ports", "Where host ports that pods ask for by number may lie.")),
        wide(column("Seen", "The newest version of a pod that the offer takes into account.")),
    ],
    cells: |object, now| {
        let free = |resource: &str| scalar(object, &format!("/spec/free/{resource}")).unwrap_or_else(|| "0".to_owned());
        let memory = free("memory");
        let pools: Vec<String> = list(object, "/spec/pools").iter().map(free_in_pool).collect();
        vec![
            name(object),
            free("cpu").into(),
            Quantity::parse(&memory).map_or(memory, |amount| rounded(amount.value())).into(),
            free("pods").into(),
            join(texts(list(object, "/spec/automaticPorts"), ""), NONE).into(),
            join(pools.iter().map(String::as_str), NONE).into(),
            format!("{}s", int(object, "/spec/ttlSeconds")).into(),
            age(object, now),
            join(texts(list(object, "/spec/explicitPorts"), ""), NONE).into(),
            scalar(object, "/spec/seen").unwrap_or_default().into(),
        ]
    },
};

/// `batch(cpu:4 memory:8Gi)`.
fn free_in_pool(pool: &Value) -> String {
    let amounts = pool["free"].as_object().into_iter().flatten().map(|(resource, amount)| {
        let amount = amount.as_str().unwrap_or_default();
        let is_sized = resource != "cpu" && amount.ends_with("Ki");
        match Quantity::parse(amount) {
            Ok(amount) if is_sized => format!("{resource}:{}", rounded(amount.value())),
            _ => format!("{resource}:{amount}"),
        }
    });
    format!("{}({})", pool["role"].as_str().unwrap_or_default(), amounts.collect::<Vec<_>>().join(" "))
}

pub static SERVICE_TABLES: Columns = Columns {
    definitions: &[
        NAME,
        column("Endpoints", "The newest version of an endpoint slice that the machine follows."),
        column("Nodes", "The newest version of a node that the machine's routes follow."),
        AGE,
    ],
    cells: |object, now| {
        let version = |field: &str| match scalar(object, field) {
            Some(version) if !version.is_empty() => version,
            _ => NONE.to_owned(),
        };
        vec![name(object), version("/spec/endpoints").into(), version("/spec/nodes").into(), age(object, now)]
    },
};

pub static MACHINES: Columns = Columns {
    definitions: &[
        NAME,
        column("Version", "The version that the machine runs."),
        column("Wanted", "The version that it is to run."),
        column("Seen", "Whether heartbeats arrive."),
        column("Configured", "Whether the machine's configuration step passed."),
        column("Validated", "Whether the machine's own checks passed."),
        column("Unaccounted", "Why the machine is not where it should be, if it is not."),
        AGE,
        wide(column("Provisioned", "Whether the machine's static configuration passed the first time.")),
        wide(column("Release", "The Release that wants the version.")),
    ],
    cells: |object, now| {
        let text = |pointer: &str| scalar(object, pointer).unwrap_or_else(|| NONE.to_owned());
        let state =
            |axis: &str| scalar(object, &format!("/status/{axis}/state")).unwrap_or_else(|| "pending".to_owned());
        let mut conditions = list(object, "/status/conditions").iter();
        let unaccounted = conditions.rfind(|own| own["type"] == ACCOUNTED && own["status"] == "False");
        let reason = unaccounted.and_then(|own| own["reason"].as_str()).unwrap_or_default();
        vec![
            name(object),
            text("/status/version/running").into(),
            text("/spec/version").into(),
            state("seen").into(),
            state("configured").into(),
            state("validated").into(),
            reason.into(),
            age(object, now),
            state("provisioned").into(),
            text("/spec/release").into(),
        ]
    },
};

pub static MACHINE_FILES: Columns = Columns {
    definitions: &[
        NAME,
        column("Node", "The Node of the machine."),
        column("Path", "The path of the file."),
        column("Version", "The version that the file has."),
        column("Wanted", "The version that it is to have."),
        column("Status", "Whether the file is as wanted, or why not."),
        AGE,
    ],
    cells: |object, now| {
        let text = |pointer: &str| scalar(object, pointer).unwrap_or_else(|| NONE.to_owned());
        let is_current = int(object, "/status/observedGeneration") == int(object, "/metadata/generation");
        let status = match scalar(object, "/status/reason").filter(|reason| !reason.is_empty()) {
            _ if !is_current => "Pending".to_owned(),
            Some(reason) => reason,
            None => "Current".to_owned(),
        };
        vec![
            name(object),
            text("/spec/nodeName").into(),
            text("/spec/path").into(),
            text("/status/version").into(),
            text("/spec/version").into(),
            status.into(),
            age(object, now),
        ]
    },
};

pub static RELEASES: Columns = Columns {
    definitions: &[
        NAME,
        column("Version", "The version that machines and workloads are to run."),
        column("Phase", "What the release is at."),
        column("Wave", "The wave that is under way, counted from one, and how many there are."),
        column("Updated", "How many machines and workloads run the version, and how many are selected."),
        column("Failed", "How many of them failed on the way."),
        AGE,
        wide(column("Message", "What it waits for, or why it stopped.")),
    ],
    cells: |object, now| {
        let count = |field: &str| int(object, &format!("/status/{field}"));
        let waves = list(object, "/status/waves").len();
        let wave = match (scalar(object, "/status/wave"), waves) {
            (Some(_), 1..) => format!("{}/{waves}", int(object, "/status/wave").saturating_add(1)),
            _ => NONE.to_owned(),
        };
        vec![
            name(object),
            scalar(object, "/spec/version").unwrap_or_default().into(),
            scalar(object, "/status/phase").unwrap_or_default().into(),
            wave.into(),
            format!("{}/{}", count("updated"), count("machines").saturating_add(count("workloads"))).into(),
            count("failed").into(),
            age(object, now),
            scalar(object, "/status/message").unwrap_or_default().into(),
        ]
    },
};

pub static KLUSTERS: Columns = Columns {
    definitions: &[
        NAME,
        column("Phase", "What the Kluster is at."),
        column("Version", "The version that it runs."),
        column("Nodes", "How many nodes are healthy, and how many are wanted."),
        column("API", "The URL of its API."),
        AGE,
        wide(column("Project", "The project in the cloud.")),
        wide(column("Message", "What it waits for, or why it cannot go on.")),
    ],
    cells: |object, now| {
        let text = |pointer: &str| scalar(object, pointer).unwrap_or_else(|| NONE.to_owned());
        let sum = |pointer: &str, field: &str| -> i64 {
            let counts = list(object, pointer).iter().map(|pool| pool[field].as_i64().unwrap_or(0));
            counts.fold(0, i64::saturating_add)
        };
        vec![
            name(object),
            scalar(object, "/status/phase").unwrap_or_else(|| "Pending".to_owned()).into(),
            text("/status/version").into(),
            format!("{}/{}", sum("/status/nodePools", "healthy"), sum("/spec/nodePools", "size")).into(),
            text("/status/apiserver").into(),
            age(object, now),
            text("/spec/openstack/projectID").into(),
            scalar(object, "/status/message").unwrap_or_default().into(),
        ]
    },
};

pub static NODE_POOLS: Columns = Columns {
    definitions: &[
        NAME,
        column("Kluster", "The Kluster whose pool it is."),
        column("Flavor", "The flavor of its machines."),
        column("Size", "How many machines are wanted."),
        column("Running", "How many machines run."),
        column("Healthy", "How many of them are Ready nodes."),
        column("Schedulable", "How many of them take pods."),
        AGE,
    ],
    cells: |object, now| {
        let text = |pointer: &str| scalar(object, pointer).unwrap_or_default();
        vec![
            name(object),
            text("/spec/kluster").into(),
            text("/spec/flavor").into(),
            int(object, "/spec/size").into(),
            int(object, "/status/running").into(),
            int(object, "/status/healthy").into(),
            int(object, "/status/schedulable").into(),
            age(object, now),
        ]
    },
};

pub static CLOUD_RESOURCES: Columns = Columns {
    definitions: &[
        NAME,
        column("Resource", "What it is in the cloud."),
        column("Phase", "What became of it."),
        column("ID", "Its id in the cloud."),
        column("Owner", "The object for whose sake it exists."),
        AGE,
        wide(column("Cloud", "Which cloud.")),
        wide(column("Project", "The project in the cloud.")),
        wide(column("Message", "What hinders its creation or removal.")),
    ],
    cells: |object, now| {
        let text = |pointer: &str| scalar(object, pointer).unwrap_or_else(|| NONE.to_owned());
        vec![
            name(object),
            text("/spec/resource").into(),
            scalar(object, "/status/phase").unwrap_or_else(|| "Intended".to_owned()).into(),
            text("/status/id").into(),
            owner(object, "/spec/owner").into(),
            age(object, now),
            text("/spec/cloud").into(),
            text("/spec/project").into(),
            scalar(object, "/status/message").unwrap_or_default().into(),
        ]
    },
};

pub static TEARDOWN_RECEIPTS: Columns = Columns {
    definitions: &[
        NAME,
        column("Cluster", "What was torn down."),
        column("Result", "How it ended."),
        column("Gone", "How many things are gone, of how many."),
        AGE,
    ],
    cells: |object, now| {
        let items = list(object, "/status/items");
        let gone = items.iter().filter(|item| item["gone"].is_string()).count();
        vec![
            name(object),
            owner(object, "/spec/cluster").into(),
            scalar(object, "/status/result").unwrap_or_else(|| NONE.to_owned()).into(),
            format!("{gone}/{}", items.len()).into(),
            age(object, now),
        ]
    },
};

/// `kluster/berlin`.
fn owner(object: &Value, pointer: &str) -> String {
    let field = |field: &str| scalar(object, &format!("{pointer}/{field}"));
    match (field("kind"), field("name")) {
        (Some(kind), Some(name)) => format!("{}/{name}", kind.to_lowercase()),
        _ => NONE.to_owned(),
    }
}

/// Bytes as people say them: nobody reads `16269336Ki`.
fn rounded(bytes: i128) -> String {
    let (mut amount, mut unit) = (bytes, 0);
    while amount >= 10 * 1024 && unit < UNITS.len() - 1 {
        (amount, unit) = (amount / 1024, unit + 1);
    }
    format!("{amount}{}", UNITS[unit])
}

const UNITS: [&str; 5] = ["", "Ki", "Mi", "Gi", "Ti"];

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::table::testing::row;

    #[test]
    fn config_templates_show_their_version_and_how_far_it_has_come() {
        let template = json!({
            "spec": {"output": {"configMap": {"name": "zones", "key": "zones.conf"}}},
            "status": {
                "version": "5f3a000000", "consumers": {"updated": 1, "total": 3},
                "conditions": [{"type": "Current", "reason": "Progressing"}],
            },
        });
        let cells = json!(["x", "configmap/zones[zones.conf]", "5f3a000000", "Progressing", "1/3", "5m"]);
        assert_eq!(row(&CONFIG_TEMPLATES, template), cells);
        assert_eq!(row(&CONFIG_TEMPLATES, json!({})), json!(["x", "<none>", "<none>", "Pending", "0/0", "5m"]));
    }

    #[test]
    fn offers_show_what_is_free() {
        let offer = json!({"spec": {
            "free": {"cpu": "3500m", "memory": "16269336Ki", "pods": "107"},
            "automaticPorts": ["31000", "31002-32000"], "explicitPorts": ["1-65535"], "ttlSeconds": 5, "seen": "42",
        }});
        let cells = json!(["x", "3500m", "15Gi", "107", "31000,31002-32000", "<none>", "5s", "5m", "1-65535", "42"]);
        assert_eq!(row(&OFFERS, offer), cells);
        assert_eq!(row(&OFFERS, json!({})), json!(["x", "0", "0", "0", "<none>", "<none>", "0s", "5m", "<none>", ""]));
        let pools = json!([
            {"role": "*", "free": {"cpu": "500m", "memory": "3145728Ki"}}, {"role": "batch", "free": {"cpu": "4", "example.com/gpu": "2"}},
        ]);
        let cells = row(&OFFERS, json!({"spec": {"pools": pools}}));
        assert_eq!(cells[5], "*(cpu:500m memory:3072Mi),batch(cpu:4 example.com/gpu:2)");
    }

    #[test]
    fn service_tables_show_how_far_a_machine_has_come() {
        let table = json!({"spec": {"endpoints": "42", "nodes": ""}});
        assert_eq!(row(&SERVICE_TABLES, table), json!(["x", "42", "<none>", "5m"]));
    }

    #[test]
    fn machines_show_one_state_for_each_axis() {
        let machine = json!({
            "spec": {"version": "v2", "release": "all"},
            "status": {
                "version": {"running": "v1"}, "seen": {"state": "success"}, "configured": {"state": "failed"},
                "conditions": [{"type": "Accounted", "status": "False", "reason": "NotExpected"}],
            },
        });
        let cells = json!(["x", "v1", "v2", "success", "failed", "pending", "NotExpected", "5m", "pending", "all"]);
        assert_eq!(row(&MACHINES, machine), cells);
    }

    #[test]
    fn releases_show_how_far_they_are() {
        let status = json!({
            "phase": "Gated", "wave": 1, "waves": [{}, {}], "updated": 3, "machines": 7, "workloads": 2, "failed": 1,
        });
        let release = json!({"spec": {"version": "v2"}, "status": status});
        assert_eq!(row(&RELEASES, release), json!(["x", "v2", "Gated", "2/2", "3/9", 1, "5m", ""]));
        assert_eq!(row(&RELEASES, json!({})), json!(["x", "", "", "<none>", "0/0", 0, "5m", ""]));
    }

    #[test]
    fn klusters_show_their_phase_and_nodes() {
        let kluster = json!({
            "spec": {"nodePools": [{"size": 3}, {"size": 2}], "openstack": {"projectID": "p"}},
            "status": {
                "phase": "Running", "version": "1.36.0", "apiserver": "https://10.0.0.1:6443",
                "nodePools": [{"healthy": 1}, {"healthy": 2}],
            },
        });
        let cells = json!(["x", "Running", "1.36.0", "3/5", "https://10.0.0.1:6443", "5m", "p", ""]);
        assert_eq!(row(&KLUSTERS, kluster), cells);
        assert_eq!(row(&KLUSTERS, json!({})), json!(["x", "Pending", "<none>", "0/0", "<none>", "5m", "<none>", ""]));
    }

    #[test]
    fn records_of_the_cloud_show_whose_they_are() {
        let owner = json!({"kind": "Kluster", "name": "k"});
        let entry = json!({
            "spec": {"cloud": "c", "resource": "Server", "owner": owner}, "status": {"phase": "Created", "id": "42"},
        });
        let cells = json!(["x", "Server", "Created", "42", "kluster/k", "5m", "c", "<none>", ""]);
        assert_eq!(row(&CLOUD_RESOURCES, entry), cells);
        let receipt = json!({
            "spec": {"cluster": owner},
            "status": {"result": "Complete", "items": [{"gone": "2025-01-01T00:00:00Z"}, {}]},
        });
        assert_eq!(row(&TEARDOWN_RECEIPTS, receipt), json!(["x", "kluster/k", "Complete", "1/2", "5m"]));
        let pool = json!({"spec": {"kluster": "k", "flavor": "f", "size": 3}, "status": {"running": 2, "healthy": 1}});
        assert_eq!(row(&NODE_POOLS, pool), json!(["x", "k", "f", 3, 2, 1, 0, "5m"]));
    }

    #[test]
    fn bytes_are_rounded_down() {
        assert_eq!(rounded(10_239), "10239");
        assert_eq!(rounded(20_480), "20Ki");
        assert_eq!(rounded(64 << 30), "64Gi");
    }
}
