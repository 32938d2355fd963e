//! Stored bytes of objects, and how they are served.
//!
//! An object is stored as JSON without its `resourceVersion`, which is the revision that wrote
//! it. Serving it means copying the bytes and putting the version in at a known place; nothing is
//! parsed or serialised again however many clients read it. What selectors look at is parsed
//! once and cached beside the entry.
//!
//! Bytes that are not a JSON object (damage, or another writer on a shared etcd) are an internal error of every request
//! that needs them, with the key in the log; they are never served as an object without fields.

use std::sync::OnceLock;

use bytes::Bytes;
use mainstay_api::descriptor::Descriptor;
use mainstay_store::{Entry, Revision};
use parking_lot::Mutex;
use serde::{Serialize, de::IgnoredAny};
use serde_json::{Map, Value};

use crate::{
    http::status::{ApiError, ApiResult},
    objects::json_prune::{self, FieldPath},
    storage,
};

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

/// Labels and selectable fields of an object: what selectors compare.
#[derive(Debug, Default)]
pub struct SelectorFields {
    pub labels: Box<[(Box<str>, Box<str>)]>,
    /// Values of the descriptor's selectable fields, in its order.
    pub fields: Box<[Box<str>]>,
}

impl SelectorFields {
    pub fn label(&self, key: &str) -> Option<&str> {
        self.labels.iter().find(|(k, _)| &**k == key).map(|(_, v)| &**v)
    }

    pub fn from_object(d: &Descriptor, object: &Value) -> Self {
        let labels = object["metadata"]["labels"].as_object();
        let labels = labels.into_iter().flatten().filter_map(|(k, v)| Some((k.as_str().into(), v.as_str()?.into())));
        let fields = d.selectable.iter().map(|field| Box::from(&*field.value_in(object)));
        Self { labels: labels.collect(), fields: fields.collect() }
    }

    /// The same, from stored bytes that need no conversion.
    fn from_stored(d: &Descriptor, json: &[u8]) -> Self {
        let mut paths: Vec<FieldPath<'_>> = Vec::with_capacity(1 + 2 * d.selectable.len());
        paths.push(&["metadata", "labels"]);
        let steps = d.selectable.iter().flat_map(|field| [field.path.steps(), field.or.steps()]);
        let steps: Vec<Vec<&str>> = steps.filter(|path| !path.is_empty()).collect();
        paths.extend(steps.iter().map(Vec::as_slice));
        Self::from_object(d, &json_prune::pruned(json, &paths))
    }
}

/// What is cached beside an entry. Valid for the stored form, so only where no conversion is needed.
struct CachedForm {
    /// Why the stored bytes are no object, if they are not.
    wire: Result<Wire, String>,
    selector_fields: OnceLock<SelectorFields>,
    /// As the newest version of a custom kind serves it, where that is not how it is stored.
    converted: Mutex<Option<(u64, Wire)>>,
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

    /// From stored bytes. They are read through once, as nobody can say who wrote them; those of another writer are put
    /// into our order.
    fn from_stored(value: &Bytes) -> serde_json::Result<Self> {
        match find_splice(value) {
            Some(splice) => {
                serde_json::from_slice::<IgnoredAny>(value)?;
                Ok(Self { json: value.clone(), splice })
            }
            None => {
                serde_json::from_slice::<Map<String, Value>>(value).map(|fields| Self::encode(&Value::Object(fields)))
            }
        }
    }

