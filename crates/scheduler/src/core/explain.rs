//! Why a pod stays without a machine.

use std::collections::BTreeMap;

use super::{
    cluster::{ClassId, Cluster, MachineId, PodId, ProfileId},
    fit,
    near::{Objection, Outlook},
    reason::{Ever, Hope, Nearest, Never, NoPreemption, Obstacle, Unplaced},
};

/// How far a machine is from taking a pod: obstacles, what it lacks, and its name so that no two are equal.
type Distance<'a> = (u32, i64, &'a str);

impl Cluster {
    /// Everything in the pod's way on one machine if the pods in `gone` were not there, in the order in which it
    /// is asked. `gone` pods must be uncounted already.
    pub(super) fn obstacles(
        &self,
        (class, profile): (ClassId, ProfileId),
        at: MachineId,
        outlook: &Outlook,
        gone: &[PodId],
    ) -> Vec<Obstacle> {
        let (rules, machine) = (&self.classes[class], &self.machines[at]);
        let mut found = vec![];
        let (Some(node), Some(_)) = (&machine.node, &machine.offer) else {
            return vec![Obstacle::NotOffering];
        };
        let fence = &rules.shape.machine;
        if fit::cordoned(fence, node) {
            found.push(Obstacle::Cordoned);
        }
        if fit::unready(fence, node) {
            found.push(Obstacle::NotReady);
        }
        found.extend(fit::untolerated(fence, node).cloned().map(Obstacle::Taint));
        if !fit::selected(fence, node) {
            found.push(Obstacle::NodeAffinity);
        }
        self.port_obstacles(class, at, gone, &mut found);
        self.shortages(class, at, gone, &mut found);
        if !fit::reachable(fence, node) {
            found.push(Obstacle::Volume);
        }
        self.objections((class, profile), at, outlook, |objection| found.push(self.obstacle(class, at, objection)));
        found
    }

    fn port_obstacles(&self, class: ClassId, at: MachineId, gone: &[PodId], found: &mut Vec<Obstacle>) {
        let (rules, machine) = (&self.classes[class].shape, &self.machines[at]);
        for port in &rules.ports {
            let outside = machine.offer.as_ref().filter(|offer| !offer.explicit.contains(port.port));
            if let Some(offer) = outside {
                found.push(Obstacle::PortOutside { port: port.clone(), offered: offer.explicit.clone() });
            } else if let Some(by) = machine.holder(port, gone).map(|by| self.held(by).view.key.clone()) {
                found.push(Obstacle::PortTaken { port: port.clone(), by });
            } else if let Some(by) = machine.kept_by(port, rules.priority).cloned() {
                found.push(Obstacle::PortTaken { port: port.clone(), by });
            }
        }
        if let Err(free) = machine.automatic(rules) {
            let freed: usize = gone.iter().map(|pod| self.held(*pod).given.len()).sum();
            let wanted = machine.wishes(rules).len();
            if free + freed < wanted {
                found.push(Obstacle::AutomaticPorts { wanted, free: free + freed });
            }
        }
    }

    fn shortages(&self, class: ClassId, at: MachineId, gone: &[PodId], found: &mut Vec<Obstacle>) {
        let (rules, machine) = (&self.classes[class], &self.machines[at]);
        for (resource, wanted) in &rules.requests {
            let freed: i64 = gone.iter().map(|pod| self.asked(self.held(*pod).class, *resource)).sum();
            let room = machine.free(*resource).saturating_add(freed);
            let room = room.saturating_sub(machine.reserved(*resource, rules.shape.priority));
            if *wanted > room {
                let (name, ever) = (self.resource_name(*resource).to_owned(), machine.whole(*resource) >= *wanted);
                found.push(Obstacle::Lacks { resource: name, amount: wanted.saturating_sub(room.max(0)), ever });
            }
        }
    }

    /// How much of a resource pods of a class ask for.
    pub(super) fn asked(&self, class: ClassId, resource: usize) -> i64 {
        let requests = &self.classes[class].requests;
        requests.iter().find(|(asked, _)| *asked == resource).map_or(0, |(_, amount)| *amount)
    }

