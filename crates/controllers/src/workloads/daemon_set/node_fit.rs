//! Whether a daemon pod belongs on a node: by name, labels and taints, not by room. Pure.

use k8s_openapi::api::core::v1::{Affinity, Node, PodSpec, Toleration};
use mainstay_api::{
    matching::{Effect, has_untolerated_taint, pod_matches_node},
    wellknown::taint,
};
use serde_json::{Value, json};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Runs,
    /// One that is there may stay, but none is made.
    Stays,
    Leaves,
}

/// Everything a template asks of a machine.
#[derive(Debug)]
pub struct Demands<'t> {
    spec: &'t PodSpec,
    tolerations: Vec<Toleration>,
}

impl<'t> Demands<'t> {
    pub fn from_spec(spec: &'t PodSpec) -> Self {
        Self { spec, tolerations: tolerations(spec) }
    }

    pub fn judge(&self, node: &Node) -> Verdict {
        let wanted = self.spec.node_name.as_ref().filter(|name| !name.is_empty());
        let named = wanted.is_none() || wanted == node.metadata.name.as_ref();
        if !named
            || !pod_matches_node(self.spec, &node.metadata)
            || has_untolerated_taint(node, Effect::NoExecute, &self.tolerations)
        {
            Verdict::Leaves
        } else if has_untolerated_taint(node, Effect::NoSchedule, &self.tolerations) {
            Verdict::Stays
        } else {
            Verdict::Runs
        }
    }
}

/// What the pods of every DaemonSet tolerate: a node in trouble is no reason to leave it.
const TOLERATED: [(&str, &str); 6] = [
    (taint::NOT_READY, "NoExecute"),
    (taint::UNREACHABLE, "NoExecute"),
    (taint::DISK_PRESSURE, "NoSchedule"),
    (taint::MEMORY_PRESSURE, "NoSchedule"),
    (taint::PID_PRESSURE, "NoSchedule"),
    (taint::UNSCHEDULABLE, "NoSchedule"),
];
/// And those that bring no network of their own.
const TOLERATED_BY_HOSTS: (&str, &str) = (taint::NETWORK_UNAVAILABLE, "NoSchedule");

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

/// A pod's affinity with its node in template_revision of what the template says of nodes, which was judged already.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn template(spec: Value) -> PodSpec {
        let mut whole = json!({ "containers": [] });
        whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        serde_json::from_value(whole).unwrap()
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
            let judged = Demands::from_spec(&template(spec.clone())).judge(&machine(&ssd, &taints));
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
