//! `autoscaling/v1` as a view of stored `autoscaling/v2` autoscalers.
//!
//! Version 1 knows one metric, the CPU utilisation in percent. Everything else travels in four
//! annotations, in the words upstream uses there, so that reading as v1 and writing back loses
//! nothing. Objects in the store never carry these annotations. An annotation that cannot be read
//! is dropped: it was written by hand, and the rest of the object is still good.

use serde_json::{Map, Value, json};

use super::metrics;
use crate::descriptor::Conversion;

pub struct Autoscaler;

const METRICS: &str = "autoscaling.alpha.kubernetes.io/metrics";
const CURRENT_METRICS: &str = "autoscaling.alpha.kubernetes.io/current-metrics";
const CONDITIONS: &str = "autoscaling.alpha.kubernetes.io/conditions";
const BEHAVIOR: &str = "autoscaling.alpha.kubernetes.io/behavior";

/// What an autoscaler without any metric aims at.
const DEFAULT_CPU_UTILIZATION: i32 = 80;

impl Conversion for Autoscaler {
    fn to_stored(&self, object: &mut Value) {
        let Some(object) = object.as_object_mut() else { return };
        object.insert("apiVersion".to_owned(), "autoscaling/v2".into());
        let carried = take_annotations(object);
        let read = |name: &str| carried.get(name).and_then(|text| serde_json::from_str::<Value>(text).ok());

        if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) {
            let mut all = Vec::new();
            if let Some(percent) = spec.remove("targetCPUUtilizationPercentage").filter(|p| !p.is_null()) {
                all.push(cpu_target(percent));
            }
            let others = read(METRICS);
            all.extend(others.iter().filter_map(Value::as_array).flatten().filter_map(metrics::spec_to_v2));
            if all.is_empty() {
                all.push(cpu_target(DEFAULT_CPU_UTILIZATION.into()));
            }
            spec.insert("metrics".to_owned(), Value::Array(all));
            if let Some(behavior) = read(BEHAVIOR).filter(Value::is_object) {
                spec.insert("behavior".to_owned(), metrics::recase(&behavior, lower_first));
            }
        }

        let current = read(CURRENT_METRICS);
        let conditions = read(CONDITIONS).filter(Value::is_array);
        if object.get("status").is_none() && (current.is_some() || conditions.is_some()) {
            object.insert("status".to_owned(), json!({}));
        }
        if let Some(status) = object.get_mut("status").and_then(Value::as_object_mut) {
            let percent = status.remove("currentCPUUtilizationPercentage").filter(|p| !p.is_null());
            // The annotation has more to say than the percentage.
            let list = match current.as_ref().and_then(Value::as_array) {
                Some(list) => list.iter().filter_map(metrics::status_to_v2).collect(),
                None => percent.map(cpu_current).into_iter().collect::<Vec<_>>(),
            };
            if !list.is_empty() {
                status.insert("currentMetrics".to_owned(), Value::Array(list));
            }
            if let Some(conditions) = conditions {
                status.insert("conditions".to_owned(), conditions);
            }
        }
    }

    fn to_served(&self, object: &mut Value) {
        let Some(object) = object.as_object_mut() else { return };
        object.insert("apiVersion".to_owned(), "autoscaling/v1".into());
        take_annotations(object); // stale ones, should the object ever have been stored with them

        let mut carried = Map::new();
        let mut carry = |name: &str, value: Value| carried.insert(name.to_owned(), value.to_string().into());
        if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) {
            let mut others = Vec::new();
            for metric in into_list(spec.remove("metrics")) {
                match cpu_utilization(&metric, "/resource/target/averageUtilization") {
                    Some(percent) if !spec.contains_key("targetCPUUtilizationPercentage") => {
                        spec.insert("targetCPUUtilizationPercentage".to_owned(), percent);
                    }
                    _ => others.extend(metrics::spec_to_v1(&metric)),
                }
            }
            if !others.is_empty() {
                carry(METRICS, Value::Array(others));
            }
            if let Some(behavior) = spec.remove("behavior").filter(Value::is_object) {
                carry(BEHAVIOR, metrics::recase(&behavior, upper_first));
            }
        }
        if let Some(status) = object.get_mut("status").and_then(Value::as_object_mut) {
            let current = into_list(status.remove("currentMetrics"));
            let percent = current.iter().rev().find_map(|m| cpu_utilization(m, "/resource/current/averageUtilization"));
            if let Some(percent) = percent {
                status.insert("currentCPUUtilizationPercentage".to_owned(), percent);
            }
            let current: Vec<_> = current.iter().filter_map(metrics::status_to_v1).collect();
            if !current.is_empty() {
                carry(CURRENT_METRICS, Value::Array(current));
            }
            let conditions = into_list(status.remove("conditions"));
            if !conditions.is_empty() {
                carry(CONDITIONS, Value::Array(conditions));
            }
        }
        if carried.is_empty() {
            return;
        }
        let metadata = object.entry("metadata").or_insert_with(|| json!({}));
        if let Some(metadata) = metadata.as_object_mut() {
            match metadata.entry("annotations").or_insert_with(|| json!({})) {
                Value::Object(annotations) => annotations.extend(carried),
                other => *other = Value::Object(carried),
            }
        }
    }
}

/// Removes the four annotations, and the map with them if it becomes empty.
fn take_annotations(object: &mut Map<String, Value>) -> std::collections::BTreeMap<&'static str, String> {
    let mut taken = std::collections::BTreeMap::new();
    let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else { return taken };
    let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) else { return taken };
    for name in [METRICS, CURRENT_METRICS, CONDITIONS, BEHAVIOR] {
        if let Some(Value::String(text)) = annotations.remove(name) {
            taken.insert(name, text);
        }
    }
    if annotations.is_empty() {
        metadata.remove("annotations");
    }
    taken
}

fn into_list(value: Option<Value>) -> Vec<Value> {
    match value {
        Some(Value::Array(list)) => list,
        _ => Vec::new(),
    }
}

fn cpu_target(percent: Value) -> Value {
    json!({"type": "Resource", "resource": {
        "name": "cpu",
        "target": {"type": "Utilization", "averageUtilization": percent},
    }})
}

fn cpu_current(percent: Value) -> Value {
    json!({"type": "Resource", "resource": {"name": "cpu", "current": {"averageUtilization": percent}}})
}

fn cpu_utilization(metric: &Value, pointer: &str) -> Option<Value> {
    let is_cpu = metric["type"] == "Resource" && metric["resource"]["name"] == "cpu";
    metric.pointer(pointer).filter(|percent| is_cpu && !percent.is_null()).cloned()
}

fn lower_first(name: &str) -> String {
    let mut letters = name.chars();
    letters.next().map(|first| first.to_lowercase().chain(letters).collect()).unwrap_or_default()
}

fn upper_first(name: &str) -> String {
    let mut letters = name.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests;
