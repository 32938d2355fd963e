//! Random clusters, random pods, random news: whatever happens, the rules hold.

use std::{collections::BTreeMap, sync::Arc};

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{
    build::{node, offer, pod, requests},
    naive::{Resident, World},
};
use crate::core::{
    Cluster, decide,
    verdict::{Settings, Strategy as Packing, Verdict, Wanted},
    view::{NodeView, OfferView, PodKey, PodView, PortRanges},
};

const HOST: &str = "kubernetes.io/hostname";
const MACHINES: usize = 5;

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
enum News {
    Machine(NodeView),
    MachineGone(usize),
    Offer {
        machine: usize,
        part: i64,
        known: bool,
    },
    OfferGone(usize),
    /// Somebody else bound it.
    Bound(PodView, usize),
    PodGone(usize),
    PodLeaves(usize),
    Confirmed(usize),
    Team(bool),
    Wanted(PodView),
    /// One more of a kind that was wanted before.
    Again(usize),
}

fn any_news() -> impl Strategy<Value = News> {
    prop_oneof![
        3 => (0..MACHINES).prop_flat_map(any_node).prop_map(News::Machine),
        1 => (0..MACHINES).prop_map(News::MachineGone),
        3 => (0..MACHINES, 0..5i64, any::<bool>()).prop_map(|(machine, part, known)| News::Offer { machine, part, known }),
        1 => (0..MACHINES).prop_map(News::OfferGone),
        2 => (any_pod(0..1), 0..MACHINES).prop_map(|(pod, at)| News::Bound(pod, at)),
        1 => (0..9usize).prop_map(News::PodGone),
        1 => (0..9usize).prop_map(News::PodLeaves),
        2 => (0..9usize).prop_map(News::Confirmed),
        1 => any::<bool>().prop_map(News::Team),
        4 => any_pod(0..1).prop_map(News::Wanted),
        8 => (0..3usize).prop_map(News::Again),
    ]
}

/// Some machines that offer everything, to begin with.
fn any_start() -> impl Strategy<Value = Vec<News>> {
    let machine = |at: usize| {
        any_node(at).prop_map(move |node| [News::Machine(node), News::Offer { machine: at, part: 4, known: false }])
    };
    let all: Vec<_> = (0..MACHINES).map(machine).collect();
    (all, prop::collection::vec(any_news(), 0..40))
        .prop_map(|(machines, more)| machines.into_iter().flatten().chain(more).collect())
}

/// The cluster and the plain world, told the same.
struct Both {
    cluster: Cluster,
    world: World,
    names: usize,
    version: u64,
    /// What was wanted, the last first.
    wanted: Vec<PodView>,
}

impl Both {
    fn new() -> Self {
        Self { cluster: Cluster::new(), world: World::default(), names: 0, version: 10, wanted: vec![] }
    }

    fn named(&mut self, mut pod: PodView) -> PodView {
        self.names += 1;
        pod.key.name = format!("p{}", self.names);
        pod.uid = pod.key.name.clone();
        pod
    }

    /// The verdict, if the news was a pod that wants a machine.
    fn hear(&mut self, news: News, settings: &Settings) -> Option<(Arc<PodView>, Verdict)> {
        self.version += 1;
        match news {
            News::Machine(node) => {
                self.world.nodes.insert(node.name.clone(), node.clone());
                self.cluster.put_machine(node);
            }
            News::MachineGone(at) => {
                self.world.nodes.remove(&format!("n{at}"));
                self.cluster.remove_machine(&format!("n{at}"));
            }
            News::Offer { machine, part, known } => self.offer(&format!("n{machine}"), part, known),
            News::OfferGone(at) => {
                self.world.offers.remove(&format!("n{at}"));
                self.cluster.remove_offer(&format!("n{at}"));
            }
            News::Bound(pod, at) => {
                let node = format!("n{at}");
                let mut pod = self.named(pod);
                (pod.node, pod.version) = (Some(node.clone()), self.version);
                let pod = Arc::new(pod);
                self.cluster.put_pod(Arc::clone(&pod));
                let fresh = self.world.offers.get(&node).is_none_or(|offer| offer.seen < self.version);
                self.world.pods.push(Resident { pod, node, fresh, ports: vec![] });
            }
            News::PodGone(nth) if nth < self.world.pods.len() => {
                let gone = self.world.pods.remove(nth);
                self.cluster.remove_pod(&gone.pod.key);
            }
            News::PodLeaves(nth) if nth < self.world.pods.len() => self.update(nth, |pod| pod.terminating = true),
            News::Confirmed(nth) if nth < self.world.pods.len() => self.update(nth, |_| {}),
            News::PodGone(_) | News::PodLeaves(_) | News::Confirmed(_) => {}
            News::Team(is_a) => {
                let labels = [("team".to_owned(), if is_a { "a" } else { "b" }.to_owned())];
                self.cluster.put_namespace("other", labels.clone().into());
                self.world.namespaces.insert("other".to_owned(), labels.into());
            }
            News::Again(nth) => {
                let pod = self.wanted.get(nth).cloned()?;
                return self.hear(News::Wanted(pod), settings);
            }
            News::Wanted(pod) => {
                if !self.wanted.iter().any(|known| known.shape == pod.shape && known.tags == pod.tags) {
                    self.wanted.insert(0, pod.clone());
                }
                let pod = Arc::new(self.named(pod));
                let verdict = decide(&mut self.cluster, &[Wanted::new(Arc::clone(&pod))], settings).remove(0);
                return Some((pod, verdict));
            }
        }
        None
    }

