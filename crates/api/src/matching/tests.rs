//! A table of what each rule means, and the rules once more, plainly, against random machines.

use k8s_openapi::api::core::v1::{Node, NodeSelectorTerm, PodSpec, Toleration as Written};
use proptest::{option, prelude::*, sample::select};
use serde_json::{Value, json};

use super::*;

fn requirement(key: &str, operator: &str, values: &[&str]) -> Value {
    json!({ "key": key, "operator": operator, "values": values })
}

fn term(expressions: &[Value], fields: &[Value]) -> Value {
    json!({ "matchExpressions": expressions, "matchFields": fields })
}

fn node(labels: &Value, taints: &Value) -> Node {
    let node = json!({ "metadata": { "name": "n1", "labels": labels }, "spec": { "taints": taints } });
    serde_json::from_value(node).unwrap()
}

fn pod(selector: &Value, terms: Option<&Value>) -> PodSpec {
    let required = terms.map(|terms| json!({ "nodeSelectorTerms": terms }));
    let affinity = json!({ "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": required } });
    serde_json::from_value(json!({ "containers": [], "nodeSelector": selector, "affinity": affinity })).unwrap()
}

#[test]
fn each_operator_says_what_it_means() {
    let labels = node(&json!({ "disk": "ssd", "size": "5", "odd": "x" }), &json!([])).metadata.labels.unwrap();
    for (key, operator, values, holds) in [
        ("disk", "In", &["hdd", "ssd"][..], true),
        ("disk", "In", &["hdd"], false),
        ("gone", "In", &["x"], false),
        ("disk", "NotIn", &["ssd"], false),
        ("gone", "NotIn", &["ssd"], true),
        ("disk", "Exists", &[], true),
        ("gone", "Exists", &[], false),
        ("gone", "DoesNotExist", &[], true),
        ("disk", "DoesNotExist", &[], false),
        ("size", "Gt", &["4"], true),
        ("size", "Gt", &["5"], false),
        ("size", "Lt", &["6"], true),
        ("size", "Lt", &["5"], false),
        ("odd", "Lt", &["6"], false),
        ("size", "Gt", &["x"], false),
        ("size", "Gt", &[], false),
        ("gone", "Gt", &["0"], false),
        ("disk", "Near", &["ssd"], false),
    ] {
        let written = term(&[requirement(key, operator, values)], &[]);
        let term: NodeSelectorTerm = serde_json::from_value(written).unwrap();
        assert_eq!(term.matches("n1", &labels), holds, "{key} {operator} {values:?}");
    }
}

#[test]
fn one_term_has_to_match_in_all_it_says() {
    let machine = node(&json!({ "disk": "ssd", "zone": "a" }), &json!([])).metadata;
    let on = |operator: &str, name: &str| requirement("metadata.name", operator, &[name]);
    let ssd = || requirement("disk", "In", &["ssd"]);
    let far = || requirement("zone", "In", &["b"]);
    for (selector, terms, holds) in [
        (json!({}), None, true),
        (json!({ "disk": "ssd" }), None, true),
        (json!({ "disk": "ssd", "zone": "b" }), None, false),
        (json!({ "gone": "" }), None, false),
        (json!({}), Some(json!([])), false),
        (json!({}), Some(json!([{}])), false),
        (json!({}), Some(json!([term(&[], &[])])), false),
        (json!({}), Some(json!([term(&[ssd(), far()], &[])])), false),
        (json!({}), Some(json!([term(&[far()], &[]), term(&[ssd()], &[])])), true),
        (json!({ "zone": "b" }), Some(json!([term(&[ssd()], &[])])), false),
        (json!({}), Some(json!([term(&[], &[on("In", "n1")])])), true),
        (json!({}), Some(json!([term(&[], &[on("In", "n2")])])), false),
        (json!({}), Some(json!([term(&[], &[on("NotIn", "n2")])])), true),
        (json!({}), Some(json!([term(&[far()], &[on("In", "n1")])])), false),
        (json!({}), Some(json!([term(&[], &[requirement("metadata.uid", "NotIn", &["x"])])])), false),
    ] {
        assert_eq!(pod_matches_node(&pod(&selector, terms.as_ref()), &machine), holds, "{selector} {terms:?}");
    }
}

