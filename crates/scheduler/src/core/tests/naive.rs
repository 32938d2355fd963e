//! The rules once more, written down plainly and without any haste, to check the decision against.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use mainstay_api::matching::NodeTerm as _;

use crate::core::view::{Labels, Near, NodeView, OfferView, PodView, PortMapping, SpreadRule, Taint};

#[derive(Clone, Default)]
pub struct World {
    pub nodes: BTreeMap<String, NodeView>,
    pub offers: BTreeMap<String, OfferView>,
    pub pods: Vec<Resident>,
    pub namespaces: BTreeMap<String, Labels>,
}

#[derive(Clone)]
pub struct Resident {
    pub pod: Arc<PodView>,
    pub node: String,
    /// Not known to the offer.
    pub fresh: bool,
    pub ports: Vec<u16>,
}

impl World {
    pub fn fitting(&self, pod: &PodView) -> BTreeSet<String> {
        self.nodes.keys().filter(|name| self.fits(pod, name)).cloned().collect()
    }

    pub fn fits(&self, pod: &PodView, name: &str) -> bool {
        let (Some(node), Some(offer)) = (self.nodes.get(name), self.offers.get(name)) else { return false };
        self.is_open(pod, node)
            && self.is_selected(pod, node)
            && self.has_resources(pod, name, offer)
            && self.has_ports(pod, name, offer)
            && self.is_level(pod, node)
            && self.is_welcome(pod, node)
    }

    fn is_open(&self, pod: &PodView, node: &NodeView) -> bool {
        let hard = node.taints.iter().filter(|taint| format!("{:?}", taint.effect) != "PreferNoSchedule");
        node.ready && !node.unschedulable && hard.into_iter().all(|taint| self.is_tolerated(pod, taint))
    }

    fn is_tolerated(&self, pod: &PodView, taint: &Taint) -> bool {
        pod.shape.machine.tolerations.iter().any(|toleration| {
            (toleration.key.is_none() || toleration.key.as_deref() == Some(&taint.key))
                && (toleration.value.is_none() || toleration.value.as_deref() == Some(&taint.value))
                && (toleration.effect.is_none() || toleration.effect == Some(taint.effect))
        })
    }

    fn is_selected(&self, pod: &PodView, node: &NodeView) -> bool {
        let rules = &pod.shape.machine;
        for (key, value) in &rules.selector {
            if node.labels.get(key) != Some(value) {
                return false;
            }
        }
        match &rules.required {
            Some(terms) => terms.iter().any(|term| term.matches(&node.name, &node.labels)),
            None => true,
        }
    }

    fn on<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Resident> {
        self.pods.iter().filter(move |resident| resident.node == name)
    }

    fn has_resources(&self, pod: &PodView, name: &str, offer: &OfferView) -> bool {
        pod.shape.requests.iter().all(|(resource, wanted)| {
            let mut free = offer.free.get(resource).copied().unwrap_or(0);
            for resident in self.on(name).filter(|resident| resident.fresh) {
                free -= resident.pod.shape.requests.get(resource).copied().unwrap_or(0);
            }
            *wanted <= free
        })
    }

    fn has_ports(&self, pod: &PodView, name: &str, offer: &OfferView) -> bool {
        let mut used: BTreeSet<u16> = BTreeSet::new();
        for resident in self.on(name) {
            for held in &resident.pod.shape.ports {
                used.insert(held.port);
                if pod.shape.ports.iter().any(|port| port.port == held.port && port.protocol == held.protocol) {
                    return false;
                }
            }
            used.extend(&resident.ports);
        }
        used.extend(pod.shape.ports.iter().map(|port| port.port));
        let automatic = (1..=u16::MAX).filter(|port| offer.automatic.contains(*port) && !used.contains(port));
        pod.shape.ports.iter().all(|port| offer.explicit.contains(port.port))
            && (!self.maps(pod, name) || automatic.count() >= pod.shape.wishes.len())
    }

