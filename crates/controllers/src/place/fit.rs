//! Whether a pod fits on a node, and if not why. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{NodeSelectorRequirement, NodeSelectorTerm, Taint, Toleration};

use super::view::{Amounts, HostPort, NodeView, PodView};

/// What the pods on a node take.
#[derive(Clone, Debug, Default)]
pub struct Taken {
    pub amounts: Amounts,
    pub ports: Vec<HostPort>,
    pub pods: usize,
}

pub struct Candidate<'a> {
    pub name: &'a str,
    pub node: &'a NodeView,
    pub taken: &'a Taken,
}

/// The node with the fewest pods among those that fit; else how many nodes refuse for each reason.
pub fn choose<'a>(
    pod: &PodView,
    nodes: impl Iterator<Item = Candidate<'a>>,
) -> Result<&'a str, BTreeMap<String, usize>> {
    let (mut best, mut reasons) = (None, BTreeMap::new());
    for candidate in nodes {
        let why = refusals(pod, &candidate);
        if why.is_empty() {
            let rank = (candidate.taken.pods, candidate.name);
            best = Some(best.map_or(rank, |best: (usize, &str)| best.min(rank)));
        }
        why.into_iter().for_each(|reason| *reasons.entry(reason).or_default() += 1);
    }
    best.map(|(_, name)| name).ok_or(reasons)
}

/// Upstream's words. Resources are only looked at where everything else is right.
pub fn refusals(pod: &PodView, on: &Candidate<'_>) -> Vec<String> {
    let one = |reason: &str| vec![reason.to_owned()];
    if on.node.unschedulable && !tolerates(pod, &unschedulable()) {
        return one("node(s) were unschedulable");
    }
    if !on.node.ready {
        return one("node(s) were not ready");
    }
    if let Some(taint) = on.node.taints.iter().find(|taint| !tolerates(pod, taint)) {
        let value = taint.value.as_deref().unwrap_or_default();
        return vec![format!("node(s) had untolerated taint {{{}: {value}}}", taint.key)];
    }
    let selected = pod.selector.iter().all(|(key, value)| on.node.labels.get(key) == Some(value));
    let terms = pod.terms.as_ref();
    if !selected || terms.is_some_and(|terms| !terms.iter().any(|term| matches(term, on))) {
        return one("node(s) didn't match Pod's node affinity/selector");
    }
    if pod.host_ports.iter().any(|port| on.taken.ports.iter().any(|taken| port.clashes(taken))) {
        return one("node(s) didn't have free ports for the requested pod ports");
    }
    let short = pod.requests.iter().filter(|(name, wanted)| {
        let there = on.node.allocatable.get(*name).copied().unwrap_or(0);
        **wanted > 0 && **wanted > there - on.taken.amounts.get(*name).copied().unwrap_or(0)
    });
    short
        .map(|(name, _)| if name == "pods" { "Too many pods".to_owned() } else { format!("Insufficient {name}") })
        .collect()
}

fn unschedulable() -> Taint {
    let key = "node.kubernetes.io/unschedulable".to_owned();
    Taint { key, effect: "NoSchedule".to_owned(), ..Taint::default() }
}

fn tolerates(pod: &PodView, taint: &Taint) -> bool {
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    pod.tolerations.iter().any(|toleration: &Toleration| {
        let (key, effect) = (text(&toleration.key), text(&toleration.effect));
        let exists = toleration.operator.as_deref() == Some("Exists");
        (effect.is_empty() || effect == taint.effect)
            && (key == taint.key || (key.is_empty() && exists))
            && (exists || text(&toleration.value) == text(&taint.value))
    })
}

/// A term without requirements matches nothing.
fn matches(term: &NodeSelectorTerm, on: &Candidate<'_>) -> bool {
    let labels = term.match_expressions.iter().flatten();
    let fields = term.match_fields.iter().flatten();
    let empty = labels.clone().next().is_none() && fields.clone().next().is_none();
    let named =
        |requirement: &NodeSelectorRequirement| requirement.key == "metadata.name" && holds(requirement, Some(on.name));
    !empty
        && labels.into_iter().all(|r| holds(r, on.node.labels.get(&r.key).map(String::as_str)))
        && fields.into_iter().all(named)
}

fn holds(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let among = value.is_some_and(|value| values.iter().any(|wanted| wanted == value));
    let compared = || Some(value?.parse::<i64>().ok()?.cmp(&values.first()?.parse().ok()?));
    match requirement.operator.as_str() {
        "In" => among,
        "NotIn" => !among,
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compared() == Some(std::cmp::Ordering::Greater),
        "Lt" => compared() == Some(std::cmp::Ordering::Less),
        _ => false,
    }
}

