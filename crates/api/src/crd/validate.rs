//! Validation of values against a structural schema, in upstream's words.
//!
//! On an update, what did not change is not judged anew (ratcheting): an object that was stored before its schema became stricter can
//! still be changed elsewhere. Values correlate by field name, and in lists of type `map` by their keys.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::{
    structural::{Additional, Bound, Checks, JsonType, ListType, Structural},
    walk_path::WalkPath,
};
use crate::field::{Errors, FieldError, Path};

/// Judges a value; `old` is what it replaces, where there is something.
pub fn validate(schema: &Structural, value: &Value, old: Option<&Value>, at: &WalkPath<'_>, errors: &mut Errors) {
    // An unchanged value keeps its errors to itself.
    if old == Some(value) {
        return;
    }
    if !has_type(schema, value) {
        let expected = if schema.int_or_string { "integer,string" } else { schema.json_type.name() };
        let found = type_name(value);
        let path = at.path();
        let detail = format!("{path} in body must be of type {expected}: {found:?}");
        errors.push(FieldError::type_invalid(&path, found, detail));
        return;
    }
    if value.is_null() {
        return;
    }
    if let Some(checks) = &schema.checks {
        validate_checks(checks, value, old, at, errors);
    }
    match value {
        Value::Object(fields) => validate_fields(schema, fields, old, at, errors),
        Value::Array(items) => validate_items(schema, items, old, at, errors),
        _ => {}
    }
}

fn has_type(schema: &Structural, value: &Value) -> bool {
    match value {
        Value::Null => schema.nullable || (schema.json_type == JsonType::Any && !schema.int_or_string),
        _ if schema.int_or_string => value.is_string() || is_integer(value),
        _ => match schema.json_type {
            JsonType::Any => true,
            JsonType::Array => value.is_array(),
            JsonType::Boolean => value.is_boolean(),
            JsonType::Integer => is_integer(value),
            JsonType::Number => value.is_number(),
            JsonType::Object => value.is_object(),
            JsonType::String => value.is_string(),
        },
    }
}

