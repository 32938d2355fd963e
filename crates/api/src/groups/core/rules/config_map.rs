//! ConfigMaps.
//!
//! A strategy of its own rather than rules on the typed kind: they can be a megabyte, and there
//! is nothing to complete, so they are judged where they lie.

use serde_json::{Map, Value};

use crate::{
    field::{Errors, FieldError, Path},
    strategy::Strategy,
    validation::{meta, names},
};

/// What the values of a ConfigMap or Secret may weigh together.
pub(super) const SIZE_MAX: usize = 1024 * 1024;

/// The kind `ConfigMap`.
pub struct ConfigMaps;

impl Strategy for ConfigMaps {
    fn create(&self, object: &mut Value) -> Errors {
        let mut errors = Errors::new();
        validate(object, &mut errors);
        errors
    }

    fn update(&self, object: &mut Value, old: &Value) -> Errors {
        let mut errors = Errors::new();
        if old["immutable"] == true {
            validate_frozen(object, old, &mut errors);
        }
        validate(object, &mut errors);
        errors
    }
}

fn validate(object: &Value, errors: &mut Errors) {
    meta::validate_finalizer_domains(object, &[], errors);
    let none = Map::new();
    let data = object["data"].as_object().unwrap_or(&none);
    let binary = object["binaryData"].as_object().unwrap_or(&none);
    let mut size = 0;
    for (key, value) in data {
        names::refuse(key, &Path::new("data").key(key), names::config_map_key, errors);
        if binary.contains_key(key) {
            let detail = "duplicate of key present in binaryData";
            errors.push(FieldError::invalid(&Path::new("data").key(key), key.as_str(), detail));
        }
        size += value.as_str().map_or(0, str::len);
    }
    for (key, value) in binary {
        let at = Path::new("binaryData").key(key);
        names::refuse(key, &at, names::config_map_key, errors);
        match decoded_len(value.as_str().unwrap_or_default()) {
            Some(length) => size += length,
            None => errors.push(FieldError::type_invalid(&at, value.clone(), "illegal base64 data")),
        }
    }
    if size > SIZE_MAX {
        errors.push(FieldError::too_long(&Path::ROOT, SIZE_MAX));
    }
}

/// Once immutable, a ConfigMap stays so and stays as it is.
fn validate_frozen(object: &Value, old: &Value, errors: &mut Errors) {
    let detail = "field is immutable when `immutable` is set";
    if object["immutable"] != true {
        errors.push(FieldError::forbidden(&Path::new("immutable"), detail));
    }
    let content = |object: &Value, field: &str| object[field].as_object().cloned().unwrap_or_default();
    for field in ["data", "binaryData"] {
        if content(object, field) != content(old, field) {
            errors.push(FieldError::forbidden(&Path::new(field), detail));
        }
    }
}

/// The length of base64 text once decoded; `None` if it is not base64.
fn decoded_len(text: &str) -> Option<usize> {
    let body = text.strip_suffix("==").or_else(|| text.strip_suffix('=')).unwrap_or(text);
    let alphabet = |b: u8| b.is_ascii_alphanumeric() || b == b'+' || b == b'/';
    (text.len().is_multiple_of(4) && body.bytes().all(alphabet)).then_some(body.len() * 3 / 4)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn base64_is_measured_without_decoding_it() {
        for (text, length) in
            [("", Some(0)), ("YQ==", Some(1)), ("YWI=", Some(2)), ("YWJj", Some(3)), ("YQ", None), ("Y%==", None)]
        {
            assert_eq!(decoded_len(text), length, "{text}");
        }
    }

    #[test]
    fn a_config_map_may_weigh_a_mebibyte() {
        let mut fits = json!({"data": {"a": "x".repeat(SIZE_MAX - 3)}, "binaryData": {"b": "YWJj"}});
        assert!(ConfigMaps.create(&mut fits).is_empty());
        let mut bursts = json!({"data": {"a": "x".repeat(SIZE_MAX)}, "binaryData": {"b": "YWJj"}});
        let errors = ConfigMaps.create(&mut bursts);
        assert_eq!(errors.iter().next().unwrap().to_string(), "Too long: may not be more than 1048576 bytes");
    }
}
