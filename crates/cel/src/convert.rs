//! Conversion between JSON and values: by the declared type, or by the JSON's own form where the type is `dyn`.

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use serde_json::Value as Json;

use crate::{
    error::EvalError,
    library::time,
    types::{DYN, ListKind, Type},
    value::{Key, List, Map, Str, Value},
};

/// One step deep: elements of lists and maps are converted when they are looked at.
pub(crate) fn from_json<'a>(json: &'a Json, ty: &'a Type) -> Result<Value<'a>, EvalError> {
    let mismatch = || EvalError::message(format!("invalid data, expected {ty}, got {}", json_kind(json)));
    Ok(match (json, ty) {
        (Json::Null, _) => Value::Null,
        (Json::Bool(value), Type::Bool | Type::Dyn) => Value::Bool(*value),
        (Json::Number(number), Type::Double) => Value::Double(number.as_f64().ok_or_else(mismatch)?),
        (Json::Number(number), Type::Int | Type::Dyn) => match (number.as_i64(), number.as_u64(), number.as_f64()) {
            (Some(value), ..) => Value::Int(value),
            (None, Some(value), _) if ty.is_dyn() => Value::Uint(value),
            (None, _, Some(value)) if ty.is_dyn() => Value::Double(value),
            (None, _, Some(value)) => Value::Int(crate::value::exact_int(value).ok_or_else(mismatch)?),
            (None, _, None) => return Err(mismatch()),
        },
        (Json::Number(number), Type::Uint) => Value::Uint(number.as_u64().ok_or_else(mismatch)?),
        (Json::String(text), Type::String(_) | Type::Dyn) => Value::String(Str::Borrowed(text)),
        (Json::String(text), Type::Bytes(_)) => Value::Bytes(BASE64.decode(text).map_err(|_| mismatch())?.into()),
        (Json::String(text), Type::Timestamp) => Value::Timestamp(time::parse_date_or_timestamp(text)?),
        (Json::String(text), Type::Duration) => Value::Duration(time::parse_duration(text)?),
        (Json::Array(items), Type::List(list)) => {
            Value::List(List::Json { items, element: &list.element, kind: &list.kind })
        }
        (Json::Array(items), Type::Dyn) => Value::List(List::Json { items, element: &DYN, kind: &ListKind::Atomic }),
        (Json::Object(entries), Type::Object(_) | Type::Map(_) | Type::Dyn) => Value::Map(Map::Json { entries, ty }),
        (json, Type::Optional(inner)) => Value::some(from_json(json, inner)?),
        _ => return Err(mismatch()),
    })
}

fn json_kind(json: &Json) -> &'static str {
    match json {
        Json::Null => "null",
        Json::Bool(_) => "boolean",
        Json::Number(_) => "number",
        Json::String(_) => "string",
        Json::Array(_) => "array",
        Json::Object(_) => "object",
    }
}

/// The largest JSON that a value may become: upstream's limit of a request. Values share their parts, so that a small
/// expression can name far more than it has room for.
const MAX_JSON_BYTES: usize = 3 << 20;

impl Value<'_> {
    /// The value as JSON: what a mutation writes into an object. Times become strings, bytes base64.
    pub fn to_json(&self) -> Result<Json, EvalError> {
        write_json(self, &mut Room(MAX_JSON_BYTES))
    }
}

/// How many bytes may still be written.
struct Room(usize);

impl Room {
    fn take(&mut self, bytes: usize) -> Result<(), EvalError> {
        self.0 = self.0.checked_sub(bytes + 1).ok_or_else(|| EvalError::message("the result is too large"))?;
        Ok(())
    }
}

fn write_json(value: &Value<'_>, room: &mut Room) -> Result<Json, EvalError> {
    room.take(value.as_str().map_or(1, str::len))?;
    Ok(match value {
        Value::Null => Json::Null,
        Value::Bool(value) => Json::Bool(*value),
        Value::Int(value) => (*value).into(),
        Value::Uint(value) => (*value).into(),
        Value::Double(value) => serde_json::Number::from_f64(*value)
            .map(Json::Number)
            .ok_or_else(|| EvalError::message("a number that is not finite has no JSON form"))?,
        Value::String(text) => Json::String(text.to_string()),
        Value::Bytes(bytes) => {
            room.take(bytes.len())?;
            Json::String(BASE64.encode(bytes))
        }
        Value::List(List::Json { items, .. }) => {
            Json::Array(items.iter().map(|item| copy_json(item, room)).collect::<Result<_, _>>()?)
        }
        Value::List(List::Values(values)) => {
            Json::Array(values.iter().map(|value| write_json(value, room)).collect::<Result<_, _>>()?)
        }
        Value::Map(Map::Json { entries, .. }) => copy_object(entries, room)?,
        Value::Map(Map::Values(values) | Map::Nested(values)) => Json::Object(
            values
                .iter()
                .map(|(key, value)| match key {
                    Key::String(name) => {
                        room.take(name.len())?;
                        Ok((name.to_string(), write_json(value, room)?))
                    }
                    _ => Err(EvalError::message("a map with keys other than strings has no JSON form")),
                })
                .collect::<Result<_, _>>()?,
        ),
        Value::Struct(object) => Json::Object(
            object
                .fields
                .iter()
                .map(|(name, value)| Ok((name.to_string(), write_json(value, room)?)))
                .collect::<Result<_, EvalError>>()?,
        ),
        Value::Optional(Some(value)) => write_json(value, room)?,
        Value::Timestamp(_) | Value::Duration(_) | Value::Quantity(_) => Json::String(value.to_string()),
        _ => return Err(EvalError::message(format!("{} has no JSON form", value.type_name()))),
    })
}

fn copy_json(json: &Json, room: &mut Room) -> Result<Json, EvalError> {
    room.take(json.as_str().map_or(1, str::len))?;
    Ok(match json {
        Json::Array(items) => Json::Array(items.iter().map(|item| copy_json(item, room)).collect::<Result<_, _>>()?),
        Json::Object(entries) => copy_object(entries, room)?,
        scalar => scalar.clone(),
    })
}

fn copy_object(entries: &serde_json::Map<String, Json>, room: &mut Room) -> Result<Json, EvalError> {
    let copy = entries.iter().map(|(name, value)| {
        room.take(name.len())?;
        Ok((name.clone(), copy_json(value, room)?))
    });
    Ok(Json::Object(copy.collect::<Result<_, EvalError>>()?))
}
