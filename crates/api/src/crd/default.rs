//! Defaulting: fills what an object leaves out with the defaults of its schema.
//!
//! A null where the schema allows none counts as left out: it takes the default, or is dropped if there is none.

use serde_json::Value;

use super::structural::{Additional, Structural};

/// Drops nulls that the schema neither allows nor has a default for, and fills in defaults. Idempotent.
pub fn apply_defaults(schema: &Structural, value: &mut Value) {
    match value {
        Value::Object(fields) => {
            let is_wrong_null = |schema: Option<&Structural>, value: &Value| {
                value.is_null() && schema.is_some_and(|schema| !schema.nullable && schema.default.is_none())
            };
            if fields.values().any(Value::is_null) {
                fields.retain(|name, value| !is_wrong_null(schema.member(name), value));
            }
            for (name, property) in &schema.properties {
                let Some(default) = &property.default else { continue };
                let missing = match fields.get(&**name) {
                    None => true,
                    Some(value) => value.is_null() && !property.nullable,
                };
                if missing {
                    fields.insert(name.to_string(), (**default).clone());
                }
            }
            for (name, value) in fields.iter_mut() {
                match (schema.property(name), &schema.additional) {
                    (Some(property), _) => apply_defaults(property, value),
                    (None, Additional::Schema(schema)) => default_element(schema, value),
                    (None, Additional::Undefined | Additional::Bool(_)) => {}
                }
            }
        }
        Value::Array(items) => {
            let Some(schema) = schema.items.as_deref() else { return };
            items.iter_mut().for_each(|item| default_element(schema, item));
        }
        _ => {}
    }
}

/// A null item takes the default, too, but cannot be dropped: its neighbours would move.
fn default_element(schema: &Structural, value: &mut Value) {
    if let Some(default) = schema.default.as_ref().filter(|_| value.is_null() && !schema.nullable) {
        *value = (**default).clone();
    }
    apply_defaults(schema, value);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::crd::testing::schema;

    #[test]
    fn what_is_left_out_is_filled_in() {
        let schema = schema(json!({"type": "object", "properties": {
            "plain": {"type": "string", "default": "x"},
            "given": {"type": "integer", "default": 5},
            "nullable": {"type": "string", "nullable": true, "default": "d"},
            "null": {"type": "string", "default": "d"},
            "dropped": {"type": "string"},
            "nested": {"type": "object", "default": {}, "properties": {"a": {"type": "integer", "default": 1}}},
            "absent": {"type": "object", "properties": {"a": {"type": "integer", "default": 1}}},
            "list": {"type": "array", "items": {"type": "object", "properties": {"p": {"type": "string", "default": "TCP"}}}},
            "map": {"type": "object", "additionalProperties": {"type": "integer", "default": 7}},
        }}));
        let mut object = json!({
            "given": 1, "nullable": null, "null": null, "dropped": null, "list": [{"p": "UDP"}, {}], "map": {"a": null, "b": 2},
        });
        let expected = json!({
            "plain": "x", "given": 1, "nullable": null, "null": "d", "nested": {"a": 1}, "list": [{"p": "UDP"}, {"p": "TCP"}],
            "map": {"a": 7, "b": 2},
        });
        apply_defaults(&schema, &mut object);
        assert_eq!(object, expected);
        apply_defaults(&schema, &mut object);
        assert_eq!(object, expected, "twice is once");
    }
}
