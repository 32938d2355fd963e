//! The names of a custom kind.

use serde_json::Value;

use super::text;
use crate::{
    field::{Errors, FieldError, Path},
    validation::names::dns1035_label,
};

pub fn validate(names: &Value, path: &Path, errors: &mut Errors) {
    for field in ["plural", "singular"] {
        let name = text(names, field);
        label(name, name, "", &path.child(field), errors);
    }
    for field in ["kind", "listKind"] {
        let name = text(names, field);
        label(
            name,
            &name.to_lowercase(),
            "may have mixed case, but should otherwise match: ",
            &path.child(field),
            errors,
        );
    }
    list(names, "shortNames", path, errors);
    let (kind, list_kind) = (text(names, "kind"), text(names, "listKind"));
    if !kind.is_empty() && kind == list_kind {
        let words = "kind and listKind may not be the same";
        errors.push(FieldError::invalid(&path.child("listKind"), list_kind, words));
    }
    list(names, "categories", path, errors);
}

fn list(names: &Value, field: &str, path: &Path, errors: &mut Errors) {
    for (index, name) in names[field].as_array().into_iter().flatten().filter_map(Value::as_str).enumerate() {
        let complaints = dns1035_label(name);
        if !complaints.is_empty() {
            errors.push(FieldError::invalid(&path.child(field).index(index), name, complaints.join(",")));
        }
    }
}

fn label(shown: &str, name: &str, prefix: &str, path: &Path, errors: &mut Errors) {
    let complaints = if name.is_empty() { Vec::new() } else { dns1035_label(name) };
    if !complaints.is_empty() {
        errors.push(FieldError::invalid(path, shown, format!("{prefix}{}", complaints.join(","))));
    }
}
