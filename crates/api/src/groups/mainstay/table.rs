//! Columns of `mainstay.dev/v1`.

use crate::{
    quantity::Quantity,
    table::{
        Columns,
        column::{AGE, NAME, text as column, wide},
        read::{NONE, age, int, join, list, name, scalar, texts},
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
    fn bytes_are_rounded_down() {
        assert_eq!(rounded(10_239), "10239");
        assert_eq!(rounded(20_480), "20Ki");
        assert_eq!(rounded(64 << 30), "64Gi");
    }
}
