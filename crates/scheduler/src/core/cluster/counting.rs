//! Keeping the tallies true: every pod that comes or goes, every machine whose description changes.

use super::{Cluster, MachineId, PodId, TallyId, machine::Machine, topology::Who};
use crate::core::fit;

impl Cluster {
    /// One pod more or less wherever it is counted.
    pub(in crate::core) fn count(&mut self, pod: PodId, sign: i32) {
        let Some(held) = &self.pods[pod] else { return };
        let (machine, leaving) = (held.machine, held.is_leaving());
        let topology = &mut self.topology;
        if topology.tallies.is_empty() {
            return;
        }
        for at in 0..topology.profiles[held.profile].selections.len() {
            let selection = topology.profiles[held.profile].selections[at];
            for nth in 0..topology.selections[selection].tallies.len() {
                let tally = topology.selections[selection].tallies[nth];
                topology.count_pod_in(tally, machine, leaving, sign);
            }
        }
        for term in &self.classes[held.class].carried {
            let tally = topology.terms[*term].tally;
            topology.count_pod_in(tally, machine, leaving, sign);
        }
    }

    /// Changes what a machine is, and all that follows from it.
    pub(super) fn describe(&mut self, at: MachineId, change: impl FnOnce(&mut Machine)) {
        let pods = self.machines[at].pods.clone();
        pods.iter().for_each(|pod| self.count(*pod, -1));
        self.topology.count_machine(at, -1);
        change(&mut self.machines[at]);
        let node = self.machines[at].node.as_ref();
        self.topology.describe(at, node);
        for fence in &mut self.fences {
            fence.fixed[at] = fit::fixed(&fence.rules, node);
        }
        self.topology.count_machine(at, 1);
        pods.iter().for_each(|pod| self.count(*pod, 1));
        self.touch(at);
    }

    /// Fills a tally that is new.
    pub(super) fn count_all(&mut self, tally: TallyId) {
        (0..self.machines.len()).for_each(|machine| self.topology.count_machine_in(tally, machine, 1));
        let who = self.topology.tallies[tally].who;
        for held in self.pods.iter().flatten() {
            let counts = match who {
                Who::Matching(selection) => self.topology.profiles[held.profile].is_in(selection),
                Who::Carrying(term) => self.classes[held.class].carried.contains(&term),
            };
            if counts {
                self.topology.count_pod_in(tally, held.machine, held.is_leaving(), 1);
            }
        }
    }

    /// Which selections a namespace's pods belong to may be different now.
    pub(super) fn namespace_changed(&mut self, name: &str) {
        let described = |at: &super::topology::Selection| at.all.iter().any(|one| one.namespaces_like.is_some());
        if !self.topology.selections.iter().any(described) {
            return;
        }
        let inside = |profile: usize| self.topology.profiles[profile].tags.namespace() == name;
        let held = self.pods.iter().enumerate().filter_map(|(id, held)| Some((id, held.as_ref()?.profile)));
        let pods: Vec<PodId> = held.filter(|(_, profile)| inside(*profile)).map(|(id, _)| id).collect();
        pods.iter().for_each(|pod| self.count(*pod, -1));
        for profile in 0..self.topology.profiles.len() {
            if self.topology.profiles[profile].tags.namespace() == name {
                let tags = self.topology.profiles[profile].tags.clone();
                self.topology.profiles[profile].selections = self.selections_of(&tags);
            }
        }
        pods.iter().for_each(|pod| self.count(*pod, 1));
    }
}
