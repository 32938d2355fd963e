//! Types of the built-in kinds, from the [`Schema`].

use serde_json::Value;

use super::typed::{FieldType, Keys, Scalar, Structure, TypeRef};
use crate::schema::{Definition, Field, ListType, Schema, Shape, Type};

/// The type of a value of a built-in kind.
#[derive(Clone, Copy)]
pub struct BuiltinType<'s> {
    schema: &'s Schema,
    node: Node<'s>,
}

#[derive(Clone, Copy)]
enum Node<'s> {
    Root(&'s Definition),
    /// Says besides its type how it is merged.
    Field(&'s Field),
    /// An item of a list or a map.
    Item(&'s Type),
}

impl<'s> BuiltinType<'s> {
    /// The type of whole objects of a definition: `io.k8s.api.core.v1.Pod`.
    pub fn root(schema: &'s Schema, definition: &str) -> Option<Self> {
        Some(Self { schema, node: Node::Root(schema.definition(definition)?) })
    }

    fn with(self, node: Node<'s>) -> Self {
        Self { node, ..self }
    }

    fn ty(self) -> Option<&'s Type> {
        match self.node {
            Node::Root(_) => None,
            Node::Field(field) => Some(&field.ty),
            Node::Item(ty) => Some(ty),
        }
    }

    fn definition(self) -> Option<&'s Definition> {
        match (self.node, self.ty()) {
            (Node::Root(definition), _) => Some(definition),
            (_, Some(Type::Definition(id))) => Some(self.schema.get(*id)),
            _ => None,
        }
    }

    fn declared(self) -> Option<&'s Field> {
        match self.node {
            Node::Field(field) => Some(field),
            Node::Root(_) | Node::Item(_) => None,
        }
    }

    fn list(self, item: &'s Type) -> Structure<'s, Self> {
        let Some(field) = self.declared() else { return Structure::Atomic };
        match field.list_type {
            Some(ListType::Set) => Structure::Set,
            Some(ListType::Map) => {
                Structure::ListMap { keys: Keys::Static(&field.keys), item: self.with(Node::Item(item)) }
            }
            Some(ListType::Atomic) | None => Structure::Atomic,
        }
    }

    fn object(self, definition: &Definition) -> Structure<'s, Self> {
        match definition.shape {
            Shape::Object => match self.declared().and_then(|field| field.map_type) {
                Some("granular") => Structure::Map, // the field's word beats its type's
                Some("atomic") => Structure::Atomic,
                _ if definition.atomic => Structure::Atomic,
                _ => Structure::Map,
            },
            Shape::Any | Shape::Either(..) => Structure::Atomic,
            Shape::Quantity | Shape::IntOrString | Shape::Time | Shape::MicroTime => Structure::Scalar(Scalar::Untyped),
        }
    }
}

impl<'s> TypeRef<'s> for BuiltinType<'s> {
    fn structure(self) -> Structure<'s, Self> {
        if let Some(definition) = self.definition() {
            return self.object(definition);
        }
        match self.ty() {
            Some(Type::String | Type::Bytes) => Structure::Scalar(Scalar::String),
            Some(Type::Boolean) => Structure::Scalar(Scalar::Boolean),
            Some(Type::Int32 | Type::Int64 | Type::Double) => Structure::Scalar(Scalar::Numeric),
            Some(Type::List(item)) => self.list(item),
            Some(Type::Map(_)) => match self.declared().and_then(|field| field.map_type) {
                Some("atomic") => Structure::Atomic,
                _ => Structure::Map,
            },
            Some(Type::Any | Type::Definition(_)) | None => Structure::Atomic,
        }
    }

    fn field(self, name: &str) -> Option<FieldType<Self>> {
        if let Some(Type::Map(item)) = self.ty() {
            let ty = self.with(Node::Item(item));
            return Some(FieldType { ty, declared: false, always_written: false });
        }
        let field = self.definition()?.field(name)?;
        let ty = self.with(Node::Field(field));
        Some(FieldType { ty, declared: true, always_written: field.always_written })
    }

    fn key_default(self, key: &str) -> Option<Value> {
        let Some(Type::List(item)) = self.ty() else { return None };
        serde_json::from_str(self.with(Node::Item(item)).definition()?.field(key)?.default?).ok()
    }
}
