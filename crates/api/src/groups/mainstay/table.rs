//! Columns of `mainstay.dev/v1`.

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
        column("TTL", "How long the offer is good for once received."),
        AGE,
        wide(column("Explicit-Ports", "Where host ports that pods ask for by number may lie.")),
        wide(column("Seen", "The newest version of a pod that the offer takes into account.")),
    ],
    cells: |object, now| {
        let free = |resource: &str| scalar(object, &format!("/spec/free/{resource}")).unwrap_or_else(|| "0".to_owned());
        let memory = free("memory");
        vec![
            name(object),
            free("cpu").into(),
            Quantity::parse(&memory).map_or(memory, |amount| rounded(amount.value())).into(),
            free("pods").into(),
            join(texts(list(object, "/spec/automaticPorts"), ""), NONE).into(),
            format!("{}s", int(object, "/spec/ttlSeconds")).into(),
            age(object, now),
            join(texts(list(object, "/spec/explicitPorts"), ""), NONE).into(),
            scalar(object, "/spec/seen").unwrap_or_default().into(),
        ]
    },
};

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

pub static RELEASES: Columns = Columns {
    definitions: &[
        NAME,
        column("Version", "The version that machines are to run."),
        column("Phase", "What the release is at."),
        column("Wave", "The wave that is under way, counted from one, and how many there are."),
        column("Updated", "How many machines run the version, and how many are selected."),
        column("Failed", "How many machines failed on the way."),
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
            format!("{}/{}", count("updated"), count("machines")).into(),
            count("failed").into(),
            age(object, now),
            scalar(object, "/status/message").unwrap_or_default().into(),
        ]
    },
};

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
        let cells = json!(["x", "3500m", "15Gi", "107", "31000,31002-32000", "5s", "5m", "1-65535", "42"]);
        assert_eq!(row(&OFFERS, offer), cells);
        assert_eq!(row(&OFFERS, json!({})), json!(["x", "0", "0", "0", "<none>", "0s", "5m", "<none>", ""]));
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
        let status = json!({"phase": "Gated", "wave": 1, "waves": [{}, {}], "updated": 3, "machines": 9, "failed": 1});
        let release = json!({"spec": {"version": "v2"}, "status": status});
        assert_eq!(row(&RELEASES, release), json!(["x", "v2", "Gated", "2/2", "3/9", 1, "5m", ""]));
        assert_eq!(row(&RELEASES, json!({})), json!(["x", "", "", "<none>", "0/0", 0, "5m", ""]));
    }

    #[test]
    fn bytes_are_rounded_down() {
        assert_eq!(rounded(10_239), "10239");
        assert_eq!(rounded(20_480), "20Ki");
        assert_eq!(rounded(64 << 30), "64Gi");
    }
}
