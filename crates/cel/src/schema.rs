//! The type that expressions see for a structural schema of a custom resource.
//!
//! What the schema does not describe is not reachable: properties without a type, unknown fields, names that cannot be
//! escaped. Every type carries the largest size that the schema allows, or else that a request could have.

use std::{collections::BTreeMap, sync::Arc};

use serde_json::Value as Json;

use crate::{
    escape::escape_property,
    types::{Field, ListKind, ListType, MapType, ObjectType, Type},
};

/// Upstream's limit of a request, in bytes.
const MAX_REQUEST_SIZE: u64 = 3 << 20;
/// Schemas are nested no deeper: the caller has validated them, this only protects the stack.
const MAX_DEPTH: usize = 256;

/// The type for a schema (`JSONSchemaProps` as JSON), or nothing if expressions cannot see values of it. A resource's
/// root, and every embedded resource, also has `apiVersion`, `kind`, `metadata.name` and `metadata.generateName`.
pub fn type_from_schema(schema: &Json, is_resource_root: bool) -> Option<Type> {
    convert(schema, is_resource_root, 0).map(|sized| sized.ty)
}

/// A type with the fewest bytes that a value takes in JSON.
struct Sized {
    ty: Type,
    min_bytes: u64,
}

fn convert(schema: &Json, is_resource_root: bool, depth: usize) -> Option<Sized> {
    if depth > MAX_DEPTH {
        return None;
    }
    if schema["x-kubernetes-int-or-string"] == true {
        return Some(Sized { ty: Type::Dyn, min_bytes: 1 });
    }
    match schema["type"].as_str()? {
        "array" => convert_array(schema, depth),
        "object" => convert_object(schema, is_resource_root, depth),
        "string" => Some(convert_string(schema)),
        "boolean" => Some(Sized { ty: Type::Bool, min_bytes: 4 }),
        "integer" => Some(Sized { ty: Type::Int, min_bytes: 1 }),
        "number" => Some(Sized { ty: Type::Double, min_bytes: 1 }),
        _ => None,
    }
}

fn convert_child(schema: &Json, depth: usize) -> Option<Sized> {
    convert(schema, schema["x-kubernetes-embedded-resource"] == true, depth + 1)
}

fn convert_array(schema: &Json, depth: usize) -> Option<Sized> {
    let items = convert_child(&schema["items"], depth)?;
    let kind = match schema["x-kubernetes-list-type"].as_str() {
        Some("set") => ListKind::Set,
        Some("map") => ListKind::Map(
            schema["x-kubernetes-list-map-keys"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|key| key.as_str().map(str::to_owned))
                .collect(),
        ),
        _ => ListKind::Atomic,
    };
    let largest = (MAX_REQUEST_SIZE - 2) / (items.min_bytes + 1);
    let max_items = Some(schema["maxItems"].as_u64().unwrap_or(largest));
    Some(Sized { ty: Type::List(Arc::new(ListType { element: items.ty, kind, max_items })), min_bytes: 2 })
}

fn convert_object(schema: &Json, is_resource_root: bool, depth: usize) -> Option<Sized> {
    if schema["additionalProperties"].is_object() {
        let value = convert_child(&schema["additionalProperties"], depth)?;
        let largest = (MAX_REQUEST_SIZE - 2) / (value.min_bytes + 6);
        let max_properties = Some(schema["maxProperties"].as_u64().unwrap_or(largest));
        let key = Type::String(Some(MAX_REQUEST_SIZE - 2));
        return Some(Sized { ty: Type::Map(Arc::new(MapType { key, value: value.ty, max_properties })), min_bytes: 2 });
    }
    let required = |name: &str| schema["required"].as_array().is_some_and(|names| names.iter().any(|n| n == name));
    let mut fields = BTreeMap::new();
    let mut min_bytes = 2;
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        if is_resource_root && matches!(name.as_str(), "apiVersion" | "kind" | "metadata") {
            continue;
        }
        let Some(child) = convert_child(property, depth) else { continue };
        if required(name) && property["default"].is_null() {
            min_bytes += name.len() as u64 + child.min_bytes + 4;
        }
        if let Some(escaped) = escape_property(name) {
            fields.insert(escaped.into(), Field { property: name.as_str().into(), ty: child.ty });
        }
    }
    if is_resource_root {
        for (name, ty) in root_fields(&schema["properties"]["metadata"], depth) {
            fields.insert(name.into(), Field { property: name.into(), ty });
        }
    }
    Some(Sized { ty: Type::Object(Arc::new(ObjectType { name: "object".into(), fields })), min_bytes })
}

fn root_fields(metadata: &Json, depth: usize) -> [(&'static str, Type); 3] {
    let text = || Type::String(Some(MAX_REQUEST_SIZE - 2));
    let mut fields: BTreeMap<Box<str>, Field> = BTreeMap::new();
    // A schema may limit the name, and only that.
    for name in ["name", "generateName"] {
        let ty = convert_child(&metadata["properties"][name], depth).map_or_else(text, |child| child.ty);
        fields.insert(name.into(), Field { property: name.into(), ty });
    }
    let metadata = Type::Object(Arc::new(ObjectType { name: "metadata".into(), fields }));
    [("apiVersion", text()), ("kind", text()), ("metadata", metadata)]
}

fn convert_string(schema: &Json) -> Sized {
    let ty = match schema["format"].as_str() {
        Some("byte") => Type::Bytes(Some(schema["maxLength"].as_u64().unwrap_or(MAX_REQUEST_SIZE - 2))),
        Some("duration") => Type::Duration,
        Some("date" | "date-time") => Type::Timestamp,
        _ => {
            let longest_value = schema["enum"].as_array().and_then(|values| {
                values
                    .iter()
                    .map(|value| value.as_str().map(|text| text.len() as u64))
                    .try_fold(0, |a, b| b.map(|b| a.max(b)))
            });
            // A length counts characters, each of which takes up to four bytes.
            let by_length = schema["maxLength"].as_u64().map(|length| length.saturating_mul(4));
            Type::String(Some(longest_value.or(by_length).unwrap_or(MAX_REQUEST_SIZE - 2)))
        }
    };
    Sized { ty, min_bytes: 2 }
}
