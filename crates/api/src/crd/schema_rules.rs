//! What the schema of a version may say: keywords that are not supported, extensions that contradict each other, defaults that do not
//! fit. That it is structural is judged by `structural_rules`.

use serde_json::{Map, Value};

use super::{
    cel::validate_rules,
    prune::{TYPE_AND_METADATA, prune_value},
    structural::{Structural, TooLarge},
    structural_rules,
    validate::validate,
    walk_path::WalkPath,
};
use crate::field::{Errors, FieldError, Path};

/// Those that keep their meaning when the schema of `status` is taken out of the whole.
const AT_ROOT_WITH_STATUS: [&str; 22] = [
    "description",
    "type",
    "format",
    "title",
    "maximum",
    "exclusiveMaximum",
    "minimum",
    "exclusiveMinimum",
    "maxLength",
    "minLength",
    "pattern",
    "maxItems",
    "minItems",
    "uniqueItems",
    "multipleOf",
    "required",
    "items",
    "properties",
    "externalDocs",
    "example",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-validations",
];

const ROOT_WORDS: &str = "[Description Type Format Title Maximum ExclusiveMaximum Minimum ExclusiveMinimum MaxLength MinLength Pattern MaxItems \
     MinItems UniqueItems MultipleOf Required Items Properties ExternalDocs Example XPreserveUnknownFields XValidations]";

/// Types of OpenAPI v3.
const TYPES: [&str; 6] = ["array", "boolean", "integer", "number", "object", "string"];

/// Judges the `openAPIV3Schema` of a version.
pub fn validate_schema(schema: &Value, has_status: bool, room: &mut usize, path: &Path, errors: &mut Errors) {
    let Some(fields) = schema.as_object() else { return };
    if has_status {
        let kind = text(fields, "type");
        if !kind.is_empty() && kind != "object" {
            let words =
                "only \"object\" is allowed as the type at the root of the schema if the status subresource is enabled";
            errors.push(FieldError::invalid(&path.child("type"), kind, words));
        } else if fields.iter().any(|(name, value)| !is_zero(value) && !AT_ROOT_WITH_STATUS.contains(&name.as_str())) {
            let words = format!(
                "only {ROOT_WORDS} fields are allowed at the root of the schema if the status subresource is enabled"
            );
            errors.push(FieldError::invalid(path, "", words));
        }
    }
    if fields.get("nullable") == Some(&Value::Bool(true)) {
        errors.push(FieldError::forbidden(&path.child("nullable"), "nullable cannot be true at the root"));
    }
    let parsed = match Structural::parse(schema, room) {
        Ok(parsed) => parsed,
        Err(TooLarge) => {
            errors.push(FieldError::invalid(path, "", TooLarge.to_string()));
            return;
        }
    };
    Keywords { defaults: None, inside_metadata: false }.judge(fields, true, path, errors);
    let mut not_structural = Errors::new();
    structural_rules::validate(fields, path, &mut not_structural);
    if not_structural.is_empty() && errors.is_empty() {
        validate_defaults(&parsed, true, path, errors);
        validate_rules(&parsed, &mut 0, path, errors);
    }
    errors.append(not_structural);
}

pub(super) fn text<'a>(fields: &'a Map<String, Value>, name: &str) -> &'a str {
    fields.get(name).and_then(Value::as_str).unwrap_or_default()
}

pub(super) fn flag(fields: &Map<String, Value>, name: &str) -> bool {
    fields.get(name).and_then(Value::as_bool).unwrap_or(false)
}

/// What a field that was not given would be in Go.
fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::Number(_) | Value::Bool(true) => false,
    }
}

/// Where in the schema the walk is, as far as keywords depend on it.
#[derive(Clone, Copy)]
struct Keywords<'a> {
    /// Why there may be no default here.
    defaults: Option<&'a str>,
    /// Inside `apiVersion`, `kind` or `metadata` of a resource.
    inside_metadata: bool,
}