    /// An entry as `d` serves it.
    pub fn from_entry(d: &Descriptor, entry: &Entry) -> ApiResult<Self> {
        match d.conversion {
            Some(_) => converted_form(d, entry),
            None => cached_form(entry).wire.clone().map_err(|why| unreadable(entry, &why)),
        }
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

    pub fn with_version(&self, revision: Revision) -> Bytes {
        let mut out = Vec::with_capacity(self.len(revision));
        self.write(revision, &mut out);
        out.into()
    }
}

/// The object of an entry in its served form, without `resourceVersion`.
pub fn parse(d: &Descriptor, entry: &Entry) -> ApiResult<Value> {
    // What a webhook converted is not asked for again.
    if is_by_webhook(d) {
        let wire = converted_form(d, entry)?;
        return serde_json::from_slice(&wire.json).map_err(|error| unreadable(entry, &error.to_string()));
    }
    convert(d, entry)
}

fn is_by_webhook(d: &Descriptor) -> bool {
    d.conversion.is_some() && d.custom.as_ref().is_some_and(|custom| custom.conversion_webhook.is_some())
}

fn convert(d: &Descriptor, entry: &Entry) -> ApiResult<Value> {
    let fields = serde_json::from_slice::<Map<String, Value>>(&entry.value);
    let mut object = Value::Object(fields.map_err(|error| unreadable(entry, &error.to_string()))?);
    if let Some(conversion) = &d.conversion {
        conversion.try_to_served(&mut object).map_err(ApiError::internal)?;
        object["apiVersion"] = Value::String(d.api_version());
    }
    Ok(object)
}

/// Logs that stored bytes are no object, and tells the client no more than which they are.
pub fn unreadable(entry: &Entry, why: &str) -> Box<ApiError> {
    let reason = storage::unreadable_reason(&entry.value);
    let why = reason.as_deref().unwrap_or(why);
    tracing::error!(key = &*entry.key, revision = entry.modified.0, error = why, "stored object cannot be parsed");
    ApiError::internal(format!("stored object {:?} cannot be parsed: {why}", entry.key))
}

/// The bytes to store for an object in its served form.
pub fn to_stored(d: &Descriptor, object: &Value) -> ApiResult<Wire> {
    Ok(match &d.conversion {
        None => Wire::encode(object),
        Some(conversion) => {
            let mut stored = object.clone();
            conversion.try_to_stored(&mut stored).map_err(ApiError::internal)?;
            stored["apiVersion"] = Value::String(d.stored_api_version());
            Wire::encode(&stored)
        }
    })
}

/// Whether an entry is known in the form that `d` serves.
pub fn is_converted(d: &Descriptor, entry: &Entry) -> bool {
    let id = d.custom.as_ref().map(|custom| custom.id);
    cached_form(entry).converted.lock().as_ref().is_some_and(|(known, _)| Some(*known) == id)
}

/// Keeps the form in which `d` serves an entry.
pub fn remember_converted(d: &Descriptor, entry: &Entry, wire: Wire) {
    if let Some(custom) = &d.custom {
        *cached_form(entry).converted.lock() = Some((custom.id, wire));
    }
}

/// Runs `look` on what selectors see of an entry.
pub fn with_selector_fields<T>(d: &Descriptor, entry: &Entry, look: impl FnOnce(&SelectorFields) -> T) -> ApiResult<T> {
    if d.conversion.is_some() {
        return Ok(look(&SelectorFields::from_object(d, &parse(d, entry)?)));
    }
    // Which fields of a custom kind are selectable changes with its definition: nothing is cached that depends on it.
    if d.custom.is_some() && !d.selectable.is_empty() {
        return Ok(look(&SelectorFields::from_stored(d, &entry.value)));
    }
    match &cached_form(entry).wire {
        Ok(_) => Ok(look(selector_fields(d, entry))),
        Err(why) => Err(unreadable(entry, why)),
    }
}

/// What selectors see of an entry that is stored as it is served; nothing if it cannot be parsed.
pub fn selector_fields<'a>(d: &Descriptor, entry: &'a Entry) -> &'a SelectorFields {
    cached_form(entry).selector_fields.get_or_init(|| SelectorFields::from_stored(d, &entry.value))
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

fn cached_form(entry: &Entry) -> &CachedForm {
    entry.memo.get_or_init(|| CachedForm {
        wire: Wire::from_stored(&entry.value).map_err(|error| error.to_string()),
        selector_fields: OnceLock::new(),
        converted: Mutex::default(),
    })
}

/// An entry that is stored in another form than `d` serves. Of custom kinds the last result is kept beside the entry: after a change of a
/// schema all of their objects are converted, and most look the same as before, so that nothing is held twice.
fn converted_form(d: &Descriptor, entry: &Entry) -> ApiResult<Wire> {
    let Some(custom) = &d.custom else { return Ok(Wire::encode(&parse(d, entry)?)) };
    let form = cached_form(entry);
    if let Some((_, wire)) = form.converted.lock().as_ref().filter(|(id, _)| *id == custom.id) {
        return Ok(wire.clone());
    }
    let mut wire = Wire::encode(&convert(d, entry)?);
    if let Ok(stored) = form.wire.as_ref()
        && stored.json == wire.json
    {
        wire = stored.clone();
    }
    *form.converted.lock() = Some((custom.id, wire.clone()));
    Ok(wire)
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
        let served = wire.with_version(Revision(1234));
        assert_eq!(served.len(), wire.len(Revision(1234)));
        let back: Value = serde_json::from_slice(&served).unwrap();
        let mut expected = object;
        expected["metadata"]["resourceVersion"] = json!("1234");
        assert_eq!(back, expected);
    }

    #[test]
    fn the_splice_of_stored_bytes_is_found_again() {
        let wire = Wire::encode(&json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": {}}));
        assert_eq!(Wire::from_stored(wire.json()).unwrap().splice, wire.splice);
    }

    #[test]
    fn bytes_of_another_writer_are_reordered() {
        let foreign = Bytes::from_static(
            br#"{"spec":{"metadata":{"a":1}},"metadata":{"name":"x"},"kind":"Pod","apiVersion":"v1"}"#,
        );
        let served: Value =
            serde_json::from_slice(&Wire::from_stored(&foreign).unwrap().with_version(Revision(7))).unwrap();
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
    fn bytes_that_are_no_object_are_an_error() {
        let whole = Wire::encode(&json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "x"}, "spec": {}}));
        let torn = whole.json().slice(..whole.json().len() - 1);
        for bytes in [torn, Bytes::new(), Bytes::from_static(b"k8s\0\n"), Bytes::from_static(b"null")] {
            assert!(Wire::from_stored(&bytes).is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn lengths_are_exact() {
        for n in [0, 9, 10, 99, 100, u64::MAX] {
            assert_eq!(decimal_len(n), n.to_string().len());
        }
    }
}
