//! Who leaves for a more important pod.
//!
//! On each machine that would do: everybody less important goes in thought, and then as many as possible stay
//! after all, the more important and the longer running first, those that a disruption budget protects before
//! the others. The machine with the least harm is taken: fewest budgets broken, least important victims, fewest,
//! youngest. Only pods strictly below the pod's own priority ever leave, so that no two can drive each other out.

use std::cmp::Reverse;

use super::{
    cluster::{ClassId, Cluster, EXCLUDED, MachineId, PodId, ProfileId},
    view::{BudgetView, PodKey},
};

/// Pods that leave a machine, and whether that breaks a budget. Those leaving already are not among them.
#[derive(Debug)]
pub struct Sacrifice {
    pub machine: MachineId,
    pub victims: Vec<(PodId, bool)>,
    harm: Harm,
}

/// Smaller is better.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Harm {
    budgets_broken: usize,
    highest: i32,
    /// Each priority counted from the lowest there is, so that more victims are more.
    sum: i64,
    victims: usize,
    /// Of the most important victims the one that runs longest: the later it started the better.
    started: Reverse<i64>,
}

impl Cluster {
    pub(super) fn preempt(&mut self, kind: (ClassId, ProfileId), refused: &[MachineId]) -> Option<Sacrifice> {
        if !self.has_less_important(kind.0) {
            return None;
        }
        let enough = 100.max(self.machines.len() / 10);
        let mut best: Option<Sacrifice> = None;
        let mut found = 0;
        for at in self.by_rank() {
            if refused.contains(&at) || !self.might_make_room(kind.0, at) {
                continue;
            }
            let Some(sacrifice) = self.sacrifice(kind, at) else { continue };
            if best.as_ref().is_none_or(|best| sacrifice.harm < best.harm) {
                best = Some(sacrifice);
            }
            found += 1;
            if found >= enough {
                break;
            }
        }
        best
    }

    pub(super) fn has_less_important(&self, class: ClassId) -> bool {
        let priority = self.classes[class].shape.priority;
        self.classes.iter().any(|class| class.held > 0 && class.shape.priority < priority)
    }

    fn less_important(&self, class: ClassId, at: MachineId) -> Vec<PodId> {
        let priority = self.classes[class].shape.priority;
        let pods = self.machines[at].pods.iter().copied();
        pods.filter(|pod| self.held(*pod).view.shape.priority < priority).collect()
    }

    /// A quick look: the machine is right, and all that the less important hold would be enough.
    fn might_make_room(&self, class: ClassId, at: MachineId) -> bool {
        let (rules, machine) = (&self.classes[class], &self.machines[at]);
        if machine.offer.is_none() || self.fences[rules.fence].fixed[at] == EXCLUDED {
            return false;
        }
        let lower = self.less_important(class, at);
        let enough = |(resource, wanted): &(usize, i64)| {
            let held: i64 = lower.iter().map(|pod| self.asked(self.held(*pod).class, *resource)).sum();
            let kept = machine.reserved(*resource, rules.shape.priority);
            machine.free(*resource).saturating_add(held).saturating_sub(kept) >= *wanted
        };
        !lower.is_empty() && rules.requests.iter().all(enough)
    }

    fn sacrifice(&mut self, kind: (ClassId, ProfileId), at: MachineId) -> Option<Sacrifice> {
        let mut lower = self.less_important(kind.0, at);
        lower.sort_by(|a, b| self.importance(*a).cmp(&self.importance(*b)));
        lower.iter().for_each(|pod| self.count(*pod, -1));
        if !self.fits_without(kind, at, &lower) {
            lower.iter().for_each(|pod| self.count(*pod, 1));
            return None;
        }
        let (protected, free): (Vec<PodId>, Vec<PodId>) = self.protected(&lower);
        let mut gone = lower;
        let mut broken = vec![];
        for pod in protected.iter().chain(&free).copied() {
            if self.held(pod).is_leaving() {
                continue;
            }
            self.count(pod, 1);
            let without: Vec<PodId> = gone.iter().copied().filter(|other| *other != pod).collect();
            if self.fits_without(kind, at, &without) {
                gone = without;
            } else {
                self.count(pod, -1);
                if protected.contains(&pod) {
                    broken.push(pod);
                }
            }
        }
        gone.iter().for_each(|pod| self.count(*pod, 1));
        gone.retain(|pod| !self.held(*pod).is_leaving());
        let harm = self.harm(&gone, broken.len());
        let victims = gone.into_iter().map(|pod| (pod, broken.contains(&pod))).collect();
        Some(Sacrifice { machine: at, victims, harm })
    }

    fn fits_without(&self, kind: (ClassId, ProfileId), at: MachineId, gone: &[PodId]) -> bool {
        self.obstacles(kind, at, &self.outlook(kind.0, kind.1), gone).is_empty()
    }

    /// The most important first, then those that run longest, then by name.
    fn importance(&self, pod: PodId) -> (Reverse<i32>, i64, &PodKey) {
        let view = &self.held(pod).view;
        (Reverse(view.shape.priority), self.started(pod), &view.key)
    }

    fn started(&self, pod: PodId) -> i64 {
        let view = &self.held(pod).view;
        view.started.unwrap_or(view.created)
    }

    fn harm(&self, victims: &[PodId], budgets_broken: usize) -> Harm {
        let priority = |pod: &PodId| self.held(*pod).view.shape.priority;
        let highest = victims.iter().map(priority).max().unwrap_or(i32::MIN);
        let top = victims.iter().filter(|pod| priority(pod) == highest);
        let started = Reverse(top.map(|pod| self.started(*pod)).min().unwrap_or(i64::MAX));
        let sum = victims.iter().map(|pod| i64::from(priority(pod)) - i64::from(i32::MIN) + 1).sum();
        Harm { budgets_broken, highest, sum, victims: victims.len(), started }
    }

    /// Those whose going would break a budget if all went in this order, and the others.
    fn protected(&self, pods: &[PodId]) -> (Vec<PodId>, Vec<PodId>) {
        let mut allowed: Vec<(&BudgetView, i32)> =
            self.budgets.values().map(|budget| (budget, budget.disruptions_allowed)).collect();
        pods.iter().copied().partition(|pod| {
            let held = self.held(*pod);
            let mut breaks = false;
            for (_, left) in allowed.iter_mut().filter(|(budget, _)| covers(budget, held)) {
                *left -= 1;
                breaks |= *left < 0;
            }
            breaks
        })
    }
}

fn covers(budget: &BudgetView, held: &super::cluster::Held) -> bool {
    let (view, tags) = (&held.view, &held.view.tags);
    budget.namespace == view.key.namespace
        && !tags.labels().is_empty()
        && !held.is_leaving()
        && !budget.disrupted.contains(&view.key.name)
        && budget.selector.as_ref().is_some_and(|selector| selector.matches(tags.labels()))
}
