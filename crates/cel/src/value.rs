//! Values of an evaluation. What comes from an object is borrowed from its JSON and converted where it is looked at.

use std::{collections::BTreeMap, fmt, net::IpAddr, ops::Deref, sync::Arc};

use ipnet::IpNet;
use jiff::{SignedDuration, civil::DateTime};
use serde_json::Value as Json;

use crate::{
    convert::from_json,
    error::EvalError,
    library::{authorizer::AuthorizerValue, format::Format, quantity::Quantity, urls::Url},
    types::{DYN, ListKind, Type},
};

/// A string, borrowed from an object or an expression or shared between values.
#[derive(Clone, Debug)]
pub enum Str<'a> {
    Borrowed(&'a str),
    Shared(Arc<str>),
}

impl Deref for Str<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        match self {
            Self::Borrowed(text) => text,
            Self::Shared(text) => text,
        }
    }
}

impl<'a> From<&'a str> for Str<'a> {
    fn from(text: &'a str) -> Self {
        Self::Borrowed(text)
    }
}

impl From<String> for Str<'_> {
    fn from(text: String) -> Self {
        Self::Shared(text.into())
    }
}

/// A key of a map that an expression built.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    Bool(bool),
    Int(i64),
    Uint(u64),
    String(Arc<str>),
}

impl Key {
    pub(crate) fn from_value(value: &Value<'_>) -> Result<Self, EvalError> {
        match value {
            Value::Bool(value) => Ok(Self::Bool(*value)),
            Value::Int(value) => Ok(Self::Int(*value)),
            Value::Uint(value) => Ok(Self::Uint(*value)),
            Value::String(value) => Ok(Self::String(match value {
                Str::Shared(text) => text.clone(),
                Str::Borrowed(text) => (*text).into(),
            })),
            _ => Err(EvalError::message("unsupported key type")),
        }
    }

    pub(crate) fn to_value<'a>(&self) -> Value<'a> {
        match self {
            Self::Bool(value) => Value::Bool(*value),
            Self::Int(value) => Value::Int(*value),
            Self::Uint(value) => Value::Uint(*value),
            Self::String(text) => Value::String(Str::Shared(text.clone())),
        }
    }

    /// The same number as the other integer type, for `{1: 'a'}[1u]`.
    fn as_other_integer(&self) -> Option<Self> {
        match self {
            Self::Int(value) => u64::try_from(*value).ok().map(Self::Uint),
            Self::Uint(value) => i64::try_from(*value).ok().map(Self::Int),
            Self::Bool(_) | Self::String(_) => None,
        }
    }
}

