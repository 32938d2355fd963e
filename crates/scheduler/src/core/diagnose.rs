//! Diagnoses why no node fits a pod.

use std::{cmp::Ordering, collections::BTreeMap};

use super::{
    cluster::{ClassId, Cluster, CountsId, NodeId, PodId, ProfileId},
    exclusions::NodeExclusions,
    filters,
    pod_topology::{PreFilterState, TopologyViolation},
    reason::{ClosestNode, Diagnosis, FilterFailure, Impossibility, NoPreemption, Prospect, Reason, Remedy},
    view::PortRanges,
};

/// How far a node is from fitting: filters failed, resources lacking, and its name so that no two are equal.
type Distance<'a> = (u32, i64, &'a str);

/// What a filter takes for free although it is not offered.
#[derive(Clone, Copy)]
pub(super) struct FreedRoom<'a> {
    /// Pods that are removed in thought.
    pub removed: &'a [PodId],
    /// Pods that ended, too.
    pub ended: bool,
}

impl<'a> FreedRoom<'a> {
    pub const NONE: Self = Self { removed: &[], ended: false };

    pub fn without(removed: &'a [PodId]) -> Self {
        Self { removed, ended: true }
    }
}

impl Cluster {
    /// Every filter that a pod fails on one node if the pods in `removed` were not there, in the order of filters.
    /// `removed` pods must be uncounted already.
    pub(super) fn filter_failures(
        &self,
        (class, profile): (ClassId, ProfileId),
        node: NodeId,
        prefilter: &PreFilterState,
        freed: FreedRoom<'_>,
    ) -> Vec<FilterFailure> {
        let (rules, info) = (&self.classes[class], &self.nodes[node]);
        let mut failures = vec![];
        let (Some(object), Some(_)) = (&info.node, &info.offer) else {
            return vec![FilterFailure::NotOffering];
        };
        let node_rules = &rules.spec.node;
        let has_pool = info.serves_roles(&rules.roles);
        if filters::is_cordoned(node_rules, object) {
            failures.push(FilterFailure::Cordoned);
        }
        if filters::is_not_ready(node_rules, object) {
            failures.push(FilterFailure::NotReady);
        }
        failures.extend(filters::untolerated_taint(node_rules, object).cloned().map(FilterFailure::Taint));
        if !filters::matches_node_affinity(node_rules, object) {
            failures.push(FilterFailure::NodeAffinity);
        }
        if has_pool {
            self.add_port_failures(class, node, freed.removed, &mut failures);
            self.add_resource_failures(class, node, freed, &mut failures);
        } else {
            failures.push(FilterFailure::NoPool { roles: rules.spec.roles.names().to_vec() });
        }
        if !filters::volumes_reachable(node_rules, object) {
            failures.push(FilterFailure::Volume);
        }
        self.topology_violations((class, profile), node, prefilter, |violation| {
            failures.push(self.topology_failure(class, node, violation));
        });
        // Terms of existing pods are found in the order in which these came to be known.
        failures.sort_by(|one, other| match (one, other) {
            (
                FilterFailure::ExistingAntiAffinity { topology_key, domain },
                FilterFailure::ExistingAntiAffinity { topology_key: other_key, domain: other_domain },
            ) => (topology_key, domain).cmp(&(other_key, other_domain)),
            (FilterFailure::ExistingAntiAffinity { .. }, _) => Ordering::Greater,
            (_, FilterFailure::ExistingAntiAffinity { .. }) => Ordering::Less,
            _ => Ordering::Equal,
        });
        failures
    }

