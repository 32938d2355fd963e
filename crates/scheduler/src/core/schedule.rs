//! Schedules a batch of pods, one after the other, each seeing the placements of those before it.

use std::{collections::HashMap, sync::Arc};

use super::{
    cluster::{ClassId, Cluster, EXCLUDED, LogPosition, NodeId, NodeInfo, PodInfo, ProfileId},
    devices::{Allocation, AllocationFailure, ClaimBinding, PodClaims},
    diagnose::FreedRoom,
    exclusions::NodeExclusions,
    reason::{Contradiction, Diagnosis, Impossibility, NoPreemption, Prospect, Remedy},
    verdict::{PendingPod, ScoringStrategy, Verdict, Victim},
    victims::VictimSelection,
    view::PodView,
};

/// Schedules in the order given. Pods that are placed are assumed to be on their node from then on; see
/// [`Cluster::confirm`] and [`Cluster::forget`].
pub fn schedule(cluster: &mut Cluster, batch: &[PendingPod], scoring: ScoringStrategy) -> Vec<Verdict> {
    cluster.compact();
    cluster.set_scoring(scoring);
    let mut unschedulable = UnschedulableCache::default();
    batch.iter().map(|pending| schedule_pod(cluster, pending, &mut unschedulable)).collect()
}

/// Classes of pods that fit no node, valid while the cluster has not changed since.
#[derive(Default)]
struct UnschedulableCache(HashMap<(ClassId, ProfileId), (LogPosition, Arc<Diagnosis>)>);

fn schedule_pod(cluster: &mut Cluster, pending: &PendingPod, unschedulable: &mut UnschedulableCache) -> Verdict {
    let pod = &pending.pod;
    if let Some((node, ports, shares)) = cluster.placement_of_pod(&pod.key) {
        let claims = cluster.devices.claims_of(pod).map(|claims| claims.allocated).unwrap_or_default();
        return Verdict::Place { node, ports, shares, claims };
    }
    let ids = (cluster.class_id(&pod.spec), cluster.profile_id(&pod.label_set));
    let claims = match cluster.devices.claims_of(pod) {
        Ok(claims) => claims,
        Err(missing) => return Verdict::Unschedulable(Arc::new(wait_for_objects(cluster, missing))),
    };
    if let Some(diagnosis) = diagnose_without_nodes(cluster, pod, ids.0) {
        return Verdict::Unschedulable(Arc::new(diagnosis));
    }
    let nominated = cluster.remove_nomination(&pod.key);
    let is_cacheable = pending.refused.is_empty() && nominated.is_none() && claims.is_empty();
    if let Some((position, diagnosis)) = unschedulable.0.get(&ids).filter(|_| is_cacheable)
        && *position == cluster.change_log.now()
    {
        return Verdict::Unschedulable(Arc::clone(diagnosis));
    }
    let mut excluded = NodeExclusions {
        refused: pending.refused.iter().filter_map(|name| cluster.find_node(name)).collect(),
        devices: cluster.allocation_failures(ids.0, &claims),
    };
    let still_fits = nominated.filter(|node| !excluded.contains(*node) && cluster.fits_node(ids, *node));
    if let Some(node) = still_fits.or_else(|| cluster.select_node(ids, &excluded)) {
        match cluster.allocate_claims(node, &claims) {
            Ok(allocations) => return assume_on_node(cluster, pod, ids, node, claims.bindings(allocations)),
            Err(failure) => drop(excluded.devices.insert(node, failure)),
        }
    }
    let verdict = preempt_or_diagnose(cluster, pod, ids, nominated, &excluded);
    if let Verdict::Unschedulable(diagnosis) = &verdict
        && is_cacheable
    {
        unschedulable.0.insert(ids, (cluster.change_log.now(), Arc::clone(diagnosis)));
    }
    verdict
}

/// Reasons that do not depend on any node: scheduling gates, missing claims, no role at all, the same host port twice.
fn diagnose_without_nodes(cluster: &Cluster, pod: &PodView, class: ClassId) -> Option<Diagnosis> {
    let rules = &cluster.classes[class];
    let gates = (!pod.gates.is_empty()).then(|| format!("scheduling is gated by {}", pod.gates.join(", ")));
    let contradiction = rules
        .contradiction
        .clone()
        .filter(|why| matches!(why, Contradiction::PortTwice { .. } | Contradiction::NoRoles));
    let no_role = rules.spec.roles.is_empty().then(|| "the pod may use no role of any node".to_owned());
    let missing: Vec<String> = rules.spec.missing.iter().cloned().chain(gates).chain(no_role).collect();
    let prospect = match contradiction {
        Some(why) => Prospect::Never(Impossibility::Contradiction(why)),
        None if missing.is_empty() => return None,
        None => Prospect::Later(Remedy::ObjectCreated),
    };
    Some(Diagnosis { prospect, ..wait_for_objects(cluster, missing) })
}

/// No node was considered: these have to exist first.
fn wait_for_objects(cluster: &Cluster, missing: Vec<String>) -> Diagnosis {
    let (nodes, prospect) = (cluster.nodes().count(), Prospect::Later(Remedy::ObjectCreated));
    Diagnosis { nodes, reasons: Default::default(), missing, closest: None, preemption: None, prospect }
}

