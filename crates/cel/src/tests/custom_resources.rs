use serde_json::{Value as Json, json};

use crate::{Budget, Environment, Program, Variables, type_from_schema};

fn schema() -> Json {
    json!({
        "type": "object",
        "properties": {
            "namespace": {"type": "string"}, "a.b": {"type": "integer"}, "x__y": {"type": "integer"}, "s/l": {"type": "integer"},
            "ratio": {"type": "number"}, "port": {"x-kubernetes-int-or-string": true},
            "at": {"type": "string", "format": "date-time"}, "day": {"type": "string", "format": "date"},
            "wait": {"type": "string", "format": "duration"}, "data": {"type": "string", "format": "byte"},
            "set": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
            "list": {"type": "array", "items": {"type": "string"}},
            "map": {
                "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
                "items": {"type": "object", "properties": {"k": {"type": "string"}, "v": {"type": "integer"}}},
            },
        },
    })
}

fn holds(rule: &str, object: &Json, old: &Json) -> Result<bool, String> {
    let ty = type_from_schema(&schema(), true).expect("the schema has a type");
    let environment = Environment::new().variable("self", ty.clone()).variable("oldSelf", ty);
    let program = Program::compile(&environment, rule).map_err(|error| error.to_string())?;
    let variables = Variables::new().json("self", object).json("oldSelf", old);
    let value = program.evaluate(&variables, &mut Budget::default()).map_err(|error| error.to_string())?;
    value.as_bool().ok_or_else(|| "not a boolean".to_owned())
}

#[test]
fn properties_are_reached_by_their_escaped_names_and_declared_types() {
    let object = json!({
        "metadata": {"name": "a", "labels": {}}, "kind": "K", "apiVersion": "v1",
        "namespace": "n", "a.b": 1, "x__y": 2, "s/l": 3, "ratio": 2, "port": "http",
        "at": "2024-01-01T00:00:00Z", "day": "2024-01-01", "wait": "1m", "data": "aGk=",
    });
    for rule in [
        "self.__namespace__ == 'n' && self.a__dot__b == 1 && self.x__underscores__y == 2 && self.s__slash__l == 3",
        "self.ratio == 2.0",
        "type(self.port) == string && self.port == 'http'",
        "self.at == self.day && self.at.getFullYear() == 2024",
        "self.wait == duration('60s')",
        "self.data == b'hi'",
        "self.metadata.name == 'a' && self.kind == 'K' && self.apiVersion == 'v1'",
        "!has(self.list) && has(self.ratio)",
        "self == oldSelf",
    ] {
        assert_eq!(holds(rule, &object, &object), Ok(true), "{rule}");
    }
    assert!(
        holds("self.metadata.labels.size() == 0", &object, &object)
            .is_err_and(|e| e.contains("undefined field 'labels'"))
    );
}

#[test]
fn sets_and_maps_are_compared_and_added_without_order() {
    let object = json!({"set": ["a", "b"], "list": ["a", "b"], "map": [{"k": "x", "v": 1}, {"k": "y", "v": 2}]});
    let old = json!({"set": ["b", "a"], "list": ["b", "a"], "map": [{"k": "y", "v": 2}, {"k": "x", "v": 1}]});
    for rule in [
        "self.set == oldSelf.set",
        "self.list != oldSelf.list",
        "self.map == oldSelf.map",
        "(self.set + ['b', 'c']).size() == 3",
        "(self.list + ['b', 'c']).size() == 4",
        "(self.map + oldSelf.map).size() == 2",
        "(self.map + oldSelf.map.filter(e, e.k == 'y'))[1].v == 2",
    ] {
        assert_eq!(holds(rule, &object, &old), Ok(true), "{rule}");
    }
    // The whole object is compared by its properties' own rules.
    assert_eq!(holds("self == oldSelf", &json!({"set": ["a", "b"]}), &json!({"set": ["b", "a"]})), Ok(true));
    assert_eq!(holds("self == oldSelf", &json!({"list": ["a", "b"]}), &json!({"list": ["b", "a"]})), Ok(false));
}

#[test]
fn data_of_another_type_is_an_error() {
    let object = json!({"ratio": "x"});
    assert_eq!(holds("self.ratio > 1.0", &object, &object), Err("invalid data, expected double, got string".into()));
}

#[test]
fn the_estimate_follows_the_sizes_of_the_schema() {
    let cost = |items: Json, rule: &str| {
        let schema = json!({"type": "object", "properties": {"list": items}});
        let environment = Environment::new().variable("self", type_from_schema(&schema, false).expect("a type"));
        Program::compile(&environment, rule).expect(rule).estimate_cost().max
    };
    let short = json!({"type": "array", "maxItems": 10, "items": {"type": "string", "maxLength": 10}});
    let long = json!({"type": "array", "items": {"type": "string"}});
    let rule = "self.list.all(x, self.list.all(y, x == y || x.contains('a')))";
    assert!(cost(short, rule) < crate::RULE_COST_LIMIT);
    assert!(cost(long.clone(), rule) > crate::RULE_COST_LIMIT);
    assert!(cost(long, "self.list.size() > 3") < 10);
}

#[test]
fn the_estimate_covers_the_cost_of_the_largest_object() {
    let schema = json!({"type": "object", "properties": {
        "list": {"type": "array", "maxItems": 5, "items": {"type": "string", "maxLength": 5}},
        "text": {"type": "string", "maxLength": 20},
    }});
    let object = json!({"list": ["aaaaa", "bbbbb", "ccccc", "ddddd", "eeeee"], "text": "abcdefghijklmnopqrst"});
    for rule in [
        "self.list.all(x, x != self.text)",
        "self.list.exists(x, self.list.exists(y, x + y == self.text))",
        "self.list.map(x, x + x).join(',').contains(self.text)",
        "self.text.replace('a', 'bb').split('b').size() > 1",
        "self.text.matches('^[a-z]+$') && self.list.filter(x, x > 'a').size() == 5",
        "'a' in self.list && self.list.isSorted()",
    ] {
        let environment = Environment::new().variable("self", type_from_schema(&schema, false).expect("a type"));
        let program = Program::compile(&environment, rule).expect(rule);
        let mut budget = Budget::new(1_000_000, 1_000_000);
        program.evaluate(&Variables::new().json("self", &object), &mut budget).expect(rule);
        let spent = 1_000_000 - budget.remaining();
        let estimate = program.estimate_cost().max;
        assert!(spent <= estimate * 2, "{rule}: cost {spent}, estimated {estimate}");
    }
}
