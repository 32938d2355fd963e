//! Random clusters, random pods, random events: scheduling agrees with the reference.

use std::{collections::BTreeMap, sync::Arc};

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{
    fixtures::{node, offer, pod, requests},
    reference::{PodOnNode, ReferenceCluster},
};
use crate::core::{
    Cluster, schedule,
    verdict::{PendingPod, ScoringStrategy, Verdict},
    view::{NodeView, OfferView, PodKey, PodView, PortRanges},
};

const HOST: &str = "kubernetes.io/hostname";
const NODES: usize = 5;

fn any_node(at: usize) -> impl Strategy<Value = NodeView> {
    let zone = prop::sample::select(vec![None, Some("a"), Some("b"), Some("c")]);
    (zone, 0..4u8, 1..4i64, 1..5i64, 0..8u8).prop_map(move |(zone, taint, cpu, pods, state)| {
        let mut labels = json!({ HOST: format!("n{at}"), "disk": if cpu > 2 { "ssd" } else { "hdd" } });
        if let Some(zone) = zone {
            labels["zone"] = json!(zone);
        }
        let taints = match taint {
            0 => json!([{ "key": "t", "value": "v", "effect": "NoSchedule" }]),
            1 => json!([{ "key": "soft", "effect": "PreferNoSchedule" }]),
            _ => json!([]),
        };
        let allocatable = json!({ "cpu": cpu.to_string(), "pods": pods.to_string() });
        let spec = json!({ "taints": taints, "unschedulable": state == 0 });
        let conditions = json!([{ "type": "Ready", "status": if state == 1 { "False" } else { "True" } }]);
        let notes = json!({ "mainstay.dev/endpoints": if state > 5 { "host-port" } else { "address" } });
        node(
            &format!("n{at}"),
            json!({ "metadata": { "labels": labels, "annotations": notes }, "spec": spec,
            "status": { "allocatable": allocatable, "conditions": conditions } }),
        )
    })
}

fn any_topology() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["zone", HOST, "nowhere"])
}

fn any_near() -> impl Strategy<Value = Value> {
    (any_topology(), prop::sample::select(vec!["x", "y"]), 0..4u8).prop_map(|(topology, app, namespaces)| {
        let mut term = json!({ "topologyKey": topology, "labelSelector": { "matchLabels": { "app": app } } });
        match namespaces {
            0 => term["namespaceSelector"] = json!({ "matchLabels": { "team": "a" } }),
            1 => term["namespaces"] = json!(["ns", "other"]),
            _ => {}
        }
        term
    })
}

fn any_spread() -> impl Strategy<Value = Value> {
    (any_topology(), prop::sample::select(vec!["x", "y"]), 1..3, 0..3, 0..8u8).prop_map(
        |(topology, app, skew, least, bits)| {
            let hard = bits & 1 == 0;
            let mut rule = json!({
                "topologyKey": topology, "maxSkew": skew, "labelSelector": { "matchLabels": { "app": app } },
                "whenUnsatisfiable": if hard { "DoNotSchedule" } else { "ScheduleAnyway" },
                "nodeTaintsPolicy": if bits & 2 == 0 { "Honor" } else { "Ignore" },
                "nodeAffinityPolicy": if bits & 4 == 0 { "Honor" } else { "Ignore" },
            });
            if hard && least > 0 {
                rule["minDomains"] = json!(least);
            }
            rule
        },
    )
}

/// Most pods have few rules.
fn some<T: std::fmt::Debug>(of: impl Strategy<Value = T>, weight: f64) -> impl Strategy<Value = Vec<T>> {
    prop::option::weighted(weight, prop::collection::vec(of, 1..3)).prop_map(Option::unwrap_or_default)
}

