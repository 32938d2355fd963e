//! What a DaemonSet does next: one pod on every node that it belongs on. Pure.
//!
//! A pod is made only where none is seen, under a name that follows from set and node, so that nobody
//! makes a second one. Updates either take old pods away, no more at once than may be missing, or
//! (with a surge) make the new pod first and take the old one away when the new one serves. Old pods that
//! do not serve anyway are replaced at once; those deletions carry the version that was judged.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::Timestamp;
use k8s_openapi::{
    api::apps::v1::{ControllerRevision, DaemonSet, DaemonSetStatus},
    apimachinery::pkg::util::intstr::IntOrString,
};
use mainstay_api::int_or_percent::{self, Rounding};

use super::node_fit::Verdict;
use crate::{
    objects::pod::Pod,
    runtime::{self},
    workloads::{
        controller_history::{self, HASH, PodRevision, TemplateRevision, Write},
        controller_ref::OwnershipChange,
    },
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Desired {
    pub generation: Option<i64>,
    pub update: Update,
    pub min_ready: i32,
    /// Old revisions to keep.
    pub history: i32,
    /// Being deleted.
    pub leaving: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Update {
    OnDelete,
    Rolling { unavailable: IntOrString, surge: IntOrString },
}

impl Desired {
    pub fn from_set(set: &DaemonSet) -> Self {
        let strategy = set.spec.update_strategy.as_ref();
        let rolling = strategy.and_then(|strategy| strategy.rolling_update.as_ref());
        let update = match strategy.and_then(|strategy| strategy.type_.as_deref()) {
            Some("OnDelete") => Update::OnDelete,
            _ => Update::Rolling {
                unavailable: rolling.and_then(|r| r.max_unavailable.clone()).unwrap_or(IntOrString::Int(1)),
                surge: rolling.and_then(|r| r.max_surge.clone()).unwrap_or(IntOrString::Int(0)),
            },
        };
        Self {
            generation: set.metadata.generation,
            update,
            min_ready: set.spec.min_ready_seconds.unwrap_or(0),
            history: set.spec.revision_history_limit.unwrap_or(10),
            leaving: set.metadata.deletion_timestamp.is_some(),
        }
    }
}

pub struct World {
    pub want: Desired,
    pub nodes: BTreeMap<String, Verdict>,
    /// By the node they are on or meant for.
    pub pods: BTreeMap<String, Vec<Arc<Pod>>>,
    /// The name that a further pod on a node would get.
    pub names: BTreeMap<String, String>,
    /// How long failed pods on a node are left alone, so that they are not made and lost in a circle.
    pub pauses: BTreeMap<String, Timestamp>,
    pub revisions: Vec<Arc<ControllerRevision>>,
    pub template_revision: TemplateRevision,
    pub pod_claims: Vec<OwnershipChange>,
    pub revision_claims: Vec<OwnershipChange>,
    pub status: DaemonSetStatus,
}

#[derive(Debug, PartialEq)]
pub enum Action {
    Revise(Write),
    ClaimRevision(OwnershipChange),
    ClaimPod(OwnershipChange),
    Create { node: String, name: String, revision: PodRevision },
    Delete { node: String, name: String, uid: String, version: Option<String>, why: Why },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    Failed,
    Succeeded,
    /// It does not belong on its node, or not any more.
    Misplaced,
    /// There is another one on its machine.
    Surplus,
    Outdated,
    /// Outdated, and does not serve.
    Broken,
    /// Its successor serves.
    Succession,
}

struct Steps<'w> {
    world: &'w World,
    now: Timestamp,
    actions: Vec<Action>,
    requeue_at: Option<Timestamp>,
}

pub fn plan(world: &World, now: Timestamp) -> runtime::Plan<Action, DaemonSetStatus> {
    if !world.revision_claims.is_empty() {
        // The history is not known before it is ours.
        return runtime::Plan::act(world.revision_claims.iter().cloned().map(Action::ClaimRevision));
    }
    let mut steps = Steps { world, now, actions: Vec::new(), requeue_at: None };
    if !world.want.leaving {
        steps.decide();
    }
    let status = status(world, now);
    let settling = world.pods.values().flatten().filter_map(|pod| pod.available_at(world.want.min_ready));
    runtime::Plan {
        actions: steps.actions,
        status: (status != world.status).then_some(status),
        requeue_at: settling.filter(|at| *at > now).chain(steps.requeue_at).min(),
    }
}

impl<'w> Steps<'w> {
    fn decide(&mut self) {
        let world = self.world;
        self.actions.extend(world.template_revision.write.clone().map(Action::Revise));
        if !world.pod_claims.is_empty() {
            self.actions.extend(world.pod_claims.iter().cloned().map(Action::ClaimPod));
            return; // a node may have one that is about to be ours
        }
        let old = controller_history::surplus(&world.revisions, &self.used(), world.want.history);
        self.actions.extend(old.into_iter().map(Action::Revise));
        let (most, surge) = self.allowances();
        for (node, verdict) in &world.nodes {
            match (verdict, self.pods_on(node).next().is_some()) {
                (Verdict::Runs, false) => self.create(node),
                (Verdict::Runs | Verdict::Stays, _) => self.tidy(node, surge > 0),
                (Verdict::Leaves, _) => {
                    self.pods_on(node)
                        .filter(|pod| !pod.is_being_deleted())
                        .for_each(|pod| self.delete(node, pod, Why::Misplaced));
                }
            }
        }
        for (node, pods) in world.pods.iter().filter(|(node, _)| !world.nodes.contains_key(*node)) {
            // Those that were placed there are collected once the node is known to be gone.
            let unplaced = pods.iter().filter(|pod| pod.spec.node_name.is_empty() && !pod.is_being_deleted());
            unplaced.for_each(|pod| self.delete(node, pod, Why::Misplaced));
        }
        match world.want.update {
            Update::OnDelete => {}
            Update::Rolling { .. } if surge > 0 => self.succeed(surge),
            Update::Rolling { .. } => self.renew(most),
        }
    }

    /// The pods on a node, but those that ended and are being deleted: nothing is left to do about them.
    fn pods_on(&self, node: &str) -> impl Iterator<Item = &'w Arc<Pod>> + use<'w> {
        self.world.pods.get(node).into_iter().flatten().filter(|pod| !(pod.is_finished() && pod.is_being_deleted()))
    }

    /// How many nodes may be without a serving pod, and how many may have two.
    fn allowances(&self) -> (i64, i64) {
        let Update::Rolling { unavailable, surge } = &self.world.want.update else { return (0, 0) };
        let nodes = self.world.nodes.values().filter(|verdict| **verdict == Verdict::Runs).count();
        let nodes = i64::try_from(nodes).unwrap_or(i64::MAX);
        match (
            int_or_percent::resolve(unavailable, nodes, Rounding::Up),
            int_or_percent::resolve(surge, nodes, Rounding::Up),
        ) {
            (0, 0) => (1, 0),
            allowed => allowed,
        }
    }

    fn create(&mut self, node: &str) {
        let Some(name) = self.world.names.get(node) else { return };
        let revision = PodRevision(self.world.template_revision.revision.clone());
        self.actions.push(Action::Create { node: node.to_owned(), name: name.clone(), revision });
    }

    fn delete(&mut self, node: &str, pod: &Pod, why: Why) {
        let judged = matches!(why, Why::Broken | Why::Failed);
        let version = judged.then(|| pod.metadata.resource_version.clone()).flatten();
        let (name, uid) = (pod.name().to_owned(), pod.uid().to_owned());
        self.actions.push(Action::Delete { node: node.to_owned(), name, uid, version, why });
    }

    /// Removes what ended, and all but the first of what runs (with a surge: the first of each revision).
    fn tidy(&mut self, node: &str, surges: bool) {
        for pod in self.pods_on(node).filter(|pod| pod.is_finished() && !pod.is_being_deleted()) {
            if pod.status.phase == "Succeeded" {
                self.delete(node, pod, Why::Succeeded);
                continue;
            }
            match self.world.pauses.get(node).filter(|until| **until > self.now) {
                Some(until) => self.requeue_at = Some(self.requeue_at.map_or(*until, |at| at.min(*until))),
                None => self.delete(node, pod, Why::Failed),
            }
        }
        let (new, old): (Vec<_>, Vec<_>) = self.live(node).into_iter().partition(|pod| !surges || self.is_new(pod));
        for surplus in new.iter().skip(1).chain(old.iter().skip(1)) {
            self.delete(node, surplus, Why::Surplus);
        }
    }

    /// Pods that are there to stay, first the one that is to be kept.
    fn live(&self, node: &str) -> Vec<&'w Arc<Pod>> {
        let mut live: Vec<&Arc<Pod>> = self.pods_on(node).filter(|pod| pod.is_active()).collect();
        live.sort_by_key(|pod| (pod.spec.node_name.is_empty(), pod.created(), pod.name()));
        live
    }

    fn is_new(&self, pod: &Pod) -> bool {
        pod.label(HASH) == Some(controller_history::hash(&self.world.template_revision.revision))
    }

    fn serves(&self, pod: &Pod) -> bool {
        pod.is_active() && pod.available_at(self.world.want.min_ready).is_some_and(|at| at <= self.now)
    }

    /// The new and the old pod of each node that has no more than one of each.
    fn pairs(&self) -> impl Iterator<Item = (&'w String, Option<Pair<'w>>)> {
        let concerned = self.world.nodes.iter().filter(|(node, verdict)| match verdict {
            Verdict::Runs => true,
            Verdict::Stays => self.world.pods.contains_key(*node),
            Verdict::Leaves => false,
        });
        concerned.map(|(node, _)| {
            let (new, old): (Vec<_>, Vec<_>) = self.live(node).into_iter().partition(|pod| self.is_new(pod));
            let pair = || Pair { new: new.first().copied(), old: old.first().copied() };
            (node, (new.len() <= 1 && old.len() <= 1).then(pair))
        })
    }

    /// Takes old pods away; [`Steps::create`] puts new ones in their template_revision once they are gone.
    fn renew(&mut self, most: i64) {
        let (mut missing, mut broken, mut sound) = (0, Vec::new(), Vec::new());
        for (node, pair) in self.pairs() {
            match pair {
                Some(Pair { new: Some(new), old: None }) => missing += i64::from(!self.serves(new)),
                Some(Pair { new: None, old: Some(old) }) if self.serves(old) => sound.push((node, old)),
                Some(Pair { new: None, old: Some(old) }) => {
                    missing += 1;
                    broken.push((node, old));
                }
                Some(Pair { .. }) | None => missing += 1, // being tidied or made
            }
        }
        broken.into_iter().for_each(|(node, old)| self.delete(node, old, Why::Broken));
        let spare = usize::try_from(most - missing).unwrap_or(0);
        sound.into_iter().take(spare).for_each(|(node, old)| self.delete(node, old, Why::Outdated));
    }

    /// Makes new pods beside old ones, and takes those away that were succeeded.
    fn succeed(&mut self, most: i64) {
        let (mut doubled, mut free, mut wait, mut done) = (0, Vec::new(), Vec::new(), Vec::new());
        for (node, pair) in self.pairs() {
            match pair {
                Some(Pair { old: None, .. }) => {} // made, or being made
                Some(Pair { new: None, .. }) if self.world.nodes.get(node) != Some(&Verdict::Runs) => {} // it may stay
                Some(Pair { new: None, old: Some(old) }) => {
                    if self.serves(old) {
                        wait.push(node)
                    } else {
                        free.push(node)
                    }
                }
                Some(Pair { new: Some(new), old: Some(old) }) => {
                    doubled += 1;
                    if !self.serves(old) {
                        done.push((node, old, Why::Broken));
                    } else if self.serves(new) {
                        done.push((node, old, Why::Succession));
                    }
                }
                None => doubled += 1,
            }
        }
        done.into_iter().for_each(|(node, old, why)| self.delete(node, old, why));
        let spare = usize::try_from(most - doubled).unwrap_or(0);
        let next: Vec<&String> = free.into_iter().chain(wait.into_iter().take(spare)).collect();
        next.into_iter().for_each(|node| self.create(node));
    }

    /// Revisions that pods or the set refer to, by name and by hash.
    fn used(&self) -> BTreeSet<String> {
        let pods = self.world.pods.values().flatten().filter_map(|pod| pod.label(HASH)).map(str::to_owned);
        pods.chain([controller_history::name(&self.world.template_revision.revision).to_owned()]).collect()
    }
}

