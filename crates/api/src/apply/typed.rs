//! What server-side apply asks of the types of an object: the one seam between the engine and schemas.
//!
//! The engine walks objects along a [`TypeRef`]: a small, copyable cursor into a schema that stands for the type of one
//! value. It has two implementations here, the built-in kinds' ([`super::builtin::BuiltinType`]) and [`Untyped`], for data
//! without a schema; custom resources bring their own for structural schemas.
//!
//! An implementation only states facts. How fields are merged, compared, owned and removed is the engine's.

use serde_json::Value;

/// The type of one value in an object. `'s` is the life of the schema.
///
/// An implementation for structural schemas answers:
///
/// | schema | [`Structure`] |
/// |---|---|
/// | `string`, `boolean`, `integer`, `number` | [`Structure::Scalar`] |
/// | `x-kubernetes-int-or-string`, times and quantities | `Scalar(Scalar::Untyped)` |
/// | object, also one with `additionalProperties` | [`Structure::Map`] |
/// | object with `x-kubernetes-map-type: atomic` | [`Structure::Atomic`] |
/// | list without `x-kubernetes-list-type`, or `atomic` | [`Structure::Atomic`] |
/// | `x-kubernetes-list-type: set` | [`Structure::Set`] |
/// | `x-kubernetes-list-type: map` | [`Structure::ListMap`] |
/// | `x-kubernetes-preserve-unknown-fields` below which nothing is declared | [`Structure::Deduced`] |
pub trait TypeRef<'s>: Copy {
    fn structure(self) -> Structure<'s, Self>;

    /// The type of a field of a [`Structure::Map`]: a declared one, or any key of a map. `None` if the schema does not
    /// declare it; applying it is refused. A [`Structure::Deduced`] type answers with itself, undeclared.
    fn field(self, name: &str) -> Option<FieldType<Self>>;

    /// What a key of a [`Structure::ListMap`] is in items that leave it out.
    fn key_default(self, key: &str) -> Option<Value> {
        let _ = key;
        None
    }
}

/// How values of a type are merged and owned.
#[derive(Clone, Copy, Debug)]
pub enum Structure<'s, T> {
    /// Replaced and owned as a whole.
    Scalar(Scalar),
    /// A map or a list that is replaced and owned as a whole.
    Atomic,
    /// An object whose fields have owners of their own: a struct, a map, or both.
    Map,
    /// A list of scalars, each with its owners. Items are told apart by their value.
    Set,
    /// A list of objects whose fields have owners of their own. Items are told apart by the values of `keys`.
    ListMap { keys: Keys<'s>, item: T },
    /// As the value looks: an object is a [`Structure::Map`] of such types, a list is atomic, all else is a scalar.
    Deduced,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scalar {
    String,
    Numeric,
    Boolean,
    /// One of several, or of a format that has more than one form.
    Untyped,
}

/// A field of a [`Structure::Map`].
#[derive(Clone, Copy, Debug)]
pub struct FieldType<T> {
    pub ty: T,
    /// Whether the schema names the field. Keys of maps are not declared: they have an owner even if their value has parts.
    pub declared: bool,
    /// Whether upstream writes the field even if nobody set it: a Go struct that is not a pointer. Its presence is no
    /// change that anybody made. Always false for custom resources.
    pub always_written: bool,
}

/// Names of the fields that tell items of a list apart.
#[derive(Clone, Copy, Debug)]
pub enum Keys<'s> {
    Static(&'s [&'static str]),
    Owned(&'s [String]),
}

impl<'s> Keys<'s> {
    pub fn iter(self) -> impl Iterator<Item = &'s str> {
        let (fixed, owned) = match self {
            Self::Static(keys) => (keys, &[][..]),
            Self::Owned(keys) => (&[][..], keys),
        };
        fixed.iter().map(|key| *key as &'s str).chain(owned.iter().map(String::as_str))
    }
}

/// The type of data without a schema.
#[derive(Clone, Copy, Debug)]
pub struct Untyped;

impl TypeRef<'static> for Untyped {
    fn structure(self) -> Structure<'static, Self> {
        Structure::Deduced
    }

    fn field(self, _: &str) -> Option<FieldType<Self>> {
        Some(FieldType { ty: self, declared: false, always_written: false })
    }
}

/// The versions of one kind: what the engine needs for managers that wrote another version than the request's.
pub trait Versions<'s> {
    type Type: TypeRef<'s>;

    /// The type of whole objects in this `apiVersion`; `None` if it is not served any more, and its managers are forgotten.
    fn root(&self, api_version: &str) -> Option<Self::Type>;

    /// The object in another `apiVersion`; `None` as above. Never called with the version that the object already has.
    fn convert(&self, object: &Value, api_version: &str) -> Option<Value>;
}

/// A kind of one version, or whose other versions nobody has written.
#[derive(Clone, Copy, Debug)]
pub struct SingleVersion<'v, T> {
    pub api_version: &'v str,
    pub root: T,
}

impl<'s, T: TypeRef<'s>> Versions<'s> for SingleVersion<'_, T> {
    type Type = T;

    fn root(&self, api_version: &str) -> Option<T> {
        (api_version == self.api_version).then_some(self.root)
    }

    fn convert(&self, _: &Value, _: &str) -> Option<Value> {
        None
    }
}