fn any_pod(priorities: std::ops::Range<i32>) -> impl Strategy<Value = PodView> {
    let own = (prop::sample::select(vec!["x", "y"]), 0..4i64, priorities, 0..12u8, 0..4u8);
    let near = (some(any_near(), 0.2), some(any_near(), 0.2), some(any_near(), 0.15), some(any_spread(), 0.3));
    (own, near).prop_map(|((app, cpu, priority, bits, namespace), (required, forbidden, preferred, spread))| {
        let container = match bits {
            0 => json!({ "name": "c", "ports": [{ "containerPort": 1, "hostPort": 80 }] }),
            1 => json!({ "name": "c", "ports": [{ "containerPort": 1, "hostPort": 31001 }] }),
            2 | 6 => json!({ "name": "c", "ports": [{ "containerPort": 1 }, { "containerPort": 2 }] }),
            _ => requests(json!({ "cpu": format!("{}m", cpu * 500) })),
        };
        let mut labels = json!({ "app": app });
        if bits == 2 {
            labels["k8s.mesosphere.io/portMapping"] = json!("wildcard");
        }
        let weighted: Vec<Value> =
            preferred.iter().map(|term| json!({ "weight": 5, "podAffinityTerm": term })).collect();
        let mut spec = json!({
            "priority": priority, "containers": [container], "topologySpreadConstraints": spread,
            "affinity": {
                "podAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": required,
                    "preferredDuringSchedulingIgnoredDuringExecution": weighted,
                },
                "podAntiAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": forbidden },
            },
        });
        match bits {
            3 => spec["nodeSelector"] = json!({ "disk": "ssd" }),
            4 | 5 => spec["tolerations"] = json!([{ "key": "t", "operator": "Exists" }]),
            _ => {}
        }
        let namespace = if namespace == 0 { "other" } else { "ns" };
        pod("p", json!({ "metadata": { "namespace": namespace, "labels": labels }, "spec": spec }))
    })
}

#[derive(Clone, Debug)]
enum ClusterEvent {
    Node(NodeView),
    NodeDeleted(usize),
    Offer {
        node: usize,
        part: i64,
        known: bool,
    },
    OfferDeleted(usize),
    /// Another scheduler bound it.
    Bound(PodView, usize),
    PodDeleted(usize),
    PodTerminates(usize),
    Confirmed(usize),
    Team(bool),
    Created(PodView),
    /// One more pod like one that was created before.
    CreatedAgain(usize),
}

fn any_event() -> impl Strategy<Value = ClusterEvent> {
    prop_oneof![
        3 => (0..NODES).prop_flat_map(any_node).prop_map(ClusterEvent::Node),
        1 => (0..NODES).prop_map(ClusterEvent::NodeDeleted),
        3 => (0..NODES, 0..5i64, any::<bool>()).prop_map(|(node, part, known)| ClusterEvent::Offer { node, part, known }),
        1 => (0..NODES).prop_map(ClusterEvent::OfferDeleted),
        2 => (any_pod(0..1), 0..NODES).prop_map(|(pod, at)| ClusterEvent::Bound(pod, at)),
        1 => (0..9usize).prop_map(ClusterEvent::PodDeleted),
        1 => (0..9usize).prop_map(ClusterEvent::PodTerminates),
        2 => (0..9usize).prop_map(ClusterEvent::Confirmed),
        1 => any::<bool>().prop_map(ClusterEvent::Team),
        4 => any_pod(0..1).prop_map(ClusterEvent::Created),
        8 => (0..3usize).prop_map(ClusterEvent::CreatedAgain),
    ]
}

/// Some nodes that offer everything, to begin with.
fn any_start() -> impl Strategy<Value = Vec<ClusterEvent>> {
    let node_with_offer = |at: usize| {
        any_node(at)
            .prop_map(move |node| [ClusterEvent::Node(node), ClusterEvent::Offer { node: at, part: 4, known: false }])
    };
    let all: Vec<_> = (0..NODES).map(node_with_offer).collect();
    (all, prop::collection::vec(any_event(), 0..40))
        .prop_map(|(nodes, more)| nodes.into_iter().flatten().chain(more).collect())
}

/// The cluster and the reference model, with the same input.
struct Both {
    cluster: Cluster,
    reference: ReferenceCluster,
    names: usize,
    version: u64,
    /// Pods that were created, the last first.
    wanted: Vec<PodView>,
}

impl Both {
    fn new() -> Self {
        Self { cluster: Cluster::new(), reference: ReferenceCluster::default(), names: 0, version: 10, wanted: vec![] }
    }

