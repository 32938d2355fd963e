//! Objects in upstream's protobuf storage form, as the JSON that we would have stored.

use bytes::Bytes;
use mainstay_api::{
    protobuf::{self, ProtobufError},
    registry::Registry,
};
use serde_json::Value;

use crate::objects::object::Wire;

pub fn to_json(registry: &Registry, stored: &[u8]) -> Result<Bytes, ProtobufError> {
    let mut object = protobuf::decode_stored(stored)?;
    let text = |field: &str| object[field].as_str().unwrap_or_default().to_owned();
    let (version, kind) = (text("apiVersion"), text("kind"));
    let (group, short) = version.split_once('/').unwrap_or(("", &version));
    // Upstream may store another version than we do; each is served in both.
    if let Some(d) = registry.find_kind(group, short, &kind)
        && let Some(conversion) = d.conversion
    {
        conversion.to_stored(&mut object);
        object["apiVersion"] = Value::String(d.stored_api_version());
    }
    Ok(Wire::encode(&object).json().clone())
}