    fn add_port_failures(&self, class: ClassId, node: NodeId, removed: &[PodId], failures: &mut Vec<FilterFailure>) {
        let (rules, info) = (&self.classes[class].spec, &self.nodes[node]);
        for port in &rules.ports {
            let mut offered = info.offered_explicit_ports(&rules.roles);
            if !offered.any(|ranges| ranges.contains(port.port)) {
                let offered = info.offered_explicit_ports(&rules.roles).flat_map(PortRanges::ranges).collect();
                failures.push(FilterFailure::PortOutside { port: port.clone(), offered });
            } else if let Some(by) = info.port_holder(port, removed).map(|by| self.pod_info(by).view.key.clone()) {
                failures.push(FilterFailure::PortTaken { port: port.clone(), by });
            } else if let Some(by) = info.nominated_port_holder(port, rules.priority).cloned() {
                failures.push(FilterFailure::PortTaken { port: port.clone(), by });
            }
        }
        if let Err(free) = info.assign_automatic_ports(rules) {
            let freed: usize = removed.iter().map(|pod| self.pod_info(*pod).assigned_ports.len()).sum();
            let requested = info.automatic_ports(rules).len();
            if free + freed < requested {
                failures.push(FilterFailure::AutomaticPorts { requested, free: free + freed });
            }
        }
    }

    fn add_resource_failures(
        &self,
        class: ClassId,
        node: NodeId,
        freed: FreedRoom<'_>,
        failures: &mut Vec<FilterFailure>,
    ) {
        let (rules, info) = (&self.classes[class], &self.nodes[node]);
        for (resource, requested) in &rules.requests {
            let free = self.available(class, node, *resource, freed);
            if *requested > free {
                let fits_empty_node = info.allocatable_for(&rules.roles, *resource) >= *requested;
                let rooms = match info.divides(*resource) {
                    true => self.pool_rooms(class, node, *resource, freed),
                    false => vec![],
                };
                let rooms = rooms.into_iter().map(|(role, room)| (self.role_name(role).to_owned(), room.max(0)));
                let (pools, amount) = (rooms.collect(), requested - free.max(0));
                let resource = self.resource_name(*resource).to_owned();
                failures.push(FilterFailure::Insufficient { resource, amount, fits_empty_node, pools });
            }
        }
    }

    /// How much of a resource pods of a class request.
    pub(super) fn requested_amount(&self, class: ClassId, resource: usize) -> i64 {
        let requests = &self.classes[class].requests;
        requests.iter().find(|(id, _)| *id == resource).map_or(0, |(_, amount)| *amount)
    }

    fn topology_failure(&self, class: ClassId, node: NodeId, violation: TopologyViolation) -> FilterFailure {
        let key_and_domain = |counts: CountsId| {
            let key = &self.topology.keys[self.topology.counts[counts].key];
            (key.label.clone(), key.domain_names[key.domain_of_node[node] as usize].clone())
        };
        let spread = |nth: usize| self.classes[class].spread[nth];
        match violation {
            TopologyViolation::SpreadLabel(nth) => {
                FilterFailure::SpreadLabel { topology_key: key_and_domain(spread(nth).counts).0 }
            }
            TopologyViolation::Spread(nth) => {
                let (topology_key, domain) = key_and_domain(spread(nth).counts);
                let max_skew = self.classes[class].spec.spread[nth].max_skew;
                FilterFailure::Spread { topology_key, domain, max_skew }
            }
            TopologyViolation::Affinity(counts) => FilterFailure::Affinity { topology_key: key_and_domain(counts).0 },
            TopologyViolation::AntiAffinity(counts) => {
                let (topology_key, domain) = key_and_domain(counts);
                FilterFailure::AntiAffinity { topology_key, domain }
            }
            TopologyViolation::ExistingAntiAffinity(counts) => {
                let (topology_key, domain) = key_and_domain(counts);
                FilterFailure::ExistingAntiAffinity { topology_key, domain }
            }
        }
    }

