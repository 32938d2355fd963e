use serde_json::json;

use super::*;
use crate::crd::testing::schema;

fn found(schema: &Structural, value: Value, old: Option<Value>) -> Vec<String> {
    let mut errors = Errors::new();
    validate(schema, &value, old.as_ref(), &WalkPath::Root, &mut errors);
    errors.iter().map(FieldError::to_string).collect()
}

/// The errors of a value of `spec.x` with this schema.
fn of_x(x: Value, value: Value) -> Vec<String> {
    let schema = schema(json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {"x": x}}}}));
    found(&schema, json!({"spec": {"x": value}}), None)
}

#[test]
fn every_keyword_accepts_and_refuses_in_upstreams_words() {
    let object = |fields: Value| json!({"type": "object", "properties": fields});
    let (a, b) = (json!({"required": ["a"]}), json!({"required": ["b"]}));
    let cases: Vec<(Value, Value, Value, &str)> = vec![
        (
            json!({"type": "string"}),
            json!("a"),
            json!(1),
            r#"spec.x: Invalid value: "integer": spec.x in body must be of type string: "integer""#,
        ),
        (
            json!({"type": "integer"}),
            json!(1.0),
            json!(1.5),
            r#"spec.x: Invalid value: "number": spec.x in body must be of type integer: "number""#,
        ),
        (
            json!({"type": "integer"}),
            json!(1),
            json!("1"),
            r#"spec.x: Invalid value: "string": spec.x in body must be of type integer: "string""#,
        ),
        (
            json!({"type": "number"}),
            json!(1),
            json!(true),
            r#"spec.x: Invalid value: "boolean": spec.x in body must be of type number: "boolean""#,
        ),
        (
            json!({"type": "boolean"}),
            json!(true),
            json!("true"),
            r#"spec.x: Invalid value: "string": spec.x in body must be of type boolean: "string""#,
        ),
        (
            json!({"type": "array", "items": {"type": "string"}}),
            json!(["a"]),
            json!(["a", 2]),
            r#"spec.x[1]: Invalid value: "integer": spec.x[1] in body must be of type string: "integer""#,
        ),
        (
            json!({"type": "object", "additionalProperties": {"type": "string"}}),
            json!({"k": "v"}),
            json!({"k": 1}),
            r#"spec.x.k: Invalid value: "integer": spec.x.k in body must be of type string: "integer""#,
        ),
        (
            json!({"type": "string", "nullable": true}),
            json!(null),
            json!(1),
            r#"spec.x: Invalid value: "integer": spec.x in body must be of type string: "integer""#,
        ),
        (
            json!({"type": "string"}),
            json!(""),
            json!(null),
            r#"spec.x: Invalid value: "null": spec.x in body must be of type string: "null""#,
        ),
        (
            json!({"x-kubernetes-int-or-string": true}),
            json!("50%"),
            json!(true),
            r#"spec.x: Invalid value: "boolean": spec.x in body must be of type integer,string: "boolean""#,
        ),
        (
            json!({"type": "integer", "maximum": 10}),
            json!(10),
            json!(11),
            "spec.x: Invalid value: 11: spec.x in body should be less than or equal to 10",
        ),
        (
            json!({"type": "integer", "maximum": 10, "exclusiveMaximum": true}),
            json!(9),
            json!(10),
            "spec.x: Invalid value: 10: spec.x in body should be less than 10",
        ),
        (
            json!({"type": "integer", "minimum": 1}),
            json!(1),
            json!(0),
            "spec.x: Invalid value: 0: spec.x in body should be greater than or equal to 1",
        ),
        (
            json!({"type": "number", "minimum": 0.5, "exclusiveMinimum": true}),
            json!(1),
            json!(0.5),
            "spec.x: Invalid value: 0.5: spec.x in body should be greater than 0.5",
        ),
        (
            json!({"type": "integer", "multipleOf": 3}),
            json!(9),
            json!(10),
            "spec.x: Invalid value: 10: spec.x in body should be a multiple of 3",
        ),
        (
            json!({"type": "string", "maxLength": 2}),
            json!("éé"),
            json!("abc"),
            "spec.x: Too long: may not be more than 2 bytes",
        ),
        (
            json!({"type": "string", "minLength": 2}),
            json!("ab"),
            json!("é"),
            r#"spec.x: Invalid value: "é": spec.x in body should be at least 2 chars long"#,
        ),
        (
            json!({"type": "string", "pattern": "^a+$"}),
            json!("aa"),
            json!("b"),
            r#"spec.x: Invalid value: "b": spec.x in body should match '^a+$'"#,
        ),
        (
            json!({"type": "string", "format": "ipv4"}),
            json!("10.0.0.1"),
            json!("x"),
            r#"spec.x: Invalid value: "x": spec.x in body must be of type ipv4: "x""#,
        ),
        (
            json!({"type": "string", "format": "int32"}),
            json!("anything"),
            json!(1),
            r#"spec.x: Invalid value: "integer": spec.x in body must be of type string: "integer""#,
        ),
        (
            json!({"type": "string", "enum": ["A", "B"]}),
            json!("A"),
            json!("C"),
            r#"spec.x: Unsupported value: "C": supported values: "A", "B""#,
        ),
        (
            json!({"type": "integer", "enum": [1, 2]}),
            json!(1.0),
            json!(3),
            r#"spec.x: Unsupported value: 3: supported values: "1", "2""#,
        ),
        (
            json!({"type": "array", "maxItems": 1, "items": {}}),
            json!([1]),
            json!([1, 2]),
            "spec.x: Too many: 2: must have at most 1 items",
        ),
        (
            json!({"type": "array", "minItems": 1, "items": {}}),
            json!([1]),
            json!([]),
            "spec.x: Invalid value: 0: spec.x in body should have at least 1 items",
        ),
        (
            json!({"type": "object", "maxProperties": 1, "additionalProperties": true}),
            json!({"a": 1}),
            json!({"a": 1, "b": 2}),
            "spec.x: Invalid value: 2: spec.x in body should have at most 1 properties",
        ),
        (
            json!({"type": "object", "minProperties": 1, "additionalProperties": true}),
            json!({"a": 1}),
            json!({}),
            "spec.x: Invalid value: 0: spec.x in body should have at least 1 properties",
        ),
        (json!({"type": "object", "required": ["a"]}), json!({"a": 1}), json!({}), "spec.x.a: Required value"),
        (
            json!({"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}}),
            json!(["a", "b"]),
            json!(["a", "b", "a", "a"]),
            r#"spec.x[2]: Duplicate value: "a""#,
        ),
        (
            json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["n", "p"], "items": object(json!({"n": {}, "p": {}}))}),
            json!([{"n": "a", "p": 1}, {"n": "a", "p": 2}]),
            json!([{"n": "a", "p": 1, "v": 1}, {"n": "a", "p": 1, "v": 2}]),
            r#"spec.x[1]: Duplicate value: {"n":"a","p":1}"#,
        ),
        (
            json!({"type": "object", "not": {"required": ["a"]}}),
            json!({}),
            json!({"a": 1}),
            r#"<nil>: Invalid value: "": "spec.x" must not validate the schema (not)"#,
        ),
        (
            json!({"type": "object", "oneOf": [a, b]}),
            json!({"a": 1}),
            json!({"a": 1, "b": 1}),
            r#"<nil>: Invalid value: "": "spec.x" must validate one and only one schema (oneOf). Found 2 valid alternatives"#,
        ),
    ];
    for (schema, good, bad, expected) in cases {
        assert_eq!(of_x(schema.clone(), good.clone()), [""; 0], "{schema} {good}");
        assert_eq!(of_x(schema.clone(), bad.clone()), [expected], "{schema} {bad}");
    }
}

