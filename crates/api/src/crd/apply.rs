//! Types of custom kinds, as server-side apply asks for them.

use serde_json::Value;

use super::structural::{Additional, JsonType, ListType, Structural};
use crate::{
    apply::{
        builtin::BuiltinType,
        typed::{FieldType, Keys, Scalar, Structure, TypeRef},
    },
    schema::Schema,
};

const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";

/// The type of a value of a custom kind.
#[derive(Clone, Copy)]
pub enum StructuralType<'s> {
    /// A node of the schema; a resource also has `apiVersion`, `kind` and `metadata`.
    Node {
        schema: &'s Structural,
        is_resource: bool,
    },
    Metadata(BuiltinType<'s>),
    /// `apiVersion` and `kind`.
    Text,
    /// Nothing is known of it.
    Unknown,
}

impl<'s> StructuralType<'s> {
    /// The type of whole objects.
    pub fn root(schema: &'s Structural) -> Self {
        Self::Node { schema, is_resource: true }
    }

    fn node(schema: &'s Structural) -> Self {
        Self::Node { schema, is_resource: schema.embedded_resource }
    }
}

fn has_fields(schema: &Structural) -> bool {
    !schema.properties.is_empty() || matches!(schema.additional, Additional::Schema(_))
}

fn node_structure<'s>(schema: &'s Structural, is_resource: bool) -> Structure<'s, StructuralType<'s>> {
    if schema.int_or_string {
        return Structure::Scalar(Scalar::Untyped);
    }
    match schema.json_type {
        JsonType::Any if has_fields(schema) || is_resource => Structure::Map,
        JsonType::Any => Structure::Deduced,
        JsonType::String => Structure::Scalar(Scalar::String),
        JsonType::Integer | JsonType::Number => Structure::Scalar(Scalar::Numeric),
        JsonType::Boolean => Structure::Scalar(Scalar::Boolean),
        JsonType::Object if schema.atomic_map => Structure::Atomic,
        JsonType::Object if schema.preserve_unknown_fields && !has_fields(schema) && !is_resource => Structure::Deduced,
        JsonType::Object => Structure::Map,
        JsonType::Array => match (schema.list_type, schema.items.as_deref()) {
            (ListType::Set, _) => Structure::Set,
            (ListType::Map, Some(items)) => {
                Structure::ListMap { keys: Keys::Owned(&schema.list_map_keys), item: StructuralType::node(items) }
            }
            (ListType::Atomic | ListType::Map, _) => Structure::Atomic,
        },
    }
}

impl<'s> TypeRef<'s> for StructuralType<'s> {
    fn structure(self) -> Structure<'s, Self> {
        match self {
            Self::Node { schema, is_resource } => node_structure(schema, is_resource),
            Self::Metadata(ty) => match ty.structure() {
                Structure::Scalar(scalar) => Structure::Scalar(scalar),
                Structure::Atomic => Structure::Atomic,
                Structure::Map => Structure::Map,
                Structure::Set => Structure::Set,
                Structure::ListMap { keys, item } => Structure::ListMap { keys, item: Self::Metadata(item) },
                Structure::Deduced => Structure::Deduced,
            },
            Self::Text => Structure::Scalar(Scalar::String),
            Self::Unknown => Structure::Deduced,
        }
    }

    fn field(self, name: &str) -> Option<FieldType<Self>> {
        let declared = |ty| Some(FieldType { ty, declared: true, always_written: false });
        let undeclared = |ty| Some(FieldType { ty, declared: false, always_written: false });
        match self {
            Self::Unknown => undeclared(self),
            Self::Text => None,
            Self::Metadata(ty) => {
                let field = ty.field(name)?;
                Some(FieldType { ty: Self::Metadata(field.ty), declared: field.declared, always_written: false })
            }
            Self::Node { schema, is_resource } => match (name, schema.property(name), &schema.additional) {
                ("apiVersion" | "kind", _, _) if is_resource => declared(Self::Text),
                ("metadata", _, _) if is_resource => {
                    declared(BuiltinType::root(Schema::builtin(), OBJECT_META).map_or(Self::Unknown, Self::Metadata))
                }
                (_, Some(property), _) => declared(Self::node(property)),
                (_, None, Additional::Schema(schema)) => undeclared(Self::node(schema)),
                (_, None, Additional::Bool(_)) => undeclared(Self::Unknown),
                (_, None, Additional::Undefined) if schema.preserve_unknown_fields => undeclared(Self::Unknown),
                (_, None, Additional::Undefined) => None,
            },
        }
    }

    fn key_default(self, key: &str) -> Option<Value> {
        match self {
            Self::Node { schema, .. } => schema.items.as_deref()?.property(key)?.default.as_deref().cloned(),
            Self::Metadata(ty) => ty.key_default(key),
            Self::Text | Self::Unknown => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::crd::testing::schema;

    #[test]
    fn each_extension_says_how_values_are_merged() {
        let schema = schema(json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
            "text": {"type": "string"},
            "either": {"x-kubernetes-int-or-string": true},
            "atomicMap": {"type": "object", "x-kubernetes-map-type": "atomic", "additionalProperties": {"type": "string"}},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
            "list": {"type": "array", "items": {"type": "string"}},
            "set": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
            "map": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name", "protocol"],
                    "items": {"type": "object", "properties": {"name": {"type": "string"}, "protocol": {"type": "string", "default": "TCP"}}}},
            "open": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
        }}}}));
        let spec = StructuralType::root(&schema).field("spec").unwrap().ty;
        let of = |name: &str| spec.field(name).unwrap().ty;
        assert!(matches!(of("text").structure(), Structure::Scalar(Scalar::String)));
        assert!(matches!(of("either").structure(), Structure::Scalar(Scalar::Untyped)));
        assert!(matches!(of("atomicMap").structure(), Structure::Atomic));
        assert!(matches!(of("labels").structure(), Structure::Map));
        assert!(!of("labels").field("a").unwrap().declared);
        assert!(matches!(of("list").structure(), Structure::Atomic));
        assert!(matches!(of("set").structure(), Structure::Set));
        let Structure::ListMap { keys, .. } = of("map").structure() else { panic!("no list of type map") };
        assert_eq!(keys.iter().collect::<Vec<_>>(), ["name", "protocol"]);
        assert_eq!(of("map").key_default("protocol"), Some(json!("TCP")));
        assert!(matches!(of("open").structure(), Structure::Deduced));
        assert!(spec.field("unknown").is_none());
        let metadata = StructuralType::root(&schema).field("metadata").unwrap().ty;
        assert!(matches!(metadata.structure(), Structure::Map));
        assert!(matches!(metadata.field("labels").unwrap().ty.structure(), Structure::Map));
    }
}
