//! Metrics in the flat form that annotations of `autoscaling/v1` carry, and in that of v2.
//!
//! `target` and `metric` of v2 are spread over the source in the flat form, under names that
//! depend on the source. Values are copied as they are: quantities stay in their author's words.

use serde_json::{Map, Value, json};

/// How one source spells its parts in the flat form.
struct MetricFields {
    source: &'static str,
    /// Whether v2 groups name and selector as `metric`, and the flat names of the two.
    metric: Option<(&'static str, &'static str)>,
    /// Flat name of v2's `describedObject`.
    described: Option<&'static str>,
    /// Of a wanted metric, flat names of value, averageValue and averageUtilization.
    wanted: Numbers,
    /// The same of a measured one.
    seen: Numbers,
}

type Numbers = [Option<&'static str>; 3];
const NUMBERS: [&str; 3] = ["value", "averageValue", "averageUtilization"];

const SOURCES: [MetricFields; 5] = [
    MetricFields {
        source: "object",
        metric: Some(("metricName", "selector")),
        described: Some("target"),
        wanted: [Some("targetValue"), Some("averageValue"), None],
        seen: [Some("currentValue"), Some("averageValue"), None],
    },
    MetricFields {
        source: "pods",
        metric: Some(("metricName", "selector")),
        described: None,
        wanted: [None, Some("targetAverageValue"), None],
        seen: [None, Some("currentAverageValue"), None],
    },
    MetricFields {
        source: "resource",
        metric: None,
        described: None,
        wanted: [None, Some("targetAverageValue"), Some("targetAverageUtilization")],
        seen: [None, Some("currentAverageValue"), Some("currentAverageUtilization")],
    },
    MetricFields {
        source: "containerResource",
        metric: None,
        described: None,
        wanted: [None, Some("targetAverageValue"), Some("targetAverageUtilization")],
        seen: [None, Some("currentAverageValue"), Some("currentAverageUtilization")],
    },
    MetricFields {
        source: "external",
        metric: Some(("metricName", "metricSelector")),
        described: None,
        wanted: [Some("targetValue"), Some("targetAverageValue"), None],
        seen: [Some("currentValue"), Some("currentAverageValue"), None],
    },
];

pub fn spec_to_v1(metric: &Value) -> Option<Value> {
    flatten(metric, "target", |words| words.wanted)
}

pub fn status_to_v1(metric: &Value) -> Option<Value> {
    flatten(metric, "current", |words| words.seen)
}

pub fn spec_to_v2(metric: &Value) -> Option<Value> {
    let mut metric = group(metric, "target", |words| words.wanted)?;
    for words in &SOURCES {
        let Some(target) = metric.get_mut(words.source).and_then(|s| s["target"].as_object_mut()) else { continue };
        let kind = if target.contains_key("averageUtilization") {
            "Utilization"
        } else if target.contains_key("averageValue") {
            "AverageValue"
        } else {
            "Value"
        };
        // The flat form of an object's average cannot leave its value out.
        if kind == "AverageValue" && target.get("value").is_some_and(|value| value == "0") {
            target.remove("value");
        }
        target.insert("type".to_owned(), kind.into());
    }
    Some(metric)
}

pub fn status_to_v2(metric: &Value) -> Option<Value> {
    group(metric, "current", |words| words.seen)
}

/// Keys, through all levels, in another case: upstream writes `behavior` with capitals.
pub fn recase(value: &Value, case: fn(&str) -> String) -> Value {
    match value {
        Value::Object(fields) => fields
            .iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(name, value)| (case(name), recase(value, case)))
            .collect::<Map<_, _>>()
            .into(),
        Value::Array(list) => list.iter().map(|value| recase(value, case)).collect(),
        other => other.clone(),
    }
}

fn flatten(metric: &Value, numbers: &str, names: fn(&MetricFields) -> Numbers) -> Option<Value> {
    let mut out = metric.as_object()?.clone();
    for words in &SOURCES {
        let Some(source) = out.get_mut(words.source).and_then(Value::as_object_mut) else { continue };
        let values = source.remove(numbers).unwrap_or_default();
        if let (Some(flat), Some(object)) = (words.described, source.remove("describedObject")) {
            source.insert(flat.to_owned(), object);
        }
        if let (Some((name, selector)), Some(metric)) = (words.metric, source.remove("metric")) {
            copy(&metric, "name", source, name);
            copy(&metric, "selector", source, selector);
        }
        for (number, flat) in NUMBERS.into_iter().zip(names(words)) {
            if let Some(flat) = flat {
                copy(&values, number, source, flat);
            }
        }
        // Not optional there.
        if words.source == "object" {
            let value = if numbers == "target" { "targetValue" } else { "currentValue" };
            source.entry(value).or_insert_with(|| "0".into());
        }
    }
    Some(Value::Object(out))
}

fn group(metric: &Value, numbers: &str, names: fn(&MetricFields) -> Numbers) -> Option<Value> {
    let mut out = metric.as_object()?.clone();
    for words in &SOURCES {
        let Some(source) = out.get_mut(words.source).and_then(Value::as_object_mut) else { continue };
        let mut values = Map::new();
        for (number, flat) in NUMBERS.into_iter().zip(names(words)) {
            if let Some(value) = flat.and_then(|flat| source.remove(flat)).filter(|value| !value.is_null()) {
                values.insert(number.to_owned(), value);
            }
        }
        if numbers == "current" && values.contains_key("averageValue") && values.get("value") == Some(&json!("0")) {
            values.remove("value");
        }
        if let Some((name, selector)) = words.metric {
            let mut metric = Map::new();
            for (flat, grouped) in [(name, "name"), (selector, "selector")] {
                if let Some(value) = source.remove(flat).filter(|value| !value.is_null()) {
                    metric.insert(grouped.to_owned(), value);
                }
            }
            source.insert("metric".to_owned(), Value::Object(metric));
        }
        if let Some(object) = words.described.and_then(|flat| source.remove(flat)) {
            source.insert("describedObject".to_owned(), object);
        }
        source.insert(numbers.to_owned(), Value::Object(values));
    }
    Some(Value::Object(out))
}

fn copy(from: &Value, name: &str, into: &mut Map<String, Value>, as_name: &str) {
    if let Some(value) = from.get(name).filter(|value| !value.is_null()) {
        into.insert(as_name.to_owned(), value.clone());
    }
}
