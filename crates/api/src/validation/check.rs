//! The checks that come back in every kind, as one-liners.

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde::Serialize;
use serde_json::Value;

use super::names;
use crate::field::{Errors, FieldError, Path, Reason};

pub const NEGATIVE: &str = "must be greater than or equal to 0";
pub const NOT_POSITIVE: &str = "must be greater than zero";
pub const IMMUTABLE: &str = "field is immutable";

/// An optional text, absent being the same as empty.
pub fn text(value: &Option<String>) -> &str {
    value.as_deref().unwrap_or_default()
}

/// The items of an optional list.
pub fn list<T>(items: &Option<Vec<T>>) -> &[T] {
    items.as_deref().unwrap_or_default()
}

/// Fills an optional text that is absent or empty.
pub fn fill(value: &mut Option<String>, default: &str) {
    if text(value).is_empty() {
        *value = Some(default.to_owned());
    }
}

/// Fills an optional number that is absent or zero.
pub fn fill_number(value: &mut Option<i32>, default: i32) {
    if value.unwrap_or_default() == 0 {
        *value = Some(default);
    }
}

/// Any object as the value of an error.
pub fn shown<T: Serialize>(value: &T) -> Value {
    serde_json::to_value(value).unwrap_or_default()
}

/// A resourceVersion, or none yet.
pub fn version(value: &str, path: &Path, errors: &mut Errors) {
    if !value.is_empty() && value.parse::<u64>().is_err() {
        errors.push(FieldError::invalid(path, value, "must be a resourceVersion that a server gave"));
    }
}

pub fn present(value: &str, path: &Path, errors: &mut Errors) {
    if value.is_empty() {
        errors.push(FieldError::required(path, ""));
    }
}

/// `value` is one of `supported`.
pub fn one_of(value: &str, supported: &[&str], path: &Path, errors: &mut Errors) {
    if !supported.contains(&value) {
        errors.push(FieldError::not_supported(path, value, supported));
    }
}

/// As [`one_of`], but an empty value is a missing one.
pub fn required_one_of(value: &str, supported: &[&str], path: &Path, errors: &mut Errors) {
    if value.is_empty() {
        errors.push(FieldError::required(path, ""));
    } else {
        one_of(value, supported, path, errors);
    }
}

/// As [`one_of`], for a field that may be absent.
pub fn optional_one_of(value: &Option<String>, supported: &[&str], path: &Path, errors: &mut Errors) {
    if let Some(value) = value {
        one_of(value, supported, path, errors);
    }
}

pub fn non_negative(value: i64, path: &Path, errors: &mut Errors) {
    if value < 0 {
        errors.push(FieldError::invalid(path, value, NEGATIVE));
    }
}

/// A number for which a check of [`names`](super::names) has complaints.
pub fn number(value: i64, complaints: Vec<String>, path: &Path, errors: &mut Errors) {
    errors.extend(complaints.into_iter().map(|complaint| FieldError::invalid(path, value, complaint)));
}

pub fn immutable<T: PartialEq + Serialize>(new: &T, old: &T, path: &Path, errors: &mut Errors) {
    if !same(new, old) {
        errors.push(FieldError::invalid(path, shown(new), IMMUTABLE));
    }
}

/// Whether two values mean the same: an empty list is no list.
pub fn same<T: PartialEq + Serialize>(new: &T, old: &T) -> bool {
    new == old || pruned(shown(new)) == pruned(shown(old))
}

fn pruned(value: Value) -> Value {
    match value {
        Value::Object(fields) => fields
            .into_iter()
            .filter(|(_, field)| !field.is_null() && field.as_array().is_none_or(|list| !list.is_empty()))
            .map(|(name, field)| (name, pruned(field)))
            .collect(),
        Value::Array(items) => items.into_iter().map(pruned).collect(),
        other => other,
    }
}

