//! What is wrong with an applied configuration, in upstream's words: fields the schema does not declare, wrong types, and
//! list items that nothing tells apart.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{
    items::{self, Items, View},
    path::PathElement,
    typed::{Scalar, Structure, TypeRef},
};

/// Nobody reads more of them.
const MAX_REPORTED: usize = 100;
/// Nor more text: each names its whole path.
const MAX_REPORTED_BYTES: usize = 64 << 10;

/// Everything found, as one text; `None` if all is well.
pub fn validate<'s, T: TypeRef<'s>>(ty: T, config: &Value) -> Option<String> {
    let mut errors = Vec::new();
    check(ty, config, &mut String::new(), &mut errors);
    match &errors[..] {
        [] => None,
        [single] => Some(single.clone()),
        several => Some(format!("errors:\n  {}", several.join("\n  "))),
    }
}

fn report(errors: &mut Vec<String>, path: &str, why: &str) {
    let bytes: usize = errors.iter().map(String::len).sum();
    if errors.len() < MAX_REPORTED && bytes < MAX_REPORTED_BYTES {
        errors.push(if path.is_empty() { why.to_owned() } else { format!("{path}: {why}") });
    }
}

/// Goes on below, with a longer path.
fn descend(path: &mut String, element: &PathElement<'_>, check: impl FnOnce(&mut String)) {
    let length = path.len();
    path.push_str(&element.to_string());
    check(path);
    path.truncate(length);
}

fn check<'s, T: TypeRef<'s>>(ty: T, value: &Value, path: &mut String, errors: &mut Vec<String>) {
    if value.is_null() {
        return;
    }
    match (ty.structure(), items::view(ty, value)) {
        (Structure::Scalar(scalar), _) => {
            if let Some(why) = mismatch(scalar, value) {
                report(errors, path, &why);
            }
        }
        (_, View::Leaf) => {}
        (_, View::Fields) => match value {
            Value::Object(fields) => {
                for (name, value) in fields {
                    let element = PathElement::Field(name.into());
                    match ty.field(name) {
                        Some(field) => descend(path, &element, |path| check(field.ty, value, path, errors)),
                        None => descend(path, &element, |path| report(errors, path, "field not declared in schema")),
                    }
                }
            }
            other => report(errors, path, &format!("expected map, got &{{{}}}", go_value(other))),
        },
        (_, View::Items(items)) => match value {
            Value::Array(list) => check_items(items, list, path, errors),
            other => report(errors, path, &format!("expected list, got &{{{}}}", go_value(other))),
        },
    }
}

fn check_items<'s, T: TypeRef<'s>>(items: Items<'s, T>, list: &[Value], path: &mut String, errors: &mut Vec<String>) {
    let mut known = BTreeSet::new();
    for (at, item) in list.iter().enumerate() {
        let element = match items.element(item) {
            Ok(element) => element,
            Err(why) => return report(errors, path, &format!("element {at}: {why}")),
        };
        if let Some(ty) = items.item() {
            descend(path, &element, |path| check(ty, item, path, errors));
        }
        if known.contains(&element) {
            report(errors, path, &format!("duplicate entries for key {element}"));
        }
        known.insert(element);
    }
}

fn mismatch(scalar: Scalar, value: &Value) -> Option<String> {
    match (scalar, value) {
        (Scalar::Untyped, _)
        | (Scalar::String, Value::String(_))
        | (Scalar::Numeric, Value::Number(_))
        | (Scalar::Boolean, Value::Bool(_)) => None,
        (Scalar::String, other) => {
            Some(format!("expected string, got &value.valueUnstructured{{Value:{}}}", go_value(other)))
        }
        (Scalar::Boolean, other) => Some(format!("expected boolean, got &{{{}}}", go_value(other))),
        (Scalar::Numeric, other) => {
            let kind = match other {
                Value::Bool(_) => "bool",
                Value::Array(_) => "[]interface {}",
                Value::Object(_) => "map[string]interface {}",
                Value::String(_) | Value::Number(_) | Value::Null => "string",
            };
            Some(format!("expected numeric (int or float), got {kind}"))
        }
    }
}

/// A value as Go prints it.
fn go_value(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::String(text) => text.clone(),
        Value::Array(items) => format!("[{}]", items.iter().map(go_value).collect::<Vec<_>>().join(" ")),
        Value::Object(fields) => {
            let fields = fields.iter().map(|(name, value)| format!("{name}:{}", go_value(value)));
            format!("map[{}]", fields.collect::<Vec<_>>().join(" "))
        }
    }
}
