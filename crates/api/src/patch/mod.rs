//! The ways to change part of an object: RFC 6902 JSON patch, RFC 7386 merge patch, and the
//! strategic merge patch that knows which lists merge by key.
//!
//! (Server-side apply is not a patch in this sense: it owns fields, and lives elsewhere.)

mod json;
mod strategic;

use serde_json::{Map, Value};

pub use json::json;
pub use strategic::strategic;

/// Why a patch was not applied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatchError {
    /// The patch itself makes no sense: the request is bad.
    #[error("{0}")]
    Malformed(String),
    /// The patch is sound but does not fit this object: the request cannot be processed.
    #[error("{0}")]
    Inapplicable(String),
    /// A JSON patch's `test` failed.
    #[error("{0}")]
    TestFailed(String),
    /// The patch asks for more than we are willing to do.
    #[error("{0}")]
    TooLarge(String),
}

/// RFC 7386: maps merge, null deletes, everything else replaces.
pub fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(changes) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    if let Value::Object(fields) = target {
        for (name, change) in changes {
            if change.is_null() {
                fields.remove(name);
            } else {
                merge(fields.entry(name.as_str()).or_insert(Value::Null), change);
            }
        }
    }
}

#[cfg(test)]
mod tests;
