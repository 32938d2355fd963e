//! Whether a DaemonSet's pod belongs on a machine: by name, labels and taints, not by room.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Affinity, Node, NodeSelectorRequirement, NodeSelectorTerm, PodSpec, Taint, Toleration,
};
use serde_json::{Value, json};

/// A machine as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Machine<'n> {
    pub name: &'n str,
    pub labels: Option<&'n BTreeMap<String, String>>,
    pub taints: &'n [Taint],
}

impl<'n> Machine<'n> {
    pub fn of(node: &'n Node) -> Self {
        Self {
            name: node.metadata.name.as_deref().unwrap_or_default(),
            labels: node.metadata.labels.as_ref(),
            taints: node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default(),
        }
    }

    fn label(&self, key: &str) -> Option<&'n str> {
        self.labels?.get(key).map(String::as_str)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Runs,
    /// One that is there may stay, but none is made.
    Stays,
    Leaves,
}

/// Everything a template asks of a machine.
#[derive(Clone, Debug, Default)]
pub struct Demands {
    node: Option<String>,
    selector: BTreeMap<String, String>,
    terms: Option<Vec<NodeSelectorTerm>>,
    tolerations: Vec<Toleration>,
}

impl Demands {
    pub fn of(spec: &PodSpec) -> Self {
        let required = spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
        let required =
            required.and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution.as_ref());
        Self {
            node: spec.node_name.clone().filter(|name| !name.is_empty()),
            selector: spec.node_selector.clone().unwrap_or_default(),
            terms: required.map(|required| required.node_selector_terms.clone()),
            tolerations: tolerations(spec),
        }
    }

    pub fn judge(&self, machine: &Machine<'_>) -> Verdict {
        let named = self.node.as_deref().is_none_or(|node| node == machine.name);
        let selected = self.selector.iter().all(|(key, value)| machine.label(key) == Some(value));
        let terms = self.terms.as_ref();
        if !named || !selected || terms.is_some_and(|terms| !terms.iter().any(|term| matches(term, machine))) {
            return Verdict::Leaves;
        }
        let minded = |effect: &str| machine.taints.iter().any(|taint| taint.effect == effect && !self.tolerates(taint));
        if minded("NoExecute") {
            Verdict::Leaves
        } else if minded("NoSchedule") {
            Verdict::Stays
        } else {
            Verdict::Runs
        }
    }

    fn tolerates(&self, taint: &Taint) -> bool {
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        self.tolerations.iter().any(|toleration| {
            let (key, effect) = (text(&toleration.key), text(&toleration.effect));
            let exists = toleration.operator.as_deref() == Some("Exists");
            (effect.is_empty() || effect == taint.effect)
                && (key == taint.key || (key.is_empty() && exists))
                && (exists || text(&toleration.value) == text(&taint.value))
        })
    }
}

/// What the pods of every DaemonSet tolerate: a machine in trouble is no reason to leave it.
const TOLERATED: [(&str, &str); 6] = [
    ("node.kubernetes.io/not-ready", "NoExecute"),
    ("node.kubernetes.io/unreachable", "NoExecute"),
    ("node.kubernetes.io/disk-pressure", "NoSchedule"),
    ("node.kubernetes.io/memory-pressure", "NoSchedule"),
    ("node.kubernetes.io/pid-pressure", "NoSchedule"),
    ("node.kubernetes.io/unschedulable", "NoSchedule"),
];
/// And those that bring no network of their own.
const TOLERATED_BY_HOSTS: (&str, &str) = ("node.kubernetes.io/network-unavailable", "NoSchedule");

/// The template's tolerations and those that follow.
pub fn tolerations(spec: &PodSpec) -> Vec<Toleration> {
    let mut tolerations = spec.tolerations.clone().unwrap_or_default();
    let on_host = (spec.host_network == Some(true)).then_some(TOLERATED_BY_HOSTS);
    for (key, effect) in TOLERATED.into_iter().chain(on_host) {
        let added = Toleration {
            key: Some(key.to_owned()),
            operator: Some("Exists".to_owned()),
            effect: Some(effect.to_owned()),
            ..Toleration::default()
        };
        let same = |there: &&mut Toleration| {
            let text = |field: &Option<String>| field.clone().unwrap_or_default();
            (&there.key, &there.operator, &there.effect) == (&added.key, &added.operator, &added.effect)
                && text(&there.value).is_empty()
        };
        match tolerations.iter_mut().find(same) {
            Some(there) => *there = added,
            None => tolerations.push(added),
        }
    }
    tolerations
}

/// A pod's affinity with its machine in place of what the template says of machines, which was judged already.
pub fn pinned(affinity: Option<&Affinity>, node: &str) -> Value {
    let mut affinity = serde_json::to_value(affinity).unwrap_or_default();
    if affinity.is_null() {
        affinity = json!({});
    }
    affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] = json!({ "nodeSelectorTerms": [
        { "matchFields": [{ "key": "metadata.name", "operator": "In", "values": [node] }] },
    ] });
    affinity
}

