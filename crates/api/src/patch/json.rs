//! RFC 6902, with bounds on what a small patch may blow up to.

use json_patch::{PatchErrorKind, PatchOperation};
use serde::Deserialize;
use serde_json::Value;

use super::PatchError;
use crate::decode::MAX_DEPTH;

const MAX_OPERATIONS: usize = 10_000;

/// `copy` can double an object; all copies of one patch together stay below this.
const MAX_COPIED: usize = 3 * 1024 * 1024;

/// An item that is put at the head of a list moves all the others, and a value that is moved is walked through; all
/// operations of one patch together touch no more than this many values.
const MAX_MOVED: usize = 20_000_000;

/// Applies all operations or, on an error, none.
pub fn json(target: &mut Value, patch: &Value) -> Result<(), PatchError> {
    let count = patch.as_array().map_or(0, Vec::len);
    if count > MAX_OPERATIONS {
        return Err(PatchError::TooLarge(format!(
            "The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {count}"
        )));
    }
    let operations = Vec::<PatchOperation>::deserialize(patch)
        .map_err(|error| PatchError::Malformed(format!("error decoding patch: {error}")))?;
    let mut result = target.clone();
    let (mut copied, mut moved) = (0, 0);
    for operation in &operations {
        moved += displaced(&result, operation);
        if moved > MAX_MOVED {
            return Err(PatchError::TooLarge(format!(
                "unable to apply, the operations move more than {MAX_MOVED} list items in all"
            )));
        }
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

/// How many values an operation touches beside the one it names.
fn displaced(target: &Value, operation: &PatchOperation) -> usize {
    let items = |path: &json_patch::jsonptr::Pointer| {
        let parent = path.parent().and_then(|parent| target.pointer(parent.as_str()));
        parent.and_then(Value::as_array).map_or(0, Vec::len)
    };
    let values = |path: &json_patch::jsonptr::Pointer| target.pointer(path.as_str()).map_or(0, size);
    match operation {
        PatchOperation::Add(op) => items(&op.path),
        PatchOperation::Remove(op) => items(&op.path),
        PatchOperation::Move(op) => items(&op.from) + items(&op.path) + values(&op.from),
        PatchOperation::Copy(op) => items(&op.path),
        PatchOperation::Test(op) => size(&op.value),
        PatchOperation::Replace(_) => 0,
    }
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
