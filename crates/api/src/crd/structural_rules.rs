//! Whether a schema is structural: types stand outside of `allOf`, `anyOf`, `oneOf` and `not`, and all that is mentioned inside of them is
//! specified outside.

use serde_json::{Map, Value};

use super::{
    pattern,
    schema_rules::{flag, text},
};
use crate::field::{Errors, FieldError, Path};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Root,
    Item,
    Field,
}

type Fields = Map<String, Value>;

/// Errors come in the order of their texts: the maps of a schema have none.
pub fn validate(schema: &Fields, path: &Path, errors: &mut Errors) {
    let mut found = Errors::new();
    invariants(schema, Level::Root, path, &mut found);
    completeness(schema, Some(schema), path, path, &mut found);
    let mut found: Vec<FieldError> = found.into_iter().collect();
    found.sort_by_cached_key(FieldError::to_string);
    errors.extend(found);
}

fn schemas<'a>(fields: &'a Fields, name: &str) -> impl Iterator<Item = (usize, &'a Fields)> {
    let listed = fields.get(name).and_then(Value::as_array).into_iter().flatten();
    listed.enumerate().filter_map(|(index, schema)| Some((index, schema.as_object()?)))
}

fn properties(fields: &Fields) -> impl Iterator<Item = (&str, &Fields)> {
    let listed = fields.get("properties").and_then(Value::as_object).into_iter().flatten();
    listed.filter_map(|(name, schema)| Some((name.as_str(), schema.as_object()?)))
}

fn object<'a>(fields: &'a Fields, name: &str) -> Option<&'a Fields> {
    fields.get(name).and_then(Value::as_object)
}

fn invariants(schema: &Fields, level: Level, path: &Path, errors: &mut Errors) {
    let kind = text(schema, "type");
    let items = object(schema, "items");
    if kind == "array" && items.is_none() {
        errors.push(FieldError::required(&path.child("items"), "must be specified"));
    }
    if let Some(items) = items {
        invariants(items, Level::Item, &path.child("items"), errors);
    }
    for (name, property) in properties(schema) {
        invariants(property, Level::Field, &path.child("properties").key(name), errors);
    }
    let (int_or_string, preserve, embedded) = (
        flag(schema, "x-kubernetes-int-or-string"),
        flag(schema, "x-kubernetes-preserve-unknown-fields"),
        flag(schema, "x-kubernetes-embedded-resource"),
    );
    if let Some(additional) = schema.get("additionalProperties") {
        let at = path.child("additionalProperties");
        if level == Level::Root {
            errors.push(FieldError::forbidden(&at, "must not be used at the root"));
        }
        if embedded {
            errors.push(FieldError::forbidden(&at, "must not be used if x-kubernetes-embedded-resource is set"));
        }
        if let Some(additional) = additional.as_object() {
            invariants(additional, Level::Field, &at, errors);
        }
    }
    for (name, is_set) in
        [("x-kubernetes-preserve-unknown-fields", preserve), ("x-kubernetes-embedded-resource", embedded)]
    {
        if int_or_string && is_set {
            let words = "must be false if x-kubernetes-int-or-string is true";
            errors.push(FieldError::invalid(&path.child(name), true, words));
        }
    }
    value_validation(schema, is_int_or_string(schema.get("anyOf")), has_int_or_string_in_all_of(schema), path, errors);
    let at_type = path.child("type");
    if embedded && kind != "object" {
        let words = "must be object if x-kubernetes-embedded-resource is true";
        errors.push(if kind.is_empty() {
            FieldError::required(&at_type, words)
        } else {
            FieldError::invalid(&at_type, kind, words)
        });
    } else if kind.is_empty() && !int_or_string && !preserve {
        let words = match level {
            Level::Root => "must not be empty at the root",
            Level::Item => "must not be empty for specified array items",
            Level::Field => "must not be empty for specified object fields",
        };
        errors.push(FieldError::required(&at_type, words));
    }
    if level == Level::Root && !kind.is_empty() && kind != "object" {
        errors.push(FieldError::invalid(&at_type, kind, "must be object at the root"));
    }
    if level == Level::Root || embedded {
        metadata_types(schema, path, errors);
    }
    if level == Level::Root {
        root_metadata(schema, path, errors);
    }
    if embedded && !preserve && properties(schema).next().is_none() {
        let words =
            "must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields";
        errors.push(FieldError::required(&path.child("properties"), words));
    }
}

fn metadata_types(schema: &Fields, path: &Path, errors: &mut Errors) {
    for (name, expected) in [("kind", "string"), ("apiVersion", "string"), ("metadata", "object")] {
        let property = properties(schema).find(|(own, _)| *own == name);
        if let Some((_, property)) = property.filter(|(_, property)| text(property, "type") != expected) {
            let at = path.child("properties").key(name).child("type");
            errors.push(FieldError::invalid(&at, text(property, "type"), format!("must be {expected}")));
        }
    }
}

