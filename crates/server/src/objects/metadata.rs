//! Metadata that the server writes, on every kind alike.

use jiff::Timestamp;
use mainstay_api::descriptor::{Descriptor, StatusRule, Subresource};
use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::{
    api::Target,
    http::status::{ApiError, ApiResult},
};

/// Letters and digits that cannot form words, as upstream picks them.
const SUFFIX_ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
const SUFFIX_LENGTH: usize = 5;
const LONGEST_GENERATED: usize = 63;

/// What carries over from the stored object when an update does not mention it.
const CARRIED: [&str; 6] =
    ["uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "namespace", "name"];

pub fn string_field<'a>(object: &'a Value, field: &str) -> Option<&'a str> {
    object["metadata"][field].as_str()
}

fn fields(object: &mut Value) -> &mut Map<String, Value> {
    if !object["metadata"].is_object() {
        object["metadata"] = Value::Object(Map::new());
    }
    object["metadata"].as_object_mut().expect("just made an object")
}

/// Puts the object where the URL says, or refuses if it names another place.
pub fn set_namespace(target: &Target, object: &mut Value) -> ApiResult<()> {
    let wanted = target.namespace.as_deref().filter(|_| target.d.namespaced());
    match (string_field(object, "namespace").filter(|ns| !ns.is_empty()), wanted) {
        (Some(given), Some(wanted)) if given != wanted => Err(ApiError::bad_request(format!(
            "the namespace of the provided object does not match the namespace sent on the request ({given} != {wanted})"
        ))),
        (_, Some(wanted)) => {
            let wanted = json!(wanted);
            fields(object).insert("namespace".into(), wanted);
            Ok(())
        }
        (Some(_), None) | (None, None) => Ok(()),
    }
}

/// Refuses an object whose name is not the one in the URL.
pub fn check_name(target: &Target, object: &mut Value) -> ApiResult<()> {
    match string_field(object, "name").filter(|name| !name.is_empty()) {
        Some(name) if name != target.name => Err(ApiError::bad_request(format!(
            "the name of the object ({name}) does not match the name on the URL ({})",
            target.name
        ))),
        Some(_) => Ok(()),
        None => Err(ApiError::bad_request(format!(
            "the name of the object (based on URL) was undeterminable: metadata.name must be {:?}",
            target.name
        ))),
    }
}

/// Sets what the server gives a new object: name, uid, creationTimestamp.
pub fn initialize(d: &Descriptor, object: &mut Value, now: Timestamp) {
    let prefix = string_field(object, "generateName").unwrap_or_default().to_owned();
    let unnamed = string_field(object, "name").is_none_or(str::is_empty);
    let metadata = fields(object);
    if unnamed && !prefix.is_empty() {
        metadata.insert("name".into(), json!(generate_name(&prefix)));
    }
    for field in ["selfLink", "deletionTimestamp", "deletionGracePeriodSeconds", "generation", "resourceVersion"] {
        metadata.remove(field);
    }
    metadata.insert("uid".into(), json!(Uuid::new_v4()));
    metadata.insert("creationTimestamp".into(), json!(now.to_string()));
    if !d.namespaced() && metadata.get("namespace").is_some_and(|ns| ns == "") {
        metadata.remove("namespace");
    }
}

pub fn generate_name(prefix: &str) -> String {
    let room = LONGEST_GENERATED - SUFFIX_LENGTH;
    let end = prefix.char_indices().map(|(at, c)| at + c.len_utf8()).take_while(|end| *end <= room).last().unwrap_or(0);
    let suffix = (0..SUFFIX_LENGTH).map(|_| SUFFIX_ALPHABET[fastrand::usize(..SUFFIX_ALPHABET.len())] as char);
    prefix[..end].chars().chain(suffix).collect()
}

