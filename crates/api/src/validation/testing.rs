//! Rules under test: manifests in, complete manifests and error texts out.

use serde_json::Value;

use crate::{
    field::Errors,
    strategy::{Rules, Strategy, Typed},
};

fn texts(errors: Errors) -> Vec<String> {
    errors.iter().map(ToString::to_string).collect()
}

/// `base` with the fields of `change` on top; a null removes.
pub fn with(base: &Value, change: Value) -> Value {
    let mut changed = base.clone();
    json_patch::merge(&mut changed, &change);
    changed
}

/// A manifest as it is stored; it must be free of errors.
#[track_caller]
pub fn completed<R: Rules>(mut manifest: Value) -> Value {
    let errors = Typed::<R>::new().create(&mut manifest);
    assert_eq!(texts(errors), Vec::<String>::new());
    manifest
}

/// Asserts what becomes of a manifest, and that completing it again changes nothing.
#[track_caller]
pub fn assert_completes<R: Rules>(manifest: Value, expected: Value) {
    let stored = completed::<R>(manifest);
    assert_eq!(stored, expected, "\n got {stored:#}\nwant {expected:#}");
    let mut again = stored.clone();
    let errors = Typed::<R>::new().update(&mut again, &stored);
    assert_eq!(texts(errors), Vec::<String>::new());
    assert_eq!(again, stored);
}

#[track_caller]
pub fn assert_refused<R: Rules>(mut manifest: Value, expected: &[&str]) {
    let errors = Typed::<R>::new().create(&mut manifest);
    assert_eq!(texts(errors), expected, "{manifest:#}");
}

/// Asserts the errors of `change` on top of the completed `base`.
#[track_caller]
pub fn assert_update<R: Rules>(base: &Value, change: Value, expected: &[&str]) {
    let old = completed::<R>(base.clone());
    let mut new = with(&old, change);
    let errors = Typed::<R>::new().update(&mut new, &old);
    assert_eq!(texts(errors), expected, "{new:#}");
}

/// As [`assert_update`], through `/status`.
#[track_caller]
pub fn assert_status<R: Rules>(base: &Value, change: Value, expected: &[&str]) {
    let old = completed::<R>(base.clone());
    let mut new = with(&old, change);
    let errors = Typed::<R>::new().update_status(&mut new, &old);
    assert_eq!(texts(errors), expected, "{new:#}");
}
