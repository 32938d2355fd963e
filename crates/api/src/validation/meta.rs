//! What every object's metadata must satisfy.
//!
//! Works on the JSON object: metadata is checked on every write of every kind, most of which
//! have nothing else to check, so nothing is converted and nothing is allocated unless there is
//! something to complain about.

use serde_json::{Map, Value};

use super::{labels, names, own_annotations};
use crate::{
    descriptor::NameRule,
    field::{Errors, FieldError, Path},
};

/// The finalizers through which a deletion chooses what happens to dependents.
const ORPHAN: &str = "orphan";
const FOREGROUND: &str = "foregroundDeletion";

const MANAGER_MAX: usize = 128;
const SUBRESOURCE_MAX: usize = 256;

/// Judges the metadata of a new object. Its name has been generated already where it is to be.
pub fn validate(object: &Value, namespaced: bool, rule: NameRule, errors: &mut Errors) {
    let meta = Meta::new(object);
    let path = path();
    let generate_name = meta.text("generateName");
    if !generate_name.is_empty() {
        let check = |value: &str| names::object_name(rule, value, true);
        names::refuse(generate_name, &path.child("generateName"), check, errors);
    }
    match meta.text("name") {
        "" => errors.push(FieldError::required(&path.child("name"), "name or generateName is required")),
        name => names::refuse(name, &path.child("name"), |value| names::object_name(rule, value, false), errors),
    }
    match (namespaced, meta.text("namespace")) {
        (true, "") => errors.push(FieldError::required(&path.child("namespace"), "")),
        (true, namespace) => names::refuse(namespace, &path.child("namespace"), names::dns1123_label, errors),
        (false, "") => {}
        (false, _) => errors.push(FieldError::forbidden(&path.child("namespace"), "not allowed on this type")),
    }
    let generation = meta.number("generation");
    if generation < 0 {
        errors.push(FieldError::invalid(&path.child("generation"), generation, "must be greater than or equal to 0"));
    }
    validate_common(&meta, &path, errors);
}

/// Judges the metadata of an object that replaces `old`. Whether `resourceVersion` is the right
/// one is not looked at: whoever writes has compared it before.
pub fn validate_update(object: &Value, old: &Value, errors: &mut Errors) {
    let (meta, old) = (Meta::new(object), Meta::new(old));
    let path = path();
    if old.has("deletionTimestamp") {
        validate_no_new_finalizers(&meta, &old, &path, errors);
    }
    if meta.number("generation") < old.number("generation") {
        let generation = meta.number("generation");
        errors.push(FieldError::invalid(&path.child("generation"), generation, "must not be decremented"));
    }
    const IMMUTABLE: [&str; 6] =
        ["name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"];
    for field in IMMUTABLE {
        let (new, old) = (meta.value(field), old.value(field));
        if new != old {
            errors.push(FieldError::invalid(&path.child(field), new.clone(), "field is immutable"));
        }
    }
    validate_common(&meta, &path, errors);
}

fn validate_common(meta: &Meta, path: &Path, errors: &mut Errors) {
    labels::check_labels(meta.texts("labels"), &path.child("labels"), errors);
    labels::check_annotations(meta.texts("annotations"), &path.child("annotations"), errors);
    own_annotations::check(meta.texts("annotations"), &path.child("annotations"), errors);
    validate_owners(meta.items("ownerReferences"), &path.child("ownerReferences"), errors);
    validate_finalizers(meta.items("finalizers"), &path.child("finalizers"), errors);
    validate_managed_fields(meta.items("managedFields"), &path.child("managedFields"), errors);
}

fn validate_owners(owners: &[Value], path: &Path, errors: &mut Errors) {
    let mut controller = None;
    for owner in owners {
        let text = |field: &str| owner[field].as_str().unwrap_or_default();
        let (api_version, kind, name) = (text("apiVersion"), text("kind"), text("name"));
        let version = api_version.rsplit('/').next().unwrap_or_default();
        if version.is_empty() {
            errors.push(FieldError::invalid(&path.child("apiVersion"), api_version, "version must not be empty"));
        }
        for field in ["kind", "name", "uid"] {
            if text(field).is_empty() {
                errors.push(FieldError::invalid(&path.child(field), "", "must not be empty"));
            }
        }
        if api_version == "v1" && kind == "Event" {
            errors.push(FieldError::invalid(path, owner.clone(), "/v1, Kind=Event is disallowed from being an owner"));
        }
        if owner["controller"] == true {
            let this = format!("{kind}/{name}");
            match &controller {
                None => controller = Some(this),
                Some(first) => errors.push(FieldError::invalid(
                    path,
                    owners.to_vec(),
                    format!(
                        "Only one reference can have Controller set to true. Found \"true\" in references for {first} \
                         and {this}"
                    ),
                )),
            }
        }
    }
}

