//! Filters that depend on other pods: pod affinity and anti-affinity in both directions, and topology spread.

use super::cluster::{ClassId, Cluster, CountsId, NodeId, ProfileId, TermKind};

/// Why the pods that exist keep a pod from a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopologyViolation {
    /// The nth spread constraint needs a label that the node lacks.
    SpreadLabel(usize),
    Spread(usize),
    Affinity(CountsId),
    AntiAffinity(CountsId),
    /// Required anti-affinity of a pod that exists.
    ExistingAntiAffinity(CountsId),
}

/// What is computed once per pod, for all nodes.
#[derive(Clone, Debug)]
pub struct PreFilterState {
    /// For each spread constraint: how many pods a domain may have before the pod is added.
    pub spread_limits: Vec<i64>,
    /// No pod matches the required affinity yet, and the pod matches it itself: it may be the first.
    pub may_be_first: bool,
}

impl Cluster {
    pub(super) fn prefilter(&self, class: ClassId, profile: ProfileId) -> PreFilterState {
        let (rules, profile) = (&self.classes[class], &self.topology.profiles[profile]);
        let counts = &self.topology.counts;
        let spread_limits = rules.spread.iter().map(|spread| {
            if !spread.hard {
                return i64::MAX;
            }
            let counts = &counts[spread.counts];
            let fewest = if counts.domain_count < spread.min_domains { 0 } else { counts.fewest() };
            spread.max_skew + i64::from(fewest) - i64::from(profile.is_in(spread.selection))
        });
        let matches_itself = rules.affinity_selection.is_some_and(|selection| profile.is_in(selection));
        let may_be_first = matches_itself && rules.affinity.iter().all(|id| counts[*id].total == 0);
        PreFilterState { spread_limits: spread_limits.collect(), may_be_first }
    }

    /// Calls `found` with every violation on one node.
    pub(super) fn topology_violations(
        &self,
        (class, profile): (ClassId, ProfileId),
        node: NodeId,
        prefilter: &PreFilterState,
        mut found: impl FnMut(TopologyViolation),
    ) {
        let (rules, topology) = (&self.classes[class], &self.topology);
        let domain = |counts: CountsId| topology.domain(&topology.counts[counts], node);
        let pods = |counts: CountsId| topology.counts[counts].pods_in(domain(counts));
        for (nth, spread) in rules.spread.iter().enumerate().filter(|(_, spread)| spread.hard) {
            if domain(spread.counts) == 0 {
                found(TopologyViolation::SpreadLabel(nth));
            } else if i64::from(pods(spread.counts)) > prefilter.spread_limits[nth] {
                found(TopologyViolation::Spread(nth));
            }
        }
        for counts in rules.affinity.iter().copied() {
            if domain(counts) == 0 || (pods(counts) == 0 && !prefilter.may_be_first) {
                found(TopologyViolation::Affinity(counts));
            }
        }
        for counts in rules.anti_affinity.iter().copied().filter(|counts| pods(*counts) > 0) {
            found(TopologyViolation::AntiAffinity(counts));
        }
        for counts in self.existing_anti_affinity(profile).filter(|counts| pods(*counts) > 0) {
            found(TopologyViolation::ExistingAntiAffinity(counts));
        }
    }

    /// Counts of the pods whose required anti-affinity matches pods of this profile.
    pub(super) fn existing_anti_affinity(&self, profile: ProfileId) -> impl Iterator<Item = CountsId> {
        self.existing_terms(profile).filter(|(kind, _)| *kind == TermKind::AntiAffinity).map(|(_, counts)| counts)
    }

    /// Affinity terms of pods that exist, about pods of this profile.
    pub(super) fn existing_terms(&self, profile: ProfileId) -> impl Iterator<Item = (TermKind, CountsId)> {
        let topology = &self.topology;
        let selections = topology.profiles[profile].selections.iter();
        let terms = selections.flat_map(|selection| &topology.selections[*selection].terms);
        let terms = terms.map(|term| (topology.terms[*term].kind, topology.terms[*term].counts));
        terms.filter(|(_, counts)| topology.counts[*counts].total > 0)
    }
}
