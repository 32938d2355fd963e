//! Selects the best node that passes all filters.
//!
//! A pod without rules about other pods goes to the best node of its class's score index. If the rules can only exclude
//! nodes, the nodes are probed in the order of their scores until one passes. If there are soft rules too, every
//! topology domain is scored once, and then the nodes in one pass over plain arrays: the node's own sort key, and for each
//! topology key the score of its domain.

use super::{
    cluster::{ClassId, Cluster, CountsId, NodeId, ProfileId, TermKind},
    exclusions::NodeExclusions,
    pod_topology::PreFilterState,
    score::{MAX_SCORE, POD_AFFINITY_WEIGHT, SPREAD_WEIGHT},
    score_index::{Probe, score_from_key},
};

/// Weight of a required affinity term of an existing pod, in the score of a pod that joins it (as upstream's
/// `hardPodAffinityWeight`).
const REQUIRED_BY_EXISTING: i64 = 1;
const EXCLUDED_DOMAIN: i64 = i64::MIN / 1024;
const NO_LABEL: i64 = i64::MIN / 1024;

#[derive(Clone, Copy, Debug, Default)]
struct DomainScore {
    /// Of preferred pod affinity; [`EXCLUDED_DOMAIN`] if no pod may be added.
    affinity: i64,
    /// Weighted pods of soft spread constraints; [`NO_LABEL`] if the node lacks the label.
    spread: i64,
}

/// The scores of one topology key's domains.
struct KeyScores<'a> {
    key: usize,
    domain_of_node: &'a [u32],
    domains: Vec<DomainScore>,
}

#[derive(Default)]
struct TopologyScores<'a> {
    keys: Vec<KeyScores<'a>>,
    has_soft_spread: bool,
}

impl Cluster {
    pub(super) fn select_node(
        &mut self,
        (class, profile): (ClassId, ProfileId),
        excluded: &NodeExclusions,
    ) -> Option<NodeId> {
        let best = self.updated_index(class).best_key();
        if best == 0 {
            return None;
        }
        if excluded.is_empty() && !self.has_pod_topology_rules(class, profile) {
            return Some(self.node_of_key(best));
        }
        let prefilter = self.prefilter(class, profile);
        if !self.has_soft_rules(class, profile) {
            let accepts =
                |node| !excluded.contains(node) && self.passes_pod_topology((class, profile), node, &prefilter);
            match self.current_index(class).find_first(accepts) {
                Probe::Found(node) => return Some(node),
                Probe::None => return None,
                Probe::GaveUp => {}
            }
        }
        let scores = self.topology_scores(class, profile, &prefilter);
        let sort_keys = self.current_index(class).sort_keys(self.nodes.len());
        best_node(sort_keys, &scores, excluded)
    }

    fn passes_pod_topology(&self, pod: (ClassId, ProfileId), node: NodeId, prefilter: &PreFilterState) -> bool {
        let mut passes = true;
        self.topology_violations(pod, node, prefilter, |_| passes = false);
        passes
    }

    /// Whether the pods that exist make some domains better than others.
    fn has_soft_rules(&self, class: ClassId, profile: ProfileId) -> bool {
        let rules = &self.classes[class];
        !rules.preferred.is_empty()
            || rules.spread.iter().any(|spread| !spread.hard)
            || self.existing_terms(profile).any(|(kind, _)| kind != TermKind::AntiAffinity)
    }

    /// Whether the pods that exist matter at all.
    fn has_pod_topology_rules(&self, class: ClassId, profile: ProfileId) -> bool {
        let rules = &self.classes[class];
        !(rules.affinity.is_empty()
            && rules.anti_affinity.is_empty()
            && rules.preferred.is_empty()
            && rules.spread.is_empty()
            && self.existing_terms(profile).next().is_none())
    }

