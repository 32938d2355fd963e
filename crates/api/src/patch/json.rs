//! RFC 6902, with bounds on what a small patch may blow up to.

use json_patch::{PatchErrorKind, PatchOperation};
use serde::Deserialize;
use serde_json::Value;

use super::PatchError;
use crate::decode::MAX_DEPTH;

const MAX_OPERATIONS: usize = 10_000;

/// `copy` can double an object; all copies of one patch together stay below this.
const MAX_COPIED: usize = 3 * 1024 * 1024;

/// Applies all operations or, on an error, none.
pub fn json(target: &mut Value, patch: &Value) -> Result<(), PatchError> {
    let operations = Vec::<PatchOperation>::deserialize(patch)
        .map_err(|error| PatchError::Malformed(format!("error decoding patch: {error}")))?;
    if operations.len() > MAX_OPERATIONS {
        return Err(PatchError::TooLarge(format!(
            "The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {}",
            operations.len()
        )));
    }
    let mut result = target.clone();
    let mut copied = 0;
    for operation in &operations {
        let (path, value) = match operation {
            PatchOperation::Add(op) => (&op.path, Some(&op.value)),
            PatchOperation::Replace(op) => (&op.path, Some(&op.value)),
            PatchOperation::Copy(op) => (&op.path, result.pointer(op.from.as_str())),
            PatchOperation::Move(op) => (&op.path, result.pointer(op.from.as_str())),
            PatchOperation::Remove(op) => (&op.path, None),
            PatchOperation::Test(op) => (&op.path, None),
        };
        if let Some(value) = value {
            if path.tokens().count() + depth(value) > MAX_DEPTH {
                return Err(PatchError::TooLarge("exceeded max depth".to_owned()));
            }
            if matches!(operation, PatchOperation::Copy(_)) {
                copied += size(value);
                if copied > MAX_COPIED {
                    return Err(PatchError::TooLarge(format!(
                        "unable to copy, the accumulated size increase of copy is {copied}, exceeding the limit \
                         {MAX_COPIED}"
                    )));
                }
            }
        }
        json_patch::patch_unsafe(&mut result, std::slice::from_ref(operation)).map_err(|error| match error.kind {
            PatchErrorKind::TestFailed => PatchError::TestFailed(format!("testing value {} failed", error.path)),
            _ => PatchError::Inapplicable(describe(operation, &error.path.to_string())),
        })?;
    }
    *target = result;
    Ok(())
}

fn describe(operation: &PatchOperation, path: &str) -> String {
    match operation {
        PatchOperation::Add(_) => format!("add operation does not apply: doc is missing path: {path:?}: missing value"),
        PatchOperation::Remove(_) => {
            format!("remove operation does not apply: doc is missing path: {path:?}: missing value")
        }
        PatchOperation::Replace(_) => {
            format!("replace operation does not apply: doc is missing path: {path:?}: missing value")
        }
        PatchOperation::Move(op) => format!("move operation does not apply: doc is missing from path: {}", op.from),
        PatchOperation::Copy(op) => format!("copy operation does not apply: doc is missing from path: {}", op.from),
        PatchOperation::Test(_) => format!("testing path {path:?} failed: missing value"),
    }
}

fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(fields) => 1 + fields.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

/// About as many bytes as the value takes when written.
fn size(value: &Value) -> usize {
    match value {
        Value::Array(items) => 2 + items.iter().map(|item| size(item) + 1).sum::<usize>(),
        Value::Object(fields) => 2 + fields.iter().map(|(name, value)| name.len() + 4 + size(value)).sum::<usize>(),
        Value::String(text) => text.len() + 2,
        Value::Null | Value::Bool(_) | Value::Number(_) => 4,
    }
}
