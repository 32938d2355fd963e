//! Forgetting what nobody uses any more: classes of pods long gone, machines that left.

use super::{Cluster, Held, machine::Machine};

/// A little waste is cheaper than cleaning up.
const SPARE: usize = 1024;

impl Cluster {
    /// Starts over from what is held if most of what was worked out is for nothing.
    pub(in crate::core) fn tidy(&mut self) {
        let live = self.by_key.len() + self.nominated.len();
        let kinds = self.classes.len().max(self.topology.profiles.len());
        if kinds > 2 * live + SPARE || self.is_haunted() {
            *self = std::mem::take(self).renewed();
        }
    }

    /// Most machines left long ago. Counted only when there are more than before.
    fn is_haunted(&mut self) -> bool {
        if self.counted == self.roll {
            return false;
        }
        self.counted = self.roll;
        let forgotten = self.machines.iter().filter(|machine| machine.is_forgotten()).count();
        forgotten > self.machines.len() / 2 + SPARE
    }

    /// The same cluster, worked out anew.
    pub(in crate::core) fn renewed(self) -> Self {
        let mut fresh = Self { namespaces: self.namespaces, budgets: self.budgets, ..Self::default() };
        let names: Vec<_> = self.machines.iter().map(|machine| machine.name.clone()).collect();
        let mut nominees = vec![];
        for Machine { name, node, offer, nominees: waiting, .. } in self.machines {
            if let Some(node) = node {
                fresh.put_machine(node);
            }
            if let Some(offer) = offer {
                fresh.put_offer(&name, offer);
            }
            nominees.extend(waiting.into_iter().map(|nominee| (nominee.pod, name.clone())));
        }
        for Held { view, machine, bound_at, given, chosen, .. } in self.pods.into_iter().flatten() {
            let id = fresh.hold(view, &names[machine], bound_at, given);
            fresh.set_chosen(id, chosen);
        }
        nominees.into_iter().for_each(|(pod, machine)| fresh.nominate(&pod, &machine));
        fresh
    }
}
