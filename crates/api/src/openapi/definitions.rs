//! The definitions of a document, one at a time.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::{Dialect, custom, describe};
use crate::{
    descriptor::Descriptor,
    registry::Registry,
    schema::{Definition, Field, ListType, Schema, Shape, Type},
};

pub(super) const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";

/// What every document mentions: the bodies and answers of its operations.
pub const DELETE_OPTIONS: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions";
pub const STATUS: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Status";
pub const SCALE: &str = "io.k8s.api.autoscaling.v1.Scale";
pub const PATCH: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Patch";

/// The definitions that one document needs.
pub struct Definitions<'a> {
    schema: &'a Schema,
    named: HashSet<&'static str>,
    /// Kinds that the table does not know: custom ones.
    custom: Vec<&'a Descriptor>,
}

impl<'a> Definitions<'a> {
    pub fn of_all_groups(registry: &'a Registry, schema: &'a Schema) -> Self {
        Self::reachable(registry, schema, |_, _| true)
    }

    pub fn of_group_version(registry: &'a Registry, schema: &'a Schema, group: &'a str, version: &str) -> Self {
        Self::reachable(registry, schema, |g, v| g == group && v == version)
    }

    fn reachable(registry: &'a Registry, schema: &'a Schema, within: impl Fn(&str, &str) -> bool) -> Self {
        let mut found = Self { schema, named: HashSet::new(), custom: Vec::new() };
        for name in [DELETE_OPTIONS, STATUS, SCALE, OBJECT_META] {
            found.add(schema.definition(name));
        }
        // Kinds that are posted and never stored (reviews, bindings) belong to their group as well.
        for definition in schema.definitions() {
            if definition.kinds.len() == 1 && definition.kinds.iter().any(|k| within(k.group, k.version)) {
                found.add(Some(definition));
            }
        }
        for descriptor in registry.iter().filter(|d| within(&d.group, &d.version)) {
            match schema.definition(&descriptor.schema) {
                Some(definition) => found.add(Some(definition)),
                None => found.custom.push(descriptor),
            }
        }
        found
    }

    fn add(&mut self, definition: Option<&Definition>) {
        let Some(definition) = definition else { return };
        if !self.named.insert(definition.name) {
            return;
        }
        if let Shape::Either(a, b) = &definition.shape {
            self.add_type(a);
            self.add_type(b);
        }
        for field in &definition.fields {
            self.add_type(&field.ty);
        }
    }

    fn add_type(&mut self, ty: &Type) {
        match ty {
            Type::List(item) | Type::Map(item) => self.add_type(item),
            Type::Definition(id) => self.add(Some(self.schema.get(*id))),
            _ => {}
        }
    }

    /// Writes each definition once.
    pub fn visit(mut self, dialect: Dialect, mut visitor: impl FnMut(&str, Value)) {
        describe::visit(|name, described| {
            if let Some(definition) = self.schema.definition(name).filter(|d| self.named.remove(d.name)) {
                visitor(name, written(self.schema, definition, Some(described), dialect));
            }
        });
        // What remains has no description: lists, and kinds of groups we do not serve yet.
        for definition in self.schema.definitions().filter(|d| self.named.contains(d.name)) {
            visitor(definition.name, written(self.schema, definition, None, dialect));
        }
        for descriptor in self.custom {
            custom::visit(descriptor, dialect, &mut visitor);
        }
        visitor(PATCH, json!({"type": "object", "description": "The body of a PATCH request."}));
    }
}

fn written(schema: &Schema, definition: &Definition, described: Option<&Value>, dialect: Dialect) -> Value {
    let mut out = Map::new();
    if let Some(text) = described.and_then(|d| d.get("description")) {
        out.insert("description".to_owned(), text.clone());
    }
    write_shape(&mut out, definition, dialect);
    let required: Vec<_> = definition.fields.iter().filter(|field| field.required).map(|field| field.name).collect();
    if !required.is_empty() {
        out.insert("required".to_owned(), json!(required));
    }
    if !definition.fields.is_empty() {
        let fields = definition.fields.iter().map(|field| {
            let described = described.and_then(|d| d.get("properties")?.get(field.name)?.get("description"));
            (field.name.to_owned(), field_schema(schema, field, described, dialect))
        });
        out.insert("properties".to_owned(), Value::Object(fields.collect()));
    }
    if !definition.kinds.is_empty() {
        let kinds = definition.kinds.iter();
        let kinds: Vec<_> = kinds.map(|k| json!({"group": k.group, "version": k.version, "kind": k.kind})).collect();
        out.insert("x-kubernetes-group-version-kind".to_owned(), Value::Array(kinds));
    }
    if definition.atomic {
        out.insert("x-kubernetes-map-type".to_owned(), json!("atomic"));
    }
    Value::Object(out)
}