/// `0/3 nodes are available: 1 Insufficient cpu, 2 node(s) were unschedulable.`
pub fn explain(nodes: usize, reasons: &BTreeMap<String, usize>) -> String {
    if nodes == 0 {
        return "no nodes available to schedule pods".to_owned();
    }
    let mut counted: Vec<String> = reasons.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
    counted.sort();
    format!("0/{nodes} nodes are available: {}.", counted.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::{Node, Pod};
    use serde_json::{Value, json};

    fn pod(spec: Value) -> PodView {
        let pod: Pod = serde_json::from_value(json!({ "metadata": { "name": "p" }, "spec": spec })).unwrap();
        PodView::from(&pod)
    }

    fn asking(cpu: &str) -> PodView {
        pod(json!({ "containers": [{ "name": "c", "resources": { "requests": { "cpu": cpu } } }] }))
    }

    fn node(spec: Value) -> NodeView {
        let node: Node = serde_json::from_value(json!({
            "metadata": { "labels": { "disk": "ssd", "size": "5" } },
            "spec": spec,
            "status": {
                "allocatable": { "cpu": "2", "memory": "1Gi", "pods": "3" },
                "conditions": [{ "type": "Ready", "status": "True" }],
            },
        }))
        .unwrap();
        NodeView::from(&node)
    }

    fn why(pod: &PodView, node: &NodeView, taken: &Taken) -> Vec<String> {
        refusals(pod, &Candidate { name: "m1", node, taken })
    }

    fn taken(cpu: i128, pods: usize) -> Taken {
        let amounts = [("cpu".to_owned(), cpu), ("pods".to_owned(), pods as i128)].into();
        Taken { amounts, pods, ports: vec![] }
    }

    #[test]
    fn a_pod_fits_where_there_is_room() {
        let free = node(json!({}));
        assert!(why(&asking("2"), &free, &Taken::default()).is_empty());
        assert_eq!(why(&asking("1500m"), &free, &taken(501, 1)), ["Insufficient cpu"]);
        assert_eq!(why(&asking("2"), &free, &taken(1, 3)), ["Insufficient cpu", "Too many pods"]);
        let odd =
            pod(json!({ "containers": [{ "name": "c", "resources": { "requests": { "example.com/gpu": "1" } } }] }));
        assert_eq!(why(&odd, &free, &Taken::default()), ["Insufficient example.com/gpu"]);
    }

    #[test]
    fn what_runs_before_counts_as_much_as_what_runs_at_once() {
        let cpu = |n: &str| json!({ "requests": { "cpu": n } });
        let view = pod(json!({
            "initContainers": [
                { "name": "side", "restartPolicy": "Always", "resources": cpu("100m") },
                { "name": "big", "resources": cpu("1") },
            ],
            "containers": [{ "name": "a", "resources": cpu("300m") }, { "name": "b", "resources": cpu("200m") }],
            "overhead": { "cpu": "5m" },
        }));
        assert_eq!(view.requests["cpu"], 1105);
    }

    #[test]
    fn taints_selectors_and_cordons_keep_pods_away() {
        let plain = asking("1");
        let tainted = node(json!({ "taints": [
            { "key": "soft", "effect": "PreferNoSchedule" },
            { "key": "db", "value": "yes", "effect": "NoSchedule" },
        ] }));
        assert_eq!(why(&plain, &tainted, &Taken::default()), ["node(s) had untolerated taint {db: yes}"]);
        let tolerant = |t: Value| pod(json!({ "containers": [], "tolerations": [t] }));
        for toleration in [
            json!({ "key": "db", "value": "yes" }),
            json!({ "key": "db", "operator": "Exists", "effect": "NoSchedule" }),
            json!({ "operator": "Exists" }),
        ] {
            assert!(why(&tolerant(toleration.clone()), &tainted, &Taken::default()).is_empty(), "{toleration}");
        }
        assert!(!why(&tolerant(json!({ "key": "db", "value": "no" })), &tainted, &Taken::default()).is_empty());
        let cordoned = node(json!({ "unschedulable": true }));
        assert_eq!(why(&plain, &cordoned, &Taken::default()), ["node(s) were unschedulable"]);
        let picky = pod(json!({ "containers": [], "nodeSelector": { "disk": "hdd" } }));
        let unmatched = ["node(s) didn't match Pod's node affinity/selector"];
        assert_eq!(why(&picky, &node(json!({})), &Taken::default()), unmatched);
        let with = |key: &str, operator: &str, values: &[&str]| {
            let term = json!({ "matchExpressions": [{ "key": key, "operator": operator, "values": values }] });
            let required = json!({ "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [term] } });
            why(
                &pod(json!({ "containers": [], "affinity": { "nodeAffinity": required } })),
                &node(json!({})),
                &Taken::default(),
            )
        };
        for (key, operator, values) in
            [("disk", "In", &["ssd"][..]), ("size", "Gt", &["4"]), ("x", "DoesNotExist", &[])]
        {
            assert!(with(key, operator, values).is_empty(), "{key} {operator}");
        }
        assert_eq!(with("disk", "NotIn", &["ssd"]), unmatched);
    }

    #[test]
    fn one_host_port_is_given_once_per_address_and_protocol() {
        let port = |port: Value| pod(json!({ "containers": [{ "name": "c", "ports": [port] }] }));
        let held = Taken { ports: port(json!({ "containerPort": 1, "hostPort": 80 })).host_ports, ..Taken::default() };
        let free = node(json!({}));
        let clash = ["node(s) didn't have free ports for the requested pod ports"];
        assert_eq!(
            why(&port(json!({ "containerPort": 9, "hostPort": 80, "hostIP": "10.0.0.1" })), &free, &held),
            clash
        );
        assert!(why(&port(json!({ "containerPort": 9, "hostPort": 80, "protocol": "UDP" })), &free, &held).is_empty());
        assert!(why(&port(json!({ "containerPort": 80 })), &free, &held).is_empty());
    }

    #[test]
    fn the_emptiest_node_is_chosen_or_every_reason_counted() {
        let (free, cordoned) = (node(json!({})), node(json!({ "unschedulable": true })));
        let (busy, idle) = (taken(100, 2), taken(0, 1));
        let all = [("a", &free, &busy), ("b", &free, &idle), ("c", &cordoned, &idle)];
        let candidates = || all.iter().map(|(name, node, taken)| Candidate { name, node, taken });
        assert_eq!(choose(&asking("1"), candidates()), Ok("b"));
        let reasons = choose(&asking("3"), candidates()).unwrap_err();
        assert_eq!(explain(3, &reasons), "0/3 nodes are available: 1 node(s) were unschedulable, 2 Insufficient cpu.");
        assert_eq!(explain(0, &BTreeMap::new()), "no nodes available to schedule pods");
    }
}
