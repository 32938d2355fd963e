//! Columns of `kubectl get` for NodeMetrics and PodMetrics.

use jiff::Timestamp;
use mainstay_api::table::{Column, Columns};
use serde_json::{Value, json};

const fn column(name: &'static str, format: &'static str, description: &'static str) -> Column {
    Column { name, kind: "string", format, description, priority: 0 }
}

const DEFINITIONS: &[Column] = &[
    column("Name", "name", "Name of the resource"),
    column("cpu", "", "Name is the resource name."),
    column("memory", "", "Name is the resource name."),
    column("Window", "", "The time interval over which the usage was measured"),
];

pub static NODES: Columns = Columns { definitions: DEFINITIONS, cells: node };
pub static PODS: Columns = Columns { definitions: DEFINITIONS, cells: pod };

fn row(object: &Value, cpu: &str, memory: &str) -> Vec<Value> {
    vec![object["metadata"]["name"].clone(), json!(cpu), json!(memory), object["window"].clone()]
}

fn node(object: &Value, _: Timestamp) -> Vec<Value> {
    let text = |name: &str| object["usage"][name].as_str().unwrap_or("0").to_owned();
    row(object, &text("cpu"), &text("memory"))
}

/// What its containers use together.
fn pod(object: &Value, _: Timestamp) -> Vec<Value> {
    let sum = |name: &str, unit: &str| -> u64 {
        let containers = object["containers"].as_array().into_iter().flatten();
        let number = |c: &Value| c["usage"][name].as_str()?.strip_suffix(unit)?.parse::<u64>().ok();
        containers.filter_map(number).sum()
    };
    row(object, &format!("{}n", sum("cpu", "n")), &format!("{}Ki", sum("memory", "Ki")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pods_row_adds_up_its_containers() {
        let usage = |cpu: &str, memory: &str| json!({ "usage": { "cpu": cpu, "memory": memory } });
        let object = json!({
            "metadata": { "name": "web" }, "window": "10s", "containers": [usage("5n", "1Ki"), usage("7n", "2Ki")],
        });
        assert_eq!(pod(&object, Timestamp::UNIX_EPOCH), [json!("web"), json!("12n"), json!("3Ki"), json!("10s")]);
    }
}
