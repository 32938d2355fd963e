//! Finds rules of one pod that exclude each other: no node could ever fit it.

use std::collections::BTreeMap;

use mainstay_api::matching::Requirement as _;

use super::{
    reason::Contradiction,
    selector::{NodeTerm, Operator, Requirement},
    view::SchedulingRules,
};

pub fn find_contradiction(rules: &SchedulingRules) -> Option<Contradiction> {
    let no_roles = rules.roles.is_empty().then_some(Contradiction::NoRoles);
    no_roles.or_else(|| host_port_twice(rules)).or_else(|| node_affinity(rules)).or_else(|| pod_affinity(rules))
}

fn host_port_twice(rules: &SchedulingRules) -> Option<Contradiction> {
    let ports = rules.ports.iter().enumerate();
    let mut twice = ports.filter(|(nth, port)| rules.ports[..*nth].iter().any(|other| other.conflicts_with(port)));
    twice.next().map(|(_, port)| Contradiction::PortTwice { port: port.port })
}

fn node_affinity(rules: &SchedulingRules) -> Option<Contradiction> {
    let selector: Vec<Requirement> =
        rules.node.selector.iter().map(|(key, value)| Requirement::equal(key, value)).collect();
    let Some(terms) = &rules.node.required else { return None };
    let mut why = None;
    for term in terms {
        if term.labels.is_empty() && term.fields.is_empty() {
            continue;
        }
        why = Some(contradictory_key(term, &selector)?);
    }
    Some(why.map_or(Contradiction::NoTerms, |key| Contradiction::NodeLabel { key }))
}

/// The label or field for which no value satisfies both the term and the selector.
fn contradictory_key(term: &NodeTerm, selector: &[Requirement]) -> Option<String> {
    let mut by_key: BTreeMap<&str, Vec<&Requirement>> = BTreeMap::new();
    for requirement in term.labels.iter().chain(selector) {
        by_key.entry(&requirement.key).or_default().push(requirement);
    }
    let labels = by_key.iter().find(|(_, all)| !satisfiable(all)).map(|(key, _)| (*key).to_owned());
    let fields: Vec<&Requirement> = term.fields.iter().collect();
    labels.or_else(|| (!satisfiable(&fields)).then(|| "metadata.name".to_owned()))
}

/// Whether one value, or the lack of one, can satisfy all. Numbers between bounds are tried at the bounds.
fn satisfiable(all: &[&Requirement]) -> bool {
    if all.iter().all(|requirement| requirement.admits(None)) {
        return true;
    }
    let named = all.iter().filter(|requirement| requirement.operator == Operator::In);
    if let Some(values) = named.map(|requirement| &requirement.values).next() {
        return values.iter().any(|value| all.iter().all(|requirement| requirement.admits(Some(value))));
    }
    let bounds = all.iter().filter(|requirement| matches!(requirement.operator, Operator::Gt | Operator::Lt));
    let near = |text: &String| text.parse::<i64>().ok().map(|n| [n.saturating_sub(1), n.saturating_add(1)]);
    let bounds: Vec<i64> = bounds.flat_map(|requirement| &requirement.values).filter_map(near).flatten().collect();
    if bounds.is_empty() {
        // Only exclusions: some value is always left, unless one asks for there being none.
        return all.iter().all(|requirement| matches!(requirement.operator, Operator::NotIn | Operator::Exists));
    }
    // Between two bounds only so many values can be excluded by name: look a little further than those.
    let excluded = all.iter().map(|requirement| requirement.values.len()).sum::<usize>() as i64;
    let candidates = bounds.iter().flat_map(|bound| (-excluded..=excluded).map(|away| bound.saturating_add(away)));
    candidates.map(|n| n.to_string()).any(|n| all.iter().all(|requirement| requirement.admits(Some(&n))))
}