    fn topology_scores(&self, class: ClassId, profile: ProfileId, prefilter: &PreFilterState) -> TopologyScores<'_> {
        let (rules, counts) = (&self.classes[class], &self.topology.counts);
        let mut scores = TopologyScores::default();
        for (nth, spread) in rules.spread.iter().enumerate() {
            let (counts, domains) = (&counts[spread.counts], scores.domains_of(self, spread.counts));
            if spread.hard {
                domains[0].affinity = EXCLUDED_DOMAIN;
                exclude_domains(domains, &counts.pods, |pods| i64::from(pods) > prefilter.spread_limits[nth]);
            } else {
                domains[0].spread = NO_LABEL;
                let weight = spread_weight(counts.domain_count);
                let slack = (spread.max_skew - 1) * 1024;
                for (domain, score) in domains.iter_mut().enumerate().skip(1) {
                    score.spread += i64::from(counts.pods_in(domain as u32)) * weight + slack;
                }
                scores.has_soft_spread = true;
            }
        }
        for id in &rules.affinity {
            let domains = scores.domains_of(self, *id);
            domains[0].affinity = EXCLUDED_DOMAIN;
            if !prefilter.may_be_first {
                let is_empty = |domain: usize| counts[*id].pods_in(domain as u32) == 0;
                let empty = domains.iter_mut().enumerate().filter(|(domain, _)| is_empty(*domain));
                empty.for_each(|(_, score)| score.affinity = EXCLUDED_DOMAIN);
            }
        }
        for id in rules.anti_affinity.iter().copied().chain(self.existing_anti_affinity(profile)) {
            if counts[id].total > 0 {
                exclude_domains(scores.domains_of(self, id), &counts[id].pods, |pods| pods > 0);
            }
        }
        let existing = self.existing_terms(profile).filter_map(|(kind, id)| match kind {
            TermKind::Preferred(weight) => Some((weight, id)),
            TermKind::Affinity => Some((REQUIRED_BY_EXISTING, id)),
            TermKind::AntiAffinity => None,
        });
        for (weight, id) in rules.preferred.iter().copied().chain(existing) {
            if counts[id].total > 0 {
                let domains = scores.domains_of(self, id).iter_mut().zip(&counts[id].pods);
                domains.for_each(|(score, pods)| score.affinity += weight * i64::from(*pods));
            }
        }
        scores
    }
}

/// Pods weigh more where there are more domains to choose from, as upstream: `1024 * ln(domains + 2)`.
fn spread_weight(domains: usize) -> i64 {
    ((domains as f64 + 2.0).ln() * 1024.0) as i64
}

fn exclude_domains(domains: &mut [DomainScore], pods: &[u32], too_many: impl Fn(u32) -> bool) {
    let labelled = domains.iter_mut().zip(pods).skip(1);
    labelled.filter(|(_, pods)| too_many(**pods)).for_each(|(score, _)| score.affinity = EXCLUDED_DOMAIN);
}

impl<'a> TopologyScores<'a> {
    fn domains_of(&mut self, cluster: &'a Cluster, counts: CountsId) -> &mut [DomainScore] {
        let key = cluster.topology.counts[counts].key;
        let position = self.keys.iter().position(|scores| scores.key == key).unwrap_or_else(|| {
            let topology_key = &cluster.topology.keys[key];
            let domains = vec![DomainScore::default(); topology_key.domain_names.len()];
            self.keys.push(KeyScores { key, domain_of_node: &topology_key.domain_of_node, domains });
            self.keys.len() - 1
        });
        &mut self.keys[position].domains
    }

    fn score_node(&self, node: NodeId) -> DomainScore {
        let mut sum = DomainScore::default();
        for scores in &self.keys {
            let domain = scores.domains[scores.domain_of_node[node] as usize];
            sum.affinity += domain.affinity;
            sum.spread += domain.spread;
        }
        sum
    }
}

/// The range of raw scores, to normalize them to 0..=[`MAX_SCORE`].
#[derive(Clone, Copy)]
struct ScoreRange {
    lowest: i64,
    highest: i64,
}

impl ScoreRange {
    const EMPTY: Self = Self { lowest: i64::MAX, highest: i64::MIN };

    fn add(&mut self, score: i64) {
        self.lowest = self.lowest.min(score);
        self.highest = self.highest.max(score);
    }

    fn scale(self) -> f64 {
        if self.highest > self.lowest { MAX_SCORE as f64 / (self.highest - self.lowest) as f64 } else { 0.0 }
    }
}

fn best_node(sort_keys: &[u64], scores: &TopologyScores<'_>, excluded: &NodeExclusions) -> Option<NodeId> {
    let (mut affinity, mut spread) = (ScoreRange::EMPTY, ScoreRange::EMPTY);
    let mut feasible = Vec::with_capacity(sort_keys.len());
    for (node, sort_key) in sort_keys.iter().copied().enumerate() {
        let score = scores.score_node(node);
        if sort_key == 0 || score.affinity <= EXCLUDED_DOMAIN / 2 || excluded.contains(node) {
            continue;
        }
        affinity.add(score.affinity);
        if score.spread >= 0 {
            spread.add(score.spread);
        }
        feasible.push((node, sort_key, score));
    }
    // Multiplied, not divided: it is done for every node.
    let (affinity_scale, spread_scale) = (affinity.scale(), spread.scale());
    let total = |(_, sort_key, score): &(NodeId, u64, DomainScore)| {
        let mut total = score_from_key(*sort_key);
        total += POD_AFFINITY_WEIGHT * ((score.affinity - affinity.lowest) as f64 * affinity_scale) as i64;
        if scores.has_soft_spread && score.spread >= 0 {
            total += SPREAD_WEIGHT * (MAX_SCORE - ((score.spread - spread.lowest) as f64 * spread_scale) as i64);
        }
        (total, *sort_key as u32)
    };
    feasible.iter().max_by_key(|candidate| total(candidate)).map(|(node, _, _)| *node)
}