#[derive(Clone, Debug)]
pub enum List<'a> {
    Json { items: &'a [Json], element: &'a Type, kind: &'a ListKind },
    Values(Arc<Vec<Value<'a>>>),
}

impl<'a> List<'a> {
    pub fn len(&self) -> usize {
        match self {
            Self::Json { items, .. } => items.len(),
            Self::Values(values) => values.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn get(&self, index: usize) -> Option<Result<Value<'a>, EvalError>> {
        match self {
            Self::Json { items, element, .. } => items.get(index).map(|item| from_json(item, element)),
            Self::Values(values) => values.get(index).cloned().map(Ok),
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = Result<Value<'a>, EvalError>> + '_ {
        (0..self.len()).filter_map(|index| self.get(index))
    }

    pub(crate) fn kind(&self) -> &ListKind {
        match self {
            Self::Json { kind, .. } => kind,
            Self::Values(_) => &ListKind::Atomic,
        }
    }
}

#[derive(Clone, Debug)]
pub enum Map<'a> {
    /// A JSON object; of an object type of a schema, or of a map type, or untyped.
    Json {
        entries: &'a serde_json::Map<String, Json>,
        ty: &'a Type,
    },
    Values(Arc<BTreeMap<Key, Value<'a>>>),
    /// As `Values`; what is not there is an empty map.
    Nested(Arc<BTreeMap<Key, Value<'a>>>),
}

impl<'a> Map<'a> {
    pub fn len(&self) -> usize {
        match self {
            Self::Json { entries, .. } => entries.len(),
            Self::Values(values) | Self::Nested(values) => values.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn get(&self, key: &Value<'_>) -> Option<Result<Value<'a>, EvalError>> {
        match (self, key) {
            (Self::Json { .. }, Value::String(name)) => self.get_field(name),
            (Self::Json { .. }, _) => None,
            (Self::Values(values), _) => {
                let key = match key {
                    Value::Double(number) => Key::Int(exact_int(*number)?),
                    _ => Key::from_value(key).ok()?,
                };
                let found = values.get(&key).or_else(|| values.get(&key.as_other_integer()?));
                found.cloned().map(Ok)
            }
            (Self::Nested(values), _) => {
                let found = Key::from_value(key).ok().and_then(|key| values.get(&key).cloned());
                Some(Ok(found.unwrap_or_else(|| Value::map(BTreeMap::new()))))
            }
        }
    }

    /// The value below a string key; of a schema's object, below the escaped name of a property.
    pub fn get_field(&self, name: &str) -> Option<Result<Value<'a>, EvalError>> {
        match self {
            Self::Json { entries, ty: Type::Object(object) } => {
                let field = object.fields.get(name)?;
                entries.get(&*field.property).map(|value| from_json(value, &field.ty))
            }
            Self::Json { entries, ty } => {
                let value_type = match ty {
                    Type::Map(map) => &map.value,
                    _ => &DYN,
                };
                entries.get(name).map(|value| from_json(value, value_type))
            }
            Self::Values(values) => values.get(&Key::String(name.into())).cloned().map(Ok),
            Self::Nested(_) => self.get(&Value::String(Str::Shared(name.into()))),
        }
    }

    pub fn keys(&self) -> Vec<Value<'a>> {
        match self {
            Self::Json { entries, .. } => entries.keys().map(|key| Value::String(Str::Borrowed(key))).collect(),
            Self::Values(values) | Self::Nested(values) => values.keys().map(Key::to_value).collect(),
        }
    }
}

/// An object that an expression builds by its type's name: `JSONPatch{op: 'test'}`.
#[derive(Clone, Debug)]
pub struct Struct<'a> {
    pub name: Arc<str>,
    pub fields: BTreeMap<Arc<str>, Value<'a>>,
}

#[derive(Clone, Debug)]
pub enum Value<'a> {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    String(Str<'a>),
    Bytes(Arc<[u8]>),
    /// In UTC.
    Timestamp(DateTime),
    Duration(SignedDuration),
    List(List<'a>),
    Map(Map<'a>),
    Struct(Arc<Struct<'a>>),
    Optional(Option<Arc<Value<'a>>>),
    Type(Arc<str>),
    Quantity(Arc<Quantity>),
    Url(Arc<Url>),
    Ip(Arc<IpAddr>),
    Cidr(Arc<IpNet>),
    Semver(Arc<semver::Version>),
    Format(&'static Format),
    Authorizer(AuthorizerValue<'a>),
}

impl<'a> Value<'a> {
    pub fn string(text: impl Into<Str<'a>>) -> Self {
        Self::String(text.into())
    }

    pub fn list(values: Vec<Self>) -> Self {
        Self::List(List::Values(Arc::new(values)))
    }

    pub fn map(values: BTreeMap<Key, Self>) -> Self {
        Self::Map(Map::Values(Arc::new(values)))
    }

    /// A map of maps; what is not there is an empty one.
    pub fn map_or_empty(values: BTreeMap<Key, Self>) -> Self {
        Self::Map(Map::Nested(Arc::new(values)))
    }

    pub fn some(value: Self) -> Self {
        Self::Optional(Some(Arc::new(value)))
    }

    /// An object's JSON by its own form, without a schema.
    pub fn from_json(json: &'a Json) -> Result<Self, EvalError> {
        from_json(json, &DYN)
    }

    pub fn as_bool(&self) -> Option<bool> {
        match self {
            Self::Bool(value) => Some(*value),
            _ => None,
        }
    }

    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::String(text) => Some(text),
            _ => None,
        }
    }

    /// The name that `type(x)` gives.
    pub fn type_name(&self) -> &str {
        match self {
            Self::Null => "null_type",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::Uint(_) => "uint",
            Self::Double(_) => "double",
            Self::String(_) => "string",
            Self::Bytes(_) => "bytes",
            Self::Timestamp(_) => "google.protobuf.Timestamp",
            Self::Duration(_) => "google.protobuf.Duration",
            Self::List(_) => "list",
            Self::Map(Map::Json { ty: Type::Object(object), .. }) => &object.name,
            Self::Map(_) => "map",
            Self::Struct(object) => &object.name,
            Self::Optional(_) => "optional_type",
            Self::Type(_) => "type",
            Self::Quantity(_) => "kubernetes.Quantity",
            Self::Url(_) => "kubernetes.URL",
            Self::Ip(_) => "net.IP",
            Self::Cidr(_) => "net.CIDR",
            Self::Semver(_) => "kubernetes.Semver",
            Self::Format(_) => "kubernetes.NamedFormat",
            Self::Authorizer(value) => value.type_name(),
        }
    }

    /// The number of characters, bytes or elements; 1 for what has no size.
    pub(crate) fn traversal_size(&self) -> usize {
        match self {
            Self::String(text) => text.len(),
            Self::Bytes(bytes) => bytes.len(),
            Self::List(list) => list.len(),
            Self::Map(map) => map.len(),
            _ => 1,
        }
    }
}

/// The integer that a double is exactly, if it is one.
pub(crate) fn exact_int(number: f64) -> Option<i64> {
    (number.fract() == 0.0 && (-9.2e18..9.2e18).contains(&number)).then_some(number as i64)
}

impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            Self::Bool(value) => write!(f, "{value}"),
            Self::Int(value) => write!(f, "{value}"),
            Self::Uint(value) => write!(f, "{value}"),
            Self::Double(value) => write!(f, "{value}"),
            Self::String(text) => f.write_str(text),
            Self::Timestamp(time) => write!(f, "{time}Z"),
            Self::Duration(duration) => f.write_str(&crate::library::time::duration_text(*duration)),
            Self::Type(name) => f.write_str(name),
            Self::Quantity(quantity) => write!(f, "{quantity}"),
            Self::Url(url) => f.write_str(&url.text),
            Self::Ip(ip) => write!(f, "{ip}"),
            Self::Cidr(cidr) => write!(f, "{cidr}"),
            Self::Semver(version) => write!(f, "{version}"),
            _ => f.write_str(self.type_name()),
        }
    }
}