#[test]
fn tolerations_cover_what_they_leave_open() {
    let taint = json!([{ "key": "k", "value": "v", "effect": "NoExecute" }]);
    for (toleration, covers) in [
        (json!({ "operator": "Exists" }), true),
        (json!({ "key": "", "operator": "Exists", "effect": "" }), true),
        (json!({ "operator": "Exists", "effect": "NoExecute" }), true),
        (json!({ "operator": "Exists", "effect": "NoSchedule" }), false),
        (json!({ "key": "k", "operator": "Exists" }), true),
        (json!({ "key": "other", "operator": "Exists" }), false),
        (json!({ "key": "k", "operator": "Equal", "value": "v" }), true),
        (json!({ "key": "k", "value": "v", "effect": "NoExecute", "tolerationSeconds": 5 }), true),
        (json!({ "key": "k", "value": "w" }), false),
        (json!({ "key": "k" }), false),
        (json!({ "key": "k", "operator": "Exists", "effect": "Sometimes" }), false),
        (json!({ "value": "v" }), false),
    ] {
        let written: Written = serde_json::from_value(toleration.clone()).unwrap();
        assert_eq!(
            !has_untolerated_taint(&node(&json!({}), &taint), Effect::NoExecute, &[written]),
            covers,
            "{toleration}"
        );
    }
    let machine = node(&json!({}), &json!([{ "key": "k", "effect": "NoSchedule" }, { "key": "k", "effect": "Odd" }]));
    let empty: Written = serde_json::from_value(json!({ "key": "k", "operator": "Equal" })).unwrap();
    assert!(has_untolerated_taint(&machine, Effect::NoSchedule, &[]));
    assert!(!has_untolerated_taint(&machine, Effect::NoSchedule, &[empty]), "no value is an empty one");
    assert!(!has_untolerated_taint(&machine, Effect::NoExecute, &[]), "it has none of this effect");
}

/// Few words, so that they often meet.
fn word() -> impl Strategy<Value = &'static str> {
    select(vec!["", "a", "b", "1", "2"])
}

fn effect() -> impl Strategy<Value = &'static str> {
    select(vec!["NoSchedule", "PreferNoSchedule", "NoExecute"])
}

proptest! {
    #[test]
    fn operators_come_in_opposites(asked in prop::collection::vec(word(), 0..3), value in option::of(word())) {
        let asked: Vec<String> = asked.into_iter().map(str::to_owned).collect();
        let admits = |operator: Operator| operator.admits(&asked, value);
        prop_assert_ne!(admits(Operator::In), admits(Operator::NotIn));
        prop_assert_ne!(admits(Operator::Exists), admits(Operator::DoesNotExist));
        prop_assert!(!(admits(Operator::Gt) && admits(Operator::Lt)));
        prop_assert_eq!(admits(Operator::In), value.is_some_and(|value| asked.contains(&value.to_owned())));
        let numbers = value.zip(asked.first()).map(|(value, asked)| (value.parse(), asked.parse()));
        let (less, greater) = match numbers {
            Some((Ok(value), Ok(asked))) => { let (value, asked): (i64, i64) = (value, asked); (value < asked, value > asked) },
            _ => (false, false),
        };
        prop_assert_eq!((admits(Operator::Lt), admits(Operator::Gt)), (less, greater));
    }

    #[test]
    fn a_taint_is_borne_if_key_value_and_effect_are(
        (key, operator, value) in (option::of(word()), select(vec![None, Some("Equal"), Some("Exists")]), option::of(word())),
        tolerated in option::of(effect()),
        (taint_key, taint_value, taint_effect) in (select(vec!["a", "b"]), option::of(word()), effect()),
    ) {
        let written: Written = serde_json::from_value(
            json!({ "key": key, "operator": operator, "value": value, "effect": tolerated })).unwrap();
        let taints = json!([{ "key": taint_key, "value": taint_value, "effect": taint_effect }]);
        let any_value = operator == Some("Exists");
        let any_key = any_value && key.unwrap_or_default().is_empty();
        let borne = (any_key || key == Some(taint_key))
            && (any_value || value.unwrap_or_default() == taint_value.unwrap_or_default())
            && (tolerated.is_none() || tolerated == Some(taint_effect));
        let effect = Effect::parse(taint_effect).unwrap();
        prop_assert_eq!(!has_untolerated_taint(&node(&json!({}), &taints), effect, &[written]), borne);
    }
}
