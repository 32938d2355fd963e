//! A verdict for each pod of a batch, one after the other, each seeing what those before it were given.

use std::{collections::HashMap, sync::Arc};

use super::{
    cluster::{ClassId, Cluster, EXCLUDED, MachineId, Position, ProfileId},
    preempt::Sacrifice,
    reason::{Contradiction, Ever, Hope, Never, NoPreemption, Unplaced},
    verdict::{Settings, Verdict, Victim, Wanted},
    view::PodView,
};

/// Decides in the order given: who goes first is the caller's to say. Pods that are given a machine are assumed
/// to be there from then on; see [`Cluster::forget`].
pub fn decide(cluster: &mut Cluster, batch: &[Wanted], settings: &Settings) -> Vec<Verdict> {
    cluster.tidy();
    cluster.use_strategy(settings.strategy);
    let mut hopeless = Hopeless::default();
    batch.iter().map(|wanted| one(cluster, wanted, &mut hopeless)).collect()
}

/// Kinds of pods that found no machine, as long as nothing changed since.
#[derive(Default)]
struct Hopeless(HashMap<(ClassId, ProfileId), (Position, Arc<Unplaced>)>);

fn one(cluster: &mut Cluster, wanted: &Wanted, hopeless: &mut Hopeless) -> Verdict {
    let pod = &wanted.pod;
    if let Some((machine, ports)) = cluster.placement(&pod.key) {
        return Verdict::Place { machine, ports };
    }
    let kind = (cluster.class(&pod.shape), cluster.profile(&pod.tags));
    if let Some(unplaced) = impossible(cluster, pod, kind.0) {
        return Verdict::Unplaced(Arc::new(unplaced));
    }
    let nominated = cluster.unnominate(&pod.key);
    let plain = wanted.refused.is_empty() && nominated.is_none();
    if let Some((at, why)) = hopeless.0.get(&kind).filter(|_| plain)
        && *at == cluster.log.now()
    {
        return Verdict::Unplaced(Arc::clone(why));
    }
    let refused: Vec<MachineId> = wanted.refused.iter().filter_map(|name| cluster.find_machine(name)).collect();
    let kept = nominated.filter(|at| !refused.contains(at) && cluster.fits(kind, *at));
    if let Some(machine) = kept.or_else(|| cluster.choose(kind, &refused)) {
        return place(cluster, pod, kind, machine);
    }
    let verdict = make_room(cluster, pod, kind, nominated, &refused);
    if let Verdict::Unplaced(why) = &verdict
        && plain
    {
        hopeless.0.insert(kind, (cluster.log.now(), Arc::clone(why)));
    }
    verdict
}

/// What needs no look at machines.
fn impossible(cluster: &Cluster, pod: &PodView, class: ClassId) -> Option<Unplaced> {
    let rules = &cluster.classes[class];
    let gates = (!pod.gates.is_empty()).then(|| format!("scheduling is gated by {}", pod.gates.join(", ")));
    let twice = rules.contradiction.clone().filter(|why| matches!(why, Contradiction::PortTwice { .. }));
    let missing: Vec<String> = rules.shape.missing.iter().cloned().chain(gates).collect();
    let ever = match twice {
        Some(why) => Ever::Never(Never::Contradiction(why)),
        None if missing.is_empty() => return None,
        None => Ever::NotYet(Hope::Exists),
    };
    let machines = cluster.machines().count();
    Some(Unplaced { machines, reasons: Default::default(), missing, nearest: None, preemption: None, ever })
}

fn place(cluster: &mut Cluster, pod: &Arc<PodView>, kind: (ClassId, ProfileId), at: MachineId) -> Verdict {
    let rules = &cluster.classes[kind.0].shape;
    let ports = cluster.machines[at].automatic(rules).unwrap_or_default();
    let machine = Arc::clone(&cluster.machines[at].name);
    cluster.place(Arc::clone(pod), kind, at, None, ports.clone());
    Verdict::Place { machine, ports }
}

/// Somebody less important leaves for it, or is leaving already, or it stays without.
fn make_room(
    cluster: &mut Cluster,
    pod: &Arc<PodView>,
    kind: (ClassId, ProfileId),
    nominated: Option<MachineId>,
    refused: &[MachineId],
) -> Verdict {
    if let Some(at) = nominated.filter(|at| waits_on(cluster, kind.0, *at)) {
        let mut unplaced = cluster.explain(kind, refused, Some(NoPreemption::Waiting));
        unplaced.ever = Ever::NotYet(Hope::VictimsLeave);
        let machine = Arc::clone(&cluster.machines[at].name);
        cluster.nominate(pod, &machine);
        return Verdict::Unplaced(Arc::new(unplaced));
    }
    if cluster.classes[kind.0].shape.never_preempts {
        return Verdict::Unplaced(Arc::new(cluster.explain(kind, refused, Some(NoPreemption::NotAllowed))));
    }
    let Some(Sacrifice { machine: at, victims, .. }) = cluster.preempt(kind, refused) else {
        let tried = cluster.has_less_important(kind.0).then_some(NoPreemption::NoVictims);
        return Verdict::Unplaced(Arc::new(cluster.explain(kind, refused, tried)));
    };
    let why = Arc::new(cluster.explain(kind, refused, None));
    let machine = Arc::clone(&cluster.machines[at].name);
    cluster.nominate(pod, &machine);
    let mut named = Vec::with_capacity(victims.len());
    for (victim, breaks_budget) in victims {
        let view = &cluster.held(victim).view;
        named.push(Victim { key: view.key.clone(), uid: view.uid.clone(), breaks_budget });
        cluster.set_chosen(victim, true);
    }
    Verdict::Preempt { machine, victims: named, why }
}

/// Pods that give way to it are still on their way out there.
fn waits_on(cluster: &Cluster, class: ClassId, at: MachineId) -> bool {
    let rules = &cluster.classes[class];
    let machine = &cluster.machines[at];
    let gives_way = |held: &super::cluster::Held| held.is_leaving() && held.view.shape.priority < rules.shape.priority;
    machine.offer.is_some()
        && cluster.fences[rules.fence].fixed[at] != EXCLUDED
        && machine.pods.iter().any(|pod| gives_way(cluster.held(*pod)))
}

impl Cluster {
    /// Nothing is in the pod's way there.
    pub(super) fn fits(&self, kind: (ClassId, ProfileId), at: MachineId) -> bool {
        self.obstacles(kind, at, &self.outlook(kind.0, kind.1), &[]).is_empty()
    }

    /// Whether the pod could be placed on the machine now: to tell who should be looked at again when it changed.
    pub fn could_take(&mut self, machine: &str, pod: &PodView) -> bool {
        let kind = (self.class(&pod.shape), self.profile(&pod.tags));
        let Some(at) = self.find_machine(machine) else { return false };
        self.as_if_not_nominated(&pod.key, |cluster| cluster.fits(kind, at))
    }
}