    fn named(&mut self, mut pod: PodView) -> PodView {
        self.names += 1;
        pod.key.name = format!("p{}", self.names);
        pod.uid = pod.key.name.clone();
        pod
    }

    /// Returns the verdict, if the event was a new pod.
    fn apply(&mut self, event: ClusterEvent, scoring: ScoringStrategy) -> Option<(Arc<PodView>, Verdict)> {
        self.version += 1;
        match event {
            ClusterEvent::Node(node) => {
                self.reference.nodes.insert(node.name.clone(), node.clone());
                self.cluster.update_node(node);
            }
            ClusterEvent::NodeDeleted(at) => {
                self.reference.nodes.remove(&format!("n{at}"));
                self.cluster.remove_node(&format!("n{at}"));
            }
            ClusterEvent::Offer { node, part, known } => self.offer(&format!("n{node}"), part, known),
            ClusterEvent::OfferDeleted(at) => {
                self.reference.offers.remove(&format!("n{at}"));
                self.cluster.remove_offer(&format!("n{at}"));
            }
            ClusterEvent::Bound(pod, at) => {
                let node = format!("n{at}");
                let mut pod = self.named(pod);
                (pod.node, pod.version) = (Some(node.clone()), self.version);
                let pod = Arc::new(pod);
                self.cluster.update_pod(Arc::clone(&pod));
                let fresh = self.reference.offers.get(&node).is_none_or(|offer| offer.seen < self.version);
                self.reference.pods.push(PodOnNode { pod, node, fresh, ports: vec![] });
            }
            ClusterEvent::PodDeleted(nth) if nth < self.reference.pods.len() => {
                let gone = self.reference.pods.remove(nth);
                self.cluster.remove_pod(&gone.pod.key);
            }
            ClusterEvent::PodTerminates(nth) if nth < self.reference.pods.len() => {
                self.update(nth, |pod| pod.terminating = true)
            }
            ClusterEvent::Confirmed(nth) if nth < self.reference.pods.len() => self.update(nth, |_| {}),
            ClusterEvent::PodDeleted(_) | ClusterEvent::PodTerminates(_) | ClusterEvent::Confirmed(_) => {}
            ClusterEvent::Team(is_a) => {
                let labels = [("team".to_owned(), if is_a { "a" } else { "b" }.to_owned())];
                self.cluster.update_namespace("other", labels.clone().into());
                self.reference.namespaces.insert("other".to_owned(), labels.into());
            }
            ClusterEvent::CreatedAgain(nth) => {
                let pod = self.wanted.get(nth).cloned()?;
                return self.apply(ClusterEvent::Created(pod), scoring);
            }
            ClusterEvent::Created(pod) => {
                if !self.wanted.iter().any(|known| known.spec == pod.spec && known.label_set == pod.label_set) {
                    self.wanted.insert(0, pod.clone());
                }
                let pod = Arc::new(self.named(pod));
                let verdict = schedule(&mut self.cluster, &[PendingPod::new(Arc::clone(&pod))], scoring).remove(0);
                return Some((pod, verdict));
            }
        }
        None
    }

    fn offer(&mut self, name: &str, part: i64, known: bool) {
        let Some(node) = self.reference.nodes.get(name).cloned() else { return };
        let seen = if known { self.version } else { 0 };
        let mut offered = OfferView { seen, automatic_ports: PortRanges::parse_valid(["31000-31003"]), ..offer(&node) };
        offered.free.values_mut().for_each(|amount| *amount = *amount * part / 4);
        for other in self.reference.pods.iter_mut().filter(|other| other.node == name) {
            other.fresh = self.cluster.bound_version(&other.pod.key).is_none_or(|version| version > seen);
        }
        self.reference.offers.insert(name.to_owned(), offered.clone());
        self.cluster.update_offer(name, offered);
    }

