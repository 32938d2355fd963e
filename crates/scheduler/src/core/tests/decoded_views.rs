//! Decoded views mean the same as the API objects: node affinity and taints are evaluated on both.

use mainstay_api::{
    k8s_openapi::api::core::v1::{Node, Pod},
    matching::{Effect, has_untolerated_taint, pod_matches_node},
};
use proptest::{collection::vec, option, prelude::*, sample::select};
use serde_json::{Value, json};

use crate::core::{
    filters,
    view::{NodeView, PodView},
};

/// Few words, so that they often meet.
fn word() -> impl Strategy<Value = &'static str> {
    select(vec!["", "a", "b", "1", "2", "n1"])
}

fn requirement(key: impl Strategy<Value = &'static str>) -> impl Strategy<Value = Value> {
    let operator = select(vec!["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Near"]);
    (key, operator, option::of(vec(word(), 0..3)))
        .prop_map(|(key, operator, values)| json!({ "key": key, "operator": operator, "values": values }))
}

fn term() -> impl Strategy<Value = Value> {
    let field = select(vec!["metadata.name", "metadata.name", "metadata.uid"]);
    (option::of(vec(requirement(word()), 0..3)), option::of(vec(requirement(field), 0..2)))
        .prop_map(|(labels, fields)| json!({ "matchExpressions": labels, "matchFields": fields }))
}

fn toleration() -> impl Strategy<Value = Value> {
    let operator = select(vec![None, Some(""), Some("Equal"), Some("Exists")]);
    let effect =
        select(vec![None, Some(""), Some("NoSchedule"), Some("PreferNoSchedule"), Some("NoExecute"), Some("Odd")]);
    (option::of(word()), operator, option::of(word()), effect).prop_map(
        |(key, operator, value, effect)| json!({ "key": key, "operator": operator, "value": value, "effect": effect }),
    )
}

fn taint() -> impl Strategy<Value = Value> {
    let effect = select(vec!["NoSchedule", "PreferNoSchedule", "NoExecute", "Odd"]);
    (select(vec!["a", "b"]), option::of(word()), effect)
        .prop_map(|(key, value, effect)| json!({ "key": key, "value": value, "effect": effect }))
}

fn pod() -> impl Strategy<Value = Value> {
    let selector = option::of(prop::collection::btree_map(word(), word(), 0..2));
    (selector, option::of(vec(term(), 0..3)), vec(toleration(), 0..3)).prop_map(|(selector, terms, tolerations)| {
        let required = terms.map(|terms| json!({ "nodeSelectorTerms": terms }));
        json!({ "metadata": { "name": "p", "namespace": "ns" }, "spec": {
            "containers": [], "nodeSelector": selector, "tolerations": tolerations,
            "affinity": { "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": required } },
        } })
    })
}

fn node() -> impl Strategy<Value = Value> {
    (option::of(prop::collection::btree_map(word(), word(), 0..4)), option::of(vec(taint(), 0..3))).prop_map(
        |(labels, taints)| json!({ "metadata": { "name": "n1", "labels": labels }, "spec": { "taints": taints } }),
    )
}

fn read<T: serde::de::DeserializeOwned>(written: &Value) -> T {
    serde_json::from_value(written.clone()).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]
    #[test]
    fn both_forms_agree(pod in pod(), node in node()) {
        let (view, node_view): (PodView, NodeView) = (read(&pod), read(&node));
        let (pod, node): (Pod, Node) = (read(&pod), read(&node));
        let (rules, spec) = (&view.spec.node, pod.spec.unwrap());
        let tolerations = spec.tolerations.as_deref().unwrap_or_default();
        let repelled = [Effect::NoSchedule, Effect::NoExecute].into_iter().any(|effect| has_untolerated_taint(&node, effect, tolerations));
        prop_assert_eq!(filters::matches_node_affinity(rules, &node_view), pod_matches_node(&spec, &node.metadata));
        prop_assert_eq!(filters::untolerated_taint(rules, &node_view).is_some(), repelled);
    }
}
