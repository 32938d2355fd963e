//! When two pod templates are the same, and the hash that names one.
//!
//! What was written differently but means the same is the same: absent and null, absent and empty
//! where the API fills in nothing, any order of fields, and with or without the hash itself.

use serde_json::{Map, Value};

use crate::names::hash;

pub const HASH: &str = "pod-template-hash";
/// Fields that say nothing when they are empty.
const NOTHING: [&str; 7] =
    ["resources", "securityContext", "labels", "annotations", "nodeSelector", "affinity", "metadata"];

/// A template in the one form that is compared.
pub fn plain(template: &Value) -> Value {
    let mut template = template.clone();
    if let Some(labels) = template.pointer_mut("/metadata/labels").and_then(Value::as_object_mut) {
        labels.remove(HASH);
    }
    tidy(&mut template);
    template
}

fn tidy(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.values_mut().for_each(tidy);
            fields.retain(|name, value| !value.is_null() && !says_nothing(name, value));
        }
        Value::Array(items) => items.iter_mut().for_each(tidy),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn says_nothing(name: &str, value: &Value) -> bool {
    NOTHING.contains(&name) && value.as_object().is_some_and(Map::is_empty)
}

/// The label that tells pods of one template from those of another.
pub fn template_hash(template: &Value, collisions: Option<i32>) -> String {
    let mut bytes = Vec::new();
    spell(&plain(template), &mut bytes);
    if let Some(collisions) = collisions {
        bytes.extend(collisions.to_le_bytes());
    }
    let number = u32::try_from(hash(&bytes) >> 32).unwrap_or(u32::MAX);
    number.to_string().bytes().map(|digit| char::from(LETTERS[usize::from(digit - b'0')])).collect()
}

/// A letter for every digit.
const LETTERS: &[u8; 10] = b"bcdfghjkmn";

/// Bytes that do not depend on the order of fields.
fn spell(value: &Value, bytes: &mut Vec<u8>) {
    match value {
        Value::Object(fields) => {
            let mut sorted: Vec<_> = fields.iter().collect();
            sorted.sort_by_key(|(name, _)| *name);
            bytes.push(b'{');
            for (name, value) in sorted {
                bytes.extend(name.as_bytes());
                bytes.push(0);
                spell(value, bytes);
            }
            bytes.push(b'}');
        }
        Value::Array(items) => {
            bytes.push(b'[');
            items.iter().for_each(|item| spell(item, bytes));
            bytes.push(b']');
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            bytes.extend(value.to_string().as_bytes());
            bytes.push(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_means_the_same_is_the_same() {
        let one = json!({
            "metadata": { "labels": { "app": "web" } },
            "spec": { "containers": [{ "name": "c", "image": "i" }] },
        });
        let other = json!({
            "spec": { "containers": [{ "image": "i", "resources": {}, "name": "c" }], "securityContext": {} },
            "metadata": { "labels": { "app": "web", "pod-template-hash": "x" }, "creationTimestamp": null },
        });
        assert_eq!(plain(&one), plain(&other));
        assert_eq!(template_hash(&one, None), template_hash(&other, None));
        assert_ne!(template_hash(&one, None), template_hash(&one, Some(1)));
    }

    #[test]
    fn what_is_empty_may_mean_something() {
        let volume = |source: Value| json!({ "spec": { "volumes": [{ "name": "v", "emptyDir": source }] } });
        assert_ne!(plain(&volume(json!({}))), plain(&volume(Value::Null)));
        let image = |image: &str| json!({ "spec": { "containers": [{ "name": "c", "image": image }] } });
        assert_ne!(template_hash(&image("a"), None), template_hash(&image("b"), None));
    }
}