impl Keywords<'_> {
    fn judge(self, fields: &Map<String, Value>, is_root: bool, path: &Path, errors: &mut Errors) {
        self.unsupported(fields, path, errors);
        if flag(fields, "uniqueItems") {
            let words = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
            errors.push(FieldError::forbidden(&path.child("uniqueItems"), words));
        }
        let properties = fields.get("properties").and_then(Value::as_object);
        if let Some(additional) = fields.get("additionalProperties") {
            let at = path.child("additionalProperties");
            if properties.is_some_and(|properties| !properties.is_empty()) && *additional != Value::Bool(true) {
                errors.push(FieldError::forbidden(&at, "additionalProperties and properties are mutual exclusive"));
            }
            if let Value::Object(inner) = additional {
                let reason = "inside additionalProperties applying to object metadata";
                let defaults = if self.inside_metadata { Some(reason) } else { self.defaults };
                Keywords { defaults, ..self }.judge(inner, false, &at, errors);
            }
        }
        let is_resource = is_root || flag(fields, "x-kubernetes-embedded-resource");
        for (name, schema) in properties.into_iter().flatten() {
            let Some(inner) = schema.as_object() else { continue };
            let at = path.child("properties").key(name);
            if is_resource && TYPE_AND_METADATA.contains(&name.as_str()) {
                let reason = format!("in top-level {name}");
                let defaults = if is_root { Some(reason.as_str()) } else { self.defaults };
                Keywords { defaults, inside_metadata: true }.judge(inner, false, &at, errors);
            } else {
                self.judge(inner, false, &at, errors);
            }
        }
        for name in ["allOf", "oneOf", "anyOf"] {
            for (index, schema) in fields.get(name).and_then(Value::as_array).into_iter().flatten().enumerate() {
                if let Some(inner) = schema.as_object() {
                    self.judge(inner, false, &path.child(name).index(index), errors);
                }
            }
        }
        for name in ["not", "items"] {
            if let Some(inner) = fields.get(name).and_then(Value::as_object) {
                self.judge(inner, false, &path.child(name), errors);
            }
        }
        extensions(fields, path, errors);
    }

    fn unsupported(self, fields: &Map<String, Value>, path: &Path, errors: &mut Errors) {
        let kind = text(fields, "type");
        if kind == "null" {
            let words = "type cannot be set to null, use nullable as an alternative";
            errors.push(FieldError::forbidden(&path.child("type"), words));
        } else if !kind.is_empty() && !TYPES.contains(&kind) {
            errors.push(FieldError::not_supported(&path.child("type"), kind, &TYPES));
        }
        if let Some(reason) = self.defaults.filter(|_| fields.contains_key("default")) {
            errors.push(FieldError::forbidden(&path.child("default"), format!("must not be set {reason}")));
        }
        let unsupported = ["id", "additionalItems", "patternProperties", "definitions", "dependencies", "$ref"];
        for name in unsupported.iter().filter(|name| fields.get(**name).is_some_and(|value| !is_zero(value))) {
            errors.push(FieldError::forbidden(&path.child(name), format!("{name} is not supported")));
        }
        if fields.get("items").is_some_and(Value::is_array) {
            let words = "items must be a schema object and not an array";
            errors.push(FieldError::forbidden(&path.child("items"), words));
        }
        if self.inside_metadata && flag(fields, "x-kubernetes-embedded-resource") {
            let words = "must not be used inside of resource meta";
            errors.push(FieldError::forbidden(&path.child("x-kubernetes-embedded-resource"), words));
        }
    }
}

/// The `x-kubernetes-*` extensions of a node.
fn extensions(fields: &Map<String, Value>, path: &Path, errors: &mut Errors) {
    let kind = text(fields, "type");
    if fields.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(false)) {
        let at = path.child("x-kubernetes-preserve-unknown-fields");
        errors.push(FieldError::invalid(&at, false, "must be true or undefined"));
    }
    let needs_type = |needed: &str, because: &str, errors: &mut Errors| {
        let words = format!("must be {needed} if {because} is specified");
        let at = path.child("type");
        errors.push(if kind.is_empty() {
            FieldError::required(&at, words)
        } else {
            FieldError::invalid(&at, kind, words)
        });
    };
    if let Some(map_type) = fields.get("x-kubernetes-map-type").and_then(Value::as_str) {
        if kind != "object" {
            needs_type("object", "x-kubernetes-map-type", errors);
        }
        if !["atomic", "granular"].contains(&map_type) {
            let at = path.child("x-kubernetes-map-type");
            errors.push(FieldError::not_supported(&at, map_type, &["atomic", "granular"]));
        }
    }
    let list_type = fields.get("x-kubernetes-list-type").and_then(Value::as_str);
    let items = fields.get("items").and_then(Value::as_object);
    if let Some(list_type) = list_type {
        if kind != "array" {
            needs_type("array", "x-kubernetes-list-type", errors);
        } else if let Some(items) = items.filter(|_| list_type == "set") {
            items_of_set(items, &path.child("items"), errors);
        }
        if !["atomic", "set", "map"].contains(&list_type) {
            let at = path.child("x-kubernetes-list-type");
            errors.push(FieldError::not_supported(&at, list_type, &["atomic", "set", "map"]));
        }
    }
    let keys: Vec<&str> = fields
        .get("x-kubernetes-list-map-keys")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    if !keys.is_empty() && list_type != Some("map") {
        let words = "must be map if x-kubernetes-list-map-keys is non-empty";
        let at = path.child("x-kubernetes-list-type");
        errors.push(match list_type {
            None => FieldError::required(&at, words),
            Some(other) => FieldError::invalid(&at, other, words),
        });
    }
    if list_type == Some("map") {
        items_of_map(&keys, fields.get("items"), path, errors);
    }
    if let (Some(list_type @ ("set" | "map")), Some(items)) = (list_type, items)
        && flag(items, "nullable")
    {
        let words = format!("cannot be nullable when x-kubernetes-list-type is {list_type}");
        errors.push(FieldError::forbidden(&path.child("items").child("nullable"), words));
    }
}