fn is_integer(value: &Value) -> bool {
    value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|number| number.fract() == 0.0)
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) if is_integer(value) => "integer",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn validate_checks(checks: &Checks, value: &Value, old: Option<&Value>, at: &WalkPath<'_>, errors: &mut Errors) {
    let mut refuse = |detail: &dyn Fn(&Path) -> String, shown: Value| {
        let path = at.path();
        let detail = detail(&path);
        errors.push(FieldError::invalid(&path, shown, detail));
    };
    match value {
        Value::String(text) => {
            let length = || text.chars().count() as u64;
            if let Some(min) = checks.min_length.filter(|min| length() < *min) {
                refuse(&|path| format!("{path} in body should be at least {min} chars long"), value.clone());
            }
            if let Some(pattern) = checks.pattern.as_ref().filter(|pattern| !pattern.matches(text)) {
                refuse(&|path| format!("{path} in body should match '{}'", pattern.text), value.clone());
            }
            if let Some(format) = checks.format.filter(|format| !format.accepts(text)) {
                let name = format.name();
                refuse(&|path| format!("{path} in body must be of type {name}: {text:?}"), value.clone());
            }
            if let Some(max) = checks.max_length.filter(|max| length() > *max) {
                errors.push(FieldError::too_long(&at.path(), max as usize));
            }
        }
        Value::Number(number) => {
            let actual = number.as_f64().unwrap_or_default();
            let beyond = |bound: &Bound, is_beyond: fn(f64, f64) -> bool| {
                is_beyond(actual, bound.value) || (bound.exclusive && actual == bound.value)
            };
            if let Some(max) = checks.maximum.filter(|max| beyond(max, |a, b| a > b)) {
                let words = if max.exclusive { "less than" } else { "less than or equal to" };
                refuse(&|path| format!("{path} in body should be {words} {}", max.value), value.clone());
            }
            if let Some(min) = checks.minimum.filter(|min| beyond(min, |a, b| a < b)) {
                let words = if min.exclusive { "greater than" } else { "greater than or equal to" };
                refuse(&|path| format!("{path} in body should be {words} {}", min.value), value.clone());
            }
            let is_multiple = |of: &f64| *of == 0.0 || (actual / of).fract() == 0.0;
            if let Some(factor) = checks.multiple_of.filter(|of| !is_multiple(of)) {
                refuse(&|path| format!("{path} in body should be a multiple of {factor}"), value.clone());
            }
        }
        Value::Array(items) => {
            let count = items.len();
            if let Some(min) = checks.min_items.filter(|min| (count as u64) < *min) {
                refuse(&|path| format!("{path} in body should have at least {min} items"), count.into());
            }
            if checks.unique_items && first_duplicates(items.iter()).next().is_some() {
                refuse(&|path| format!("{path} in body shouldn't contain duplicates"), "".into());
            }
            if let Some(max) = checks.max_items.filter(|max| count as u64 > *max) {
                errors.push(FieldError::too_many(&at.path(), count, max as usize));
            }
        }
        Value::Object(fields) => {
            let count = fields.len();
            if let Some(max) = checks.max_properties.filter(|max| count as u64 > *max) {
                refuse(&|path| format!("{path} in body should have at most {max} properties"), count.into());
            }
            if let Some(min) = checks.min_properties.filter(|min| (count as u64) < *min) {
                refuse(&|path| format!("{path} in body should have at least {min} properties"), count.into());
            }
            for name in checks.required.iter().filter(|name| !fields.contains_key(&***name)) {
                errors.push(FieldError::required(&at.field(name).path(), ""));
            }
        }
        Value::Null | Value::Bool(_) => {}
    }
    if !checks.allowed_values.is_empty() && !checks.allowed_values.iter().any(|allowed| same_json(allowed, value)) {
        let texts: Vec<String> = checks.allowed_values.iter().map(plain_text).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        errors.push(FieldError::not_supported(&at.path(), value.clone(), &texts));
    }
    validate_junctors(checks, value, old, at, errors);
}

/// `allOf`, `anyOf`, `oneOf` and `not`.
fn validate_junctors(checks: &Checks, value: &Value, old: Option<&Value>, at: &WalkPath<'_>, errors: &mut Errors) {
    let judge = |schema: &Structural| {
        let mut found = Errors::new();
        validate(schema, value, old, at, &mut found);
        found
    };
    // Upstream has no path for these, and says so.
    let mut refuse = |detail: String, nested: Option<Errors>| {
        errors.push(FieldError::invalid(&Path::new("<nil>"), "", detail));
        errors.append(nested.unwrap_or_default());
    };
    let name = || format!("{:?}", at.path().to_string());
    if !checks.any_of.is_empty() {
        let mut failures = Vec::new();
        for schema in &checks.any_of {
            match judge(schema) {
                found if found.is_empty() => {
                    failures.clear();
                    break;
                }
                found => failures.push(found),
            }
        }
        if !failures.is_empty() {
            let nearest = failures.into_iter().min_by_key(Errors::len);
            refuse(format!("{} must validate at least one schema (anyOf)", name()), nearest);
        }
    }
    if !checks.one_of.is_empty() {
        let (valid, failures): (Vec<_>, Vec<_>) = checks.one_of.iter().map(judge).partition(Errors::is_empty);
        let words = "must validate one and only one schema (oneOf)";
        match valid.len() {
            1 => {}
            0 => {
                let nearest = failures.into_iter().min_by_key(Errors::len);
                refuse(format!("{} {words}. Found none valid", name()), nearest);
            }
            count => refuse(format!("{} {words}. Found {count} valid alternatives", name()), None),
        }
    }
    if !checks.all_of.is_empty() {
        let mut all = Errors::new();
        checks.all_of.iter().for_each(|schema| all.append(judge(schema)));
        if !all.is_empty() {
            refuse(format!("{} must validate all the schemas (allOf)", name()), Some(all));
        }
    }
    if checks.not.as_deref().is_some_and(|schema| judge(schema).is_empty()) {
        refuse(format!("{} must not validate the schema (not)", name()), None);
    }
}