    fn update(&mut self, nth: usize, change: impl FnOnce(&mut PodView)) {
        let other = &mut self.reference.pods[nth];
        let mut pod = PodView::clone(&other.pod);
        let assumed = pod.node.is_none();
        (pod.node, pod.version) = (Some(other.node.clone()), self.version);
        let ports = other.ports.iter().zip(&pod.spec.automatic_ports);
        pod.assigned_ports = ports.map(|(number, port)| port.assign(*number)).collect();
        change(&mut pod);
        other.pod = Arc::new(pod);
        if assumed {
            let seen = self.reference.offers.get(&other.node).map(|offer| offer.seen);
            other.fresh = seen.is_none_or(|seen| seen < self.version);
        }
        self.cluster.update_pod(Arc::clone(&other.pod));
    }

    fn settle(&mut self, pod: Arc<PodView>, verdict: &Verdict) {
        if let Verdict::Place { node, ports, .. } = verdict {
            let ports = ports.iter().map(|port| port.host_port).collect();
            self.reference.pods.push(PodOnNode { pod, node: node.to_string(), fresh: true, ports });
        }
    }
}

fn any_scoring() -> impl Strategy<Value = ScoringStrategy> {
    prop::sample::select(vec![ScoringStrategy::LeastAllocated, ScoringStrategy::MostAllocated])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Placed exactly if the plain rules have a node for it, and then on one of those.
    #[test]
    fn a_pod_is_placed_exactly_if_the_reference_has_a_node_for_it(events in any_start(), scoring in any_scoring()) {
        let mut both = Both::new();
        for event in events {
            let before = both.reference.clone();
            let Some((pod, verdict)) = both.apply(event, scoring) else { continue };
            let fitting = before.fitting(&pod);
            match &verdict {
                Verdict::Place { node, ports, .. } => {
                    prop_assert!(fitting.contains(&**node), "{} does not fit on {node}", pod.key);
                    let automatic_ports = if both.reference.maps(&pod, node) { pod.spec.automatic_ports.len() } else { 0 };
                    prop_assert_eq!(ports.len(), automatic_ports);
                }
                Verdict::Unschedulable(why) => {
                    prop_assert!(fitting.is_empty(), "{} fits on {fitting:?}: {why}", pod.key);
                    prop_assert_eq!(why.nodes, before.nodes.len());
                    prop_assert!(why.nodes == 0 || why.reasons.values().sum::<usize>() >= why.nodes);
                }
                Verdict::Preempt { .. } => prop_assert!(false, "all are equally important"),
            }
            both.settle(pod, &verdict);
        }
    }

    /// A cache that was updated event by event schedules like one that is built from the current objects.
    #[test]
    fn the_cache_equals_one_built_from_scratch(events in any_start(), scoring in any_scoring()) {
        let (mut cached, mut fresh) = (Both::new(), Both::new());
        for event in events {
            let now = cached.apply(event.clone(), scoring);
            fresh.cluster = fresh.cluster.rebuilt();
            let anew = fresh.apply(event, scoring);
            prop_assert_eq!(now.as_ref().map(|(_, verdict)| verdict), anew.as_ref().map(|(_, verdict)| verdict));
            for (both, result) in [(&mut cached, now), (&mut fresh, anew)] {
                if let Some((pod, verdict)) = result {
                    both.settle(pod, &verdict);
                }
            }
        }
    }

    /// A batch is its pods one after the other, and the same again every time.
    #[test]
    fn a_batch_is_scheduled_like_its_pods_one_by_one(
        events in any_start(), pods in prop::collection::vec(any_pod(0..3), 1..12), scoring in any_scoring(),
    ) {
        let build = || {
            let mut both = Both::new();
            for event in events.clone() {
                if let Some((pod, verdict)) = both.apply(event, scoring) {
                    both.settle(pod, &verdict);
                }
            }
            both
        };
        let (mut whole, mut single, mut again) = (build(), build(), build());
        let batch: Vec<PendingPod> = pods.iter().map(|pod| PendingPod::new(Arc::new(whole.named(pod.clone())))).collect();
        let at_once = schedule(&mut whole.cluster, &batch, scoring);
        let one_by_one: Vec<Verdict> =
            batch.iter().map(|one| schedule(&mut single.cluster, std::slice::from_ref(one), scoring).remove(0)).collect();
        prop_assert_eq!(&at_once, &one_by_one);
        prop_assert_eq!(&at_once, &schedule(&mut again.cluster, &batch, scoring));
    }

    /// Only the less important leave, no more of them than needed, and then the pod fits.
    #[test]
    fn preemption_is_needed_and_enough(
        nodes in (0..NODES).map(any_node).collect::<Vec<_>>(),
        there in prop::collection::vec((any_pod(0..3), 0..NODES), 0..20),
        wanted in any_pod(1..4),
    ) {
        let mut both = Both::new();
        for (at, node) in nodes.into_iter().enumerate() {
            both.apply(ClusterEvent::Node(node), ScoringStrategy::default());
            both.apply(ClusterEvent::Offer { node: at, part: 4, known: false }, ScoringStrategy::default());
        }
        for (pod, at) in there {
            let node = format!("n{at}");
            if both.reference.fits(&pod, &node) && pod.spec.automatic_ports.is_empty() {
                both.apply(ClusterEvent::Bound(pod, at), ScoringStrategy::default());
            }
        }
        let before = both.reference.clone();
        let Some((pod, verdict)) = both.apply(ClusterEvent::Created(wanted), ScoringStrategy::default()) else { return Ok(()) };
        let without = |names: &[&PodKey]| {
            let mut reference = before.clone();
            reference.pods.retain(|other| !names.contains(&&other.pod.key));
            reference
        };
        let priority = |key: &PodKey| before.pods.iter().find(|r| r.pod.key == *key).map(|r| r.pod.spec.priority);
        match verdict {
            Verdict::Place { node, .. } => prop_assert!(before.fits(&pod, &node)),
            Verdict::Preempt { node, victims, .. } => {
                prop_assert!(before.fitting(&pod).is_empty());
                let names: Vec<&PodKey> = victims.iter().map(|victim| &victim.key).collect();
                prop_assert!(names.iter().all(|name| priority(name).is_some_and(|p| p < pod.spec.priority)));
                prop_assert!(without(&names).fits(&pod, &node));
                for spared in 0..names.len() {
                    let mut fewer = names.clone();
                    fewer.remove(spared);
                    prop_assert!(!without(&fewer).fits(&pod, &node), "{} need not leave", names[spared]);
                }
            }
            Verdict::Unschedulable(why) => {
                for node in before.nodes.keys() {
                    let lower = before.pods.iter().filter(|r| r.node == *node && r.pod.spec.priority < pod.spec.priority);
                    let names: Vec<&PodKey> = lower.map(|other| &other.pod.key).collect();
                    prop_assert!(names.is_empty() || !without(&names).fits(&pod, node), "{node} could be emptied: {why}");
                }
            }
        }
    }

    /// However many come, no domain gets ahead of another by more than allowed.
    #[test]
    fn spreading_holds(sizes in prop::collection::vec(0..3usize, 1..9), skew in 1..4i32, count in 0..60usize) {
        let mut cluster = Cluster::new();
        for (at, zone) in sizes.iter().enumerate() {
            let labels = json!({ "zone": format!("z{zone}") });
            let node = node(&format!("n{at}"), json!({ "metadata": { "labels": labels } }));
            let (name, offer) = (node.name.clone(), offer(&node));
            cluster.update_node(node);
            cluster.update_offer(&name, offer);
        }
        let rule = json!([{ "maxSkew": skew, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": { "matchLabels": { "app": "x" } } }]);
        let mut zones: BTreeMap<usize, i32> = sizes.iter().map(|zone| (*zone, 0)).collect();
        for nth in 0..count {
            let more = json!({ "metadata": { "labels": { "app": "x" } }, "spec": { "topologySpreadConstraints": rule } });
            let wanted = PendingPod::new(Arc::new(pod(&format!("p{nth}"), more)));
            if let Verdict::Place { node, .. } = schedule(&mut cluster, &[wanted], ScoringStrategy::default()).remove(0) {
                let at: usize = node[1..].parse().unwrap();
                *zones.get_mut(&sizes[at]).unwrap() += 1;
            }
            let (least, most) = (zones.values().min().unwrap(), zones.values().max().unwrap());
            prop_assert!(most - least <= skew, "{zones:?}");
        }
    }
}
