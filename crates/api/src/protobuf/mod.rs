//! Objects that come as protobuf: what clients written in Go send for the built-in kinds.
//!
//! The body is an envelope (a magic prefix, then apiVersion, kind and the message). A message is read
//! along the schema table into the JSON that the same client would have sent: the table knows the
//! types, `numbers.txt` (written by `tools/generate-field-numbers`) the numbers. From there on nobody
//! can tell in which form an object came. Answers are never protobuf; clients take JSON as well.
//!
//! Fields that are not pointers in Go are always on the wire, as zeros when unset; JSON leaves those
//! out, and so do we, unless the field is required. Fields with unknown numbers are skipped: a newer
//! client may know more than we do, and protobuf means it so.

mod numbers;
mod stored;
mod wire;

use std::cell::Cell;

use base64::{Engine, engine::general_purpose::STANDARD};
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use self::{
    numbers::{Message, Numbers, Slot},
    wire::{Payload, Wire},
};
use crate::schema::{Definition, MAX_ITEMS, Schema, Shape, Type};

/// What every protobuf body begins with.
pub const MAGIC: &[u8] = b"k8s\0";

/// No built-in kind nests deeper; an object that does is not meant well.
const MAX_DEPTH: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtobufError {
    #[error("provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]")]
    NoMagic,
    #[error("unexpected EOF")]
    CutShort,
    #[error("proto: a field has a wire type that its number does not allow")]
    WrongType,
    #[error("proto: a string is not valid UTF-8")]
    NotText,
    #[error("proto: messages nest too deeply")]
    TooDeep,
    #[error("proto: more than {MAX_ITEMS} messages in lists")]
    TooManyItems,
    #[error("proto: a field holds JSON that cannot be parsed")]
    BadJson,
    #[error("the kind has no protobuf form here; send it as JSON")]
    UnknownKind,
}

type Read<T> = Result<T, ProtobufError>;

/// Decodes a body into the object it means.
pub fn decode(body: &[u8]) -> Read<Value> {
    let unknown = Unknown::parse(body)?;
    let version = unknown.version;
    unknown.read_as(version)
}

/// Decodes what upstream's API server stored, which may be of a version that is served no longer.
pub fn decode_stored(value: &[u8]) -> Read<Value> {
    let unknown = Unknown::parse(value)?;
    let (version, kind) = (unknown.version, unknown.kind);
    let mut object = unknown.read_as(stored::readable_version(version, kind))?;
    stored::complete(version, kind, &mut object);
    Ok(object)
}

/// The envelope, upstream's `runtime.Unknown`.
struct Unknown<'a> {
    version: &'a str,
    kind: &'a str,
    raw: &'a [u8],
}

impl<'a> Unknown<'a> {
    fn parse(body: &'a [u8]) -> Read<Self> {
        let envelope = body.strip_prefix(MAGIC).ok_or(ProtobufError::NoMagic)?;
        let (mut version, mut kind, mut raw) = ("", "", &[][..]);
        for field in Wire::new(envelope) {
            match field? {
                (1, Payload::Bytes(meta)) => {
                    for field in Wire::new(meta) {
                        match field? {
                            (1, payload) => version = text(payload)?,
                            (2, payload) => kind = text(payload)?,
                            _ => {}
                        }
                    }
                }
                (2, Payload::Bytes(bytes)) => raw = bytes,
                _ => {}
            }
        }
        Ok(Self { version, kind, raw })
    }

    /// The object, of a version whose fields have the same numbers.
    fn read_as(&self, version: &str) -> Read<Value> {
        let (kind, raw) = (self.kind, self.raw);
        let schema = Schema::builtin();
        let (group, short) = version.split_once('/').unwrap_or(("", version));
        let definition = schema.of_kind(group, short, kind).ok_or(ProtobufError::UnknownKind)?;
        let reader = Reader { schema, numbers: Numbers::builtin(), items: Cell::new(0) };
        let mut object = Map::new();
        object.insert("apiVersion".to_owned(), version.into());
        object.insert("kind".to_owned(), kind.into());
        let message = reader.numbers.message(definition.name).ok_or(ProtobufError::UnknownKind)?;
        reader.message(definition, message, raw, &mut object, 0)?;
        Ok(Value::Object(object))
    }
}