/// A number of things, where it is given.
pub fn count<N: Into<i64>>(value: Option<N>, path: &Path, errors: &mut Errors) {
    if let Some(value) = value {
        non_negative(value.into(), path, errors);
    }
}

/// An invalid value that is better not shown, mostly because it is the whole object.
pub fn unshown(path: &Path, detail: &str) -> FieldError {
    FieldError { reason: Reason::Invalid, path: path.clone(), value: None, detail: detail.to_owned() }
}

/// A port by number or by name.
pub fn port(port: &IntOrString, path: &Path, errors: &mut Errors) {
    match port {
        IntOrString::Int(port) => number((*port).into(), names::is_valid_port_num(*port), path, errors),
        IntOrString::String(name) => names::refuse(name, path, names::port_name, errors),
    }
}

/// Says which of `items` repeat an earlier one.
pub fn unique<'a>(items: impl IntoIterator<Item = (Path, &'a str)>, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    for (path, item) in items {
        if !seen.insert(item) {
            errors.push(FieldError::duplicate(&path, item));
        }
    }
}

/// `example.com/path`: what names a controller or a manager outside the API.
pub fn domain_prefixed_path(value: &str, path: &Path, errors: &mut Errors) {
    if value.is_empty() {
        errors.push(FieldError::required(path, ""));
        return;
    }
    match value.split_once('/') {
        Some((domain, rest)) if !domain.is_empty() && !rest.is_empty() => {
            names::refuse(domain, path, names::dns1123_subdomain, errors);
            if !rest.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/-._~%!$&'()*+,;=:".contains(&byte)) {
                let words = names::regex("Invalid path", r"[A-Za-z0-9/\-._~%!$&'()*+,;=:]+", &[]);
                errors.push(FieldError::invalid(path, rest, words));
            }
        }
        _ => errors.push(FieldError::invalid(path, value, "must be a domain-prefixed path (such as \"acme.io/foo\")")),
    }
}

/// A union written as optional fields: exactly one of them must be set.
pub struct ExactlyOne<'a> {
    what: &'static str,
    path: &'a Path,
    errors: &'a mut Errors,
    chosen: bool,
}

impl<'a> ExactlyOne<'a> {
    /// `what` names the alternatives: `volume type`.
    pub fn new(what: &'static str, path: &'a Path, errors: &'a mut Errors) -> Self {
        Self { what, path, errors, chosen: false }
    }

    /// One alternative; it is looked into if it is the first that is set.
    pub fn or<T>(self, name: &str, value: &Option<T>, check: impl FnOnce(&T, &Path, &mut Errors)) -> Self {
        let Some(value) = value else { return self };
        let at = self.path.child(name);
        if self.chosen {
            self.errors.push(FieldError::forbidden(&at, format!("may not specify more than 1 {}", self.what)));
        } else {
            check(value, &at, self.errors);
        }
        Self { chosen: true, ..self }
    }

    pub fn required(self) {
        if !self.chosen {
            self.errors.push(FieldError::required(self.path, format!("must specify a {}", self.what)));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_empty_list_is_no_list() {
        assert!(same(&json!({"a": [], "b": {"c": null}}), &json!({"b": {}})));
        assert!(!same(&json!({"emptyDir": {}}), &json!({})));
        assert!(!same(&json!([[]]), &json!([])));
    }

    #[test]
    fn controllers_outside_the_api_have_a_domain() {
        let no_domain = "must be a domain-prefixed path (such as \"acme.io/foo\")";
        let cases = [
            ("example.com/ingress", String::new()),
            ("", "at: Required value".to_owned()),
            ("nginx", format!(r#"at: Invalid value: "nginx": {no_domain}"#)),
            ("example.com/", format!(r#"at: Invalid value: "example.com/": {no_domain}"#)),
        ];
        for (value, expected) in cases {
            let mut errors = Errors::new();
            domain_prefixed_path(value, &Path::new("at"), &mut errors);
            assert_eq!(errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "), expected, "{value}");
        }
    }
}
