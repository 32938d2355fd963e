//! The checks that come back in every kind, as one-liners.

use serde::Serialize;
use serde_json::Value;

use crate::field::{Errors, FieldError, Path};

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
    if new != old {
        errors.push(FieldError::invalid(path, shown(new), IMMUTABLE));
    }
}