fn validate_fields(
    schema: &Structural,
    fields: &Map<String, Value>,
    old: Option<&Value>,
    at: &WalkPath<'_>,
    errors: &mut Errors,
) {
    for (name, value) in fields {
        let place = at.field(name);
        match (schema.property(name), &schema.additional) {
            (Some(member), _) => validate(member, value, old.and_then(|old| old.get(name)), &place, errors),
            (None, Additional::Schema(member)) => {
                validate(member, value, old.and_then(|old| old.get(name)), &place, errors);
            }
            (None, Additional::Bool(false)) => {
                let path = place.path();
                errors.push(FieldError::invalid(&path, "", format!("{path} in body is a forbidden property")));
            }
            (None, Additional::Undefined | Additional::Bool(true)) => {}
        }
    }
}

fn validate_items(schema: &Structural, items: &[Value], old: Option<&Value>, at: &WalkPath<'_>, errors: &mut Errors) {
    match schema.list_type {
        ListType::Atomic => {}
        ListType::Set => {
            let places = first_duplicates(items.iter());
            errors.extend(places.map(|index| FieldError::duplicate(&at.index(index).path(), items[index].clone())));
        }
        ListType::Map => validate_map_list(schema, items, at, errors),
    }
    let Some(inner) = schema.items.as_deref() else { return };
    let old_by_key = old_items_by_key(schema, old);
    for (index, item) in items.iter().enumerate() {
        let old = old_by_key.as_ref().and_then(|old| old.get(&list_key(schema, item).to_string()).copied());
        validate(inner, item, old, &at.index(index), errors);
    }
}

/// The items of the old list by their keys, where the list is of type `map`.
fn old_items_by_key<'v>(schema: &Structural, old: Option<&'v Value>) -> Option<HashMap<String, &'v Value>> {
    let items = old?.as_array().filter(|_| schema.list_type == ListType::Map)?;
    Some(items.iter().map(|item| (list_key(schema, item).to_string(), item)).collect())
}

/// The key of an item of a list of type `map`.
pub(super) fn list_key(schema: &Structural, item: &Value) -> Value {
    let key = |name: &str| Some((name.to_owned(), item.get(name)?.clone()));
    Value::Object(schema.list_map_keys.iter().filter_map(|name| key(name)).collect())
}

fn validate_map_list(schema: &Structural, items: &[Value], at: &WalkPath<'_>, errors: &mut Errors) {
    let odd = items.iter().enumerate().find(|(_, item)| !item.is_object() && !item.is_null());
    if let Some((index, item)) = odd {
        let detail = "must be an object for an array of list-type map";
        errors.push(FieldError::invalid(&at.index(index).path(), item.clone(), detail));
        return;
    }
    let keys: Vec<Value> = items.iter().map(|item| list_key(schema, item)).collect();
    let places = first_duplicates(keys.iter());
    errors.extend(places.map(|index| FieldError::duplicate(&at.index(index).path(), keys[index].clone())));
}

/// Where each value that occurs more than once occurs for the second time.
fn first_duplicates<'v>(values: impl Iterator<Item = &'v Value>) -> impl Iterator<Item = usize> {
    let mut count: HashMap<String, usize> = HashMap::new();
    let mut places = HashSet::new();
    for (index, value) in values.enumerate() {
        let times = count.entry(value.to_string()).or_default();
        *times += 1;
        if *times == 2 {
            places.insert(index);
        }
    }
    let mut places: Vec<usize> = places.into_iter().collect();
    places.sort_unstable();
    places.into_iter()
}

/// Numbers compare by value: 1 and 1.0 are the same.
fn same_json(a: &Value, b: &Value) -> bool {
    a == b || (a.is_number() && b.is_number() && a.as_f64() == b.as_f64())
}

fn plain_text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests;