    fn obstacle(&self, class: ClassId, at: MachineId, objection: Objection) -> Obstacle {
        let place = |tally: usize| {
            let tally = &self.topology.tallies[tally];
            let key = &self.topology.keys[tally.key];
            (key.label.clone(), key.names[key.of[at] as usize].clone())
        };
        let spread = |nth: usize| self.classes[class].spread[nth];
        match objection {
            Objection::SpreadLabel(nth) => Obstacle::SpreadLabel { topology: place(spread(nth).tally).0 },
            Objection::Spread(nth) => {
                let (topology, domain) = place(spread(nth).tally);
                Obstacle::Spread { topology, domain, max_skew: self.classes[class].shape.spread[nth].max_skew }
            }
            Objection::Affinity(tally) => Obstacle::Affinity { topology: place(tally).0 },
            Objection::AntiAffinity(tally) => {
                let (topology, domain) = place(tally);
                Obstacle::AntiAffinity { topology, domain }
            }
            Objection::OthersAntiAffinity(tally) => {
                let (topology, domain) = place(tally);
                Obstacle::OthersAntiAffinity { topology, domain }
            }
        }
    }

    pub(super) fn explain(
        &self,
        kind: (ClassId, ProfileId),
        refused: &[MachineId],
        preemption: Option<NoPreemption>,
    ) -> Unplaced {
        let outlook = self.outlook(kind.0, kind.1);
        let (mut reasons, mut machines) = (BTreeMap::new(), 0);
        let mut nearest: Option<(Distance<'_>, Vec<Obstacle>)> = None;
        let mut hope: Option<Hope> = None;
        for (at, machine) in self.machines.iter().enumerate().filter(|(_, machine)| machine.node.is_some()) {
            machines += 1;
            let mut obstacles = self.obstacles(kind, at, &outlook, &[]);
            if refused.contains(&at) {
                obstacles.insert(0, Obstacle::Refused);
            }
            first_reasons(&obstacles, &mut reasons);
            let hopes = obstacles.iter().map(Obstacle::hope).collect::<Option<Vec<Hope>>>();
            let hoped = hopes.and_then(|hopes| hopes.into_iter().max());
            hope = [hope, hoped].into_iter().flatten().min();
            let far = obstacles.iter().map(Obstacle::distance).sum();
            let distance = (far, self.shortage(kind.0, &obstacles), &*machine.name);
            if nearest.as_ref().is_none_or(|(known, _)| distance < *known) {
                nearest = Some((distance, obstacles));
            }
        }
        let nearest = nearest.map(|((_, _, name), obstacles)| Nearest { machine: name.to_owned(), obstacles });
        let ever = self.ever(kind.0, machines, hope);
        Unplaced { machines, reasons, missing: vec![], nearest, preemption, ever }
    }

    /// By how much of what it asks for the pod falls short, in thousandths, all resources together.
    fn shortage(&self, class: ClassId, obstacles: &[Obstacle]) -> i64 {
        let requests = &self.classes[class].shape.requests;
        let share = |obstacle: &Obstacle| match obstacle {
            Obstacle::Lacks { resource, amount, .. } => {
                let wanted = i128::from(requests.get(resource).copied().unwrap_or(1).max(1));
                i64::try_from(i128::from(*amount) * 1000 / wanted).unwrap_or(i64::MAX / 64)
            }
            _ => 0,
        };
        obstacles.iter().map(share).sum()
    }

    fn ever(&self, class: ClassId, machines: usize, hope: Option<Hope>) -> Ever {
        let rules = &self.classes[class];
        if let Some(why) = &rules.contradiction {
            return Ever::Never(Never::Contradiction(why.clone()));
        }
        if machines == 0 {
            return Ever::NotYet(Hope::MachineJoins);
        }
        if let Some(hope) = hope {
            return Ever::NotYet(hope);
        }
        let largest = |resource| self.machines.iter().map(|machine| machine.whole(resource)).max().unwrap_or(0);
        let too_large = rules.requests.iter().map(|(resource, wanted)| (*resource, *wanted, largest(*resource)));
        match too_large.into_iter().find(|(_, wanted, largest)| wanted > largest) {
            Some((resource, wanted, largest)) => {
                let resource = self.resource_name(resource).to_owned();
                Ever::Never(Never::TooLarge { resource, wanted, largest })
            }
            None => Ever::Never(Never::NothingMatches),
        }
    }
}

/// Counts what excluded the machine first; of missing resources each.
fn first_reasons(obstacles: &[Obstacle], reasons: &mut BTreeMap<super::reason::Reason, usize>) {
    let lacks = |obstacle: &&Obstacle| matches!(obstacle, Obstacle::Lacks { .. });
    let first = obstacles.iter().take(1).filter(|obstacle| !lacks(obstacle));
    let all = if obstacles.first().as_ref().is_some_and(lacks) { obstacles } else { &[] };
    for obstacle in first.chain(all.iter().filter(lacks)) {
        *reasons.entry(obstacle.reason()).or_default() += 1;
    }
}
