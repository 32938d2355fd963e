//! What differs between two objects, for messages that refuse a change.

use std::collections::BTreeSet;

use serde_json::Value;

/// More lines than this help nobody.
const LINES_MAX: usize = 20;

/// Whether two objects mean the same: a list, map or text that is empty is as good as absent.
pub fn same(old: &Value, new: &Value) -> bool {
    let mut lines = Vec::new();
    collect(old, new, "", &mut lines, 1);
    lines.is_empty()
}

/// The changed fields, a line each: `  containers[0].image: "a" -> "b"`.
pub fn describe(old: &Value, new: &Value) -> String {
    let mut lines = Vec::new();
    collect(old, new, "", &mut lines, LINES_MAX);
    lines.join("\n")
}

fn collect(old: &Value, new: &Value, path: &str, lines: &mut Vec<String>, max: usize) {
    if lines.len() >= max {
        return;
    }
    match (old, new) {
        _ if old == new || is_void(old) && is_void(new) => {}
        (Value::Object(a), Value::Object(b)) => {
            let keys: BTreeSet<_> = a.keys().chain(b.keys()).collect();
            for key in keys {
                let at = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                let (a, b) = (a.get(key).unwrap_or(&Value::Null), b.get(key).unwrap_or(&Value::Null));
                if !(a.is_null() && is_unset(key, b) || b.is_null() && is_unset(key, a)) {
                    collect(a, b, &at, lines, max);
                }
            }
        }
        (Value::Array(a), Value::Array(b)) => {
            for i in 0..a.len().max(b.len()) {
                let (a, b) = (a.get(i).unwrap_or(&Value::Null), b.get(i).unwrap_or(&Value::Null));
                collect(a, b, &format!("{path}[{i}]"), lines, max);
            }
        }
        _ => lines.push(format!("  {path}: {old} -> {new}")),
    }
}

fn is_void(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

/// Values that clients drop or keep as they like, because in these fields they mean nothing.
fn is_unset(key: &str, value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::String(text) => text.is_empty() && key != "storageClassName",
        Value::Bool(false) => {
            matches!(key, "hostNetwork" | "hostPID" | "hostIPC" | "readOnly" | "stdin" | "stdinOnce" | "tty")
        }
        Value::Object(map) => {
            map.is_empty()
                && matches!(
                    key,
                    "nodeSelector" | "resources" | "limits" | "requests" | "overhead" | "matchLabels" | "options"
                )
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn emptiness_and_absence_are_the_same_where_clients_mix_them_up() {
        let same_pairs = [
            (json!({"tty": false, "command": [], "hostname": ""}), json!({})),
            (json!({"resources": {}}), json!({"resources": {"limits": {}}})),
            (json!({"a": null}), json!({})),
        ];
        for (a, b) in same_pairs {
            assert!(same(&a, &b) && same(&b, &a), "{a} {b}");
        }
        let different = [
            (json!({"runAsNonRoot": false}), json!({})),
            (json!({"runAsUser": 0}), json!({})),
            (json!({"emptyDir": {}}), json!({})),
            (json!({"labelSelector": {}}), json!({})),
        ];
        for (a, b) in different {
            assert!(!same(&a, &b) && !same(&b, &a), "{a} {b}");
        }
    }

    #[test]
    fn changes_are_listed_by_path() {
        let old = json!({"containers": [{"name": "a", "image": "x"}], "hostname": "h"});
        let new = json!({"containers": [{"name": "b", "image": "x"}], "hostname": "h", "priority": 1});
        assert_eq!(describe(&old, &new), "  containers[0].name: \"a\" -> \"b\"\n  priority: null -> 1");
    }
}
