//! Tables of observed facts and the explanations they must give.

mod objects;
mod pods;
mod workloads;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

fn now() -> Timestamp {
    "2026-01-01T01:00:00Z".parse().unwrap()
}

fn object<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// A warning that came ten seconds ago, for the first time 40 seconds ago.
fn event(reason: &str, message: &str, count: i32) -> Event {
    object(json!({
        "metadata": {}, "involvedObject": {}, "type": "Warning", "reason": reason, "message": message, "count": count,
        "firstTimestamp": "2026-01-01T00:59:20Z", "lastTimestamp": "2026-01-01T00:59:50Z",
    }))
}
