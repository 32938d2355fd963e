//! The versions of a custom kind: schema, subresources, columns, selectable fields, and which of them are stored.

use std::collections::BTreeSet;

use serde_json::Value;

use super::text;
use crate::{
    crd::{
        columns::{FORMATS, TYPES},
        schema_rules,
        structural::{JsonType, MAX_NODES, Structural},
    },
    field::{Errors, FieldError, Path},
    validation::names::dns1035_label,
};

const MAX_SELECTABLE_FIELDS: usize = 8;

pub fn validate(spec: &Value, path: &Path, errors: &mut Errors) {
    let versions = spec["versions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let names = || versions.iter().map(|version| text(version, "name")).collect::<Vec<_>>();
    let mut room = MAX_NODES;
    for (index, version) in versions.iter().enumerate() {
        let at = path.index(index);
        if !version["schema"]["openAPIV3Schema"].is_object() {
            let at = at.child("schema").child("openAPIV3Schema");
            errors.push(FieldError::required(&at, "schemas are required"));
        }
        let complaints = dns1035_label(text(version, "name"));
        if !complaints.is_empty() {
            errors.push(FieldError::invalid(&at.child("name"), text(version, "name"), complaints.join(",")));
        }
        one_version(version, &mut room, &at, errors);
    }
    let unique: BTreeSet<&str> = names().into_iter().collect();
    if unique.len() != versions.len() {
        errors.push(FieldError::invalid(path, names(), "must contain unique version names"));
    }
    if versions.iter().filter(|version| version["storage"] == true).count() != 1 {
        errors.push(FieldError::invalid(path, names(), "must have exactly one version marked as storage version"));
    }
}

fn one_version(version: &Value, room: &mut usize, path: &Path, errors: &mut Errors) {
    deprecation(version, &path.child("deprecationWarning"), errors);
    let subresources = &version["subresources"];
    let schema = &version["schema"]["openAPIV3Schema"];
    let at = path.child("schema").child("openAPIV3Schema");
    schema_rules::validate_schema(schema, subresources["status"].is_object(), room, &at, errors);
    scale(&subresources["scale"], &path.child("subresources"), errors);
    for (index, column) in version["additionalPrinterColumns"].as_array().into_iter().flatten().enumerate() {
        printer_column(column, &path.child("additionalPrinterColumns").index(index), errors);
    }
    selectable(&version["selectableFields"], schema, &path.child("selectableFields"), errors);
}

fn deprecation(version: &Value, path: &Path, errors: &mut Errors) {
    let Some(warning) = version["deprecationWarning"].as_str() else { return };
    let mut refuse = |words: String| errors.push(FieldError::invalid(path, warning, words));
    if version["deprecated"] != true {
        refuse("can only be set for deprecated versions".to_owned());
        return;
    }
    if warning.chars().count() > 256 {
        refuse("must be <= 256 characters long".to_owned());
    }
    if warning.is_empty() {
        refuse("must not be an empty string".to_owned());
    }
    if let Some((index, _)) = warning.char_indices().find(|(_, c)| c.is_control()) {
        refuse(format!("must only contain printable UTF-8 characters; non-printable character found at index {index}"));
    }
}

fn scale(scale: &Value, path: &Path, errors: &mut Errors) {
    if !scale.is_object() {
        return;
    }
    let paths: [(&str, &[&str], &str); 3] = [
        ("specReplicasPath", &[".spec."], "should be a json path under .spec"),
        ("statusReplicasPath", &[".status."], "should be a json path under .status"),
        ("labelSelectorPath", &[".spec.", ".status."], "should be a json path under either .spec or .status"),
    ];
    for (field, parents, words) in paths {
        let at = path.child("scale").child(field);
        let given = text(scale, field);
        if given.is_empty() {
            if field != "labelSelectorPath" {
                errors.push(FieldError::required(&at, ""));
            }
        } else if simple_json_path(given, &at, errors) && !parents.iter().any(|parent| given.starts_with(parent)) {
            errors.push(FieldError::invalid(&at, given, words));
        }
    }
}

/// Whether the path is in dot notation.
fn simple_json_path(given: &str, path: &Path, errors: &mut Errors) -> bool {
    let is_simple = given.starts_with('.');
    if !is_simple {
        errors.push(FieldError::invalid(path, given, "must be a simple json path starting with ."));
    }
    is_simple
}

fn printer_column(column: &Value, path: &Path, errors: &mut Errors) {
    if text(column, "name").is_empty() {
        errors.push(FieldError::required(&path.child("name"), ""));
    }
    let one_of = |names: &[&str]| format!("must be one of {}", names.join(","));
    match text(column, "type") {
        "" => errors.push(FieldError::required(&path.child("type"), one_of(&TYPES))),
        kind if !TYPES.contains(&kind) => {
            errors.push(FieldError::invalid(&path.child("type"), kind, one_of(&TYPES)));
        }
        _ => {}
    }
    let format = text(column, "format");
    if !format.is_empty() && !FORMATS.contains(&format) {
        errors.push(FieldError::invalid(&path.child("format"), format, one_of(&FORMATS)));
    }
    match text(column, "jsonPath") {
        "" => errors.push(FieldError::required(&path.child("jsonPath"), "")),
        given => drop(simple_json_path(given, &path.child("jsonPath"), errors)),
    }
}

fn selectable(fields: &Value, schema: &Value, path: &Path, errors: &mut Errors) {
    let fields = fields.as_array().map(Vec::as_slice).unwrap_or_default();
    if fields.len() > MAX_SELECTABLE_FIELDS {
        errors.push(FieldError::too_many(path, fields.len(), MAX_SELECTABLE_FIELDS));
        return;
    }
    if fields.is_empty() {
        return;
    }
    let schema = Structural::parse(schema, &mut MAX_NODES.clone()).unwrap_or_default();
    let mut seen = BTreeSet::new();
    for (index, field) in fields.iter().enumerate() {
        let at = path.index(index).child("jsonPath");
        let given = text(field, "jsonPath");
        if given.is_empty() {
            errors.push(FieldError::required(&at, ""));
            continue;
        }
        if !simple_json_path(given, &at, errors) {
            continue;
        }
        if !seen.insert(given) {
            errors.push(FieldError::duplicate(&at, given));
        }
        let steps: Vec<&str> = given[1..].split('.').collect();
        if steps.first() == Some(&"metadata") {
            errors.push(FieldError::invalid(&at, given, "must not point to fields in metadata"));
            continue;
        }
        let found = steps.iter().try_fold(&schema, |node, step| node.property(step));
        match found.map(|node| node.json_type) {
            None => errors.push(FieldError::invalid(&at, given, "does not refer to a valid field")),
            Some(JsonType::String | JsonType::Boolean | JsonType::Integer) => {}
            Some(_) => {
                let words = "must point to a field of type string, boolean or integer. Enum string fields and strings with formats \
                             are allowed.";
                errors.push(FieldError::invalid(&at, given, words));
            }
        }
    }
}

/// Versions in which objects may be stored have to stay.
pub fn validate_stored(definition: &Value, errors: &mut Errors) {
    let path = Path::new("status").child("storedVersions");
    let stored: Vec<&str> =
        definition["status"]["storedVersions"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    if stored.is_empty() {
        errors.push(FieldError::invalid(&path, stored, "must have at least one stored version"));
        return;
    }
    let versions = definition["spec"]["versions"].as_array().map(Vec::as_slice).unwrap_or_default();
    for (index, name) in stored.iter().enumerate() {
        if !versions.iter().any(|version| version["name"] == **name) {
            errors.push(FieldError::invalid(&path.index(index), *name, "must appear in spec.versions"));
        }
    }
}