/// Of `metadata`, a schema can restrict the names alone.
fn root_metadata(schema: &Fields, path: &Path, errors: &mut Errors) {
    let Some((_, metadata)) = properties(schema).find(|(name, _)| *name == "metadata") else { return };
    let only_names = properties(metadata).all(|(name, _)| ["name", "generateName"].contains(&name));
    const ALLOWED: [&str; 4] = ["type", "properties", "description", "default"];
    let value_validations =
        ["required", "maxProperties", "minProperties", "enum", "format", "pattern", "allOf", "anyOf", "oneOf", "not"];
    let known = |name: &str| ALLOWED.contains(&name) || value_validations.contains(&name);
    if !only_names || metadata.keys().any(|name| !known(name)) {
        let words = "must not specify anything other than name and generateName, but metadata is implicitly specified";
        errors.push(FieldError::forbidden(&path.child("properties").key("metadata"), words));
    }
}

/// The one `anyOf` that may name types.
fn is_int_or_string(any_of: Option<&Value>) -> bool {
    let is_type =
        |schema: &Value, name: &str| schema.as_object().is_some_and(|s| s.len() == 1 && text(s, "type") == name);
    any_of.and_then(Value::as_array).is_some_and(|listed| match listed.as_slice() {
        [first, second] => is_type(first, "integer") && is_type(second, "string"),
        _ => false,
    })
}

fn has_int_or_string_in_all_of(schema: &Fields) -> bool {
    schemas(schema, "allOf").next().is_some_and(|(_, first)| is_int_or_string(first.get("anyOf")))
}

fn value_validation(schema: &Fields, skip_any_of: bool, skip_first_all_of: bool, path: &Path, errors: &mut Errors) {
    for (index, inner) in schemas(schema, "anyOf").filter(|_| !skip_any_of) {
        nested(inner, false, &path.child("anyOf").index(index), errors);
    }
    for (index, inner) in schemas(schema, "allOf") {
        nested(inner, skip_first_all_of && index == 0, &path.child("allOf").index(index), errors);
    }
    for (index, inner) in schemas(schema, "oneOf") {
        nested(inner, false, &path.child("oneOf").index(index), errors);
    }
    if let Some(inner) = object(schema, "not") {
        nested(inner, false, &path.child("not"), errors);
    }
    let regex = text(schema, "pattern");
    if let Err(why) = pattern::compile(regex) {
        let words = format!("must be a valid regular expression, but isn't: {why}");
        errors.push(FieldError::invalid(&path.child("pattern"), regex, words));
    }
}

/// A schema below `allOf`, `anyOf`, `oneOf` or `not`: it judges values and says nothing of their structure.
fn nested(schema: &Fields, skip_any_of: bool, path: &Path, errors: &mut Errors) {
    value_validation(schema, skip_any_of, false, path, errors);
    if let Some(items) = object(schema, "items") {
        nested(items, false, &path.child("items"), errors);
    }
    for (name, property) in properties(schema) {
        nested(property, false, &path.child("properties").key(name), errors);
    }
    let forbidden = [
        ("type", "must be empty to be structural"),
        ("additionalProperties", "must be undefined to be structural"),
        ("default", "must be undefined to be structural"),
        ("title", "must be empty to be structural"),
        ("description", "must be empty to be structural"),
        ("nullable", "must be false to be structural"),
        ("x-kubernetes-preserve-unknown-fields", "must be false to be structural"),
        ("x-kubernetes-embedded-resource", "must be false to be structural"),
        ("x-kubernetes-int-or-string", "must be false to be structural"),
        ("x-kubernetes-list-map-keys", "must be empty to be structural"),
        ("x-kubernetes-list-type", "must be undefined to be structural"),
        ("x-kubernetes-map-type", "must be undefined to be structural"),
        ("x-kubernetes-validations", "must be empty to be structural"),
    ];
    for (name, words) in forbidden {
        if schema.get(name).is_some_and(|value| !matches!(value, Value::Bool(false) | Value::Null) && *value != "") {
            errors.push(FieldError::forbidden(&path.child(name), words));
        }
    }
    if properties(schema).any(|(name, _)| name == "metadata") {
        let at = path.child("properties").key("metadata");
        errors.push(FieldError::forbidden(&at, "must not be specified in a nested context"));
    }
}

/// What is mentioned in a nested schema is specified in the structure it applies to.
fn completeness(validation: &Fields, structure: Option<&Fields>, at_structure: &Path, at: &Path, errors: &mut Errors) {
    for name in ["allOf", "anyOf", "oneOf"] {
        for (index, inner) in schemas(validation, name) {
            nested_completeness(inner, structure, at_structure, &at.child(name).index(index), errors);
        }
    }
    if let Some(inner) = object(validation, "not") {
        nested_completeness(inner, structure, at_structure, &at.child("not"), errors);
    }
}

fn nested_completeness(
    validation: &Fields,
    structure: Option<&Fields>,
    at_structure: &Path,
    at: &Path,
    errors: &mut Errors,
) {
    let Some(structure) = structure else {
        errors.push(FieldError::required(at_structure, format!("because it is defined in {at}")));
        return;
    };
    completeness(validation, Some(structure), at_structure, at, errors);
    if let Some(items) = object(validation, "items") {
        let (inner, at_inner) = (object(structure, "items"), at_structure.child("items"));
        nested_completeness(items, inner, &at_inner, &at.child("items"), errors);
    }
    for (name, property) in properties(validation) {
        let found = properties(structure).find(|(own, _)| *own == name).map(|(_, found)| found);
        let at_inner = at_structure.child("properties").key(name);
        nested_completeness(property, found, &at_inner, &at.child("properties").key(name), errors);
    }
}
