//! Pruning: drops the fields of an object that its schema does not name.

use serde_json::{Map, Value};

use super::{
    structural::{Additional, Structural},
    walk_path::WalkPath,
};
use crate::decode::{MAX_REPORTED, reported_path};

/// What every resource has, embedded ones too; they are not the schema's to name.
pub(super) const TYPE_AND_METADATA: [&str; 3] = ["apiVersion", "kind", "metadata"];

/// Drops unknown fields of a whole resource and returns the paths of the first of them.
pub fn prune_resource(schema: &Structural, object: &mut Value) -> Vec<String> {
    let mut pruning = Pruning { dropped: Vec::new(), count: 0 };
    pruning.object(schema, object, true, &WalkPath::Root);
    pruning.dropped
}

/// Drops unknown fields of a value of this schema; returns whether there were any.
pub fn prune_value(schema: &Structural, value: &mut Value) -> bool {
    let mut pruning = Pruning { dropped: Vec::new(), count: 0 };
    pruning.value(Some(schema), value, &WalkPath::Root);
    pruning.count > 0
}

struct Pruning {
    dropped: Vec<String>,
    count: usize,
}

impl Pruning {
    fn object(&mut self, schema: &Structural, value: &mut Value, is_resource: bool, at: &WalkPath<'_>) {
        let Some(fields) = value.as_object_mut() else { return };
        self.fields(schema, fields, is_resource, schema.preserve_unknown_fields, at);
    }

    fn value(&mut self, schema: Option<&Structural>, value: &mut Value, at: &WalkPath<'_>) {
        match (value, schema) {
            (Value::Object(fields), Some(schema)) => {
                self.fields(schema, fields, schema.embedded_resource, schema.preserve_unknown_fields, at);
            }
            // Nothing is known of what is inside.
            (Value::Object(fields), None) => {
                for name in fields.keys() {
                    self.report(&at.field(name));
                }
                fields.clear();
            }
            (Value::Array(items), schema) => {
                let inner = schema.and_then(|schema| schema.items.as_deref());
                let preserved = schema.is_some_and(|schema| schema.preserve_unknown_fields);
                for (index, item) in items.iter_mut().enumerate() {
                    if inner.is_some() || !preserved {
                        self.value(inner, item, &at.index(index));
                    }
                }
            }
            _ => {}
        }
    }

    fn fields(
        &mut self,
        schema: &Structural,
        fields: &mut Map<String, Value>,
        is_resource: bool,
        preserve: bool,
        at: &WalkPath<'_>,
    ) {
        let mut unknown = false;
        for (name, value) in fields.iter_mut() {
            if is_resource && TYPE_AND_METADATA.contains(&name.as_str()) {
                continue;
            }
            let place = at.field(name);
            match (schema.property(name), &schema.additional) {
                (Some(property), _) => self.value(Some(property), value, &place),
                (None, Additional::Schema(schema)) => self.value(Some(schema), value, &place),
                (None, Additional::Bool(_)) => self.value(None, value, &place),
                (None, Additional::Undefined) if preserve => {}
                (None, Additional::Undefined) => {
                    self.report(&place);
                    unknown = true;
                }
            }
        }
        if unknown {
            let is_known =
                |name: &str| (is_resource && TYPE_AND_METADATA.contains(&name)) || schema.property(name).is_some();
            fields.retain(|name, _| is_known(name));
        }
    }

    fn report(&mut self, at: &WalkPath<'_>) {
        self.count += 1;
        if self.dropped.len() < MAX_REPORTED {
            self.dropped.push(reported_path(&at.path()));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::crd::testing::schema;

    #[test]
    fn what_the_schema_does_not_name_is_dropped_and_told() {
        let schema = schema(json!({"type": "object", "properties": {
            "spec": {"type": "object", "properties": {
                "known": {"type": "string"},
                "list": {"type": "array", "items": {"type": "object", "properties": {"a": {"type": "integer"}}}},
                "map": {"type": "object", "additionalProperties": {"type": "object", "properties": {"a": {}}}},
                "open": {"type": "object", "x-kubernetes-preserve-unknown-fields": true,
                         "properties": {"closed": {"type": "object", "properties": {"a": {}}}}},
                "any": {"x-kubernetes-preserve-unknown-fields": true},
                "loose": {"type": "object", "additionalProperties": true},
                "embedded": {"type": "object", "x-kubernetes-embedded-resource": true, "properties": {"spec": {"type": "object"}}},
            }},
        }}));
        let mut object = json!({
            "apiVersion": "x/v1", "kind": "X", "metadata": {"anything": 1}, "top": 1,
            "spec": {
                "known": "x", "unknown": {"deep": 1},
                "list": [{"a": 1, "b": 2}, {"b": 3}],
                "map": {"k": {"a": {}, "z": 1}},
                "open": {"x": {"y": 1}, "closed": {"a": 1, "b": 2}},
                "any": {"x": [{"y": 1}]},
                "loose": {"text": "kept", "object": {"gone": 1}},
                "embedded": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"gone": 1}, "gone": 2},
            },
        });
        let dropped = prune_resource(&schema, &mut object);
        assert_eq!(
            object,
            json!({
                "apiVersion": "x/v1", "kind": "X", "metadata": {"anything": 1},
                "spec": {
                    "known": "x", "list": [{"a": 1}, {}], "map": {"k": {"a": {}}},
                    "open": {"x": {"y": 1}, "closed": {"a": 1}}, "any": {"x": [{"y": 1}]},
                    "loose": {"text": "kept", "object": {}},
                    "embedded": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {}},
                },
            })
        );
        let mut dropped: Vec<&str> = dropped.iter().map(String::as_str).collect();
        dropped.sort_unstable();
        assert_eq!(
            dropped,
            [
                "spec.embedded.gone",
                "spec.embedded.spec.gone",
                "spec.list[0].b",
                "spec.list[1].b",
                "spec.loose.object.gone",
                "spec.map.k.z",
                "spec.open.closed.b",
                "spec.unknown",
                "top",
            ]
        );
    }
}
