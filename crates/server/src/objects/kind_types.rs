//! Types of the kinds that are served, as server-side apply asks for them.

use mainstay_api::{
    apply::{
        builtin::BuiltinType,
        typed::{FieldType, Structure, TypeRef, Untyped, Versions},
    },
    crd::apply::StructuralType,
    descriptor::Descriptor,
    registry::Registry,
    schema::Schema,
};
use serde_json::Value;

/// The type of a value of any kind.
#[derive(Clone, Copy)]
pub enum KindType<'s> {
    Builtin(BuiltinType<'s>),
    Custom(StructuralType<'s>),
    /// Of a kind without a schema.
    Untyped(Untyped),
}

impl<'s> KindType<'s> {
    /// The type of whole objects of a kind.
    pub fn root(schema: &'s Schema, d: &'s Descriptor) -> Self {
        if let Some(custom) = &d.custom {
            return Self::Custom(StructuralType::root(&custom.schema));
        }
        Self::builtin(schema, &d.schema)
    }

    /// The type that a definition of the schema describes.
    pub fn builtin(schema: &'s Schema, definition: &str) -> Self {
        BuiltinType::root(schema, definition).map_or(Self::Untyped(Untyped), Self::Builtin)
    }
}

/// The same structure over another type.
fn lift<'s, T, U>(structure: Structure<'s, T>, wrap: impl FnOnce(T) -> U) -> Structure<'s, U> {
    match structure {
        Structure::Scalar(scalar) => Structure::Scalar(scalar),
        Structure::Atomic => Structure::Atomic,
        Structure::Map => Structure::Map,
        Structure::Set => Structure::Set,
        Structure::ListMap { keys, item } => Structure::ListMap { keys, item: wrap(item) },
        Structure::Deduced => Structure::Deduced,
    }
}

fn lift_field<T, U>(field: FieldType<T>, wrap: impl FnOnce(T) -> U) -> FieldType<U> {
    FieldType { ty: wrap(field.ty), declared: field.declared, always_written: field.always_written }
}

impl<'s> TypeRef<'s> for KindType<'s> {
    fn structure(self) -> Structure<'s, Self> {
        match self {
            Self::Builtin(ty) => lift(ty.structure(), Self::Builtin),
            Self::Custom(ty) => lift(ty.structure(), Self::Custom),
            Self::Untyped(ty) => lift(ty.structure(), Self::Untyped),
        }
    }

    fn field(self, name: &str) -> Option<FieldType<Self>> {
        match self {
            Self::Builtin(ty) => ty.field(name).map(|field| lift_field(field, Self::Builtin)),
            Self::Custom(ty) => ty.field(name).map(|field| lift_field(field, Self::Custom)),
            Self::Untyped(ty) => ty.field(name).map(|field| lift_field(field, Self::Untyped)),
        }
    }

    fn key_default(self, key: &str) -> Option<Value> {
        match self {
            Self::Builtin(ty) => ty.key_default(key),
            Self::Custom(ty) => ty.key_default(key),
            Self::Untyped(ty) => ty.key_default(key),
        }
    }
}

/// All served versions of one kind.
#[derive(Clone, Copy)]
pub struct KindVersions<'a> {
    pub registry: &'a Registry,
    pub schema: &'static Schema,
    pub d: &'a Descriptor,
}

impl<'a> KindVersions<'a> {
    fn find(&self, api_version: &str) -> Option<&'a Descriptor> {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        if group == self.d.group && version == self.d.version {
            return Some(self.d);
        }
        let other = self.registry.find(group, version, &self.d.plural)?;
        (other.storage == self.d.storage).then_some(&**other)
    }
}

impl<'a> Versions<'a> for KindVersions<'a> {
    type Type = KindType<'a>;

    fn root(&self, api_version: &str) -> Option<Self::Type> {
        self.find(api_version).map(|d| KindType::root(self.schema, d))
    }

    fn convert(&self, object: &Value, api_version: &str) -> Option<Value> {
        let (from, to) = (self.find(object["apiVersion"].as_str()?)?, self.find(api_version)?);
        let mut object = object.clone();
        if let Some(conversion) = &from.conversion {
            conversion.try_to_stored(&mut object).ok()?;
        }
        if let Some(conversion) = &to.conversion {
            conversion.try_to_served(&mut object).ok()?;
        }
        object["apiVersion"] = Value::String(to.api_version());
        Some(object)
    }
}
