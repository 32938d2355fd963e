//! Selects the victims of a preemption: which pods of lower priority have to leave which node.
//!
//! On each candidate node all pods of lower priority are removed in thought, then as many as possible are kept after all:
//! those that a PodDisruptionBudget protects first, then by priority and by how long they run. The node with the lowest
//! cost is taken, in upstream's order: fewest budgets violated, lowest priority of the victims, fewest victims, latest
//! start. Only pods of strictly lower priority are victims, so that no two pods can preempt each other in turn.

use std::cmp::Reverse;

use super::{
    cluster::{ClassId, Cluster, EXCLUDED, NodeId, PodId, PodInfo, ProfileId},
    diagnose::FreedRoom,
    exclusions::NodeExclusions,
    view::{BudgetView, PodKey},
};

/// The pods to delete from a node, and whether that violates a budget. Pods that are terminating already are left out.
#[derive(Debug)]
pub struct VictimSelection {
    pub node: NodeId,
    pub victims: Vec<(PodId, bool)>,
    cost: PreemptionCost,
}

/// Smaller is better.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PreemptionCost {
    violated_budgets: usize,
    highest_priority: i32,
    /// Priorities counted from the lowest there is, so that more victims cost more.
    sum_of_priorities: i64,
    victims: usize,
    /// The earliest start among the victims of highest priority: the later the better.
    started: Reverse<i64>,
}

impl Cluster {
    pub(super) fn select_victims(
        &mut self,
        pod: (ClassId, ProfileId),
        excluded: &NodeExclusions,
    ) -> Option<VictimSelection> {
        if !self.has_lower_priority_pods(pod.0) {
            return None;
        }
        let enough = 100.max(self.nodes.len() / 10);
        let mut best: Option<VictimSelection> = None;
        let mut found = 0;
        for node in self.nodes_by_name() {
            if excluded.contains(node) || !self.preemption_might_help(pod.0, node) {
                continue;
            }
            let Some(selection) = self.victims_on_node(pod, node) else { continue };
            if best.as_ref().is_none_or(|best| selection.cost < best.cost) {
                best = Some(selection);
            }
            found += 1;
            if found >= enough {
                break;
            }
        }
        best
    }

    pub(super) fn has_lower_priority_pods(&self, class: ClassId) -> bool {
        let priority = self.classes[class].spec.priority;
        self.classes.iter().any(|class| class.pod_count > 0 && class.spec.priority < priority)
    }

    fn lower_priority_pods_on(&self, class: ClassId, node: NodeId) -> Vec<PodId> {
        let priority = self.classes[class].spec.priority;
        let pods = self.nodes[node].pods.iter().copied();
        pods.filter(|pod| self.pod_info(*pod).view.spec.priority < priority).collect()
    }

    /// A cheap check: the node itself passes the filters, and without all lower-priority pods it has enough resources.
    fn preemption_might_help(&self, class: ClassId, node: NodeId) -> bool {
        let (rules, info) = (&self.classes[class], &self.nodes[node]);
        if info.offer.is_none() || self.node_filters[rules.filter].static_scores[node] == EXCLUDED {
            return false;
        }
        let lower = self.lower_priority_pods_on(class, node);
        let is_enough = |(resource, requested): &(usize, i64)| {
            self.available(class, node, *resource, FreedRoom::without(&lower)) >= *requested
        };
        !lower.is_empty() && rules.requests.iter().all(is_enough)
    }

    fn victims_on_node(&mut self, pod: (ClassId, ProfileId), node: NodeId) -> Option<VictimSelection> {
        let mut lower = self.lower_priority_pods_on(pod.0, node);
        lower.sort_by(|a, b| self.importance(*a).cmp(&self.importance(*b)));
        lower.iter().for_each(|pod| self.count_pod(*pod, -1));
        if !self.fits_without(pod, node, &lower) {
            lower.iter().for_each(|pod| self.count_pod(*pod, 1));
            return None;
        }
        let (protected, unprotected): (Vec<PodId>, Vec<PodId>) = self.partition_by_budget(&lower);
        let mut removed = lower;
        let mut violating = vec![];
        for candidate in protected.iter().chain(&unprotected).copied() {
            if self.pod_info(candidate).is_leaving() {
                continue;
            }
            self.count_pod(candidate, 1);
            let without_candidate: Vec<PodId> = removed.iter().copied().filter(|other| *other != candidate).collect();
            if self.fits_without(pod, node, &without_candidate) {
                removed = without_candidate;
            } else {
                self.count_pod(candidate, -1);
                if protected.contains(&candidate) {
                    violating.push(candidate);
                }
            }
        }
        removed.iter().for_each(|pod| self.count_pod(*pod, 1));
        removed.retain(|pod| !self.pod_info(*pod).is_leaving());
        let cost = self.preemption_cost(&removed, violating.len());
        let victims = removed.into_iter().map(|pod| (pod, violating.contains(&pod))).collect();
        Some(VictimSelection { node, victims, cost })
    }

    fn fits_without(&self, pod: (ClassId, ProfileId), node: NodeId, removed: &[PodId]) -> bool {
        self.filter_failures(pod, node, &self.prefilter(pod.0, pod.1), FreedRoom::without(removed)).is_empty()
    }

    /// Sorts by priority, then by how long the pod runs, then by name.
    fn importance(&self, pod: PodId) -> (Reverse<i32>, i64, &PodKey) {
        let view = &self.pod_info(pod).view;
        (Reverse(view.spec.priority), self.start_time(pod), &view.key)
    }

    fn start_time(&self, pod: PodId) -> i64 {
        let view = &self.pod_info(pod).view;
        view.started.unwrap_or(view.created)
    }

    fn preemption_cost(&self, victims: &[PodId], violated_budgets: usize) -> PreemptionCost {
        let priority = |pod: &PodId| self.pod_info(*pod).view.spec.priority;
        let highest_priority = victims.iter().map(priority).max().unwrap_or(i32::MIN);
        let highest = victims.iter().filter(|pod| priority(pod) == highest_priority);
        let started = Reverse(highest.map(|pod| self.start_time(*pod)).min().unwrap_or(i64::MAX));
        let sum_of_priorities = victims.iter().map(|pod| i64::from(priority(pod)) - i64::from(i32::MIN) + 1).sum();
        PreemptionCost { violated_budgets, highest_priority, sum_of_priorities, victims: victims.len(), started }
    }

    /// Pods whose deletion would violate a budget if all were deleted in this order, and the others.
    fn partition_by_budget(&self, pods: &[PodId]) -> (Vec<PodId>, Vec<PodId>) {
        let mut allowed: Vec<(&BudgetView, i32)> =
            self.budgets.values().map(|budget| (budget, budget.disruptions_allowed)).collect();
        pods.iter().copied().partition(|pod| {
            let pod = self.pod_info(*pod);
            let mut violates = false;
            for (_, left) in allowed.iter_mut().filter(|(budget, _)| budget_covers(budget, pod)) {
                *left -= 1;
                violates |= *left < 0;
            }
            violates
        })
    }
}

fn budget_covers(budget: &BudgetView, pod: &PodInfo) -> bool {
    let (view, labels) = (&pod.view, pod.view.label_set.labels());
    budget.namespace == view.key.namespace
        && !labels.is_empty()
        && !pod.is_leaving()
        && !budget.disrupted.contains(&view.key.name)
        && budget.selector.as_ref().is_some_and(|selector| selector.matches(labels))
}