struct Pair<'w> {
    new: Option<&'w Arc<Pod>>,
    old: Option<&'w Arc<Pod>>,
}

fn status(world: &World, now: Timestamp) -> DaemonSetStatus {
    let steps = Steps { world, now, actions: Vec::new(), requeue_at: None };
    let (mut desired, mut current, mut misplaced) = (0, 0, 0);
    let (mut ready, mut available, mut updated) = (0, 0, 0);
    for (node, verdict) in &world.nodes {
        let mut pods: Vec<&Arc<Pod>> = steps.pods_on(node).collect();
        pods.sort_by_key(|pod| (!pod.is_active(), pod.created(), pod.name()));
        let first = pods.first();
        if *verdict != Verdict::Runs {
            misplaced += i32::from(first.is_some());
            continue;
        }
        desired += 1;
        let Some(pod) = first else { continue };
        current += 1;
        ready += i32::from(pod.is_ready());
        available += i32::from(pod.available_at(world.want.min_ready).is_some_and(|at| at <= now));
        updated += i32::from(steps.is_new(pod));
    }
    DaemonSetStatus {
        observed_generation: world.want.generation,
        desired_number_scheduled: desired,
        current_number_scheduled: current,
        number_misscheduled: misplaced,
        number_ready: ready,
        number_available: (available > 0).then_some(available),
        number_unavailable: (available < desired).then_some(desired - available),
        updated_number_scheduled: (updated > 0).then_some(updated),
        collision_count: (world.template_revision.collisions > 0).then_some(world.template_revision.collisions),
        conditions: world.status.conditions.clone(),
    }
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
