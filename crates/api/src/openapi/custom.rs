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
        // Clients of this dialect refuse fields that are not listed, so that a list that is not complete helps nobody.
        if schema["x-kubernetes-preserve-unknown-fields"] == true {
            return json!({"type": "object", "x-kubernetes-group-version-kind": kinds(descriptor, &descriptor.kind)});
        }
        simplify(&mut schema);
    }
    let Some(fields) = schema.as_object_mut() else { return schema };
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

/// Drops what OpenAPI v2 cannot say, as upstream does: alternatives, types of what may be null or one of several, and what is
/// within a value that keeps unknown fields.
fn simplify(schema: &mut Value) {
    let Some(fields) = schema.as_object_mut() else { return };
    for name in ["oneOf", "anyOf", "allOf", "not", "x-kubernetes-validations"] {
        fields.remove(name);
    }
    let is_set = |fields: &Map<String, Value>, name: &str| fields.get(name) == Some(&Value::Bool(true));
    if is_set(fields, "nullable") {
        for name in ["nullable", "type", "items", "properties"] {
            fields.remove(name);
        }
    }
    if is_set(fields, "x-kubernetes-preserve-unknown-fields") {
        // Without a type: of a map kubectl 1.20 refuses values that are null.
        for name in ["type", "items", "properties"] {
            fields.remove(name);
        }
    }
    if !fields.contains_key("items") && fields.get("type") == Some(&json!("array")) {
        fields.remove("type"); // kubectl knows no lists of anything
    }
    require_no_nullable(fields);
    if is_set(fields, "x-kubernetes-int-or-string") {
        fields.insert("type".to_owned(), json!("string"));
        fields.insert("format".to_owned(), json!("int-or-string"));
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

/// Whoever does not know null takes it for a value that is missing.
fn require_no_nullable(fields: &mut Map<String, Value>) {
    let may_be_null = |value: Option<&Value>| value.is_some_and(|value| value["nullable"] == true);
    if may_be_null(fields.get("additionalProperties")) {
        fields.remove("required");
    }
    let Some(Value::Array(mut required)) = fields.remove("required") else { return };
    let properties = fields.get("properties");
    required.retain(|name| !may_be_null(properties.and_then(|all| all.get(name.as_str()?))));
    if !required.is_empty() {
        fields.insert("required".to_owned(), Value::Array(required));
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::crd::kind;

    fn published(schema: Value, dialect: Dialect) -> Value {
        let definition = json!({
            "metadata": {"name": "things.example.com", "uid": "u", "generation": 1},
            "spec": {"group": "example.com", "scope": "Namespaced",
                "names": {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"},
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}]},
            "status": {"conditions": [{"type": "Established", "status": "True"}]},
        });
        let kinds = kind::served(&definition, &Bytes::from(definition.to_string())).unwrap();
        resource(&kinds[0], dialect)
    }

    #[test]
    fn what_keeps_unknown_fields_lists_none_in_the_second_version() {
        let keeps = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true,
            "properties": {"spec": {"type": "object", "properties": {"a": {"type": "string"}}}}});
        let gvk = json!([{"group": "example.com", "version": "v1", "kind": "Thing"}]);
        let bare = json!({"type": "object", "x-kubernetes-group-version-kind": gvk});
        assert_eq!(published(keeps.clone(), Dialect::V2), bare, "at the root");
        assert!(published(keeps.clone(), Dialect::V3)["properties"]["spec"]["properties"]["a"].is_object());
        let spec = |schema: &Value| schema["properties"]["spec"].clone();
        let nested = published(json!({"type": "object", "properties": {"spec": keeps}}), Dialect::V2);
        assert_eq!(spec(&nested), json!({"x-kubernetes-preserve-unknown-fields": true}));
        let list = json!({"type": "array", "x-kubernetes-preserve-unknown-fields": true, "items": {"type": "object"}});
        let nested = published(json!({"type": "object", "properties": {"spec": list}}), Dialect::V2);
        assert_eq!(spec(&nested), json!({"x-kubernetes-preserve-unknown-fields": true}));
    }

    #[test]
    fn what_may_be_null_is_of_no_type_and_not_required_in_the_second_version() {
        let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "required": ["a", "b"],
            "properties": {"a": {"type": "string", "nullable": true}, "b": {"type": "integer"}}}}});
        let published = published(schema, Dialect::V2);
        let expected = json!({"type": "object", "required": ["b"], "properties": {"a": {}, "b": {"type": "integer"}}});
        assert_eq!(published["properties"]["spec"], expected);
    }
}