fn items_of_set(items: &Map<String, Value>, path: &Path, errors: &mut Errors) {
    let words = "must be atomic as item of a list with x-kubernetes-list-type=set";
    let given = |name: &str| items.get(name).cloned().unwrap_or(Value::Null);
    match text(items, "type") {
        "array" if !["", "atomic"].contains(&text(items, "x-kubernetes-list-type")) => {
            let name = "x-kubernetes-list-type";
            errors.push(FieldError::invalid(&path.child(name), given(name), words));
        }
        "object" if text(items, "x-kubernetes-map-type") != "atomic" => {
            let name = "x-kubernetes-map-type";
            errors.push(FieldError::invalid(&path.child(name), given(name), words));
        }
        _ => {}
    }
}

fn items_of_map(keys: &[&str], items: Option<&Value>, path: &Path, errors: &mut Errors) {
    let at_keys = path.child("x-kubernetes-list-map-keys");
    if keys.is_empty() {
        errors.push(FieldError::required(&at_keys, "must not be empty if x-kubernetes-list-type is map"));
    }
    let at_items = path.child("items");
    let Some(items) = items else {
        errors.push(FieldError::required(&at_items, "must have a schema if x-kubernetes-list-type is map"));
        return;
    };
    let Some(items) = items.as_object() else {
        errors.push(FieldError::invalid(
            &at_items,
            "",
            "must only have a single schema if x-kubernetes-list-type is map",
        ));
        return;
    };
    let kind = text(items, "type");
    if kind != "object" {
        let words = "must be object if parent array's x-kubernetes-list-type is map";
        errors.push(FieldError::invalid(&at_items.child("type"), kind, words));
        return;
    }
    let required: Vec<&str> =
        items.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
    for (index, key) in keys.iter().enumerate() {
        let at = at_items.child("properties").key(key);
        let Some(property) = items.get("properties").and_then(|all| all.get(*key)).and_then(Value::as_object) else {
            errors.push(FieldError::invalid(&at_keys, keys.to_vec(), "entries must all be names of item properties"));
            continue;
        };
        if keys[..index].contains(key) {
            errors.push(FieldError::invalid(&at_keys, keys.to_vec(), "must not contain duplicate entries"));
        }
        if ["array", "object"].contains(&text(property, "type")) {
            let words = "must be a scalar type if parent array's x-kubernetes-list-type is map";
            errors.push(FieldError::invalid(&at.child("type"), text(property, "type"), words));
        }
        if !required.contains(key) && !property.contains_key("default") {
            let words =
                "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property";
            errors.push(FieldError::required(&at.child("default"), words));
        }
        if flag(property, "nullable") {
            let words = "this property is in x-kubernetes-list-map-keys, so it cannot be nullable";
            errors.push(FieldError::forbidden(&at.child("nullable"), words));
        }
    }
}

/// Defaults must be values of their own schema, without unknown fields.
fn validate_defaults(schema: &Structural, is_root: bool, path: &Path, errors: &mut Errors) {
    if let Some(default) = &schema.default {
        let at = path.child("default");
        let mut pruned = (**default).clone();
        if prune_value(schema, &mut pruned) {
            errors.push(FieldError::invalid(&at, (**default).clone(), "must not have unknown fields"));
        }
        let mut found = Errors::new();
        validate(schema, default, None, &WalkPath::Root, &mut found);
        errors.extend(found.into_iter().map(|error| below(&at, error)));
    }
    if let Some(items) = &schema.items {
        validate_defaults(items, false, &path.child("items"), errors);
    }
    for (name, property) in &schema.properties {
        if !(is_root && TYPE_AND_METADATA.contains(&&**name)) {
            validate_defaults(property, false, &path.child("properties").key(name), errors);
        }
    }
}

/// An error of a value that stands at this path.
fn below(path: &Path, mut error: FieldError) -> FieldError {
    let inner = error.path.to_string();
    error.path = if inner.is_empty() || inner == "<nil>" { path.clone() } else { path.child(&inner) };
    error
}

#[cfg(test)]
mod tests;
