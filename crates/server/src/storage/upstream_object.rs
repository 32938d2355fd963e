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
    if let Some(d) = registry.find_kind(group, short, &kind) {
        // It may lack what has a default since. Upstream, too, completes what it reads.
        d.strategy.default_stored(&mut object);
        // Upstream may store another version than we do; each is served in both.
        if let Some(conversion) = &d.conversion {
            conversion.to_stored(&mut object);
            object["apiVersion"] = Value::String(d.stored_api_version());
        }
    }
    Ok(Wire::encode(&object).json().clone())
}

#[cfg(test)]
mod tests {
    use base64::{Engine, prelude::BASE64_STANDARD};
    use mainstay_api::schema::Schema;
    use serde_json::json;

    use super::*;
    use crate::storage::encryption_config::NamedKey;
    use crate::storage::provider::{ENVELOPE, ProviderKey};

    /// Every kind as kube-apiserver 1.20.2 stored it and as it served it, with the keys of those that it encrypted. Written by
    /// `tests/upstream/alternate --record`.
    const RECORDED: &str = include_str!("testdata/upstream-1.20.jsonl");

    fn served(registry: &Registry, api_version: &str, object: &Value) -> Value {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let d = registry.find_kind(group, version, object["kind"].as_str().unwrap()).unwrap();
        let mut object = object.clone();
        object["apiVersion"] = json!(api_version);
        object["metadata"].as_object_mut().unwrap().remove("resourceVersion");
        if let Some(conversion) = &d.conversion {
            conversion.to_stored(&mut object);
            conversion.to_served(&mut object);
            object["apiVersion"] = json!(api_version);
        }
        d.strategy.default_stored(&mut object);
        let strange = Schema::builtin().conform(&d.schema, &mut object).unwrap();
        assert!(strange.iter().all(|path| path.contains("volumeClaimTemplates")), "{}: {strange:?}", d.kind);
        without_empty(object)
    }

    /// Upstream writes some fields that are empty, and leaves others out.
    fn without_empty(value: Value) -> Value {
        match value {
            Value::Object(fields) => {
                let fields = fields.into_iter().map(|(name, value)| (name, without_empty(value)));
                let is_empty =
                    |value: &Value| matches!(value, Value::Null) || *value == json!({}) || *value == json!([]);
                fields.filter(|(name, value)| !is_empty(value) && name != "kind").collect()
            }
            Value::Array(items) => items.into_iter().map(without_empty).collect(),
            other => other,
        }
    }

    #[test]
    fn every_kind_that_upstream_stored_reads_as_upstream_serves_it() {
        let registry = Registry::builtin();
        let (mut key, mut kinds, mut sealed) = (None, Vec::new(), 0);
        for line in RECORDED.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()) {
            if let Some(provider) = line["provider"].as_str() {
                let named = NamedKey { name: "shared".into(), secret: line["key"].as_str().unwrap().into() };
                let make = if provider == "secretbox" { ProviderKey::secretbox } else { ProviderKey::aes_gcm };
                key = Some(make(&named).unwrap());
                continue;
            }
            let mut stored = BASE64_STANDARD.decode(line["stored"].as_str().unwrap()).unwrap();
            if stored.starts_with(ENVELOPE) {
                stored = key.as_ref().unwrap().open(line["key"].as_str().unwrap(), &stored).unwrap();
                sealed += 1;
            }
            let (expected, version) = (&line["served"], line["apiVersion"].as_str().unwrap());
            let kind = expected["kind"].as_str().unwrap();
            let json = to_json(&registry, &stored).unwrap_or_else(|error| panic!("{kind}: {error}"));
            let mut object: Value = serde_json::from_slice(&json).unwrap();
            let (group, short) = version.split_once('/').unwrap_or(("", version));
            let d = registry.find_kind(group, short, kind).unwrap();
            assert_eq!(object["apiVersion"], d.stored_api_version(), "{kind}");
            if let Some(conversion) = &d.conversion {
                conversion.to_served(&mut object);
            }
            assert_eq!(served(&registry, version, &object), served(&registry, version, expected), "{kind}");
            kinds.push(kind.to_owned());
        }
        assert!(kinds.len() > 40 && sealed == 2, "{sealed} sealed of {kinds:?}");
    }

    #[test]
    fn a_kind_that_has_no_place_here_is_an_error() {
        let psp = b"k8s\0\n#\n\x0epolicy/v1beta1\x12\x11PodSecurityPolicy\x12\x00";
        assert_eq!(to_json(&Registry::builtin(), psp), Err(ProtobufError::UnknownKind));
    }
}