struct Reader<'a> {
    schema: &'a Schema,
    numbers: &'a Numbers,
    /// Messages in lists so far: each takes many times what it has on the wire.
    items: Cell<usize>,
}

impl Reader<'_> {
    /// Reads the fields of a message into an object of this definition.
    fn message(
        &self,
        definition: &Definition,
        message: &Message,
        bytes: &[u8],
        into: &mut Map<String, Value>,
        depth: usize,
    ) -> Read<()> {
        if depth > MAX_DEPTH {
            return Err(ProtobufError::TooDeep);
        }
        for field in Wire::new(bytes) {
            let (number, payload) = field?;
            match message.slot(number) {
                None => {}
                Some(Slot::Inlined(inner)) => {
                    if let Some(inner) = self.numbers.message(inner) {
                        self.message(definition, inner, bytes_of(payload)?, into, depth + 1)?;
                    }
                }
                Some(Slot::Field { name, pointer }) => {
                    let Some(field) = definition.field(name) else { continue };
                    self.field(&field.ty, *pointer || field.required, name, payload, into, depth + 1)?;
                }
            }
        }
        Ok(())
    }

    fn field(
        &self,
        ty: &Type,
        keep_zero: bool,
        name: &str,
        payload: Payload<'_>,
        into: &mut Map<String, Value>,
        depth: usize,
    ) -> Read<()> {
        match ty {
            Type::List(item) => {
                let list = into.entry(name).or_insert_with(|| Value::Array(Vec::new()));
                let Value::Array(list) = list else { return Err(ProtobufError::WrongType) };
                if matches!(**item, Type::Definition(_)) {
                    self.items.set(self.items.get() + 1);
                    if self.items.get() > MAX_ITEMS {
                        return Err(ProtobufError::TooManyItems);
                    }
                }
                match (&**item, payload) {
                    (Type::Int32 | Type::Int64 | Type::Boolean, Payload::Bytes(packed)) => {
                        for number in wire::packed(packed) {
                            list.extend(self.value(item, Payload::Varint(number?), depth)?);
                        }
                    }
                    (item, payload) => list.extend(self.value(item, payload, depth)?),
                }
            }
            Type::Map(item) => {
                let map = into.entry(name).or_insert_with(|| Value::Object(Map::new()));
                let Value::Object(map) = map else { return Err(ProtobufError::WrongType) };
                let (key, value) = self.entry(item, bytes_of(payload)?, depth)?;
                map.insert(key, value);
            }
            ty => {
                if let Some(value) = self.value(ty, payload, depth)?
                    && (keep_zero || !is_zero(&value))
                {
                    into.insert(name.to_owned(), value);
                }
            }
        }
        Ok(())
    }

    /// An entry of a map: a message of key and value, both absent when empty.
    fn entry(&self, item: &Type, bytes: &[u8], depth: usize) -> Read<(String, Value)> {
        let (mut key, mut value) = (String::new(), None);
        for field in Wire::new(bytes) {
            match field? {
                (1, payload) => key = text(payload)?.to_owned(),
                (2, payload) => {
                    value = match item {
                        // Lists cannot be values of a map in protobuf, so they are wrapped.
                        Type::List(inner) => {
                            let mut items = Vec::new();
                            for field in Wire::new(bytes_of(payload)?) {
                                if let (1, payload) = field? {
                                    items.extend(self.value(inner, payload, depth)?);
                                }
                            }
                            Some(Value::Array(items))
                        }
                        item => self.value(item, payload, depth)?,
                    }
                }
                _ => {}
            }
        }
        let empty = || match item {
            Type::List(_) => json!([]),
            Type::Int32 | Type::Int64 => json!(0),
            Type::Boolean => json!(false),
            Type::String | Type::Bytes => json!(""),
            _ => Value::Null,
        };
        Ok((key, value.unwrap_or_else(empty)))
    }

    /// One value; `None` for a time that is not set.
    fn value(&self, ty: &Type, payload: Payload<'_>, depth: usize) -> Read<Option<Value>> {
        Ok(Some(match ty {
            Type::String => json!(text(payload)?),
            Type::Bytes => json!(STANDARD.encode(bytes_of(payload)?)),
            Type::Boolean => json!(varint(payload)? != 0),
            // Negative numbers come sign-extended.
            Type::Int32 => json!(varint(payload)? as i32),
            Type::Int64 => json!(varint(payload)? as i64),
            Type::Double => match payload {
                Payload::Fixed64(bits) => json!(f64::from_bits(bits)),
                _ => return Err(ProtobufError::WrongType),
            },
            Type::Any => embedded_json(bytes_of(payload)?)?,
            Type::List(_) | Type::Map(_) => return Err(ProtobufError::WrongType),
            Type::Definition(id) => return self.defined(self.schema.get(*id), bytes_of(payload)?, depth),
        }))
    }

    fn defined(&self, definition: &Definition, bytes: &[u8], depth: usize) -> Read<Option<Value>> {
        Ok(Some(match &definition.shape {
            Shape::Object => {
                let mut object = Map::new();
                if let Some(message) = self.numbers.message(definition.name) {
                    self.message(definition, message, bytes, &mut object, depth)?;
                }
                // Numbers that the newer version does not use, so that nothing is lost by looking.
                if definition.name == stored::INGRESS_BACKEND
                    && let Some(service) = stored::beta_backend(bytes)?
                {
                    object.insert("service".to_owned(), service);
                }
                Value::Object(object)
            }
            Shape::Quantity => json!(first_text(bytes)?),
            Shape::IntOrString => int_or_string(bytes)?,
            Shape::Time | Shape::MicroTime => return time(bytes, definition.shape == Shape::MicroTime),
            Shape::Any | Shape::Either(..) => embedded_json(bytes)?,
        }))
    }
}