/// A term without requirements matches nothing.
fn matches(term: &NodeSelectorTerm, machine: &Machine<'_>) -> bool {
    let labels = term.match_expressions.iter().flatten();
    let fields = term.match_fields.iter().flatten();
    let empty = labels.clone().next().is_none() && fields.clone().next().is_none();
    !empty
        && labels.into_iter().all(|wanted| holds(wanted, machine.label(&wanted.key)))
        && fields.into_iter().all(|wanted| wanted.key == "metadata.name" && holds(wanted, Some(machine.name)))
}

fn holds(wanted: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = wanted.values.as_deref().unwrap_or_default();
    let among = value.is_some_and(|value| values.iter().any(|one| one == value));
    let compared = || Some(value?.parse::<i64>().ok()?.cmp(&values.first()?.parse().ok()?));
    match wanted.operator.as_str() {
        "In" => among,
        "NotIn" => !among,
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compared() == Some(std::cmp::Ordering::Greater),
        "Lt" => compared() == Some(std::cmp::Ordering::Less),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn demands(spec: Value) -> Demands {
        let mut whole = json!({ "containers": [] });
        whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        Demands::of(&serde_json::from_value(whole).unwrap())
    }

    fn machine(labels: &Value, taints: &Value) -> Node {
        let node = json!({ "metadata": { "name": "m1", "labels": labels }, "spec": { "taints": taints } });
        serde_json::from_value(node).unwrap()
    }

    #[test]
    fn machines_are_chosen_by_name_labels_and_taints() {
        let ssd = json!({ "disk": "ssd", "size": "7" });
        let required = |expression: Value| {
            json!({ "affinity": { "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{ "matchExpressions": [expression] }] } } } })
        };
        let taint = |key: &str, effect: &str| json!([{ "key": key, "value": "v", "effect": effect }]);
        let tolerates = json!({ "tolerations": [{ "key": "own", "operator": "Equal", "value": "v" }] });
        use Verdict::{Leaves, Runs, Stays};
        for (spec, taints, expected) in [
            (json!({}), json!([]), Runs),
            (json!({ "nodeName": "m1" }), json!([]), Runs),
            (json!({ "nodeName": "m2" }), json!([]), Leaves),
            (json!({ "nodeSelector": { "disk": "ssd" } }), json!([]), Runs),
            (json!({ "nodeSelector": { "disk": "hdd" } }), json!([]), Leaves),
            (required(json!({ "key": "disk", "operator": "In", "values": ["ssd"] })), json!([]), Runs),
            (required(json!({ "key": "disk", "operator": "NotIn", "values": ["ssd"] })), json!([]), Leaves),
            (required(json!({ "key": "size", "operator": "Gt", "values": ["6"] })), json!([]), Runs),
            (required(json!({ "key": "gpu", "operator": "Exists" })), json!([]), Leaves),
            (json!({}), taint("own", "NoSchedule"), Stays),
            (json!({}), taint("own", "NoExecute"), Leaves),
            (json!({}), taint("own", "PreferNoSchedule"), Runs),
            (tolerates.clone(), taint("own", "NoExecute"), Runs),
            (tolerates, taint("other", "NoExecute"), Leaves),
            (json!({}), taint("node.kubernetes.io/unschedulable", "NoSchedule"), Runs),
            (json!({}), taint("node.kubernetes.io/memory-pressure", "NoSchedule"), Runs),
            (json!({}), taint("node.kubernetes.io/unreachable", "NoExecute"), Runs),
            (json!({}), taint("node.kubernetes.io/network-unavailable", "NoSchedule"), Stays),
            (json!({ "hostNetwork": true }), taint("node.kubernetes.io/network-unavailable", "NoSchedule"), Runs),
        ] {
            let judged = demands(spec.clone()).judge(&Machine::of(&machine(&ssd, &taints)));
            assert_eq!(judged, expected, "{spec} {taints}");
        }
    }

    #[test]
    fn tolerations_are_added_once() {
        let spec = json!({ "containers": [], "tolerations": [
            { "key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 3 },
        ] });
        let all = tolerations(&serde_json::from_value(spec).unwrap());
        assert_eq!(all.len(), 6);
        assert_eq!(all[0].toleration_seconds, None, "for ever");
    }

    #[test]
    fn a_pod_is_pinned_to_its_machine_and_keeps_other_affinities() {
        let affinity = json!({
            "podAntiAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [] },
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [{ "matchExpressions": [] }] },
            },
        });
        let pinned = pinned(Some(&serde_json::from_value(affinity).unwrap()), "m1");
        let terms = &pinned["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"];
        let name = json!([{ "matchFields": [{ "key": "metadata.name", "operator": "In", "values": ["m1"] }] }]);
        assert_eq!(*terms, name);
        assert!(pinned["podAntiAffinity"].is_object());
    }
}
