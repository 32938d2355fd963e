//! The Scale of an object: how many replicas it wants and has, in one shape for all kinds.
//!
//! It is what clients read and write at `/scale`, and what webhooks and admission policies are shown of such a write.

use mainstay_api::{
    descriptor::{Descriptor, Scale},
    selector::Labels,
};
use serde_json::{Map, Value, json};

pub const DEFINITION: &str = "io.k8s.api.autoscaling.v1.Scale";
const API_VERSION: &str = "autoscaling/v1";
const KIND: &str = "Scale";

/// Writes the number of replicas to where a kind has it.
pub fn set_replicas(paths: &Scale, object: &mut Value, replicas: i64) {
    let mut at = object;
    for step in paths.spec_replicas.steps() {
        if !at.is_object() {
            *at = json!({});
        }
        at = &mut at[step];
    }
    *at = json!(replicas);
}

/// The number of replicas that a Scale asks for.
pub fn wanted_replicas(scale: &Value) -> i64 {
    scale["spec"]["replicas"].as_i64().unwrap_or(0)
}

/// The Scale of an object.
pub fn view(d: &Descriptor, paths: &Scale, object: &Value) -> Value {
    let metadata = &object["metadata"];
    let mut status = json!({ "replicas": paths.status_replicas.find(object).and_then(Value::as_i64).unwrap_or(0) });
    if let Some(selector) = paths.selector.as_ref().and_then(|path| path.find(object)) {
        status["selector"] = json!(selector_text(d, selector));
    }
    let fields = ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"];
    let fields = fields.into_iter().filter_map(|field| Some((field.to_owned(), metadata.get(field)?.clone())));
    json!({
        "kind": KIND,
        "apiVersion": API_VERSION,
        "metadata": fields.collect::<Map<_, _>>(),
        "spec": { "replicas": paths.spec_replicas.find(object).and_then(Value::as_i64).unwrap_or(0) },
        "status": status,
    })
}

/// A selector as text: a text already, a plain map (replication controllers) or a `LabelSelector`.
fn selector_text(d: &Descriptor, selector: &Value) -> String {
    // Custom kinds write it as text themselves.
    if let Some(text) = selector.as_str() {
        return text.to_owned();
    }
    if d.kind == "ReplicationController" {
        let pairs = selector.as_object().into_iter().flatten();
        return pairs.map(|(k, v)| format!("{k}={}", v.as_str().unwrap_or_default())).collect::<Vec<_>>().join(",");
    }
    Labels::from_selector(selector).map(|labels| labels.to_string()).unwrap_or_default()
}
