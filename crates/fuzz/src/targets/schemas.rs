//! Definitions of custom kinds: `{"schema": openAPIV3Schema, "objects": [old, new, …]}`; and the languages within them.

use bytes::Bytes;
use mainstay_api::{
    crd::{Structural, json_path::JsonPath, kind, pattern, prune, schema_rules, structural::MAX_NODES},
    field::{Errors, Path},
    registry::Registry,
};
use serde_json::{Value, json};

use super::documents;

pub const WORDS: &[&str] = &[
    "type",
    "object",
    "array",
    "string",
    "integer",
    "properties",
    "items",
    "additionalProperties",
    "default",
    "pattern",
    "format",
    "x-kubernetes-validations",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-int-or-string",
    "x-kubernetes-embedded-resource",
    "rule",
    "self",
    "oldSelf",
    "nullable",
    "enum",
    "not",
    "anyOf",
    "oneOf",
    "allOf",
    "maxItems",
    "maxProperties",
    "maxLength",
    "multipleOf",
    "date-time",
    "required",
    "uniqueItems",
];

/// A schema that is taken serves: pruning and defaulting its objects twice is the same as once, and rules end.
pub fn definition(input: &[u8]) {
    let Some([schema, objects]) = documents(input, ["schema", "objects"]) else { return };
    let (mut errors, mut room) = (Errors::new(), MAX_NODES);
    schema_rules::validate_schema(&schema, false, &mut room, &Path::ROOT, &mut errors);
    let _ = errors.iter().map(|error| error.body()).collect::<Vec<_>>();
    if !errors.is_empty() || !schema.is_object() {
        // What is refused may still be asked for its structure, by a server that reads what another one stored.
        let _ = Structural::parse(&schema, &mut { MAX_NODES });
        return;
    }
    let definition = json!({
        "metadata": {"name": "things.example.com", "uid": "u", "generation": 1},
        "spec": {"group": "example.com", "scope": "Namespaced",
            "names": {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}]},
        "status": {"conditions": [{"type": "Established", "status": "True"}]},
    });
    let kinds = kind::served(&definition, &Bytes::from(definition.to_string())).expect("as large as was judged");
    let [d] = &kinds[..] else { panic!("one version is served") };
    let custom = d.custom.clone().expect("a custom kind");
    let mut old: Option<Value> = None;
    for object in objects.as_array().into_iter().flatten().take(4) {
        let mut object = object.clone();
        if !object.is_object() {
            continue;
        }
        prune::prune_resource(&custom.schema, &mut object);
        let pruned = object.clone();
        prune::prune_resource(&custom.schema, &mut object);
        assert_eq!(object, pruned, "pruned twice");
        let errors = match &old {
            None => d.strategy.create(&mut object),
            Some(old) => d.strategy.update(&mut object, old),
        };
        let _ = errors.iter().map(|error| error.body()).collect::<Vec<_>>();
        let completed = object.clone();
        let _ = d.strategy.create(&mut object);
        assert_eq!(object, completed, "defaults filled in twice");
        if errors.is_empty() {
            old = Some(completed);
        }
    }
    let registry = Registry::builtin().with_custom(kinds.into_iter().map(std::sync::Arc::new));
    let _ = registry.iter().count();
}

pub fn json_path(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let Some(path) = JsonPath::parse(text) else { return };
    let object =
        json!({"spec": {"a": [1, {"type": "Ready", "status": "True"}, [[]]], "b.c": {"d": null}}, "status": {}});
    let _ = path.first(&object);
}

pub fn pattern(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    if let Ok(pattern) = pattern::compile(text) {
        let _ = pattern.is_match(&"aA0-_. ß".repeat(200));
    }
}
