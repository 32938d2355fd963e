use serde_json::json;

use crate::{Environment, Program, Type, type_from_schema};

fn error(expression: &str) -> String {
    let schema = json!({
        "type": "object",
        "properties": {
            "replicas": {"type": "integer"}, "name": {"type": "string"}, "x-y": {"type": "string"},
            "tags": {"type": "array", "items": {"type": "string"}},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
            "port": {"x-kubernetes-int-or-string": true},
            "untyped": {"x-kubernetes-preserve-unknown-fields": true},
        },
    });
    let environment = Environment::new()
        .variable("self", type_from_schema(&schema, false).expect("the schema has a type"))
        .variable("variables.replicas", Type::Int)
        .variable("any", Type::Dyn);
    match Program::compile(&environment, expression) {
        Ok(program) => format!("ok: {}", program.result_type()),
        Err(error) => error.to_string(),
    }
}

#[test]
fn errors_are_upstreams() {
    for (expression, expected) in [
        ("x", "ERROR: <input>:1:1: undeclared reference to 'x' (in container '')\n | x\n | ^"),
        ("self.x", "ERROR: <input>:1:5: undefined field 'x'\n | self.x\n | ....^"),
        ("self.untyped == 1", "ERROR: <input>:1:5: undefined field 'untyped'\n | self.untyped == 1\n | ....^"),
        ("has(self.missing)", "ERROR: <input>:1:4: undefined field 'missing'\n | has(self.missing)\n | ...^"),
        ("variables.other", "ERROR: <input>:1:10: undefined field 'other'\n | variables.other\n | .........^"),
        ("foo(1)", "ERROR: <input>:1:4: undeclared reference to 'foo' (in container '')\n | foo(1)\n | ...^"),
        (
            "self.name == 1",
            "ERROR: <input>:1:11: found no matching overload for '_==_' applied to '(string, int)'\n | self.name == 1\n | ..........^",
        ),
        (
            "self.name.charAt('a')",
            "ERROR: <input>:1:17: found no matching overload for 'charAt' applied to 'string.(string)'\n | self.name.charAt('a')\n | ................^",
        ),
        (
            "self.replicas.foo",
            "ERROR: <input>:1:14: type 'int' does not support field selection\n | self.replicas.foo\n | .............^",
        ),
        (
            "self.replicas.all(x, true)",
            "ERROR: <input>:1:5: expression of type 'int' cannot be range of a comprehension (must be list, map, or dynamic)\n | self.replicas.all(x, true)\n | ....^",
        ),
        ("[1, 'a'] == []", "ERROR: <input>:1:5: expected type 'int' but found 'string'\n | [1, 'a'] == []\n | ....^"),
        ("1 && true", "ERROR: <input>:1:1: expected type 'bool' but found 'int'\n | 1 && true\n | ^"),
        (
            "true ? 1 : 'a'",
            "ERROR: <input>:1:6: found no matching overload for '_?_:_' applied to '(bool, int, string)'\n | true ? 1 : 'a'\n | .....^",
        ),
        (
            "self.tags['a'] == ''",
            "ERROR: <input>:1:10: found no matching overload for '_[_]' applied to '(list(string), string)'\n | self.tags['a'] == ''\n | .........^",
        ),
        ("'ö' == x", "ERROR: <input>:1:8: undeclared reference to 'x' (in container '')\n | 'ö' == x\n | .......^"),
        ("true &&\n  x", "ERROR: <input>:2:3: undeclared reference to 'x' (in container '')\n |   x\n | ..^"),
        (
            "self.name b",
            "ERROR: <input>:1:11: Syntax error: extraneous input 'b' expecting <EOF>\n | self.name b\n | ..........^",
        ),
        (
            "Object{a: 1}",
            "ERROR: <input>:1:7: undeclared reference to 'Object' (in container '')\n | Object{a: 1}\n | ......^",
        ),
        (
            "'a'.matches('(')",
            "ERROR: <input>:1:13: invalid matches argument: error parsing regexp: unclosed group\n | 'a'.matches('(')\n | ............^",
        ),
        ("duration('1')", "ERROR: <input>:1:10: invalid duration argument\n | duration('1')\n | .........^"),
        ("timestamp('x')", "ERROR: <input>:1:11: invalid timestamp argument\n | timestamp('x')\n | ..........^"),
        (
            "cel.bind(a.b, 1, 2)",
            "ERROR: <input>:1:11: argument must be a simple name\n | cel.bind(a.b, 1, 2)\n | ..........^",
        ),
    ] {
        assert_eq!(error(expression), expected, "{expression}");
    }
}

#[test]
fn types_are_found() {
    for (expression, expected) in [
        ("self.replicas + 1", "int"),
        ("self.tags.map(t, t.size())", "list(int)"),
        ("self.tags.filter(t, t != '')", "list(string)"),
        ("self.labels['a']", "string"),
        ("self.labels.all(k, k != '')", "bool"),
        ("self.x__dash__y", "string"),
        ("self.port == 1 || self.port == '1'", "bool"),
        ("self.?name", "optional_type(string)"),
        ("any.x.y", "dyn"),
        ("any + 1", "int"),
        ("variables.replicas", "int"),
        ("has(variables.replicas)", "bool"),
        ("{'a': self.replicas}", "map(string, int)"),
        ("self.tags.transformMap(i, t, t)", "map(int, string)"),
        ("quantity('1')", "kubernetes.Quantity"),
        ("[]", "list(dyn)"),
        ("type(1) == int", "bool"),
    ] {
        assert_eq!(error(expression), format!("ok: {expected}"), "{expression}");
    }
}
