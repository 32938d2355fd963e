//! Walks along types: merging lists, removing fields, and schemas that changed.

use super::*;
use crate::apply::{compare, fields_v1, merge, reconcile, remove, typed::Untyped};

fn with_containers(list: Value) -> Value {
    json!({"spec": {"template": {"spec": {"containers": list}}}})
}

fn merged_names(live: &[&str], config: &[&str]) -> Vec<String> {
    let list = |names: &[&str]| with_containers(names.iter().map(|name| json!({"name": name})).collect());
    let merged = merge(deployment_type(), &list(live), &list(config));
    let items = merged.pointer("/spec/template/spec/containers").unwrap().as_array().unwrap().clone();
    items.iter().map(|item| item["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn merged_lists_take_the_order_of_the_configuration() {
    for (live, config, expected) in [
        (&["a", "b"][..], &["c"][..], &["a", "b", "c"][..]),
        (&["a", "b", "c"], &["c", "a"], &["b", "c", "a"]),
        (&["a", "b"], &["b", "a"], &["b", "a"]),
        (&["a", "x", "b"], &["b", "a"], &["x", "b", "a"]),
        (&["x", "a", "y"], &["a", "n"], &["x", "a", "y", "n"]),
        (&[], &["a"], &["a"]),
        (&["a"], &[], &["a"]),
    ] {
        assert_eq!(merged_names(live, config), expected, "{live:?} + {config:?}");
    }
}

#[test]
fn items_that_an_object_has_twice_are_compared_whole_and_replaced() {
    let twice = with_containers(json!([{"name": "c", "image": "1"}, {"name": "c", "image": "2"}]));
    let once = with_containers(json!([{"name": "c", "image": "3"}]));
    let merged = merge(deployment_type(), &twice, &once);
    assert_eq!(merged, once);
    let comparison = compare(deployment_type(), &twice, &once);
    let item =
        |fields: Value| json!({"f:spec": {"f:template": {"f:spec": {"f:containers": {r#"k:{"name":"c"}"#: fields}}}}});
    assert_eq!(fields_v1::encode(&comparison.removed), item(json!({})));
    assert_eq!(fields_v1::encode(&comparison.added), item(json!({".": {}, "f:image": {}, "f:name": {}})));
    assert!(compare(deployment_type(), &twice, &twice).is_same());
}

#[test]
fn what_loses_all_its_parts_goes_with_them() {
    let object = json!({"metadata": {"labels": {"a": "1"}}, "spec": {"strategy": {"type": "Recreate"}, "replicas": 1}});
    let gone = json!({"f:metadata": {"f:labels": {"f:a": {}}}, "f:spec": {"f:strategy": {"f:type": {}}}});
    let left = remove(deployment_type(), &object, &fields_v1::decode(&gone).unwrap());
    assert_eq!(left, json!({"spec": {"replicas": 1}}));
}

#[test]
fn ownership_follows_types_that_became_atomic_or_granular() {
    let live = json!({"metadata": {"labels": {"a": "1"}}, "spec": {"selector": {"matchLabels": {"l": "1"}}}});
    for (stored, expected) in [
        (
            json!({"f:spec": {"f:selector": {"f:matchLabels": {"f:l": {}}}}}),
            Some(json!({"f:spec": {"f:selector": {}}})),
        ),
        (json!({"f:metadata": {"f:labels": {}}}), Some(json!({"f:metadata": {"f:labels": {".": {}, "f:a": {}}}}))),
        (json!({"f:metadata": {"f:labels": {"f:a": {}}}, "f:spec": {"f:selector": {}}}), None),
        (json!({"f:unknown": {"f:x": {}}}), None),
    ] {
        let set = fields_v1::decode(&stored).unwrap();
        let changed = reconcile(deployment_type(), &set, &live).map(|set| fields_v1::encode(&set));
        assert_eq!(changed, expected, "{stored}");
    }
}

#[test]
fn data_without_a_schema_merges_maps_and_replaces_lists() {
    let live = json!({"map": {"a": 1, "b": 2}, "list": [1, 2], "kind": "K"});
    let config = json!({"map": {"b": 3, "c": 4}, "list": [3]});
    assert_eq!(merge(Untyped, &live, &config), json!({"map": {"a": 1, "b": 3, "c": 4}, "list": [3], "kind": "K"}));
    let (map, scalar) = (json!({"x": {"a": 1}}), json!({"x": "scalar"}));
    let comparison = compare(Untyped, &map, &scalar);
    assert_eq!(fields_v1::encode(&comparison.modified), json!({"f:x": {}}));
    assert_eq!(fields_v1::encode(&comparison.removed), json!({"f:x": {"f:a": {}}}));
}
