//! The definitions of custom kinds: the schema of their CustomResourceDefinition, with what every resource has.

use serde_json::{Map, Value, json};

use super::{Dialect, definitions::OBJECT_META};
use crate::descriptor::Descriptor;

const LIST_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta";
const API_VERSION: &str = "APIVersion defines the versioned schema of this representation of an object.";
const KIND: &str = "Kind is a string value representing the REST resource this object represents.";
const METADATA: &str = "Standard object's metadata.";

/// The name of the definition of lists.
pub fn list_name(descriptor: &Descriptor) -> String {
    let prefix = descriptor.schema.strip_suffix(&*descriptor.kind).unwrap_or_default();
    format!("{prefix}{}", descriptor.list_kind)
}

/// Writes the definitions of a kind and of its lists.
pub fn visit(descriptor: &Descriptor, dialect: Dialect, visitor: &mut impl FnMut(&str, Value)) {
    visitor(&descriptor.schema, resource(descriptor, dialect));
    visitor(&list_name(descriptor), list(descriptor, dialect));
}

fn resource(descriptor: &Descriptor, dialect: Dialect) -> Value {
    let schema = descriptor.custom.as_ref().and_then(|custom| custom.openapi_schema(&descriptor.version));
    let mut schema = schema.unwrap_or_else(|| json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}));
    if dialect == Dialect::V2 {
        simplify(&mut schema);
    }
    let Some(fields) = schema.as_object_mut() else { return schema };
    // Whoever leaves unknown fields alone at the root has nothing more to say to old clients.
    let properties = fields.entry("properties").or_insert_with(|| json!({}));
    if let Some(properties) = properties.as_object_mut() {
        properties.insert("apiVersion".to_owned(), json!({"type": "string", "description": API_VERSION}));
        properties.insert("kind".to_owned(), json!({"type": "string", "description": KIND}));
        properties.insert("metadata".to_owned(), dialect.described_reference(OBJECT_META, METADATA));
    }
    fields.insert("x-kubernetes-group-version-kind".to_owned(), kinds(descriptor, &descriptor.kind));
    schema
}

fn list(descriptor: &Descriptor, dialect: Dialect) -> Value {
    let (kind, list_kind) = (&descriptor.kind, &descriptor.list_kind);
    json!({
        "description": format!("{list_kind} is a list of {kind}"),
        "type": "object",
        "required": ["items"],
        "properties": {
            "apiVersion": {"type": "string", "description": API_VERSION},
            "kind": {"type": "string", "description": KIND},
            "metadata": dialect.described_reference(LIST_META, "Standard list metadata."),
            "items": {
                "type": "array", "items": dialect.reference(&descriptor.schema), "description": format!("List of {}.", descriptor.plural),
            },
        },
        "x-kubernetes-group-version-kind": kinds(descriptor, list_kind),
    })
}

fn kinds(descriptor: &Descriptor, kind: &str) -> Value {
    json!([{"group": descriptor.group, "version": descriptor.version, "kind": kind}])
}

/// Drops what OpenAPI v2 cannot say, as upstream does: alternatives, and types of what may be null or one of several.
fn simplify(schema: &mut Value) {
    let Some(fields) = schema.as_object_mut() else { return };
    for name in ["oneOf", "anyOf", "allOf", "not", "x-kubernetes-validations"] {
        fields.remove(name);
    }
    let is_set = |fields: &Map<String, Value>, name: &str| fields.get(name) == Some(&Value::Bool(true));
    let preserves = is_set(fields, "x-kubernetes-preserve-unknown-fields");
    if is_set(fields, "nullable") || (preserves && !fields.contains_key("properties")) {
        for name in ["nullable", "type", "items", "properties"] {
            fields.remove(name);
        }
    }
    if is_set(fields, "x-kubernetes-int-or-string") {
        fields.insert("type".to_owned(), json!("string"));
        fields.insert("format".to_owned(), json!("int-or-string"));
    }
    // A closed set of properties would make old clients refuse what the server would keep.
    if preserves {
        fields.remove("required");
    }
    for inner in fields.get_mut("properties").and_then(Value::as_object_mut).into_iter().flat_map(Map::values_mut) {
        simplify(inner);
    }
    for name in ["items", "additionalProperties"] {
        if let Some(inner) = fields.get_mut(name) {
            simplify(inner);
        }
    }
}
