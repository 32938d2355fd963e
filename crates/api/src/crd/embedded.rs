//! Embedded resources (`x-kubernetes-embedded-resource`): each must say what it is, and its metadata must be metadata.

use serde_json::Value;

use super::{structural::Structural, walk_path::WalkPath};
use crate::{
    field::{Errors, FieldError},
    schema::Schema,
};

const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";

/// Gives `metadata` of an object the shape of metadata: unknown fields are dropped and returned.
pub fn conform_metadata(object: &mut Value) -> Result<Vec<String>, String> {
    let Some(metadata) = object.get_mut("metadata").filter(|metadata| !metadata.is_null()) else {
        return Ok(Vec::new());
    };
    let unknown = Schema::builtin().conform(OBJECT_META, metadata).map_err(|error| error.to_string())?;
    Ok(unknown.into_iter().map(|path| format!("metadata.{path}")).collect())
}

/// Conforms and judges all embedded resources below a value.
pub fn complete(schema: &Structural, value: &mut Value, at: &WalkPath<'_>, errors: &mut Errors) {
    if schema.embedded_resource && value.is_object() {
        for name in ["apiVersion", "kind"] {
            if value.get(name).and_then(Value::as_str).is_none_or(str::is_empty) {
                errors.push(FieldError::required(&at.field(name).path(), "must not be empty"));
            }
        }
        if let Err(why) = conform_metadata(value) {
            errors.push(FieldError::invalid(&at.field("metadata").path(), "", why));
        }
    }
    match value {
        Value::Object(fields) => {
            for (name, value) in fields.iter_mut() {
                if let Some(member) = schema.member(name) {
                    complete(member, value, &at.field(name), errors);
                }
            }
        }
        Value::Array(items) => {
            let Some(inner) = schema.items.as_deref() else { return };
            for (index, item) in items.iter_mut().enumerate() {
                complete(inner, item, &at.index(index), errors);
            }
        }
        _ => {}
    }
}

/// Whether any node is an embedded resource: most schemas have none and need no walk.
pub fn has_embedded(schema: &Structural) -> bool {
    use super::structural::Additional;
    schema.embedded_resource
        || schema.properties.iter().any(|(_, property)| has_embedded(property))
        || schema.items.as_deref().is_some_and(has_embedded)
        || matches!(&schema.additional, Additional::Schema(schema) if has_embedded(schema))
}
