//! Secrets: each type promises certain keys.

use std::collections::BTreeMap;

use k8s_openapi::{ByteString, api::core::v1::Secret};
use serde_json::Value;

use super::config_map::SIZE_MAX;
use crate::{
    field::{Errors, FieldError, Path},
    strategy::Rules,
    validation::{
        check::{self, fill, text},
        names,
    },
};

const ACCOUNT_NAME: &str = "kubernetes.io/service-account.name";

/// The kind `Secret`.
pub struct SecretRules;

impl Rules for SecretRules {
    type Object = Secret;

    fn default(secret: &mut Secret) {
        fill(&mut secret.type_, "Opaque");
        // Plain text is a way to write data, not something to keep.
        if let Some(plain) = secret.string_data.take() {
            let data = secret.data.get_or_insert_default();
            data.extend(plain.into_iter().map(|(key, value)| (key, ByteString(value.into_bytes()))));
        }
    }

    fn validate(secret: &Secret, errors: &mut Errors) {
        let none = BTreeMap::new();
        let data = secret.data.as_ref().unwrap_or(&none);
        let path = Path::new("data");
        for key in data.keys() {
            names::refuse(key, &path.key(key), names::config_map_key, errors);
        }
        if data.values().map(|value| value.0.len()).sum::<usize>() > SIZE_MAX {
            errors.push(FieldError::too_long(&path, SIZE_MAX));
        }
        validate_type(secret, data, errors);
    }

    fn validate_update(secret: &Secret, old: &Secret, errors: &mut Errors) {
        check::immutable(&secret.type_, &old.type_, &Path::new("type"), errors);
        if old.immutable == Some(true) {
            let detail = "field is immutable when `immutable` is set";
            if secret.immutable != Some(true) {
                errors.push(FieldError::forbidden(&Path::new("immutable"), detail));
            }
            if secret.data.clone().unwrap_or_default() != old.data.clone().unwrap_or_default() {
                errors.push(FieldError::forbidden(&Path::new("data"), detail));
            }
        }
    }
}

fn validate_type(secret: &Secret, data: &BTreeMap<String, ByteString>, errors: &mut Errors) {
    let path = Path::new("data");
    let mut require = |keys: &[&str]| {
        errors.extend(keys.iter().map(|key| FieldError::required(&path.key(key), "")));
    };
    match text(&secret.type_) {
        "kubernetes.io/service-account-token" => {
            let name = secret.metadata.annotations.as_ref().and_then(|annotations| annotations.get(ACCOUNT_NAME));
            if name.is_none_or(String::is_empty) {
                let at = Path::new("metadata").child("annotations").key(ACCOUNT_NAME);
                errors.push(FieldError::required(&at, ""));
            }
        }
        "kubernetes.io/dockercfg" => validate_json(data, ".dockercfg", errors),
        "kubernetes.io/dockerconfigjson" => validate_json(data, ".dockerconfigjson", errors),
        "kubernetes.io/basic-auth" if !["username", "password"].iter().any(|key| data.contains_key(*key)) => {
            require(&["username", "password"]);
        }
        "kubernetes.io/ssh-auth" if data.get("ssh-privatekey").is_none_or(|key| key.0.is_empty()) => {
            require(&["ssh-privatekey"]);
        }
        "kubernetes.io/tls" => {
            let missing: Vec<_> = ["tls.crt", "tls.key"].into_iter().filter(|key| !data.contains_key(*key)).collect();
            require(&missing);
        }
        _ => {}
    }
}

fn validate_json(data: &BTreeMap<String, ByteString>, key: &str, errors: &mut Errors) {
    let path = Path::new("data").key(key);
    match data.get(key).map(|value| serde_json::from_slice::<serde_json::Map<String, Value>>(&value.0)) {
        None => errors.push(FieldError::required(&path, "")),
        Some(Err(error)) => {
            errors.push(FieldError::invalid(&path, "<secret contents redacted>", error.to_string()));
        }
        Some(Ok(_)) => {}
    }
}
