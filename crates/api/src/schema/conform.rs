//! Walking an object along its definition, as a typed decoder would.
//!
//! The walk changes the object in place and allocates only for what it reports or rewrites. Its
//! depth is that of the object, which decoding bounds.

use serde_json::{Map, Value};

use super::{Definition, Field, Id, Schema, Shape, Type, scalar};
use crate::{
    decode::{MAX_REPORTED, reported_path},
    field::{FieldError, Path},
    quantity::Quantity,
};

/// Most items of structured lists (containers, ports, owner references) in one object, all lists together.
///
/// No object that could be stored comes near it: etcd takes 1.5 MiB, and a complete item has some 80 bytes. But an
/// empty item is written in three bytes and takes a thousand and more once it is decoded, completed and judged,
/// so that without this bound a request of 3 MiB would take gigabytes.
pub const MAX_ITEMS: usize = 20_000;

/// The one type with a time that is neither optional nor a pointer. Go's decoder takes null and nothing for its zero time,
/// and clients write null; the generated type knows no such time, so that it is written out.
const CONDITION: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Condition";
const TRANSITION: &str = "lastTransitionTime";
const ZERO_TIME: &str = "0001-01-01T00:00:00Z";

/// Why an object cannot be decoded into its kind. `Display` is the API's own wording.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ConformError {
    /// A value that cannot be decoded into its field.
    #[error("{0}")]
    TypeMismatch(String),
    /// The list with which the object has more than [`MAX_ITEMS`].
    #[error("{0}")]
    TooManyItems(FieldError),
}

pub fn conform(schema: &Schema, definition: Id, object: &mut Value) -> Result<Vec<String>, ConformError> {
    let mut walk = Walk { schema, unknown: Vec::new(), items: 0 };
    walk.value(&Type::Definition(definition), object, &FieldPosition::Root)?;
    Ok(walk.unknown)
}

/// Where the walk is: a list on the stack, from the innermost step outwards.
enum FieldPosition<'a> {
    Root,
    Field { parent: &'a FieldPosition<'a>, owner: &'a Definition, name: &'a str },
    Key { parent: &'a FieldPosition<'a>, key: &'a str },
    Index { parent: &'a FieldPosition<'a>, index: usize },
}

impl FieldPosition<'_> {
    /// `spec.containers[0].name`.
    fn write(&self, path: &mut String) {
        match self {
            Self::Root => {}
            Self::Field { parent, name, .. } | Self::Key { parent, key: name } => {
                parent.write(path);
                if !path.is_empty() {
                    path.push('.');
                }
                path.push_str(name);
            }
            Self::Index { parent, index } => {
                parent.write(path);
                path.push_str(&format!("[{index}]"));
            }
        }
    }

    /// The struct that owns the nearest field, and the names of the fields that lead there:
    /// decoders count neither indexes nor map keys.
    fn struct_field(&self) -> Option<(&str, String)> {
        match self {
            Self::Root => None,
            Self::Key { parent, .. } | Self::Index { parent, .. } => parent.struct_field(),
            Self::Field { parent, owner, name } => {
                let above = parent.struct_field().map(|(_, path)| path + ".").unwrap_or_default();
                Some((owner.short_name(), above + name))
            }
        }
    }
}

struct Walk<'s> {
    schema: &'s Schema,
    /// The first of them; nobody reads all.
    unknown: Vec<String>,
    /// Structured list items so far.
    items: usize,
}

