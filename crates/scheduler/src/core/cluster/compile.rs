//! Compiles the rules of pods into ids, once per class of equal pods.

use super::{
    ClassId, Cluster, CompiledSpread, CountsId, FilterId, LabelProfile, NodeFilter, PodClass, ProfileId, ScopeId,
    SelectionId, TermId, TermKind,
    topology::{CarriedTerm, CountedPods, DomainCounts, NodeScope, PodSelection},
};
use crate::core::{
    filters,
    selector::PodSelector,
    view::{AffinityTerm, LabelSet, NodeRules, NodeView, SchedulingRules, SchedulingSpec, SpreadConstraint},
};

impl Cluster {
    pub(in crate::core) fn class_id(&mut self, spec: &SchedulingSpec) -> ClassId {
        let classes = &self.classes;
        if let Some(known) = self.class_ids.find(spec.fingerprint(), |id| classes[id].spec.is_equal(spec)) {
            return known;
        }
        let requests = spec.requests.iter().map(|(name, amount)| (self.resources.id(name), *amount)).collect();
        let roles = spec.roles.names().iter().map(|role| self.roles.id(role)).collect();
        let mut class = PodClass::new(spec.clone(), requests, roles, self.filter_id(&spec.node));
        self.compile_affinity(&mut class, spec);
        self.compile_spread(&mut class, spec);
        let id = self.classes.len();
        self.class_ids.insert(spec.fingerprint(), id);
        self.classes.push(class);
        id
    }

    pub(in crate::core) fn profile_id(&mut self, label_set: &LabelSet) -> ProfileId {
        let profiles = &self.topology.profiles;
        let is_equal = |id: ProfileId| profiles[id].label_set == *label_set;
        if let Some(known) = self.topology.profile_ids.find(label_set.fingerprint(), is_equal) {
            return known;
        }
        let id = self.topology.profiles.len();
        let selections = self.selections_matching(label_set);
        self.topology.profile_ids.insert(label_set.fingerprint(), id);
        self.topology.profiles.push(LabelProfile { label_set: label_set.clone(), selections });
        id
    }

    pub(super) fn selections_matching(&self, label_set: &LabelSet) -> Vec<SelectionId> {
        let all = self.topology.selections.iter().enumerate();
        all.filter(|(_, selection)| self.all_match(&selection.selectors, label_set)).map(|(id, _)| id).collect()
    }

    fn all_match(&self, selectors: &[PodSelector], label_set: &LabelSet) -> bool {
        let (namespace, labels) = (label_set.namespace(), label_set.labels());
        selectors.iter().all(|selector| selector.matches(namespace, labels, |name| self.namespaces.get(name)))
    }

    fn filter_id(&mut self, rules: &NodeRules) -> FilterId {
        if let Some(known) = self.node_filters.iter().position(|filter| filter.rules == *rules) {
            return known;
        }
        let static_scores = self.nodes.iter().map(|info| filters::static_score(rules, info.node.as_ref())).collect();
        self.node_filters.push(NodeFilter { rules: rules.clone(), static_scores });
        self.node_filters.len() - 1
    }

    fn compile_affinity(&mut self, class: &mut PodClass, rules: &SchedulingRules) {
        let affinity = &rules.pod_affinity;
        if !affinity.required.is_empty() {
            let all = self.selection_id(affinity.required.iter().map(|term| term.pods.clone()).collect());
            class.affinity_selection = Some(all);
            for term in &affinity.required {
                class.affinity.push(self.counts_id(CountedPods::Matching(all), &term.topology_key, None));
                class.own_terms.push(self.term_id(term, TermKind::Affinity));
            }
        }
        for term in &affinity.anti_required {
            class.anti_affinity.push(self.counts_of_matching_pods(term));
            class.own_terms.push(self.term_id(term, TermKind::AntiAffinity));
        }
        let preferred = affinity.preferred.iter().map(|(weight, term)| (i64::from(*weight), term));
        let anti_preferred = affinity.anti_preferred.iter().map(|(weight, term)| (-i64::from(*weight), term));
        for (weight, term) in preferred.chain(anti_preferred) {
            class.preferred.push((weight, self.counts_of_matching_pods(term)));
            class.own_terms.push(self.term_id(term, TermKind::Preferred(weight)));
        }
        class.own_terms.sort_unstable();
        class.own_terms.dedup();
    }