fn write_shape(out: &mut Map<String, Value>, definition: &Definition, dialect: Dialect) {
    let mut set = |name: &str, value: Value| out.insert(name.to_owned(), value);
    match (&definition.shape, dialect) {
        (Shape::Object, _) => {
            set("type", json!("object"));
        }
        // Any JSON at all, or one of two shapes, cannot be said in v2.
        (Shape::Either(..), _) => {}
        (Shape::Any, _) => {
            if definition.short_name() != "JSON" {
                set("type", json!("object"));
            }
        }
        (Shape::Quantity, Dialect::V2) => {
            set("type", json!("string"));
        }
        (Shape::Quantity, Dialect::V3) => {
            set("oneOf", json!([{"type": "string"}, {"type": "number"}]));
        }
        (Shape::IntOrString, Dialect::V2) => {
            set("type", json!("string"));
            set("format", json!("int-or-string"));
        }
        (Shape::IntOrString, Dialect::V3) => {
            set("format", json!("int-or-string"));
            set("oneOf", json!([{"type": "integer"}, {"type": "string"}]));
        }
        (Shape::Time | Shape::MicroTime, _) => {
            set("type", json!("string"));
            set("format", json!("date-time"));
        }
    }
}

fn field_schema(schema: &Schema, field: &Field, described: Option<&Value>, dialect: Dialect) -> Value {
    let mut out = match (&field.ty, dialect) {
        // In v3 a reference stands alone: its neighbours would be ignored.
        (Type::Definition(_), Dialect::V3) => {
            Map::from_iter([("allOf".to_owned(), Value::Array(vec![type_schema(schema, &field.ty, dialect)]))])
        }
        (ty, _) => match type_schema(schema, ty, dialect) {
            Value::Object(map) => map,
            _ => Map::new(),
        },
    };
    let mut set = |name: &str, value: Value| out.insert(name.to_owned(), value);
    if let Some(text) = described {
        set("description", text.clone());
    }
    if let Some(list) = field.list_type {
        let list = match list {
            ListType::Atomic => "atomic",
            ListType::Set => "set",
            ListType::Map => "map",
        };
        set("x-kubernetes-list-type", json!(list));
    }
    if !field.keys.is_empty() {
        set("x-kubernetes-list-map-keys", json!(field.keys));
    }
    if let Some(strategy) = field.patch_strategy {
        set("x-kubernetes-patch-strategy", json!(strategy));
    }
    if let Some(key) = field.merge_key {
        set("x-kubernetes-patch-merge-key", json!(key));
    }
    if let Some(map) = field.map_type {
        set("x-kubernetes-map-type", json!(map));
    }
    if let Some(Ok(default)) = field.default.filter(|_| dialect == Dialect::V3).map(serde_json::from_str) {
        set("default", default);
    }
    Value::Object(out)
}

fn type_schema(schema: &Schema, ty: &Type, dialect: Dialect) -> Value {
    match ty {
        Type::String => json!({"type": "string"}),
        Type::Bytes => json!({"type": "string", "format": "byte"}),
        Type::Boolean => json!({"type": "boolean"}),
        Type::Int32 => json!({"type": "integer", "format": "int32"}),
        Type::Int64 => json!({"type": "integer", "format": "int64"}),
        Type::Double => json!({"type": "number", "format": "double"}),
        Type::Any => json!({"type": "object"}),
        Type::List(item) => json!({"type": "array", "items": type_schema(schema, item, dialect)}),
        Type::Map(item) => json!({"type": "object", "additionalProperties": type_schema(schema, item, dialect)}),
        Type::Definition(id) => dialect.reference(schema.get(*id).name),
    }
}