    fn offer(&mut self, name: &str, part: i64, known: bool) {
        let Some(node) = self.world.nodes.get(name).cloned() else { return };
        let seen = if known { self.version } else { 0 };
        let mut given = OfferView { seen, automatic: PortRanges::parse(["31000-31003"]), ..offer(&node) };
        given.free.values_mut().for_each(|amount| *amount = *amount * part / 4);
        for resident in self.world.pods.iter_mut().filter(|resident| resident.node == name) {
            resident.fresh = self.cluster.bound_at(&resident.pod.key).is_none_or(|version| version > seen);
        }
        self.world.offers.insert(name.to_owned(), given.clone());
        self.cluster.put_offer(name, given);
    }

    fn update(&mut self, nth: usize, change: impl FnOnce(&mut PodView)) {
        let resident = &mut self.world.pods[nth];
        let mut pod = PodView::clone(&resident.pod);
        let assumed = pod.node.is_none();
        (pod.node, pod.version) = (Some(resident.node.clone()), self.version);
        let given = resident.ports.iter().zip(&pod.shape.wishes);
        pod.given =
            given.map(|(port, wish)| crate::core::view::GivenPort { wish: wish.clone(), host_port: *port }).collect();
        change(&mut pod);
        resident.pod = Arc::new(pod);
        if assumed {
            let seen = self.world.offers.get(&resident.node).map(|offer| offer.seen);
            resident.fresh = seen.is_none_or(|seen| seen < self.version);
        }
        self.cluster.put_pod(Arc::clone(&resident.pod));
    }

    fn settle(&mut self, pod: Arc<PodView>, verdict: &Verdict) {
        if let Verdict::Place { machine, ports } = verdict {
            let ports = ports.iter().map(|port| port.host_port).collect();
            self.world.pods.push(Resident { pod, node: machine.to_string(), fresh: true, ports });
        }
    }
}

