//! From rules in words to rules in numbers, once per class.

use super::{
    Class, ClassId, Cluster, Fence, FenceId, Kind, Profile, ProfileId, ScopeId, SelId, Spread, TallyId, TermId,
    topology::{Scope, Selection, Tally, Term, Who},
};
use crate::core::{
    fit,
    selector::PodSelector,
    view::{MachineRules, Near, NodeView, Rules, Shape, SpreadRule, Tags},
};

impl Cluster {
    pub(in crate::core) fn class(&mut self, shape: &Shape) -> ClassId {
        let classes = &self.classes;
        if let Some(known) = self.class_of.find(shape.print(), |id| classes[id].shape.same(shape)) {
            return known;
        }
        let requests = shape.requests.iter().map(|(name, amount)| (self.resource(name), *amount)).collect();
        let mut class = Class::new(shape.clone(), requests, self.fence(&shape.machine));
        self.compile_together(&mut class, shape);
        self.compile_spread(&mut class, shape);
        let id = self.classes.len();
        self.class_of.insert(shape.print(), id);
        self.classes.push(class);
        id
    }

    pub(in crate::core) fn profile(&mut self, tags: &Tags) -> ProfileId {
        let profiles = &self.topology.profiles;
        if let Some(known) = self.topology.profile_of.find(tags.print(), |id: usize| profiles[id].tags == *tags) {
            return known;
        }
        let id = self.topology.profiles.len();
        let selections = self.selections_of(tags);
        self.topology.profile_of.insert(tags.print(), id);
        self.topology.profiles.push(Profile { tags: tags.clone(), selections });
        id
    }

    pub(super) fn selections_of(&self, tags: &Tags) -> Vec<SelId> {
        let all = self.topology.selections.iter().enumerate();
        all.filter(|(_, selection)| self.selects(&selection.all, tags)).map(|(id, _)| id).collect()
    }

    fn selects(&self, all: &[PodSelector], tags: &Tags) -> bool {
        all.iter().all(|one| one.matches(tags.namespace(), tags.labels(), |name| self.namespaces.get(name)))
    }

    fn fence(&mut self, rules: &MachineRules) -> FenceId {
        if let Some(known) = self.fences.iter().position(|fence| fence.rules == *rules) {
            return known;
        }
        let fixed = self.machines.iter().map(|machine| fit::fixed(rules, machine.node.as_ref())).collect();
        self.fences.push(Fence { rules: rules.clone(), fixed });
        self.fences.len() - 1
    }

    fn compile_together(&mut self, class: &mut Class, rules: &Rules) {
        let together = &rules.together;
        if !together.required.is_empty() {
            let all = self.selection(together.required.iter().map(|near| near.pods.clone()).collect());
            class.near_all = Some(all);
            for near in &together.required {
                class.near.push(self.tally(Who::Matching(all), &near.topology, None));
                class.carried.push(self.term(near, Kind::Near));
            }
        }
        for near in &together.forbidden {
            class.forbidden.push(self.matching(near));
            class.carried.push(self.term(near, Kind::Away));
        }
        let liked = together.preferred.iter().map(|(weight, near)| (i64::from(*weight), near));
        let disliked = together.avoided.iter().map(|(weight, near)| (-i64::from(*weight), near));
        for (weight, near) in liked.chain(disliked) {
            class.preferred.push((weight, self.matching(near)));
            class.carried.push(self.term(near, Kind::Prefer(weight)));
        }
        class.carried.sort_unstable();
        class.carried.dedup();
    }

    fn compile_spread(&mut self, class: &mut Class, rules: &Rules) {
        for rule in &rules.spread {
            let sel = self.selection(vec![rule.pods.clone()]);
            let scope = self.spread_scope(rules, rule);
            let tally = self.tally(Who::Matching(sel), &rule.topology, Some(scope));
            let min_domains = rule.min_domains.and_then(|n| usize::try_from(n).ok()).unwrap_or(1);
            let max_skew = i64::from(rule.max_skew);
            class.spread.push(Spread { tally, sel, max_skew, min_domains, hard: rule.hard });
        }
    }

    /// Machines count for a rule if they have the labels of all rules of its strictness.
    fn spread_scope(&mut self, rules: &Rules, rule: &SpreadRule) -> ScopeId {
        let alike = rules.spread.iter().filter(|other| other.hard == rule.hard);
        let mut keys: Vec<String> = alike.map(|rule| rule.topology.clone()).collect();
        keys.sort_unstable();
        keys.dedup();
        let mut relevant = MachineRules::default();
        if rule.honour_affinity {
            relevant.selector.clone_from(&rules.machine.selector);
            relevant.required.clone_from(&rules.machine.required);
        }
        if rule.honour_taints {
            relevant.tolerations.clone_from(&rules.machine.tolerations);
        }
        let (affinity, taints) = (rule.honour_affinity, rule.honour_taints);
        let scope = Scope { rules: relevant, affinity, taints, keys, inside: vec![] };
        let nodes: Vec<Option<&NodeView>> = self.machines.iter().map(|machine| machine.node.as_ref()).collect();
        self.topology.scope(scope, &nodes)
    }

    fn matching(&mut self, near: &Near) -> TallyId {
        let selection = self.selection(vec![near.pods.clone()]);
        self.tally(Who::Matching(selection), &near.topology, None)
    }

    fn term(&mut self, near: &Near, kind: Kind) -> TermId {
        let selection = self.selection(vec![near.pods.clone()]);
        let topology = &self.topology;
        let same = |id: &&TermId| {
            let term = &topology.terms[**id];
            term.kind == kind && topology.keys[topology.tallies[term.tally].key].label == near.topology
        };
        if let Some(known) = topology.selections[selection].terms.iter().find(same) {
            return *known;
        }
        let id = self.topology.terms.len();
        let tally = self.topology.tallies.len();
        self.topology.terms.push(Term { kind, tally });
        self.topology.selections[selection].terms.push(id);
        self.tally(Who::Carrying(id), &near.topology, None);
        id
    }

    fn selection(&mut self, mut all: Vec<PodSelector>) -> SelId {
        all.sort_unstable();
        all.dedup();
        if let Some(known) = self.topology.selections.iter().position(|selection| selection.all == all) {
            return known;
        }
        let id = self.topology.selections.len();
        for profile in 0..self.topology.profiles.len() {
            if self.selects(&all, &self.topology.profiles[profile].tags) {
                self.topology.profiles[profile].selections.push(id);
            }
        }
        self.topology.selections.push(Selection { all, tallies: vec![], terms: vec![] });
        id
    }

    fn tally(&mut self, who: Who, label: &str, scope: Option<ScopeId>) -> TallyId {
        let nodes: Vec<Option<&NodeView>> = self.machines.iter().map(|machine| machine.node.as_ref()).collect();
        let key = self.topology.key(label, &nodes);
        let same = |tally: &Tally| tally.who == who && tally.key == key && tally.scope == scope;
        if let Some(known) = self.topology.tallies.iter().position(same) {
            return known;
        }
        let id = self.topology.tallies.len();
        if let Who::Matching(selection) = who {
            self.topology.selections[selection].tallies.push(id);
        }
        let empty = Tally { who, key, scope, pods: vec![0], total: 0, machines: vec![0], domains: 0 };
        self.topology.tallies.push(empty);
        self.count_all(id);
        id
    }
}
