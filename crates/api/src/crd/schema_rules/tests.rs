use serde_json::json;

use super::*;
use crate::crd::structural::MAX_NODES;

fn found(schema: Value, has_status: bool) -> Vec<String> {
    let mut errors = Errors::new();
    validate_schema(&schema, has_status, &mut MAX_NODES.clone(), &Path::new("s"), &mut errors);
    errors.iter().map(FieldError::to_string).collect()
}

/// The errors of a property `x` with this schema.
fn of_x(x: Value) -> Vec<String> {
    let found = found(json!({"type": "object", "properties": {"x": x}}), false);
    found.into_iter().map(|text| text.replace("s.properties[x]", "x")).collect()
}

#[test]
fn what_a_structural_schema_may_say_is_accepted() {
    let accepted = [
        json!({"type": "string", "pattern": "^a$", "maxLength": 3, "default": "a"}),
        json!({"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]}),
        json!({"x-kubernetes-int-or-string": true, "allOf": [{"anyOf": [{"type": "integer"}, {"type": "string"}]}, {"pattern": "^a$"}]}),
        json!({"x-kubernetes-preserve-unknown-fields": true}),
        json!({"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true}),
        json!({"type": "object", "properties": {"a": {"type": "string"}}, "oneOf": [{"required": ["a"]}, {"properties": {"a": {"enum": ["b"]}}}]}),
        json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["n"], "items": {"type": "object", "required": ["n"], "properties": {"n": {"type": "string"}}}}),
        json!({"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}}),
        json!({"type": "object", "x-kubernetes-map-type": "atomic", "additionalProperties": {"type": "string"}}),
        json!({"type": "object", "default": {}, "properties": {"a": {"type": "integer", "default": 1}}}),
    ];
    for schema in accepted {
        assert_eq!(of_x(schema.clone()), [""; 0], "{schema}");
    }
    let metadata = json!({"type": "object", "properties": {"metadata": {"type": "object", "properties": {"name": {"type": "string", "maxLength": 10}}}}});
    assert_eq!(found(metadata, true), [""; 0]);
}

#[test]
fn what_it_may_not_say_is_refused_in_upstreams_words() {
    let object = |fields: Value| json!({"type": "object", "properties": fields});
    let refused = [
        (json!({}), "x.type: Required value: must not be empty for specified object fields"),
        (json!({"type": "array"}), "x.items: Required value: must be specified"),
        (
            json!({"type": "array", "items": {}}),
            "x.items.type: Required value: must not be empty for specified array items",
        ),
        (
            json!({"type": "text"}),
            r#"x.type: Unsupported value: "text": supported values: "array", "boolean", "integer", "number", "object", "string""#,
        ),
        (json!({"type": "null"}), "x.type: Forbidden: type cannot be set to null, use nullable as an alternative"),
        (json!({"type": "string", "$ref": "#/a"}), "x.$ref: Forbidden: $ref is not supported"),
        (
            json!({"type": "object", "patternProperties": {"a": {}}}),
            "x.patternProperties: Forbidden: patternProperties is not supported",
        ),
        (json!({"type": "object", "definitions": {"a": {}}}), "x.definitions: Forbidden: definitions is not supported"),
        (
            json!({"type": "object", "dependencies": {"a": ["b"]}}),
            "x.dependencies: Forbidden: dependencies is not supported",
        ),
        (json!({"type": "string", "id": "a"}), "x.id: Forbidden: id is not supported"),
        (
            json!({"type": "array", "items": {"type": "string"}, "uniqueItems": true}),
            "x.uniqueItems: Forbidden: uniqueItems cannot be set to true since the runtime complexity becomes quadratic",
        ),
        (
            json!({"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": {"type": "string"}}),
            "x.additionalProperties: Forbidden: additionalProperties and properties are mutual exclusive",
        ),
        (
            json!({"type": "object", "x-kubernetes-preserve-unknown-fields": false}),
            "x.x-kubernetes-preserve-unknown-fields: Invalid value: false: must be true or undefined",
        ),
        (
            json!({"type": "string", "x-kubernetes-map-type": "atomic"}),
            r#"x.type: Invalid value: "string": must be object if x-kubernetes-map-type is specified"#,
        ),
        (
            json!({"type": "object", "x-kubernetes-map-type": "x"}),
            r#"x.x-kubernetes-map-type: Unsupported value: "x": supported values: "atomic", "granular""#,
        ),
        (
            json!({"type": "string", "x-kubernetes-list-type": "atomic"}),
            r#"x.type: Invalid value: "string": must be array if x-kubernetes-list-type is specified"#,
        ),
        (
            json!({"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "x"}),
            r#"x.x-kubernetes-list-type: Unsupported value: "x": supported values: "atomic", "set", "map""#,
        ),
        (
            json!({"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "object"}}),
            "x.items.x-kubernetes-map-type: Invalid value: null: must be atomic as item of a list with x-kubernetes-list-type=set",
        ),
        (
            json!({"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string", "nullable": true}}),
            "x.items.nullable: Forbidden: cannot be nullable when x-kubernetes-list-type is set",
        ),
        (
            json!({"type": "array", "x-kubernetes-list-type": "map", "items": object(json!({"n": {"type": "string"}}))}),
            "x.x-kubernetes-list-map-keys: Required value: must not be empty if x-kubernetes-list-type is map",
        ),
        (
            json!({"type": "array", "x-kubernetes-list-map-keys": ["n"], "items": object(json!({"n": {"type": "string"}}))}),
            "x.x-kubernetes-list-type: Required value: must be map if x-kubernetes-list-map-keys is non-empty",
        ),
        (
            json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["n"], "items": object(json!({"n": {"type": "string"}}))}),
            "x.items.properties[n].default: Required value: this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property",
        ),
        (
            json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["m"], "items": object(json!({"n": {"type": "string"}}))}),
            r#"x.x-kubernetes-list-map-keys: Invalid value: ["m"]: entries must all be names of item properties"#,
        ),
        (
            json!({"type": "string", "pattern": "("}),
            "x.pattern: Invalid value: \"(\": must be a valid regular expression, but isn't: ",
        ),
        (
            json!({"type": "integer", "default": "a"}),
            r#"x.default: Invalid value: "string":  in body must be of type integer: "string""#,
        ),
        (
            json!({"type": "object", "default": {"a": 1}}),
            r#"x.default: Invalid value: {"a":1}: must not have unknown fields"#,
        ),
        (
            json!({"type": "string", "anyOf": [{"type": "string"}]}),
            "x.anyOf[0].type: Forbidden: must be empty to be structural",
        ),
        (
            json!({"type": "object", "not": {"description": "d"}}),
            "x.not.description: Forbidden: must be empty to be structural",
        ),
        (
            json!({"type": "object", "allOf": [{"x-kubernetes-int-or-string": true}]}),
            "x.allOf[0].x-kubernetes-int-or-string: Forbidden: must be false to be structural",
        ),
        (
            json!({"type": "object", "x-kubernetes-embedded-resource": true}),
            "x.properties: Required value: must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields",
        ),
        (
            json!({"x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true}),
            "x.type: Required value: must be object if x-kubernetes-embedded-resource is true",
        ),
        (
            json!({"x-kubernetes-int-or-string": true, "x-kubernetes-preserve-unknown-fields": true}),
            "x.x-kubernetes-preserve-unknown-fields: Invalid value: true: must be false if x-kubernetes-int-or-string is true",
        ),
    ];
    for (schema, expected) in refused {
        let found = of_x(schema.clone());
        assert!(found.len() == 1 && found[0].starts_with(expected), "{schema}\n{expected}\n{found:#?}");
    }
}

#[test]
fn the_root_has_rules_of_its_own() {
    let nested = json!({"type": "object", "oneOf": [{"required": ["a"], "properties": {"a": {"minimum": 1}}}]});
    assert_eq!(
        found(nested, false),
        ["s.properties[a]: Required value: because it is defined in s.oneOf[0].properties[a]"]
    );
    assert_eq!(
        found(json!({"type": "string"}), false),
        [r#"s.type: Invalid value: "string": must be object at the root"#]
    );
    assert_eq!(
        found(json!({"type": "object", "additionalProperties": {"type": "string"}}), false),
        ["s.additionalProperties: Forbidden: must not be used at the root"]
    );
    assert_eq!(
        found(json!({"type": "object", "nullable": true}), false),
        ["s.nullable: Forbidden: nullable cannot be true at the root"]
    );
    let default = json!({"type": "object", "properties": {"kind": {"type": "string", "default": "x"}}});
    assert_eq!(found(default, false), ["s.properties[kind].default: Forbidden: must not be set in top-level kind"]);
    let metadata = json!({"type": "object", "properties": {"metadata": {"type": "object", "properties": {"labels": {"type": "object"}}}}});
    let words = "must not specify anything other than name and generateName, but metadata is implicitly specified";
    assert_eq!(found(metadata, false), [format!("s.properties[metadata]: Forbidden: {words}")]);
    let with_status = found(json!({"type": "object", "maxProperties": 2}), true);
    assert!(
        with_status[0].contains("fields are allowed at the root of the schema if the status subresource is enabled"),
        "{with_status:?}"
    );
}

#[test]
fn a_schema_of_very_many_nodes_is_refused() {
    let mut errors = Errors::new();
    let schema = json!({"type": "object", "properties": {"a": {"type": "string"}}});
    validate_schema(&schema, false, &mut 1, &Path::new("s"), &mut errors);
    let texts: Vec<String> = errors.iter().map(FieldError::to_string).collect();
    assert_eq!(
        texts,
        ["s: Invalid value: \"\": the schemas of one CustomResourceDefinition must have at most 100000 nodes"]
    );
}
