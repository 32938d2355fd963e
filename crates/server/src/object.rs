//! Objects between store and wire.
//!
//! An object is stored as JSON without its `resourceVersion`, which is the revision that wrote
//! it. Serving it means copying the bytes and putting the version in at a known place; nothing is
//! parsed or serialised again however many clients read it. What selectors look at is parsed
//! once and kept beside the entry.

use std::sync::OnceLock;

use bytes::Bytes;
use mainstay_api::descriptor::Descriptor;
use mainstay_store::{Entry, Revision};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::prune::{self, Way};

const METADATA: &[u8] = b"\"metadata\":{";
const VERSION_OPEN: &[u8] = b"\"resourceVersion\":\"";
const VERSION_CLOSE: &[u8] = b"\",";

/// An object's JSON without `resourceVersion`, and where that belongs.
#[derive(Clone, Debug)]
pub struct Wire {
    json: Bytes,
    /// Just behind the brace that opens `metadata`.
    splice: usize,
}

/// What selectors compare.
#[derive(Debug, Default)]
pub struct Picked {
    pub labels: Box<[(Box<str>, Box<str>)]>,
    /// Values of the descriptor's selectable fields, in its order.
    pub fields: Box<[Box<str>]>,
}

impl Picked {
    pub fn label(&self, key: &str) -> Option<&str> {
        self.labels.iter().find(|(k, _)| &**k == key).map(|(_, v)| &**v)
    }

    pub fn of(d: &Descriptor, object: &Value) -> Self {
        let labels = object["metadata"]["labels"].as_object();
        let labels = labels.into_iter().flatten().filter_map(|(k, v)| Some((k.as_str().into(), v.as_str()?.into())));
        let fields = d.selectable.iter().map(|field| Box::from(&*field.of(object)));
        Self { labels: labels.collect(), fields: fields.collect() }
    }

    /// The same, from stored bytes that need no conversion.
    fn of_stored(d: &Descriptor, json: &[u8]) -> Self {
        let mut ways: Vec<Way<'_>> = Vec::with_capacity(1 + 2 * d.selectable.len());
        ways.push(&["metadata", "labels"]);
        for field in d.selectable {
            ways.extend([field.path, field.or].into_iter().filter(|way| !way.is_empty()));
        }
        Self::of(d, &prune::pruned(json, &ways))
    }
}

/// What is kept beside an entry. Valid for the stored form, so only where no conversion is needed.
struct Kept {
    wire: Wire,
    picked: OnceLock<Picked>,
}

impl Wire {
    /// Encodes an object for the store: kind, apiVersion and metadata first, no `resourceVersion`.
    pub fn encode(object: &Value) -> Self {
        let empty = Map::new();
        let fields = object.as_object().unwrap_or(&empty);
        let mut out = Vec::with_capacity(1024);
        out.push(b'{');
        for name in ["kind", "apiVersion"] {
            if let Some(value) = fields.get(name) {
                field(&mut out, name, value);
                out.push(b',');
            }
        }
        out.extend_from_slice(METADATA);
        let splice = out.len();
        let metadata = fields.get("metadata").and_then(Value::as_object).unwrap_or(&empty);
        for (name, value) in metadata.iter().filter(|(name, _)| *name != "resourceVersion") {
            if out.len() > splice {
                out.push(b',');
            }
            field(&mut out, name, value);
        }
        out.push(b'}');
        for (name, value) in fields {
            if !matches!(name.as_str(), "kind" | "apiVersion" | "metadata") {
                out.push(b',');
                field(&mut out, name, value);
            }
        }
        out.push(b'}');
        Self { json: out.into(), splice }
    }

    /// The stored bytes of an entry, found again. Bytes of another writer are put into our order.
    fn stored(value: &Bytes) -> Self {
        match find_splice(value) {
            Some(splice) => Self { json: value.clone(), splice },
            None => Self::encode(&serde_json::from_slice(value).unwrap_or(Value::Null)),
        }
    }

    /// An entry as `d` serves it.
    pub fn of(d: &Descriptor, entry: &Entry) -> Self {
        if d.conversion.is_some() { Self::encode(&value_of(d, entry)) } else { kept(entry).wire.clone() }
    }

    pub fn json(&self) -> &Bytes {
        &self.json
    }

    /// Length of what [`Wire::write`] writes.
    pub fn len(&self, revision: Revision) -> usize {
        self.json.len() + VERSION_OPEN.len() + VERSION_CLOSE.len() + decimal_len(revision.0)
    }