/// The same pods in affinity and anti-affinity. Anti-affinity within a smaller domain is no contradiction.
fn pod_affinity(rules: &SchedulingRules) -> Option<Contradiction> {
    let affinity = &rules.pod_affinity;
    let term = affinity.required.iter().find(|term| affinity.anti_required.contains(term))?;
    Some(Contradiction::AffinityAndAntiAffinity { topology_key: term.topology_key.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::view::PodView;
    use serde_json::{Value, json};

    fn contradiction_of(spec: Value) -> Option<String> {
        let pod: PodView = serde_json::from_value(json!({ "metadata": { "namespace": "ns" }, "spec": spec })).unwrap();
        find_contradiction(&pod.spec).map(|why| why.to_string())
    }

    fn required(selector: Value, terms: Value) -> Option<String> {
        let affinity = json!({ "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": terms } });
        contradiction_of(json!({ "nodeSelector": selector, "affinity": { "nodeAffinity": affinity } }))
    }

    fn term(requirements: &[(&str, &str, &[&str])]) -> Value {
        let all: Vec<Value> = requirements
            .iter()
            .map(|(key, op, values)| json!({ "key": key, "operator": op, "values": values }))
            .collect();
        json!({ "matchExpressions": all })
    }

    #[test]
    fn values_that_exclude_each_other_are_found() {
        let key = "the node selector and affinity ask for values of a that exclude each other";
        for (selector, requirements, impossible) in [
            (json!({}), &[("a", "In", &["1", "2"][..]), ("a", "NotIn", &["1"])][..], false),
            (json!({}), &[("a", "In", &["1"]), ("a", "NotIn", &["1"])], true),
            (json!({}), &[("a", "In", &["1"]), ("a", "In", &["2"])], true),
            (json!({ "a": "1" }), &[("a", "DoesNotExist", &[])], true),
            (json!({ "a": "1" }), &[("a", "NotIn", &["2"])], false),
            (json!({}), &[("a", "Exists", &[]), ("a", "DoesNotExist", &[])], true),
            (json!({}), &[("a", "Exists", &[]), ("a", "NotIn", &["1"])], false),
            (json!({}), &[("a", "Gt", &["4"]), ("a", "Lt", &["5"])], true),
            (json!({}), &[("a", "Gt", &["4"]), ("a", "Lt", &["6"])], false),
            (json!({}), &[("a", "Gt", &["4"]), ("a", "Lt", &["7"]), ("a", "NotIn", &["5"])], false),
            (json!({}), &[("a", "Gt", &["4"]), ("a", "DoesNotExist", &[])], true),
            (json!({}), &[("a", "Near", &["4"])], true),
        ] {
            let found = required(selector.clone(), json!([term(requirements)]));
            assert_eq!(found.as_deref(), impossible.then_some(key), "{selector} {requirements:?}");
        }
    }

    #[test]
    fn one_possible_alternative_is_enough_and_none_is_too_few() {
        let (odd, fine) = (term(&[("a", "In", &["1"]), ("a", "In", &["2"])]), term(&[("a", "In", &["1"])]));
        assert_eq!(required(json!({}), json!([odd.clone(), fine])), None);
        assert!(required(json!({}), json!([odd.clone(), odd])).is_some());
        let nothing = "the required node affinity has no term that could match";
        assert_eq!(required(json!({}), json!([{}])).as_deref(), Some(nothing));
        assert_eq!(required(json!({}), json!([])).as_deref(), Some(nothing));
        let names = |values: &[&str]| json!({ "key": "metadata.name", "operator": "In", "values": values });
        let both = json!([{ "matchFields": [names(&["n1"]), names(&["n2"])] }]);
        assert!(required(json!({}), both).is_some_and(|why| why.contains("metadata.name")));
    }

    #[test]
    fn the_same_pods_cannot_be_near_and_away() {
        let near = |topology: &str| {
            json!({ "requiredDuringSchedulingIgnoredDuringExecution":
                [{ "topologyKey": topology, "labelSelector": { "matchLabels": { "a": "b" } } }] })
        };
        let both = |topology: &str| {
            contradiction_of(json!({ "affinity": { "podAffinity": near("zone"), "podAntiAffinity": near(topology) } }))
        };
        assert!(both("zone").is_some());
        assert_eq!(both("host"), None);
    }

    #[test]
    fn a_port_asked_for_twice_is_found() {
        let ports = |second: Value| {
            contradiction_of(json!({ "containers": [{ "ports": [{ "containerPort": 1, "hostPort": 80 }, second] }] }))
        };
        assert!(ports(json!({ "containerPort": 2, "hostPort": 80 })).is_some_and(|why| why.contains("host port 80")));
        assert_eq!(ports(json!({ "containerPort": 2, "hostPort": 80, "protocol": "UDP" })), None);
    }
}