fn assume_on_node(
    cluster: &mut Cluster,
    pod: &Arc<PodView>,
    ids: (ClassId, ProfileId),
    node: NodeId,
    claims: Vec<ClaimBinding>,
) -> Verdict {
    let ports = cluster.nodes[node].assign_automatic_ports(&cluster.classes[ids.0].spec).unwrap_or_default();
    let name = Arc::clone(&cluster.nodes[node].name);
    cluster.devices.assume(&pod.uid, &claims);
    let id = cluster.add_pod_to_node(Arc::clone(pod), ids, node, None, ports.clone());
    Verdict::Place { node: name, ports, shares: cluster.named_shares(id), claims }
}

/// No node fits: waits for victims that are terminating, selects victims, or says why neither helps.
fn preempt_or_diagnose(
    cluster: &mut Cluster,
    pod: &Arc<PodView>,
    ids: (ClassId, ProfileId),
    nominated: Option<NodeId>,
    excluded: &NodeExclusions,
) -> Verdict {
    if let Some(node) = nominated.filter(|node| waits_for_victims(cluster, ids.0, *node)) {
        let mut diagnosis = cluster.diagnose(ids, excluded, Some(NoPreemption::Waiting));
        diagnosis.prospect = Prospect::Later(Remedy::VictimsDeleted);
        let node = Arc::clone(&cluster.nodes[node].name);
        cluster.nominate(pod, &node);
        return Verdict::Unschedulable(Arc::new(diagnosis));
    }
    if cluster.classes[ids.0].spec.never_preempts {
        return Verdict::Unschedulable(Arc::new(cluster.diagnose(ids, excluded, Some(NoPreemption::NotAllowed))));
    }
    let Some(VictimSelection { node, victims, .. }) = cluster.select_victims(ids, excluded) else {
        let why = cluster.has_lower_priority_pods(ids.0).then_some(NoPreemption::NoVictims);
        return Verdict::Unschedulable(Arc::new(cluster.diagnose(ids, excluded, why)));
    };
    let diagnosis = Arc::new(cluster.diagnose(ids, excluded, None));
    let node = Arc::clone(&cluster.nodes[node].name);
    cluster.nominate(pod, &node);
    let mut named = Vec::with_capacity(victims.len());
    for (victim, violates_budget) in victims {
        let view = &cluster.pod_info(victim).view;
        named.push(Victim { key: view.key.clone(), uid: view.uid.clone(), violates_budget });
        cluster.set_victim(victim, true);
    }
    Verdict::Preempt { node, victims: named, diagnosis }
}

/// Whether pods of lower priority are still terminating on the nominated node, or ended and the node has not reported it.
fn waits_for_victims(cluster: &Cluster, class: ClassId, node: NodeId) -> bool {
    let (rules, info) = (&cluster.classes[class], &cluster.nodes[node]);
    let gives_way = |pod: &PodInfo| pod.is_leaving() && pod.view.spec.priority < rules.spec.priority;
    info.offer.is_some()
        && cluster.node_filters[rules.filter].static_scores[node] != EXCLUDED
        && (!info.ended_pods.is_empty() || info.pods.iter().any(|pod| gives_way(cluster.pod_info(*pod))))
}

impl Cluster {
    /// The nodes on which a pod's claims cannot be allocated or used, of those that its class allows.
    fn allocation_failures(&mut self, class: ClassId, claims: &PodClaims) -> HashMap<NodeId, AllocationFailure> {
        if claims.is_empty() {
            return HashMap::new();
        }
        let Self { nodes, devices, classes, node_filters, .. } = self;
        let allowed = &node_filters[classes[class].filter].static_scores;
        let allocator = devices.allocator(claims);
        let failure = |(id, info): (NodeId, &NodeInfo)| {
            let node = info.node.as_ref().filter(|_| info.offer.is_some() && allowed[id] != EXCLUDED)?;
            let failure = claims.unusable_on(node).or_else(|| allocator.allocate_on(node).err())?;
            Some((id, failure))
        };
        nodes.iter().enumerate().filter_map(failure).collect()
    }

    /// Allocations for the claims that have none, on this node.
    fn allocate_claims(&mut self, node: NodeId, claims: &PodClaims) -> Result<Vec<Allocation>, AllocationFailure> {
        match &self.nodes[node].node {
            Some(object) if !claims.pending.is_empty() => self.devices.allocator(claims).allocate_on(object),
            _ => Ok(vec![]),
        }
    }

    /// Whether the pod passes all filters on the node.
    pub(super) fn fits_node(&self, pod: (ClassId, ProfileId), node: NodeId) -> bool {
        self.filter_failures(pod, node, &self.prefilter(pod.0, pod.1), FreedRoom::NONE).is_empty()
    }

    /// Whether the pod could be placed on the node now: a queueing hint for when the node changed.
    pub fn could_schedule_on(&mut self, node: &str, pod: &PodView) -> bool {
        let ids = (self.class_id(&pod.spec), self.profile_id(&pod.label_set));
        let Some(node) = self.find_node(node) else { return false };
        self.without_nomination(&pod.key, |cluster| cluster.fits_node(ids, node))
    }
}