    pub fn write(&self, revision: Revision, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.json[..self.splice]);
        self.write_version(revision, out);
        out.extend_from_slice(&self.json[self.splice..]);
    }

    /// Writes only kind, apiVersion and metadata, as a `PartialObjectMetadata` of that version.
    pub fn write_partial(&self, api_version: &str, revision: Revision, out: &mut Vec<u8>) {
        out.extend_from_slice(br#"{"kind":"PartialObjectMetadata","apiVersion":""#);
        out.extend_from_slice(api_version.as_bytes());
        out.extend_from_slice(br#"","metadata":{"#);
        self.write_version(revision, out);
        out.extend_from_slice(&self.json[self.splice..self.splice + metadata_len(&self.json[self.splice..])]);
        out.extend_from_slice(b"}}");
    }

    fn write_version(&self, revision: Revision, out: &mut Vec<u8>) {
        out.extend_from_slice(VERSION_OPEN);
        out.extend_from_slice(itoa::Buffer::new().format(revision.0).as_bytes());
        out.extend_from_slice(VERSION_CLOSE);
    }

    pub fn at(&self, revision: Revision) -> Bytes {
        let mut out = Vec::with_capacity(self.len(revision));
        self.write(revision, &mut out);
        out.into()
    }
}

/// The object of an entry in its served form, without `resourceVersion`.
pub fn value_of(d: &Descriptor, entry: &Entry) -> Value {
    let mut object = serde_json::from_slice(&entry.value).unwrap_or(Value::Null);
    if let Some(conversion) = d.conversion {
        conversion.to_served(&mut object);
        object["apiVersion"] = Value::String(d.api_version());
    }
    object
}

/// The bytes to store for an object in its served form.
pub fn to_stored(d: &Descriptor, object: &Value) -> Wire {
    match d.conversion {
        None => Wire::encode(object),
        Some(conversion) => {
            let mut stored = object.clone();
            conversion.to_stored(&mut stored);
            stored["apiVersion"] = Value::String(d.stored_api_version());
            Wire::encode(&stored)
        }
    }
}

/// Runs `look` on what selectors see of an entry.
pub fn with_picked<T>(d: &Descriptor, entry: &Entry, look: impl FnOnce(&Picked) -> T) -> T {
    if d.conversion.is_some() {
        return look(&Picked::of(d, &value_of(d, entry)));
    }
    look(picked(d, entry))
}

/// What selectors see of an entry that is stored as it is served.
pub fn picked<'a>(d: &Descriptor, entry: &'a Entry) -> &'a Picked {
    kept(entry).picked.get_or_init(|| Picked::of_stored(d, &entry.value))
}

pub fn set_version(object: &mut Value, revision: Revision) {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.insert("resourceVersion".to_owned(), Value::String(revision.to_string()));
    }
}

pub fn clear_version(object: &mut Value) {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("resourceVersion");
    }
}

fn kept(entry: &Entry) -> &Kept {
    entry.memo.get_or_init(|| Kept { wire: Wire::stored(&entry.value), picked: OnceLock::new() })
}

fn field(out: &mut Vec<u8>, name: &str, value: &Value) {
    let mut write = |part: &dyn Fn(&mut serde_json::Serializer<&mut Vec<u8>>) -> serde_json::Result<()>| {
        part(&mut serde_json::Serializer::new(&mut *out)).expect("writing JSON to memory cannot fail");
    };
    write(&|s| name.serialize(s));
    out.push(b':');
    serde_json::to_writer(out, value).expect("writing JSON to memory cannot fail");
}

/// Where `resourceVersion` goes, if the bytes start the way [`Wire::encode`] starts them.
fn find_splice(json: &[u8]) -> Option<usize> {
    let head = &json[..json.len().min(512)];
    let at = head.windows(METADATA.len()).position(|window| window == METADATA)?;
    let ours = json.first() == Some(&b'{') && !head[1..at].iter().any(|b| matches!(b, b'{' | b'[' | b'\\'));
    let nothing_inside = json.get(at + METADATA.len()) == Some(&b'}');
    let versioned = json[at..].starts_with(b"\"metadata\":{\"resourceVersion\"");
    (ours && !nothing_inside && !versioned).then_some(at + METADATA.len())
}

/// Length of the members of an object up to the brace that closes it.
fn metadata_len(members: &[u8]) -> usize {
    let (mut depth, mut quoted, mut escaped) = (0usize, false, false);
    for (at, byte) in members.iter().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            _ if quoted => {}
            b'{' => depth += 1,
            b'}' if depth == 0 => return at,
            b'}' => depth -= 1,
            _ => {}
        }
    }
    members.len()
}

fn decimal_len(number: u64) -> usize {
    number.checked_ilog10().unwrap_or(0) as usize + 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_version_is_spliced_into_untouched_bytes() {
        let object = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "{\"metadata\":{"},
            "metadata": {"name": "x", "resourceVersion": "stale", "labels": {"l": "v"}},
        });
        let wire = Wire::encode(&object);
        assert!(wire.json().starts_with(br#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"#));
        let served = wire.at(Revision(1234));
        assert_eq!(served.len(), wire.len(Revision(1234)));
        let back: Value = serde_json::from_slice(&served).unwrap();
        let mut expected = object;
        expected["metadata"]["resourceVersion"] = json!("1234");
        assert_eq!(back, expected);
    }

    #[test]
    fn the_splice_of_stored_bytes_is_found_again() {
        let wire = Wire::encode(&json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": {}}));
        assert_eq!(Wire::stored(wire.json()).splice, wire.splice);
    }

    #[test]
    fn bytes_of_another_writer_are_reordered() {
        let foreign = Bytes::from_static(
            br#"{"spec":{"metadata":{"a":1}},"metadata":{"name":"x"},"kind":"Pod","apiVersion":"v1"}"#,
        );
        let served: Value = serde_json::from_slice(&Wire::stored(&foreign).at(Revision(7))).unwrap();
        assert_eq!(served["metadata"], json!({"name": "x", "resourceVersion": "7"}));
        assert_eq!(served["spec"]["metadata"], json!({"a": 1}));
    }

    #[test]
    fn the_metadata_alone_is_cut_out_whole() {
        let metadata = json!({"name": "x", "annotations": {"a": "}\\\"{", "b": "{"}, "labels": {"l": "v"}});
        let wire = Wire::encode(&json!({"kind": "Pod", "apiVersion": "v1", "metadata": metadata, "spec": {"a": {}}}));
        let mut out = Vec::new();
        wire.write_partial("meta.k8s.io/v1", Revision(5), &mut out);
        let mut expected =
            json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata});
        expected["metadata"]["resourceVersion"] = json!("5");
        assert_eq!(serde_json::from_slice::<Value>(&out).unwrap(), expected);
    }

    #[test]
    fn lengths_are_exact() {
        for n in [0, 9, 10, 99, 100, u64::MAX] {
            assert_eq!(decimal_len(n), n.to_string().len());
        }
    }
}
