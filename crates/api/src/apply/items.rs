//! How the engine sees a value: as a leaf, by its fields, or by its items; and how items of a list are told apart.

use std::borrow::Cow;

use serde_json::{Map, Value};

use super::{
    path::PathElement,
    typed::{Keys, Structure, TypeRef},
};

/// What the engine does with a value.
#[derive(Clone, Copy)]
pub enum View<'s, T> {
    /// Whole.
    Leaf,
    /// Field by field.
    Fields,
    /// Item by item.
    Items(Items<'s, T>),
}

/// The items of a list that is merged.
#[derive(Clone, Copy)]
pub enum Items<'s, T> {
    Set,
    Map { list: T, keys: Keys<'s>, item: T },
}

/// How a value of this type is seen.
pub fn view<'s, T: TypeRef<'s>>(ty: T, value: &Value) -> View<'s, T> {
    match ty.structure() {
        Structure::Scalar(_) | Structure::Atomic => View::Leaf,
        Structure::Map => View::Fields,
        Structure::Set => View::Items(Items::Set),
        Structure::ListMap { keys, item } => View::Items(Items::Map { list: ty, keys, item }),
        Structure::Deduced if value.is_object() => View::Fields,
        Structure::Deduced => View::Leaf,
    }
}

impl<'s, T: TypeRef<'s>> Items<'s, T> {
    /// The type of items that have parts.
    pub fn item(self) -> Option<T> {
        match self {
            Self::Set => None,
            Self::Map { item, .. } => Some(item),
        }
    }

    /// What tells this item apart, or why nothing does, in upstream's words.
    pub fn element<'a>(self, item: &'a Value) -> Result<PathElement<'a>, String> {
        match self {
            Self::Set => match item {
                Value::Object(_) => Err("associative list without keys has an element that's a map type".to_owned()),
                Value::Array(_) => Err("not supported: associative list with lists as elements".to_owned()),
                Value::Null => Err("associative list without keys has an element that's an explicit null".to_owned()),
                scalar => Ok(PathElement::Value(Cow::Borrowed(scalar))),
            },
            Self::Map { list, keys, .. } => match item {
                Value::Object(fields) => key_element(list, keys, fields),
                Value::Null => Err("associative list with keys may not have a null element".to_owned()),
                _ => Err("associative list with keys may not have non-map elements".to_owned()),
            },
        }
    }
}

fn key_element<'a, 's, T: TypeRef<'s>>(
    list: T,
    keys: Keys<'s>,
    fields: &'a Map<String, Value>,
) -> Result<PathElement<'a>, String> {
    let mut element: Vec<(Cow<'a, str>, Cow<'a, Value>)> = Vec::new();
    for key in keys.iter() {
        if let Some((name, value)) = fields.get_key_value(key) {
            element.push((Cow::Borrowed(name), Cow::Borrowed(value)));
        } else if let Some(default) = list.key_default(key) {
            element.push((Cow::Owned(key.to_owned()), Cow::Owned(default)));
        } else {
            return Err(format!(
                "associative list with keys has an element that omits key field {key:?} (and doesn't have default value)"
            ));
        }
    }
    element.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(PathElement::Key(element))
}

/// The fields of a value that is an object.
pub fn fields(value: Option<&Value>) -> Option<&Map<String, Value>> {
    value.and_then(Value::as_object)
}

/// The items of a value that is a list.
pub fn list(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Whether there is nothing in a value: no fields, no items, null.
pub fn is_hollow(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(fields) => fields.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

/// Walks the fields of two objects at once, in order.
pub fn zip_fields<'a>(
    left: Option<&'a Map<String, Value>>,
    right: Option<&'a Map<String, Value>>,
    mut visit: impl FnMut(&'a str, Option<&'a Value>, Option<&'a Value>),
) {
    let mut left = left.into_iter().flatten().peekable();
    let mut right = right.into_iter().flatten().peekable();
    loop {
        let order = match (left.peek(), right.peek()) {
            (Some((a, _)), Some((b, _))) => a.cmp(b),
            (Some(_), None) => std::cmp::Ordering::Less,
            (None, Some(_)) => std::cmp::Ordering::Greater,
            (None, None) => return,
        };
        let a = if order.is_le() { left.next() } else { None };
        let b = if order.is_ge() { right.next() } else { None };
        if let Some((name, _)) = a.or(b) {
            visit(name, a.map(|(_, value)| value), b.map(|(_, value)| value));
        }
    }
}
