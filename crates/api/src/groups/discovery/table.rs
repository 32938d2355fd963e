//! Columns of `discovery.k8s.io/v1`.

use serde_json::Value;

use crate::table::{
    Columns,
    column::{AGE, NAME, text as column},
    read::{UNSET, age, first_three, list, name, scalar, text, texts},
};

pub static ENDPOINT_SLICES: Columns = Columns {
    definitions: &[
        NAME,
        column("AddressType", "What kind of addresses it holds."),
        column("Ports", "Ports of each endpoint."),
        column("Endpoints", "Their addresses."),
        AGE,
    ],
    cells: |object, now| {
        let addresses = list(object, "/endpoints").iter().flat_map(|endpoint| texts(list(endpoint, "/addresses"), ""));
        vec![
            name(object),
            text(object, "/addressType").into(),
            some(list(object, "/ports").iter().map(port)),
            some(addresses.map(str::to_owned)),
            age(object, now),
        ]
    },
};

/// A port by its number or its name; `*` for any.
fn port(port: &Value) -> String {
    scalar(port, "/port").or_else(|| scalar(port, "/name")).unwrap_or_else(|| "*".to_owned())
}

fn some(items: impl Iterator<Item = String>) -> Value {
    let shown = first_three(&items.collect::<Vec<_>>());
    if shown.is_empty() { UNSET.into() } else { shown.into() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::table::testing::row;

    #[test]
    fn slices_show_three_addresses_and_count_the_rest() {
        let object = json!({
            "addressType": "IPv4",
            "ports": [{"name": "http", "port": 80}, {"name": "any"}, {}],
            "endpoints": [{"addresses": ["10.0.0.1", "10.0.0.2"]}, {"addresses": ["10.0.0.3"]}, {"addresses": ["10.0.0.4"]}],
        });
        assert_eq!(
            row(&ENDPOINT_SLICES, object),
            json!(["x", "IPv4", "80,any,*", "10.0.0.1,10.0.0.2,10.0.0.3 + 1 more...", "5m"])
        );
        assert_eq!(row(&ENDPOINT_SLICES, json!({})), json!(["x", "", "<unset>", "<unset>", "5m"]));
    }
}
