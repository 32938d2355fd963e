//! Defaulting: fills what an object leaves out with the defaults of its schema.
//!
//! A null where the schema allows none counts as left out: it takes the default, or is dropped if there is none.

use serde_json::Value;

use super::structural::{Additional, Structural};

/// How much may be filled in, by [`weight`]: far more than an object that could be stored ever needs. A list item is written in three bytes and
/// may have any number of defaults, so that a request could otherwise take a thousand times its size.
const MAX_WEIGHT: usize = 16 << 20;

/// More defaults than an object could be stored with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the defaults of the schema make the object too large")]
pub struct TooManyDefaults;

/// Drops nulls that the schema neither allows nor has a default for, and fills in defaults. Idempotent. If they are too many, some are missing.
pub fn apply_defaults(schema: &Structural, value: &mut Value) -> Result<(), TooManyDefaults> {
    Defaulting { room: MAX_WEIGHT }.fill(schema, value)
}

struct Defaulting {
    /// How much more may be filled in.
    room: usize,
}

impl Defaulting {
    fn fill(&mut self, schema: &Structural, value: &mut Value) -> Result<(), TooManyDefaults> {
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
                        self.take(name.len() + weight(default))?;
                        fields.insert(name.to_string(), (**default).clone());
                    }
                }
                for (name, value) in fields.iter_mut() {
                    match (schema.property(name), &schema.additional) {
                        (Some(property), _) => self.fill(property, value)?,
                        (None, Additional::Schema(schema)) => self.fill_element(schema, value)?,
                        (None, Additional::Undefined | Additional::Bool(_)) => {}
                    }
                }
                Ok(())
            }
            Value::Array(items) => {
                let Some(schema) = schema.items.as_deref() else { return Ok(()) };
                items.iter_mut().try_for_each(|item| self.fill_element(schema, item))
            }
            _ => Ok(()),
        }
    }

    /// A null item takes the default, too, but cannot be dropped: its neighbours would move.
    fn fill_element(&mut self, schema: &Structural, value: &mut Value) -> Result<(), TooManyDefaults> {
        if let Some(default) = schema.default.as_ref().filter(|_| value.is_null() && !schema.nullable) {
            self.take(weight(default))?;
            *value = (**default).clone();
        }
        self.fill(schema, value)
    }

    fn take(&mut self, weight: usize) -> Result<(), TooManyDefaults> {
        self.room = self.room.checked_sub(weight).ok_or(TooManyDefaults)?;
        Ok(())
    }
}

/// How much memory a value takes, about.
fn weight(value: &Value) -> usize {
    64 + match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(weight).sum(),
        Value::Object(fields) => fields.iter().map(|(name, value)| name.len() + weight(value)).sum(),
    }
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
        apply_defaults(&schema, &mut object).unwrap();
        assert_eq!(object, expected);
        apply_defaults(&schema, &mut object).unwrap();
        assert_eq!(object, expected, "twice is once");
    }

    #[test]
    fn an_object_does_not_grow_without_end() {
        let item = json!({"type": "object", "default": {}, "properties": {"a": {"type": "string", "default": "x".repeat(1000)}}});
        let schema = schema(json!({"type": "object", "properties": {"list": {"type": "array", "items": item}}}));
        let mut large = json!({"list": vec![json!({}); 10_000]});
        apply_defaults(&schema, &mut large).unwrap();
        for item in [json!({}), Value::Null] {
            let mut endless = json!({"list": vec![item; 200_000]});
            assert_eq!(apply_defaults(&schema, &mut endless), Err(TooManyDefaults));
            assert!(weight(&endless) < 2 * MAX_WEIGHT + 200_000 * 64, "{}", weight(&endless));
        }
    }
}