fn validate_finalizers(finalizers: &[Value], path: &Path, errors: &mut Errors) {
    for finalizer in finalizers.iter().filter_map(Value::as_str) {
        names::refuse(finalizer, path, names::qualified_name, errors);
    }
    let has = |name: &str| finalizers.iter().any(|finalizer| finalizer == name);
    if has(ORPHAN) && has(FOREGROUND) {
        errors.push(FieldError::invalid(
            path,
            finalizers.to_vec(),
            format!("finalizer {ORPHAN} and {FOREGROUND} cannot be both set"),
        ));
    }
}

/// Finalizers of built-in kinds carry a domain, but for the few that belong to the API itself and those that the kind allows.
/// Custom resources are free to use bare names.
pub fn validate_finalizer_domains(object: &Value, allowed: &[&str], errors: &mut Errors) {
    for (i, finalizer) in Meta::new(object).items("finalizers").iter().filter_map(Value::as_str).enumerate() {
        let is_known = matches!(finalizer, "kubernetes" | ORPHAN | FOREGROUND) || allowed.contains(&finalizer);
        if !finalizer.contains('/') && !is_known {
            errors.push(FieldError::invalid(
                &path().child("finalizers").index(i),
                finalizer,
                "name is neither a standard finalizer name nor is it fully qualified",
            ));
        }
    }
}

fn validate_no_new_finalizers(meta: &Meta, old: &Meta, path: &Path, errors: &mut Errors) {
    let known = old.items("finalizers");
    let mut added: Vec<_> = meta.items("finalizers").iter().filter(|name| !known.contains(name)).collect();
    added.sort_by_key(|name| name.as_str());
    added.dedup();
    if !added.is_empty() {
        let added: Vec<_> = added.iter().map(|name| name.to_string()).collect();
        errors.push(FieldError::forbidden(
            &path.child("finalizers"),
            format!(
                "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
                added.join(", ")
            ),
        ));
    }
}

fn validate_managed_fields(entries: &[Value], path: &Path, errors: &mut Errors) {
    for (i, entry) in entries.iter().enumerate() {
        let text = |field: &str| entry[field].as_str().unwrap_or_default();
        let at = |field: &str| path.index(i).child(field);
        match text("operation") {
            "Apply" | "Update" => {}
            other => errors.push(FieldError::invalid(&at("operation"), other, "must be `Apply` or `Update`")),
        }
        match text("fieldsType") {
            "" | "FieldsV1" => {}
            other => errors.push(FieldError::invalid(&at("fieldsType"), other, "must be `FieldsV1`")),
        }
        validate_field_manager(text("manager"), &at("manager"), errors);
        if text("subresource").len() > SUBRESOURCE_MAX {
            errors.push(FieldError::too_long(&at("subresource"), SUBRESOURCE_MAX));
        }
    }
}

/// The name under which a client owns fields.
pub fn validate_field_manager(manager: &str, path: &Path, errors: &mut Errors) {
    if manager.len() > MANAGER_MAX {
        errors.push(FieldError::too_long(path, MANAGER_MAX));
    }
    if manager.chars().any(char::is_control) {
        errors.push(FieldError::invalid(path, manager, "should only contain printable characters"));
    }
}

fn path() -> Path {
    Path::new("metadata")
}

/// Lenient access to `metadata`; the schema has been checked before.
struct Meta<'a>(Option<&'a Map<String, Value>>);

impl<'a> Meta<'a> {
    fn new(object: &'a Value) -> Self {
        Meta(object.get("metadata").and_then(Value::as_object))
    }

    fn value(&self, field: &str) -> &'a Value {
        match self.0.and_then(|meta| meta.get(field)) {
            // An empty string is how a client spells absence.
            Some(value) if value != "" => value,
            _ => &Value::Null,
        }
    }

    fn has(&self, field: &str) -> bool {
        !self.value(field).is_null()
    }

    fn text(&self, field: &str) -> &'a str {
        self.value(field).as_str().unwrap_or_default()
    }

    fn number(&self, field: &str) -> i64 {
        self.value(field).as_i64().unwrap_or_default()
    }

    fn items(&self, field: &str) -> &'a [Value] {
        self.value(field).as_array().map_or(&[], Vec::as_slice)
    }

    fn texts(&self, field: &str) -> impl Iterator<Item = (&'a str, &'a str)> {
        let map = self.value(field).as_object();
        map.into_iter().flatten().map(|(key, value)| (key.as_str(), value.as_str().unwrap_or_default()))
    }
}

#[cfg(test)]
mod tests;