/// Keeps what an update left out but may not change.
pub fn carry_over(object: &mut Value, old: &Value) {
    let metadata = fields(object);
    metadata.remove("selfLink");
    for field in CARRIED {
        let absent = metadata.get(field).is_none_or(|v| v.is_null() || v == "");
        match (&old["metadata"][field], absent) {
            (Value::Null, _) => {
                if field.starts_with("deletion") {
                    metadata.remove(field); // deletion is asked for by DELETE alone
                }
            }
            (value, true) => {
                metadata.insert(field.into(), value.clone());
            }
            (_, false) => {}
        }
    }
    match &old["metadata"]["generation"] {
        Value::Null => metadata.remove("generation"),
        generation => metadata.insert("generation".into(), generation.clone()),
    };
}

/// Counts up `generation` if what is desired differs.
pub fn count_generation(d: &Descriptor, object: &mut Value, old: &Value) {
    if d.generation && desired_fields(d, object) != desired_fields(d, old) {
        let next = old["metadata"]["generation"].as_i64().unwrap_or(0) + 1;
        fields(object).insert("generation".into(), json!(next));
    }
}

/// Everything but metadata, and status where that is not the author's.
fn desired_fields<'a>(d: &Descriptor, object: &'a Value) -> Vec<(&'a String, &'a Value)> {
    let keep = |name: &str| name != "metadata" && (name != "status" || d.status == StatusRule::Absent);
    object.as_object().into_iter().flatten().filter(|(name, _)| keep(name)).collect()
}

pub fn finalizers(object: &Value) -> impl Iterator<Item = &str> {
    object["metadata"]["finalizers"].as_array().into_iter().flatten().filter_map(Value::as_str)
}

/// Whether nothing keeps an object that is being deleted.
pub fn is_removable(d: &Descriptor, object: &Value) -> bool {
    let metadata = &object["metadata"];
    let being_deleted = metadata["deletionTimestamp"].is_string();
    let grace_over = metadata["deletionGracePeriodSeconds"].as_i64().unwrap_or(0) == 0;
    being_deleted && grace_over && has_no_finalizers(d, object)
}

/// No finalizers, those in the spec of a namespace included.
pub fn has_no_finalizers(d: &Descriptor, object: &Value) -> bool {
    let namespace_held = d.has_subresource(Subresource::Finalize)
        && object["spec"]["finalizers"].as_array().is_some_and(|finalizers| !finalizers.is_empty());
    finalizers(object).next().is_none() && !namespace_held
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_names_fit_a_label() {
        let name = generate_name("web-");
        assert!(name.starts_with("web-") && name.len() == 9, "{name}");
        assert_eq!(generate_name(&"x".repeat(100)).len(), 63);
        assert!(generate_name(&"é".repeat(100)).len() <= 63);
    }

    #[test]
    fn an_update_keeps_identity_and_cannot_start_a_deletion() {
        let old = json!({"metadata": {"name": "a", "uid": "u", "creationTimestamp": "t", "generation": 3}});
        let mut new = json!({"metadata": {"name": "a", "generation": 9, "deletionTimestamp": "now"}});
        carry_over(&mut new, &old);
        assert_eq!(new["metadata"], json!({"name": "a", "uid": "u", "creationTimestamp": "t", "generation": 3}));
    }

    #[test]
    fn finalizers_and_grace_hold_an_object() {
        let object = |extra: Value| {
            let mut object = json!({"metadata": {"deletionTimestamp": "t"}});
            object["metadata"].as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
            object
        };
        let registry = mainstay_api::registry::Registry::builtin();
        let [pods, namespaces] = ["pods", "namespaces"].map(|plural| registry.find("", "v1", plural).unwrap());
        assert!(is_removable(pods, &object(json!({}))));
        assert!(!is_removable(pods, &object(json!({"finalizers": ["x/y"]}))));
        assert!(!is_removable(pods, &object(json!({"deletionGracePeriodSeconds": 30}))));
        assert!(!is_removable(pods, &json!({"metadata": {}})));
        let namespace = json!({"kind": "Namespace", "metadata": {"deletionTimestamp": "t"}, "spec": {"finalizers": ["kubernetes"]}});
        assert!(!is_removable(namespaces, &namespace));
    }
}