impl Walk<'_> {
    fn value(&mut self, ty: &Type, value: &mut Value, at: &FieldPosition) -> Result<(), ConformError> {
        match (ty, &mut *value) {
            (Type::String, Value::String(_))
            | (Type::Boolean, Value::Bool(_))
            | (Type::Double, Value::Number(_))
            | (Type::Any, _) => Ok(()),
            (Type::Int32, Value::Number(n)) if n.as_i64().is_some_and(|n| i32::try_from(n).is_ok()) => Ok(()),
            (Type::Int64, Value::Number(n)) if n.as_i64().is_some() => Ok(()),
            (Type::Bytes, Value::String(text)) => scalar::conform_bytes(text).map_err(ConformError::TypeMismatch),
            (Type::List(item), Value::Array(items)) => {
                self.count_items(item, items.len(), at)?;
                for (index, value) in items.iter_mut().enumerate() {
                    self.element(item, value, &FieldPosition::Index { parent: at, index })?;
                }
                Ok(())
            }
            (Type::Map(item), Value::Object(entries)) => {
                // The maps that objects carry most, labels and the like, need no look at their keys.
                for (key, value) in entries.iter_mut() {
                    if !(**item == Type::String && value.is_string()) {
                        self.element(item, value, &FieldPosition::Key { parent: at, key })?;
                    }
                }
                Ok(())
            }
            (Type::Definition(id), _) => self.definition(*id, ty, value, at),
            _ => Err(self.mismatch(ty, value, at)),
        }
    }

    fn count_items(&mut self, item: &Type, count: usize, at: &FieldPosition) -> Result<(), ConformError> {
        if !matches!(item, Type::Definition(_)) {
            return Ok(());
        }
        self.items = self.items.saturating_add(count);
        if self.items <= MAX_ITEMS {
            return Ok(());
        }
        let mut path = String::new();
        at.write(&mut path);
        Err(ConformError::TooManyItems(FieldError::too_many(&Path::new(&path), self.items, MAX_ITEMS)))
    }

    /// An item of a list or a map: null stands for the type's zero value there.
    fn element(&mut self, ty: &Type, value: &mut Value, at: &FieldPosition) -> Result<(), ConformError> {
        if value.is_null() {
            *value = self.zero(ty);
        }
        self.value(ty, value, at)
    }

    fn zero(&self, ty: &Type) -> Value {
        match ty {
            Type::String | Type::Bytes => Value::String(String::new()),
            Type::Boolean => Value::Bool(false),
            Type::Int32 | Type::Int64 | Type::Double => Value::from(0),
            Type::Any => Value::Null,
            Type::List(_) => Value::Array(Vec::new()),
            Type::Map(_) => Value::Object(Map::new()),
            Type::Definition(id) => match self.schema.get(*id).shape {
                Shape::Object | Shape::Either(..) => Value::Object(Map::new()),
                Shape::Quantity => Value::String("0".to_owned()),
                Shape::IntOrString => Value::from(0),
                Shape::Any | Shape::Time | Shape::MicroTime => Value::Null,
            },
        }
    }

    fn definition(&mut self, id: Id, ty: &Type, value: &mut Value, at: &FieldPosition) -> Result<(), ConformError> {
        let schema = self.schema;
        let definition = schema.get(id);
        match (&definition.shape, &mut *value) {
            (Shape::Object, Value::Object(fields)) => self.object(definition, fields, at),
            (Shape::Object, _) => Err(self.mismatch(ty, value, at)),
            (Shape::Any, _) | (Shape::IntOrString, Value::String(_)) => Ok(()),
            (Shape::IntOrString, Value::Number(n)) if n.as_i64().is_some_and(|n| i32::try_from(n).is_ok()) => Ok(()),
            (Shape::IntOrString, _) => Err(plain_mismatch(value, "int32")),
            (Shape::Quantity, Value::String(text)) => {
                let quantity = Quantity::parse(text.trim()).map_err(|e| ConformError::TypeMismatch(e.to_string()))?;
                let canonical = quantity.canonical();
                if canonical != *text {
                    *text = canonical;
                }
                Ok(())
            }
            (Shape::Quantity, Value::Number(n)) => {
                let quantity =
                    Quantity::parse(&n.to_string()).map_err(|e| ConformError::TypeMismatch(e.to_string()))?;
                *value = Value::String(quantity.canonical());
                Ok(())
            }
            (Shape::Quantity, other) => {
                Quantity::parse(&other.to_string()).map_err(|e| ConformError::TypeMismatch(e.to_string()))?;
                Ok(())
            }
            // As an item of a list or a map, an absent time stays null.
            (Shape::Time | Shape::MicroTime, Value::Null) => Ok(()),
            (Shape::Time, Value::String(text)) => scalar::conform_time(text).map_err(ConformError::TypeMismatch),
            (Shape::MicroTime, Value::String(text)) => {
                scalar::conform_micro_time(text).map_err(ConformError::TypeMismatch)
            }
            (Shape::Time | Shape::MicroTime, _) => Err(plain_mismatch(value, "string")),
            (Shape::Either(a, b), _) => {
                let ty = if self.looks_like(b, value) { b } else { a };
                self.value(ty, value, at)
            }
        }
    }

    fn looks_like(&self, ty: &Type, value: &Value) -> bool {
        match ty {
            Type::List(_) => value.is_array(),
            Type::Boolean => value.is_boolean(),
            Type::String => value.is_string(),
            _ => value.is_object(),
        }
    }

    fn object(
        &mut self,
        owner: &Definition,
        fields: &mut Map<String, Value>,
        at: &FieldPosition,
    ) -> Result<(), ConformError> {
        let mut outcome = Ok(());
        let mut superfluous = false;
        for (name, value) in fields.iter_mut() {
            let position = FieldPosition::Field { parent: at, owner, name };
            match owner.field(name) {
                None => {
                    if self.unknown.len() < MAX_REPORTED {
                        let mut path = String::new();
                        position.write(&mut path);
                        self.unknown.push(reported_path(&path));
                    }
                    superfluous = true;
                }
                Some(_) if value.is_null() => superfluous = true,
                Some(field) => {
                    outcome = self.value(&field.ty, value, &position);
                    if outcome.is_err() {
                        break;
                    }
                    superfluous |= is_omitted(field, value);
                }
            }
        }
        if superfluous && outcome.is_ok() {
            fields.retain(|name, value| {
                !value.is_null() && owner.field(name).is_some_and(|field| !is_omitted(field, value))
            });
        }
        if outcome.is_ok() && owner.name == CONDITION && !fields.contains_key(TRANSITION) {
            fields.insert(TRANSITION.to_owned(), Value::String(ZERO_TIME.to_owned()));
        }
        outcome
    }

    fn mismatch(&self, ty: &Type, value: &Value, at: &FieldPosition) -> ConformError {
        let (found, expected) = (described(value, ty), self.schema.type_name(ty));
        ConformError::TypeMismatch(match at.struct_field() {
            Some((owner, path)) => {
                format!("json: cannot unmarshal {found} into Go struct field {owner}.{path} of type {expected}")
            }
            None => format!("json: cannot unmarshal {found} into Go value of type {expected}"),
        })
    }
}

/// Whether a decoded value would not be written out again.
fn is_omitted(field: &Field, value: &Value) -> bool {
    let is_kept = field.required || field.always_written;
    match (&field.ty, value) {
        (Type::List(_), Value::Array(items)) => items.is_empty() && !is_kept,
        (Type::Map(_), Value::Object(entries)) => entries.is_empty() && !is_kept,
        _ => false,
    }
}

fn plain_mismatch(value: &Value, expected: &str) -> ConformError {
    let ty = if expected == "int32" { Type::Int32 } else { Type::String };
    ConformError::TypeMismatch(format!(
        "json: cannot unmarshal {} into Go value of type {expected}",
        described(value, &ty)
    ))
}

fn described(value: &Value, expected: &Type) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(_) => "bool".to_owned(),
        Value::Number(n) if matches!(expected, Type::Int32 | Type::Int64) => format!("number {n}"),
        Value::Number(_) => "number".to_owned(),
        Value::String(_) => "string".to_owned(),
        Value::Array(_) => "array".to_owned(),
        Value::Object(_) => "object".to_owned(),
    }
}