#[test]
fn of_alternatives_the_nearest_failure_is_told_too() {
    let one = json!({"type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b", "c"]}]});
    let none = r#"<nil>: Invalid value: "": "spec.x" must validate one and only one schema (oneOf). Found none valid"#;
    assert_eq!(of_x(one, json!({})), [none, "spec.x.a: Required value"]);
    let any = json!({"type": "object", "anyOf": [{"required": ["a"]}, {"required": ["b", "c"]}]});
    let none = r#"<nil>: Invalid value: "": "spec.x" must validate at least one schema (anyOf)"#;
    assert_eq!(of_x(any, json!({})), [none, "spec.x.a: Required value"]);
    let all = json!({"type": "object", "allOf": [{"required": ["a"]}, {"required": ["b"]}]});
    let some = r#"<nil>: Invalid value: "": "spec.x" must validate all the schemas (allOf)"#;
    assert_eq!(of_x(all, json!({"a": 1})), [some, "spec.x.b: Required value"]);
}

#[test]
fn an_update_is_not_refused_for_what_it_did_not_change() {
    let schema = schema(json!({"type": "object", "properties": {
        "a": {"type": "integer", "maximum": 10}, "b": {"type": "string"},
        "list": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["n"], "items": {
            "type": "object", "properties": {"n": {"type": "string"}, "v": {"type": "integer", "maximum": 10}},
        }},
        "atomic": {"type": "array", "items": {"type": "integer", "maximum": 10}},
    }}));
    let old = json!({"a": 11, "b": "x", "list": [{"n": "one", "v": 11}, {"n": "two", "v": 1}], "atomic": [11, 1]});
    let changed = |change: fn(&mut Value)| {
        let mut new = old.clone();
        change(&mut new);
        found(&schema, new, Some(old.clone()))
    };
    assert_eq!(changed(|new| new["b"] = json!("y")), [""; 0]);
    assert_eq!(changed(|new| new["list"] = json!([{"n": "two", "v": 2}, {"n": "one", "v": 11}])), [""; 0]);
    assert_eq!(changed(|new| new["list"][0]["v"] = json!(12)).len(), 1, "what changed is judged");
    assert_eq!(changed(|new| new["a"] = json!(12)).len(), 1);
    assert_eq!(changed(|new| new["atomic"] = json!([11, 2])).len(), 1, "items of an atomic list do not correlate");
}
