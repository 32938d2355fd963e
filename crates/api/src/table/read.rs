//! Reading an object field by field. Whatever is missing or of an odd type reads as empty: a table
//! is for people, and one strange field must not hide the others.

use jiff::Timestamp;
use serde_json::{Map, Value};

use super::duration;

pub const NONE: &str = "<none>";
pub const UNSET: &str = "<unset>";

/// The string at a JSON pointer, or nothing.
pub fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// The same with words for nothing.
pub fn text_or<'a>(object: &'a Value, pointer: &str, or: &'a str) -> &'a str {
    Some(text(object, pointer)).filter(|text| !text.is_empty()).unwrap_or(or)
}

pub fn int(object: &Value, pointer: &str) -> i64 {
    object.pointer(pointer).and_then(Value::as_i64).unwrap_or_default()
}

pub fn flag(object: &Value, pointer: &str) -> bool {
    object.pointer(pointer).and_then(Value::as_bool).unwrap_or_default()
}

pub fn list<'a>(object: &'a Value, pointer: &str) -> &'a [Value] {
    object.pointer(pointer).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

pub fn map<'a>(object: &'a Value, pointer: &str) -> Option<&'a Map<String, Value>> {
    object.pointer(pointer).and_then(Value::as_object)
}

/// How many entries a map has.
pub fn size(object: &Value, pointer: &str) -> usize {
    map(object, pointer).map_or(0, Map::len)
}

/// A field that is there and not null.
pub fn present<'a>(object: &'a Value, pointer: &str) -> Option<&'a Value> {
    object.pointer(pointer).filter(|value| !value.is_null())
}

/// The strings of a list, each at `pointer` of its item (`""` for the item itself).
pub fn texts<'a>(items: &'a [Value], pointer: &'a str) -> impl Iterator<Item = &'a str> {
    items.iter().map(move |item| text(item, pointer))
}

/// A scalar as text: strings without quotes, and numbers, as in `IntOrString` and quantities.
pub fn scalar(object: &Value, pointer: &str) -> Option<String> {
    match object.pointer(pointer)? {
        Value::String(text) => Some(text.clone()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
        other => Some(other.to_string()),
    }
}

/// The status of the condition of a type: `True`, `False`, `Unknown`.
pub fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a str> {
    let conditions = list(object, "/status/conditions");
    conditions.iter().find(|c| text(c, "/type") == kind).map(|c| text(c, "/status"))
}

pub fn deleting(object: &Value) -> bool {
    present(object, "/metadata/deletionTimestamp").is_some()
}

pub fn name(object: &Value) -> Value {
    text(object, "/metadata/name").into()
}

pub fn age(object: &Value, now: Timestamp) -> Value {
    duration::since(object.pointer("/metadata/creationTimestamp"), now).into()
}

/// Joined with commas; `or` when there is nothing to join.
pub fn join<'a>(items: impl IntoIterator<Item = &'a str>, or: &str) -> String {
    let joined = items.into_iter().collect::<Vec<_>>().join(",");
    if joined.is_empty() { or.to_owned() } else { joined }
}

/// The first three, and how many more there are.
pub fn first_three(items: &[String]) -> String {
    let shown = items[..items.len().min(3)].join(",");
    if items.len() > 3 { format!("{shown} + {} more...", items.len() - 3) } else { shown }
}
