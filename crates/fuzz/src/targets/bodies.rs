//! JSON and YAML documents, as they are before and after they become objects of a kind.

use std::sync::LazyLock;

use mainstay_api::{
    decode, encode, field::Errors, quantity::Quantity, registry::Registry, schema::Schema, validation::meta,
};
use serde_json::Value;

use super::conform;

pub const WORDS: &[&str] = &[
    "metadata",
    "name",
    "spec",
    "status",
    "containers",
    "labels",
    "annotations",
    "1Gi",
    "100m",
    "2026-01-01T00:00:00Z",
    "*/5 * * * *",
    "10.96.0.1",
    "::1",
    "TCP",
    "default",
    "managedFields",
    "ownerReferences",
    "finalizers",
];

static REGISTRY: LazyLock<Registry> = LazyLock::new(Registry::builtin);

/// Decoding, shaping, defaulting and judging an object. A default that is filled in twice is the same.
pub fn json(input: &[u8]) {
    let Ok(decoded) = decode::json(input) else { return };
    let mut object = decoded.value;
    let Some(d) = conform(&REGISTRY, &mut object) else { return };
    let shaped = object.clone();
    assert!(Schema::builtin().conform(&d.schema, &mut object).is_ok_and(|unknown| unknown.is_empty()), "conform twice");
    assert_eq!(object, shaped, "what has the kind's shape keeps it");
    let mut errors = Errors::new();
    meta::validate(&object, d.namespaced(), d.name_rule, &mut errors);
    errors.append(d.strategy.create(&mut object));
    let _ = errors.iter().map(|error| error.body()).collect::<Vec<_>>();
    if errors.is_empty() {
        let old = object.clone();
        let errors = d.strategy.update(&mut object, &old);
        let errors: Vec<String> = errors.iter().map(|error| error.body()).collect();
        assert!(errors.is_empty(), "a {} that was taken is refused when nothing changes: {errors:?}", d.kind);
        let _ = d.strategy.warnings(&object);
    }
}

/// A document that decodes means the same after it was encoded.
pub fn yaml(input: &[u8]) {
    let Ok(decoded) = decode::yaml(input) else { return };
    let text = encode::to_yaml(&decoded.value);
    let again = decode::yaml(text.as_bytes()).unwrap_or_else(|error| panic!("{error} in {text:?}"));
    assert!(same(&again.value, &decoded.value), "{:?} is written as {text:?}", decoded.value);
}

/// Numbers count by their value: 1.0 may become 1.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|((k, a), (l, b))| k == l && same(a, b))
        }
        _ => a == b,
    }
}

/// The canonical form is canonical.
pub fn quantity(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let Ok(quantity) = Quantity::parse(text) else { return };
    let canonical = quantity.canonical();
    let again = Quantity::parse(&canonical).unwrap_or_else(|error| panic!("{canonical}: {error}"));
    assert_eq!(again.canonical(), canonical, "{text}");
    let _ = (quantity.value(), quantity.as_milli(), quantity.rounded_to_milli().canonical());
}
