//! Defaulting and validation of CustomResourceDefinitions.
//!
//! On the JSON rather than on the generated type: a schema is copied as it was written, so that `maximum: 10` does not come back as `10.0`, and
//! a definition of a megabyte is not built twice.

mod conversion;
mod names;
mod versions;

use serde_json::{Map, Value, json};

use crate::{
    crd::status::{self, Approval},
    field::{Errors, FieldError, Path},
    strategy::Strategy,
    validation::{check, meta, names as name_rules},
};

pub struct CustomResourceDefinitions;

impl Strategy for CustomResourceDefinitions {
    fn create(&self, definition: &mut Value) -> Errors {
        let mut errors = Errors::new();
        default(definition);
        set_stored_versions(definition);
        meta::validate_finalizer_domains(definition, &[], &mut errors);
        validate(definition, &mut errors);
        validate_approval(definition, None, &mut errors);
        errors
    }

    fn update(&self, definition: &mut Value, old: &Value) -> Errors {
        let mut errors = Errors::new();
        default(definition);
        set_stored_versions(definition);
        meta::validate_finalizer_domains(definition, &[], &mut errors);
        validate(definition, &mut errors);
        validate_approval(definition, Some(old), &mut errors);
        validate_unchanged(definition, old, &mut errors);
        errors
    }

    fn default_stored(&self, definition: &mut Value) {
        default(definition);
    }

    fn update_status(&self, definition: &mut Value, _: &Value) -> Errors {
        let mut errors = Errors::new();
        let path = Path::new("status").child("acceptedNames");
        names::validate(&definition["status"]["acceptedNames"], &path, &mut errors);
        errors
    }
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_default()
}

fn fields<'a>(value: &'a mut Value, name: &str) -> Option<&'a mut Map<String, Value>> {
    value.get_mut(name)?.as_object_mut()
}

fn default(definition: &mut Value) {
    let Some(spec) = definition.get_mut("spec") else { return };
    let kind = text(&spec["names"], "kind").to_owned();
    if let Some(names) = fields(spec, "names") {
        let is_empty = |names: &Map<String, Value>, name: &str| names.get(name).is_none_or(|given| given == "");
        if is_empty(names, "singular") {
            names.insert("singular".to_owned(), kind.to_lowercase().into());
        }
        if is_empty(names, "listKind") && !kind.is_empty() {
            names.insert("listKind".to_owned(), format!("{kind}List").into());
        }
    }
    if spec.is_object() && spec["conversion"].is_null() {
        spec["conversion"] = json!({ "strategy": "None" });
    }
    let service = spec.pointer_mut("/conversion/webhook/clientConfig/service").and_then(Value::as_object_mut);
    if let Some(service) = service {
        service.entry("port").or_insert(json!(443));
    }
}

fn set_stored_versions(definition: &mut Value) {
    let spec = definition["spec"].take();
    let mut status = definition["status"].take();
    if !status.is_object() {
        status = json!({});
    }
    if let Some(status) = status.as_object_mut() {
        status::add_stored_version(status, &spec);
    }
    definition["spec"] = spec;
    definition["status"] = status;
}

fn validate(definition: &Value, errors: &mut Errors) {
    let spec = &definition["spec"];
    let path = Path::new("spec");
    let (group, names) = (text(spec, "group"), &spec["names"]);
    let name = text(&definition["metadata"], "name");
    if name != format!("{}.{group}", text(names, "plural")) {
        let at = Path::new("metadata").child("name");
        errors.push(FieldError::invalid(&at, name, "must be spec.names.plural+\".\"+spec.group"));
    }
    match group {
        "" => errors.push(FieldError::required(&path.child("group"), "")),
        group => {
            let complaints = name_rules::dns1123_subdomain(group);
            if !complaints.is_empty() {
                errors.push(FieldError::invalid(&path.child("group"), group, complaints.join(",")));
            } else if !group.contains('.') {
                errors.push(FieldError::invalid(
                    &path.child("group"),
                    group,
                    "should be a domain with at least one dot",
                ));
            }
        }
    }
    check::required_one_of(text(spec, "scope"), &["Cluster", "Namespaced"], &path.child("scope"), errors);
    if spec["preserveUnknownFields"] == true {
        let words =
            "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead";
        errors.push(FieldError::invalid(&path.child("preserveUnknownFields"), true, words));
    }
    versions::validate(spec, &path.child("versions"), errors);
    for field in ["plural", "singular", "kind", "listKind"] {
        check::present(text(names, field), &path.child("names").child(field), errors);
    }
    names::validate(names, &path.child("names"), errors);
    conversion::validate(&spec["conversion"], &path.child("conversion"), errors);
    versions::validate_stored(definition, errors);
}

/// A group of the Kubernetes project needs its approval, or an annotation that says there is none.
fn validate_approval(definition: &Value, old: Option<&Value>, errors: &mut Errors) {
    if !status::is_protected_group(text(&definition["spec"], "group")) {
        return;
    }
    let (approval, why) = status::approval(definition);
    if old.is_some_and(|old| status::approval(old).0 == approval) {
        return;
    }
    let at = Path::new("metadata").child("annotations").key(status::API_APPROVED_ANNOTATION);
    match approval {
        Approval::Approved | Approval::Bypassed => {}
        Approval::Missing => errors.push(FieldError::required(&at, why)),
        Approval::Invalid => {
            let given = definition["metadata"]["annotations"][status::API_APPROVED_ANNOTATION].clone();
            errors.push(FieldError::invalid(&at, given, why));
        }
    }
}

/// What decides where objects are stored, and of which kind.
fn validate_unchanged(definition: &Value, old: &Value, errors: &mut Errors) {
    let path = Path::new("spec");
    let mut immutable = |steps: &[&str]| {
        let at = steps.iter().fold(path.clone(), |path, step| path.child(step));
        let find = |object: &Value| steps.iter().fold(object["spec"].clone(), |value, step| value[*step].clone());
        let (new, old) = (find(definition), find(old));
        if new != old {
            errors.push(FieldError::invalid(&at, new, check::IMMUTABLE));
        }
    };
    if status::condition_is_true(old, status::ESTABLISHED) {
        immutable(&["scope"]);
        immutable(&["names", "kind"]);
    }
    immutable(&["group"]);
    immutable(&["names", "plural"]);
}

#[cfg(test)]
mod tests;
