//! A plain and slow reference implementation of all filters, to check the scheduler against.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use mainstay_api::matching::NodeTerm as _;

use crate::core::view::{AffinityTerm, Labels, NodeView, OfferView, PodView, PortMapping, SpreadConstraint, Taint};

#[derive(Clone, Default)]
pub struct ReferenceCluster {
    pub nodes: BTreeMap<String, NodeView>,
    pub offers: BTreeMap<String, OfferView>,
    pub pods: Vec<PodOnNode>,
    pub namespaces: BTreeMap<String, Labels>,
}

#[derive(Clone)]
pub struct PodOnNode {
    pub pod: Arc<PodView>,
    pub node: String,
    /// Not known to the offer.
    pub fresh: bool,
    pub ports: Vec<u16>,
}

impl ReferenceCluster {
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
        pod.spec.node.tolerations.iter().any(|toleration| {
            (toleration.key.is_none() || toleration.key.as_deref() == Some(&taint.key))
                && (toleration.value.is_none() || toleration.value.as_deref() == Some(&taint.value))
                && (toleration.effect.is_none() || toleration.effect == Some(taint.effect))
        })
    }

    fn is_selected(&self, pod: &PodView, node: &NodeView) -> bool {
        let rules = &pod.spec.node;
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

    fn pods_on<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a PodOnNode> {
        self.pods.iter().filter(move |other| other.node == name)
    }

    fn has_resources(&self, pod: &PodView, name: &str, offer: &OfferView) -> bool {
        pod.spec.requests.iter().all(|(resource, wanted)| {
            let mut free = offer.free.get(resource).copied().unwrap_or(0);
            for other in self.pods_on(name).filter(|other| other.fresh) {
                free -= other.pod.spec.requests.get(resource).copied().unwrap_or(0);
            }
            *wanted <= free
        })
    }

    fn has_ports(&self, pod: &PodView, name: &str, offer: &OfferView) -> bool {
        let mut used: BTreeSet<u16> = BTreeSet::new();
        for other in self.pods_on(name) {
            for held in &other.pod.spec.ports {
                used.insert(held.port);
                if pod.spec.ports.iter().any(|port| port.port == held.port && port.protocol == held.protocol) {
                    return false;
                }
            }
            used.extend(&other.ports);
        }
        used.extend(pod.spec.ports.iter().map(|port| port.port));
        let automatic = (1..=u16::MAX).filter(|port| offer.automatic_ports.contains(*port) && !used.contains(port));
        pod.spec.ports.iter().all(|port| offer.explicit_ports.contains(port.port))
            && (!self.maps(pod, name) || automatic.count() >= pod.spec.automatic_ports.len())
    }

    /// Whether the pod's automatic ports get numbers on the node.
    pub fn maps(&self, pod: &PodView, name: &str) -> bool {
        let mapped = |node: &NodeView| node.by_host_port || pod.spec.port_mapping == PortMapping::Always;
        !pod.spec.automatic_ports.is_empty() && self.nodes.get(name).is_some_and(mapped)
    }

    fn speaks_of(&self, near: &AffinityTerm, pod: &PodView) -> bool {
        self.selects(&near.pods, pod)
    }

    fn selects(&self, selector: &crate::core::view::PodSelector, pod: &PodView) -> bool {
        let namespace = &pod.key.namespace;
        let labels = self.namespaces.get(namespace).cloned().unwrap_or_default();
        let covered = selector.namespaces.contains(namespace)
            || selector.namespaces_like.as_ref().is_some_and(|like| like.matches(&labels));
        covered && selector.labels.as_ref().is_some_and(|selector| selector.matches(pod.label_set.labels()))
    }

    fn domain<'a>(&'a self, node: &str, topology: &str) -> Option<&'a String> {
        self.nodes.get(node)?.labels.get(topology)
    }

    fn is_level(&self, pod: &PodView, node: &NodeView) -> bool {
        let hard: Vec<&SpreadConstraint> = pod.spec.spread.iter().filter(|rule| rule.hard).collect();
        hard.iter().all(|rule| {
            let Some(here) = node.labels.get(&rule.topology_key) else { return false };
            let mut domains: BTreeMap<&String, i32> = BTreeMap::new();
            for counted in self.nodes.values() {
                let labelled = hard.iter().all(|rule| counted.labels.contains_key(&rule.topology_key));
                let affine = !rule.honor_affinity || self.is_selected(pod, counted);
                let hard = counted.taints.iter().filter(|taint| taint.effect.is_hard());
                let bearable = !rule.honor_taints || hard.into_iter().all(|taint| self.is_tolerated(pod, taint));
                if labelled && affine && bearable {
                    let pods = self.pods_on(&counted.name).filter(|other| !other.pod.terminating);
                    let pods = pods.filter(|other| self.selects(&rule.pods, &other.pod)).count();
                    *domains.entry(&counted.labels[&rule.topology_key]).or_default() += pods as i32;
                }
            }
            let enough = domains.len() >= rule.min_domains.unwrap_or(1) as usize;
            let fewest = if enough { domains.values().copied().min().unwrap_or(0) } else { 0 };
            let own = i32::from(self.selects(&rule.pods, pod));
            domains.get(here).copied().unwrap_or(0) + own - fewest <= rule.max_skew
        })
    }

    fn is_welcome(&self, pod: &PodView, node: &NodeView) -> bool {
        let shares = |other: &PodOnNode, topology: &str| {
            let here = node.labels.get(topology);
            here.is_some() && self.domain(&other.node, topology) == here
        };
        let pod_affinity = &pod.spec.pod_affinity;
        let apart = pod_affinity.anti_required.iter().all(|near| {
            !self.pods.iter().any(|other| self.speaks_of(near, &other.pod) && shares(other, &near.topology_key))
        });
        let tolerated = self.pods.iter().all(|other| {
            let forbidden = other.pod.spec.pod_affinity.anti_required.iter();
            !forbidden.into_iter().any(|near| self.speaks_of(near, pod) && shares(other, &near.topology_key))
        });
        apart && tolerated && self.has_company(pod, node)
    }

    fn has_company(&self, pod: &PodView, node: &NodeView) -> bool {
        let required = &pod.spec.pod_affinity.required;
        let wanted = |other: &PodView| required.iter().all(|near| self.speaks_of(near, other));
        let company: Vec<&PodOnNode> = self.pods.iter().filter(|other| wanted(&other.pod)).collect();
        let labelled = required.iter().all(|near| node.labels.contains_key(&near.topology_key));
        let anywhere =
            |near: &AffinityTerm| company.iter().any(|other| self.domain(&other.node, &near.topology_key).is_some());
        if !required.iter().any(anywhere) && wanted(pod) {
            return labelled;
        }
        let near = |near: &AffinityTerm| {
            let here = node.labels.get(&near.topology_key);
            here.is_some() && company.iter().any(|other| self.domain(&other.node, &near.topology_key) == here)
        };
        required.iter().all(near)
    }
}