fn is_zero(value: &Value) -> bool {
    match value {
        Value::String(text) => text.is_empty(),
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::Bool(on) => !on,
        Value::Null | Value::Array(_) | Value::Object(_) => false,
    }
}

fn bytes_of(payload: Payload<'_>) -> Read<&[u8]> {
    match payload {
        Payload::Bytes(bytes) => Ok(bytes),
        _ => Err(ProtobufError::WrongType),
    }
}

fn text(payload: Payload<'_>) -> Read<&str> {
    std::str::from_utf8(bytes_of(payload)?).map_err(|_| ProtobufError::NotText)
}

fn varint(payload: Payload<'_>) -> Read<u64> {
    match payload {
        Payload::Varint(number) => Ok(number),
        _ => Err(ProtobufError::WrongType),
    }
}

/// Field 1 of a message that wraps one string.
fn first_text(bytes: &[u8]) -> Read<&str> {
    let mut found = "";
    for field in Wire::new(bytes) {
        if let (1, payload) = field? {
            found = text(payload)?;
        }
    }
    Ok(found)
}

/// Field 1 of a message that wraps a JSON document.
fn embedded_json(bytes: &[u8]) -> Read<Value> {
    let mut raw = &[][..];
    for field in Wire::new(bytes) {
        if let (1, payload) = field? {
            raw = bytes_of(payload)?;
        }
    }
    if raw.is_empty() {
        return Ok(Value::Null);
    }
    crate::decode::json(raw).map(|decoded| decoded.value).map_err(|_| ProtobufError::BadJson)
}

fn int_or_string(bytes: &[u8]) -> Read<Value> {
    let (mut is_text, mut number, mut string) = (false, 0, "");
    for field in Wire::new(bytes) {
        match field? {
            (1, payload) => is_text = varint(payload)? == 1,
            (2, payload) => number = varint(payload)? as i32,
            (3, payload) => string = text(payload)?,
            _ => {}
        }
    }
    Ok(if is_text { json!(string) } else { json!(number) })
}

fn time(bytes: &[u8], micros: bool) -> Read<Option<Value>> {
    let (mut seconds, mut nanos) = (0, 0);
    for field in Wire::new(bytes) {
        match field? {
            (1, payload) => seconds = varint(payload)? as i64,
            (2, payload) => nanos = varint(payload)? as i32,
            _ => {}
        }
    }
    // Go's zero time is the first second of year 1; that and an empty message are "not set".
    let Ok(time) = Timestamp::new(seconds, nanos) else { return Ok(None) };
    if bytes.is_empty() || seconds <= -62_135_596_800 {
        return Ok(None);
    }
    let text = time.strftime("%Y-%m-%dT%H:%M:%S").to_string();
    Ok(Some(match micros {
        true => json!(format!("{text}.{:06}Z", time.subsec_nanosecond().rem_euclid(1_000_000_000) / 1000)),
        false => json!(format!("{text}Z")),
    }))
}

#[cfg(test)]
mod tests;