    fn compile_spread(&mut self, class: &mut PodClass, rules: &SchedulingRules) {
        for constraint in &rules.spread {
            let selection = self.selection_id(vec![constraint.pods.clone()]);
            let scope = self.spread_scope_id(rules, constraint);
            let counts = self.counts_id(CountedPods::Matching(selection), &constraint.topology_key, Some(scope));
            let min_domains = constraint.min_domains.and_then(|n| usize::try_from(n).ok()).unwrap_or(1);
            let max_skew = i64::from(constraint.max_skew);
            class.spread.push(CompiledSpread { counts, selection, max_skew, min_domains, hard: constraint.hard });
        }
    }

    /// As upstream, a node counts only if it has the topology keys of all hard (or of all soft) constraints.
    fn spread_scope_id(&mut self, rules: &SchedulingRules, constraint: &SpreadConstraint) -> ScopeId {
        let alike = rules.spread.iter().filter(|other| other.hard == constraint.hard);
        let mut required_labels: Vec<String> = alike.map(|constraint| constraint.topology_key.clone()).collect();
        required_labels.sort_unstable();
        required_labels.dedup();
        let mut relevant = NodeRules::default();
        if constraint.honor_affinity {
            relevant.selector.clone_from(&rules.node.selector);
            relevant.required.clone_from(&rules.node.required);
        }
        if constraint.honor_taints {
            relevant.tolerations.clone_from(&rules.node.tolerations);
        }
        let (honor_affinity, honor_taints) = (constraint.honor_affinity, constraint.honor_taints);
        let scope = NodeScope { rules: relevant, honor_affinity, honor_taints, required_labels, contains: vec![] };
        let nodes: Vec<Option<&NodeView>> = self.nodes.iter().map(|info| info.node.as_ref()).collect();
        self.topology.scope_id(scope, &nodes)
    }

    fn counts_of_matching_pods(&mut self, term: &AffinityTerm) -> CountsId {
        let selection = self.selection_id(vec![term.pods.clone()]);
        self.counts_id(CountedPods::Matching(selection), &term.topology_key, None)
    }

    fn term_id(&mut self, term: &AffinityTerm, kind: TermKind) -> TermId {
        let selection = self.selection_id(vec![term.pods.clone()]);
        let topology = &self.topology;
        let is_equal = |id: &&TermId| {
            let known = &topology.terms[**id];
            known.kind == kind && topology.keys[topology.counts[known.counts].key].label == term.topology_key
        };
        if let Some(known) = topology.selections[selection].terms.iter().find(is_equal) {
            return *known;
        }
        let id = self.topology.terms.len();
        let counts = self.topology.counts.len();
        self.topology.terms.push(CarriedTerm { kind, counts });
        self.topology.selections[selection].terms.push(id);
        self.counts_id(CountedPods::Carrying(id), &term.topology_key, None);
        id
    }

    fn selection_id(&mut self, mut selectors: Vec<PodSelector>) -> SelectionId {
        selectors.sort_unstable();
        selectors.dedup();
        if let Some(known) = self.topology.selections.iter().position(|selection| selection.selectors == selectors) {
            return known;
        }
        let id = self.topology.selections.len();
        for profile in 0..self.topology.profiles.len() {
            if self.all_match(&selectors, &self.topology.profiles[profile].label_set) {
                self.topology.profiles[profile].selections.push(id);
            }
        }
        self.topology.selections.push(PodSelection { selectors, counts: vec![], terms: vec![] });
        id
    }

    fn counts_id(&mut self, counted_pods: CountedPods, topology_key: &str, scope: Option<ScopeId>) -> CountsId {
        let nodes: Vec<Option<&NodeView>> = self.nodes.iter().map(|info| info.node.as_ref()).collect();
        let key = self.topology.key_id(topology_key, &nodes);
        let is_equal =
            |known: &DomainCounts| known.counted_pods == counted_pods && known.key == key && known.scope == scope;
        if let Some(known) = self.topology.counts.iter().position(is_equal) {
            return known;
        }
        let id = self.topology.counts.len();
        if let CountedPods::Matching(selection) = counted_pods {
            self.topology.selections[selection].counts.push(id);
        }
        self.topology.counts.push(DomainCounts::new(counted_pods, key, scope));
        self.fill_counts(id);
        id
    }
}