fn packing() -> impl Strategy<Value = Settings> {
    prop::sample::select(vec![Packing::Spread, Packing::Binpack]).prop_map(|strategy| Settings { strategy })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Placed exactly if the plain rules have a machine for it, and then on one of those.
    #[test]
    fn the_rules_decide(news in any_start(), settings in packing()) {
        let mut both = Both::new();
        for one in news {
            let before = both.world.clone();
            let Some((pod, verdict)) = both.hear(one, &settings) else { continue };
            let fitting = before.fitting(&pod);
            match &verdict {
                Verdict::Place { machine, ports } => {
                    prop_assert!(fitting.contains(&**machine), "{} does not fit on {machine}", pod.key);
                    let wishes = if both.world.maps(&pod, machine) { pod.shape.wishes.len() } else { 0 };
                    prop_assert_eq!(ports.len(), wishes);
                }
                Verdict::Unplaced(why) => {
                    prop_assert!(fitting.is_empty(), "{} fits on {fitting:?}: {why}", pod.key);
                    prop_assert_eq!(why.machines, before.nodes.len());
                    prop_assert!(why.machines == 0 || why.reasons.values().sum::<usize>() >= why.machines);
                }
                Verdict::Preempt { .. } => prop_assert!(false, "all are equally important"),
            }
            both.settle(pod, &verdict);
        }
    }

    /// A cluster that heard everything bit by bit is as good as one told only what holds now.
    #[test]
    fn what_is_kept_is_what_would_be_worked_out_anew(news in any_start(), settings in packing()) {
        let (mut kept, mut fresh) = (Both::new(), Both::new());
        for one in news {
            let now = kept.hear(one.clone(), &settings);
            fresh.cluster = fresh.cluster.renewed();
            let anew = fresh.hear(one, &settings);
            prop_assert_eq!(now.as_ref().map(|(_, verdict)| verdict), anew.as_ref().map(|(_, verdict)| verdict));
            for (both, said) in [(&mut kept, now), (&mut fresh, anew)] {
                if let Some((pod, verdict)) = said {
                    both.settle(pod, &verdict);
                }
            }
        }
    }

    /// A batch is its pods one after the other, and the same again every time.
    #[test]
    fn a_batch_is_no_more_than_its_pods(
        news in any_start(), pods in prop::collection::vec(any_pod(0..3), 1..12), settings in packing(),
    ) {
        let build = || {
            let mut both = Both::new();
            for one in news.clone() {
                if let Some((pod, verdict)) = both.hear(one, &settings) {
                    both.settle(pod, &verdict);
                }
            }
            both
        };
        let (mut whole, mut single, mut again) = (build(), build(), build());
        let batch: Vec<Wanted> = pods.iter().map(|pod| Wanted::new(Arc::new(whole.named(pod.clone())))).collect();
        let together = decide(&mut whole.cluster, &batch, &settings);
        let apart: Vec<Verdict> =
            batch.iter().map(|one| decide(&mut single.cluster, std::slice::from_ref(one), &settings).remove(0)).collect();
        prop_assert_eq!(&together, &apart);
        prop_assert_eq!(&together, &decide(&mut again.cluster, &batch, &settings));
    }

    /// Only the less important leave, no more of them than needed, and then the pod fits.
    #[test]
    fn preemption_is_needed_and_enough(
        nodes in (0..MACHINES).map(any_node).collect::<Vec<_>>(),
        there in prop::collection::vec((any_pod(0..3), 0..MACHINES), 0..20),
        wanted in any_pod(1..4),
    ) {
        let mut both = Both::new();
        for (at, node) in nodes.into_iter().enumerate() {
            both.hear(News::Machine(node), &Settings::default());
            both.hear(News::Offer { machine: at, part: 4, known: false }, &Settings::default());
        }
        for (pod, at) in there {
            let node = format!("n{at}");
            if both.world.fits(&pod, &node) && pod.shape.wishes.is_empty() {
                both.hear(News::Bound(pod, at), &Settings::default());
            }
        }
        let before = both.world.clone();
        let Some((pod, verdict)) = both.hear(News::Wanted(wanted), &Settings::default()) else { return Ok(()) };
        let without = |names: &[&PodKey]| {
            let mut world = before.clone();
            world.pods.retain(|resident| !names.contains(&&resident.pod.key));
            world
        };
        let priority = |key: &PodKey| before.pods.iter().find(|r| r.pod.key == *key).map(|r| r.pod.shape.priority);
        match verdict {
            Verdict::Place { machine, .. } => prop_assert!(before.fits(&pod, &machine)),
            Verdict::Preempt { machine, victims, .. } => {
                prop_assert!(before.fitting(&pod).is_empty());
                let names: Vec<&PodKey> = victims.iter().map(|victim| &victim.key).collect();
                prop_assert!(names.iter().all(|name| priority(name).is_some_and(|p| p < pod.shape.priority)));
                prop_assert!(without(&names).fits(&pod, &machine));
                for spared in 0..names.len() {
                    let mut fewer = names.clone();
                    fewer.remove(spared);
                    prop_assert!(!without(&fewer).fits(&pod, &machine), "{} need not leave", names[spared]);
                }
            }
            Verdict::Unplaced(why) => {
                for node in before.nodes.keys() {
                    let lower = before.pods.iter().filter(|r| r.node == *node && r.pod.shape.priority < pod.shape.priority);
                    let names: Vec<&PodKey> = lower.map(|resident| &resident.pod.key).collect();
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
            cluster.put_machine(node);
            cluster.put_offer(&name, offer);
        }
        let rule = json!([{ "maxSkew": skew, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": { "matchLabels": { "app": "x" } } }]);
        let mut zones: BTreeMap<usize, i32> = sizes.iter().map(|zone| (*zone, 0)).collect();
        for nth in 0..count {
            let more = json!({ "metadata": { "labels": { "app": "x" } }, "spec": { "topologySpreadConstraints": rule } });
            let wanted = Wanted::new(Arc::new(pod(&format!("p{nth}"), more)));
            if let Verdict::Place { machine, .. } = decide(&mut cluster, &[wanted], &Settings::default()).remove(0) {
                let at: usize = machine[1..].parse().unwrap();
                *zones.get_mut(&sizes[at]).unwrap() += 1;
            }
            let (least, most) = (zones.values().min().unwrap(), zones.values().max().unwrap());
            prop_assert!(most - least <= skew, "{zones:?}");
        }
    }
}