    /// Whether the pod's ports get numbers of the machine.
    pub fn maps(&self, pod: &PodView, name: &str) -> bool {
        let mapped = |node: &NodeView| node.by_host_port || pod.shape.mapping == PortMapping::Always;
        !pod.shape.wishes.is_empty() && self.nodes.get(name).is_some_and(mapped)
    }

    fn speaks_of(&self, near: &Near, pod: &PodView) -> bool {
        self.selects(&near.pods, pod)
    }

    fn selects(&self, selector: &crate::core::view::PodSelector, pod: &PodView) -> bool {
        let namespace = &pod.key.namespace;
        let labels = self.namespaces.get(namespace).cloned().unwrap_or_default();
        let covered = selector.namespaces.contains(namespace)
            || selector.namespaces_like.as_ref().is_some_and(|like| like.matches(&labels));
        covered && selector.labels.as_ref().is_some_and(|selector| selector.matches(pod.tags.labels()))
    }

    fn domain<'a>(&'a self, node: &str, topology: &str) -> Option<&'a String> {
        self.nodes.get(node)?.labels.get(topology)
    }

    fn is_level(&self, pod: &PodView, node: &NodeView) -> bool {
        let hard: Vec<&SpreadRule> = pod.shape.spread.iter().filter(|rule| rule.hard).collect();
        hard.iter().all(|rule| {
            let Some(here) = node.labels.get(&rule.topology) else { return false };
            let mut domains: BTreeMap<&String, i32> = BTreeMap::new();
            for counted in self.nodes.values() {
                let labelled = hard.iter().all(|rule| counted.labels.contains_key(&rule.topology));
                let affine = !rule.honour_affinity || self.is_selected(pod, counted);
                let hard = counted.taints.iter().filter(|taint| taint.effect.is_hard());
                let bearable = !rule.honour_taints || hard.into_iter().all(|taint| self.is_tolerated(pod, taint));
                if labelled && affine && bearable {
                    let pods = self.on(&counted.name).filter(|resident| !resident.pod.terminating);
                    let pods = pods.filter(|resident| self.selects(&rule.pods, &resident.pod)).count();
                    *domains.entry(&counted.labels[&rule.topology]).or_default() += pods as i32;
                }
            }
            let enough = domains.len() >= rule.min_domains.unwrap_or(1) as usize;
            let fewest = if enough { domains.values().copied().min().unwrap_or(0) } else { 0 };
            let own = i32::from(self.selects(&rule.pods, pod));
            domains.get(here).copied().unwrap_or(0) + own - fewest <= rule.max_skew
        })
    }

    fn is_welcome(&self, pod: &PodView, node: &NodeView) -> bool {
        let shares = |resident: &Resident, topology: &str| {
            let here = node.labels.get(topology);
            here.is_some() && self.domain(&resident.node, topology) == here
        };
        let together = &pod.shape.together;
        let apart = together.forbidden.iter().all(|near| {
            !self.pods.iter().any(|other| self.speaks_of(near, &other.pod) && shares(other, &near.topology))
        });
        let tolerated = self.pods.iter().all(|other| {
            let forbidden = other.pod.shape.together.forbidden.iter();
            !forbidden.into_iter().any(|near| self.speaks_of(near, pod) && shares(other, &near.topology))
        });
        apart && tolerated && self.has_company(pod, node)
    }

    fn has_company(&self, pod: &PodView, node: &NodeView) -> bool {
        let required = &pod.shape.together.required;
        let wanted = |other: &PodView| required.iter().all(|near| self.speaks_of(near, other));
        let company: Vec<&Resident> = self.pods.iter().filter(|other| wanted(&other.pod)).collect();
        let labelled = required.iter().all(|near| node.labels.contains_key(&near.topology));
        let anywhere = |near: &Near| company.iter().any(|other| self.domain(&other.node, &near.topology).is_some());
        if !required.iter().any(anywhere) && wanted(pod) {
            return labelled;
        }
        let near = |near: &Near| {
            let here = node.labels.get(&near.topology);
            here.is_some() && company.iter().any(|other| self.domain(&other.node, &near.topology) == here)
        };
        required.iter().all(near)
    }
}
