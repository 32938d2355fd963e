//! Types that the checker knows, with the largest sizes that a schema allows for the cost estimate.
//!
//! Two types are compared by what may be assigned to what: `dyn` is assignable both ways, sizes do not matter.

use std::{collections::BTreeMap, fmt, sync::Arc};

/// How two lists of a schema are compared and added (`x-kubernetes-list-type`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ListKind {
    #[default]
    Atomic,
    Set,
    /// Elements are objects, identified by the values of these properties.
    Map(Vec<String>),
}

#[derive(Clone, Debug)]
pub struct ListType {
    pub element: Type,
    pub kind: ListKind,
    pub max_items: Option<u64>,
}

#[derive(Clone, Debug)]
pub struct MapType {
    pub key: Type,
    pub value: Type,
    pub max_properties: Option<u64>,
}

/// A field of an object as expressions see it.
#[derive(Clone, Debug)]
pub struct Field {
    /// The property's name in JSON; the key in [`ObjectType::fields`] is the escaped one.
    pub property: Box<str>,
    pub ty: Type,
}

#[derive(Clone, Debug)]
pub struct ObjectType {
    pub name: Box<str>,
    pub fields: BTreeMap<Box<str>, Field>,
}

impl ObjectType {
    /// The type of an object whose field names need no escaping.
    pub fn with_fields(name: &str, fields: impl IntoIterator<Item = (&'static str, Type)>) -> Type {
        let fields = fields.into_iter().map(|(name, ty)| (name.into(), Field { property: name.into(), ty })).collect();
        Type::Object(Arc::new(Self { name: name.into(), fields }))
    }
}

#[derive(Clone, Debug)]
pub enum Type {
    /// Whatever the value turns out to be.
    Dyn,
    Null,
    Bool,
    Int,
    Uint,
    Double,
    /// With the largest number of bytes, where a schema limits it.
    String(Option<u64>),
    Bytes(Option<u64>),
    Timestamp,
    Duration,
    List(Arc<ListType>),
    Map(Arc<MapType>),
    Object(Arc<ObjectType>),
    Optional(Arc<Type>),
    /// The type of a type.
    Type,
    /// A type of a library, or of an object that an expression builds: `kubernetes.URL`, `JSONPatch`.
    Named(Arc<str>),
    /// A type parameter of a function's signature.
    Parameter(char),
}

pub(crate) static DYN: Type = Type::Dyn;

impl Type {
    pub const STRING: Self = Self::String(None);

    pub fn list(element: Self) -> Self {
        Self::List(Arc::new(ListType { element, kind: ListKind::Atomic, max_items: None }))
    }

    pub fn map(key: Self, value: Self) -> Self {
        Self::Map(Arc::new(MapType { key, value, max_properties: None }))
    }

    pub fn optional(value: Self) -> Self {
        Self::Optional(Arc::new(value))
    }

    pub fn named(name: &str) -> Self {
        Self::Named(name.into())
    }

    pub fn is_dyn(&self) -> bool {
        matches!(self, Self::Dyn)
    }

    pub(crate) fn is_numeric(&self) -> bool {
        matches!(self, Self::Int | Self::Uint | Self::Double)
    }

    /// The largest size that a value of this type can have, if the schema says so.
    pub fn max_size(&self) -> Option<u64> {
        match self {
            Self::String(max) | Self::Bytes(max) => *max,
            Self::List(list) => list.max_items,
            Self::Map(map) => map.max_properties,
            _ => None,
        }
    }

    /// Whether a value of type `from` may stand where this type is expected.
    pub fn accepts(&self, from: &Self) -> bool {
        match (self, from) {
            (Self::Dyn, _) | (_, Self::Dyn) => true,
            (Self::List(a), Self::List(b)) => a.element.accepts(&b.element),
            (Self::Map(a), Self::Map(b)) => a.key.accepts(&b.key) && a.value.accepts(&b.value),
            (Self::Optional(a), Self::Optional(b)) => a.accepts(b),
            (Self::Object(a), Self::Object(b)) => Arc::ptr_eq(a, b) || a.has_same_fields(b),
            (Self::Named(a), Self::Named(b)) => a == b,
            (Self::Parameter(a), Self::Parameter(b)) => a == b,
            // Objects and times may be null in JSON.
            (Self::Object(_) | Self::Timestamp | Self::Duration | Self::Named(_) | Self::Optional(_), Self::Null) => {
                true
            }
            (Self::Null, Self::Object(_) | Self::Timestamp | Self::Duration | Self::Named(_) | Self::Optional(_)) => {
                true
            }
            _ => std::mem::discriminant(self) == std::mem::discriminant(from),
        }
    }

    /// Looks up a field of an object by the name that expressions use.
    pub(crate) fn field(&self, name: &str) -> Option<&Field> {
        match self {
            Self::Object(object) => object.fields.get(name),
            _ => None,
        }
    }
}

impl ObjectType {
    fn has_same_fields(&self, other: &Self) -> bool {
        self.name == other.name
            && self.fields.len() == other.fields.len()
            && self.fields.iter().all(|(name, field)| other.fields.get(name).is_some_and(|o| field.ty.accepts(&o.ty)))
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dyn => f.write_str("dyn"),
            Self::Null => f.write_str("null_type"),
            Self::Bool => f.write_str("bool"),
            Self::Int => f.write_str("int"),
            Self::Uint => f.write_str("uint"),
            Self::Double => f.write_str("double"),
            Self::String(_) => f.write_str("string"),
            Self::Bytes(_) => f.write_str("bytes"),
            Self::Timestamp => f.write_str("timestamp"),
            Self::Duration => f.write_str("duration"),
            Self::List(list) => write!(f, "list({})", list.element),
            Self::Map(map) => write!(f, "map({}, {})", map.key, map.value),
            Self::Object(object) => f.write_str(&object.name),
            Self::Optional(value) => write!(f, "optional_type({value})"),
            Self::Type => f.write_str("type"),
            Self::Named(name) => f.write_str(name),
            Self::Parameter(name) => write!(f, "{name}"),
        }
    }
}
