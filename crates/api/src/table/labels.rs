//! Labels, selectors and containers in one line each.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::read::{NONE, list, map, text, texts};

/// `a=1,b=2`, or `<none>`.
pub fn labels(object: &Value, pointer: &str) -> Value {
    let labels: BTreeMap<_, _> = map(object, pointer).into_iter().flatten().collect();
    let pairs: Vec<_> = labels.into_iter().map(|(key, value)| pair(key, value)).collect();
    if pairs.is_empty() { NONE.into() } else { pairs.join(",").into() }
}

/// A label selector as `kubectl` would take it, or `<none>`; `<error>` if it makes no sense.
pub fn selector(object: &Value, pointer: &str) -> Value {
    match requirements(object.pointer(pointer)) {
        Some(text) if text.is_empty() => NONE.into(),
        Some(text) => text.into(),
        None => "<error>".into(),
    }
}

/// The requirements of a label selector in the order of their keys. `None` for an operator nobody knows.
pub fn requirements(selector: Option<&Value>) -> Option<String> {
    let Some(selector) = selector else { return Some(String::new()) };
    let equal = selector.get("matchLabels").and_then(Value::as_object);
    let mut all: Vec<(&str, String)> =
        equal.into_iter().flat_map(Map::iter).map(|(k, v)| (k.as_str(), pair(k, v))).collect();
    for expression in list(selector, "/matchExpressions") {
        let key = text(expression, "/key");
        let mut values: Vec<_> = texts(list(expression, "/values"), "").collect();
        values.sort_unstable();
        let values = values.join(",");
        let requirement = match text(expression, "/operator") {
            "In" => format!("{key} in ({values})"),
            "NotIn" => format!("{key} notin ({values})"),
            "Exists" => key.to_owned(),
            "DoesNotExist" => format!("!{key}"),
            _ => return None,
        };
        all.push((key, requirement));
    }
    all.sort_by_key(|(key, _)| *key);
    Some(all.into_iter().map(|(_, requirement)| requirement).collect::<Vec<_>>().join(","))
}

/// Names and images of the containers of the pod spec at a pointer.
pub fn containers(object: &Value, pod_spec: &str) -> [Value; 2] {
    let containers = object.pointer(pod_spec).map(|spec| list(spec, "/containers")).unwrap_or_default();
    ["/name", "/image"].map(|field| texts(containers, field).collect::<Vec<_>>().join(",").into())
}

fn pair(key: &str, value: &Value) -> String {
    format!("{key}={}", value.as_str().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn selectors_read_as_kubectl_takes_them() {
        let cases = [
            (json!({}), "<none>"),
            (json!({"s": {}}), "<none>"),
            (json!({"s": {"matchLabels": {"b": "2", "a": "1"}}}), "a=1,b=2"),
            (
                json!({"s": {"matchLabels": {"m": "1"}, "matchExpressions": [
                    {"key": "z", "operator": "DoesNotExist"},
                    {"key": "c", "operator": "In", "values": ["y", "x"]},
                    {"key": "d", "operator": "NotIn", "values": ["x"]},
                    {"key": "e", "operator": "Exists"},
                ]}}),
                "c in (x,y),d notin (x),e,m=1,!z",
            ),
            (json!({"s": {"matchExpressions": [{"key": "a", "operator": "Near"}]}}), "<error>"),
        ];
        for (object, expected) in cases {
            assert_eq!(selector(&object, "/s"), expected, "{object}");
        }
    }

    #[test]
    fn labels_and_containers_are_joined_with_commas() {
        assert_eq!(labels(&json!({"l": {"b": "", "a": "1"}}), "/l"), "a=1,b=");
        assert_eq!(labels(&json!({"l": []}), "/l"), "<none>");
        let object = json!({"spec": {"containers": [{"name": "a", "image": "i:1"}, {"name": "b", "image": "j"}]}});
        assert_eq!(containers(&object, "/spec"), ["a,b", "i:1,j"]);
        assert_eq!(containers(&object, "/none"), ["", ""]);
    }
}