    pub(super) fn diagnose(
        &self,
        pod: (ClassId, ProfileId),
        excluded: &NodeExclusions,
        preemption: Option<NoPreemption>,
    ) -> Diagnosis {
        let prefilter = self.prefilter(pod.0, pod.1);
        let (mut reasons, mut nodes) = (BTreeMap::new(), 0);
        let mut closest: Option<(Distance<'_>, Vec<FilterFailure>)> = None;
        let mut remedy: Option<Remedy> = None;
        for (node, info) in self.nodes.iter().enumerate().filter(|(_, info)| info.node.is_some()) {
            nodes += 1;
            let mut failures = self.filter_failures(pod, node, &prefilter, FreedRoom::NONE);
            if excluded.refused.contains(&node) {
                failures.insert(0, FilterFailure::Refused);
            }
            failures.extend(excluded.devices.get(&node).cloned().map(FilterFailure::Devices));
            count_reasons(&failures, &mut reasons);
            let remedies = failures.iter().map(FilterFailure::remedy).collect::<Option<Vec<Remedy>>>();
            let slowest = remedies.and_then(|remedies| remedies.into_iter().max());
            remedy = [remedy, slowest].into_iter().flatten().min();
            let failed = failures.iter().map(FilterFailure::distance).sum();
            let distance = (failed, self.total_shortage(pod.0, &failures), &*info.name);
            if closest.as_ref().is_none_or(|(known, _)| distance < *known) {
                closest = Some((distance, failures));
            }
        }
        let closest = closest.map(|((_, _, name), failures)| ClosestNode { node: name.to_owned(), failures });
        let prospect = self.prospect(pod.0, nodes, remedy);
        Diagnosis { nodes, reasons, missing: vec![], closest, preemption, prospect }
    }

    /// By how much of what it requests the pod falls short, in thousandths, all resources together.
    fn total_shortage(&self, class: ClassId, failures: &[FilterFailure]) -> i64 {
        let requests = &self.classes[class].spec.requests;
        let share = |failure: &FilterFailure| match failure {
            FilterFailure::Insufficient { resource, amount, .. } => {
                let requested = i128::from(requests.get(resource).copied().unwrap_or(1).max(1));
                i64::try_from(i128::from(*amount) * 1000 / requested).unwrap_or(i64::MAX / 64)
            }
            _ => 0,
        };
        failures.iter().map(share).sum()
    }

    fn prospect(&self, class: ClassId, nodes: usize, remedy: Option<Remedy>) -> Prospect {
        let rules = &self.classes[class];
        if let Some(why) = &rules.contradiction {
            return Prospect::Never(Impossibility::Contradiction(why.clone()));
        }
        if nodes == 0 {
            return Prospect::Later(Remedy::NodeJoins);
        }
        if let Some(remedy) = remedy {
            return Prospect::Later(remedy);
        }
        let roles = &rules.roles;
        if !self.nodes.iter().any(|info| info.node.is_some() && info.serves_roles(roles)) {
            let roles = rules.spec.roles.names().to_vec();
            return Prospect::Never(Impossibility::NoRole { roles });
        }
        let allocatable = |resource| self.nodes.iter().map(move |info| info.allocatable_for(roles, resource));
        let largest = |resource| allocatable(resource).max().unwrap_or(0);
        let mut requests = rules.requests.iter().map(|(id, requested)| (*id, *requested, largest(*id)));
        match requests.find(|(_, requested, largest)| requested > largest) {
            Some((resource, requested, largest)) => {
                let resource = self.resource_name(resource).to_owned();
                Prospect::Never(Impossibility::TooLarge { resource, requested, largest })
            }
            None => Prospect::Never(Impossibility::NothingMatches),
        }
    }
}

/// Counts the first filter that the node fails; of insufficient resources each.
fn count_reasons(failures: &[FilterFailure], reasons: &mut BTreeMap<Reason, usize>) {
    let is_resource = |failure: &&FilterFailure| matches!(failure, FilterFailure::Insufficient { .. });
    let first = failures.iter().take(1).filter(|failure| !is_resource(failure));
    let all = if failures.first().as_ref().is_some_and(is_resource) { failures } else { &[] };
    for failure in first.chain(all.iter().filter(is_resource)) {
        *reasons.entry(failure.reason()).or_default() += 1;
    }
}
