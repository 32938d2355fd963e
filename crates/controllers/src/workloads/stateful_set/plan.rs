//! What a StatefulSet does next. Pure.
//!
//! Ordinals have one pod each, ever: a pod is created only where none is seen, and its name makes a second one impossible.
//! An `OrderedReady` set does one thing at a time: up to the first ordinal that is not available, nothing behind it is
//! touched. Then pods beyond the last ordinal are deleted, from the highest, and then pods of old revisions, from the
//! highest too.
//!
//! As upstream, scaling down and updating halt at a pod that is not available: a rollout that is stuck on a bad template
//! stays so until somebody deletes the pod. With the annotation `mainstay.dev/replace-unready: "true"` a pod that is not
//! ready and outdated is replaced without waiting for it. Such a deletion carries the version that was judged, so that a
//! pod that became ready meanwhile is not its victim.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::Timestamp;
use k8s_openapi::{
    api::{
        apps::v1::{ControllerRevision, StatefulSetStatus},
        core::v1::PersistentVolumeClaim,
    },
    apimachinery::pkg::{apis::meta::v1::OwnerReference, util::intstr::IntOrString},
};
use mainstay_api::int_or_percent::{self, Rounding};

use super::{
    claims,
    desired::{Desired, Order, Ordinal, Update},
};
use crate::{
    objects::pod::Pod,
    runtime::{self},
    workloads::{
        controller_history::{self, HASH, PodRevision, TemplateRevision, Write},
        controller_ref::OwnershipChange,
    },
};

pub const POD_NAME: &str = "statefulset.kubernetes.io/pod-name";
pub const POD_INDEX: &str = "apps.kubernetes.io/pod-index";

pub struct World {
    pub want: Desired,
    /// What claims say of the set.
    pub reference: OwnerReference,
    pub pods: BTreeMap<Ordinal, Arc<Pod>>,
    /// Claims of its ordinals, by name.
    pub claims: BTreeMap<String, Arc<PersistentVolumeClaim>>,
    pub revisions: Vec<Arc<ControllerRevision>>,
    pub template_revision: TemplateRevision,
    /// What pods that are held back are made from; the template's own revision unless an update is under way.
    pub current: Arc<ControllerRevision>,
    /// Pods and revisions that change hands first.
    pub pod_claims: Vec<OwnershipChange>,
    pub revision_claims: Vec<OwnershipChange>,
    pub status: StatefulSetStatus,
}

#[derive(Debug, PartialEq)]
pub enum Action {
    Revise(Write),
    ClaimRevision(OwnershipChange),
    ClaimPod(OwnershipChange),
    /// A claim's owners follow the set's policy.
    Retain {
        claim: String,
        uid: String,
        version: String,
        owners: Vec<OwnerReference>,
    },
    /// Claims that are missing, and then the pod.
    Create {
        ordinal: Ordinal,
        claims: Vec<String>,
        revision: PodRevision,
    },
    /// Claims that a pod waits for.
    Supply {
        claims: Vec<(String, Ordinal)>,
    },
    /// A pod carries its identity.
    Name {
        ordinal: Ordinal,
        uid: String,
        version: String,
    },
    Delete {
        ordinal: Ordinal,
        uid: String,
        version: Option<String>,
        why: Why,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    Failed,
    Succeeded,
    /// Beyond the last ordinal.
    Surplus,
    Outdated,
    /// Outdated, and not ready.
    Broken,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Leaving,
    Failed,
    Succeeded,
    /// Not ready, or not yet.
    Starting,
    /// Ready, but not for long enough.
    Settling,
    Available,
}

fn life(pod: &Pod, min_ready: i32, now: Timestamp) -> Life {
    match pod.status.phase.as_str() {
        _ if pod.is_being_deleted() => Life::Leaving,
        "Failed" => Life::Failed,
        "Succeeded" => Life::Succeeded,
        "Running" => match pod.available_at(min_ready) {
            None => Life::Starting,
            Some(at) if at > now => Life::Settling,
            Some(_) => Life::Available,
        },
        _ => Life::Starting,
    }
}

/// What is decided so far. `Err(Wait)` ends deciding: the rest has to wait for what was seen or done.
struct Steps<'w> {
    world: &'w World,
    now: Timestamp,
    actions: Vec<Action>,
}

struct Wait;

pub fn plan(world: &World, now: Timestamp) -> runtime::Plan<Action, StatefulSetStatus> {
    if !world.revision_claims.is_empty() {
        // The history is not known before it is ours.
        return runtime::Plan::act(world.revision_claims.iter().cloned().map(Action::ClaimRevision));
    }
    let mut steps = Steps { world, now, actions: Vec::new() };
    if !world.want.leaving {
        let _ = steps.decide();
    }
    let status = status(world, now);
    let settling = world.pods.values().filter_map(|pod| pod.available_at(world.want.min_ready));
    runtime::Plan {
        actions: steps.actions,
        status: (status != world.status).then_some(status),
        requeue_at: settling.filter(|at| *at > now).min(),
    }
}

impl Steps<'_> {
    fn decide(&mut self) -> Result<(), Wait> {
        self.actions.extend(self.world.template_revision.write.clone().map(Action::Revise));
        if !self.world.pod_claims.is_empty() {
            self.actions.extend(self.world.pod_claims.iter().cloned().map(Action::ClaimPod));
            return Err(Wait); // an ordinal may be taken by one that is about to be ours
        }
        self.actions.extend(
            controller_history::surplus(&self.world.revisions, &self.used(), self.world.want.history)
                .into_iter()
                .map(Action::Revise),
        );
        for ordinal in self.within_reach() {
            self.keep(ordinal)?;
        }
        let before = self.deletions();
        self.scale_down()?;
        if self.deletions() > before {
            return Err(Wait); // scaling comes before updating
        }
        if let Update::Rolling { unavailable, .. } = &self.world.want.update {
            match (self.world.want.replace_unready, unavailable) {
                (true, _) => self.replace_outdated_and_unready(),
                (false, None) => self.replace_highest_outdated(),
                (false, Some(most)) => self.replace_outdated_within(most),
            }
        }
        Ok(())
    }

    fn deletions(&self) -> usize {
        self.actions.iter().filter(|action| matches!(action, Action::Delete { .. })).count()
    }

    fn within_reach(&self) -> std::ops::Range<Ordinal> {
        self.world.want.within_reach(self.world.pods.len())
    }

    /// Ends deciding in sets that go in order.
    fn in_order(&self) -> Result<(), Wait> {
        match self.world.want.order {
            Order::OrderedReady => Err(Wait),
            Order::Parallel => Ok(()),
        }
    }

    fn keep(&mut self, ordinal: Ordinal) -> Result<(), Wait> {
        let Some(pod) = self.world.pods.get(&ordinal) else {
            self.create(ordinal);
            return self.in_order();
        };
        match life(pod, self.world.want.min_ready, self.now) {
            Life::Leaving | Life::Settling => self.in_order(),
            Life::Failed => {
                self.delete(ordinal, pod, Why::Failed);
                self.in_order()
            }
            Life::Succeeded => {
                self.delete(ordinal, pod, Why::Succeeded);
                self.in_order()
            }
            Life::Starting => {
                let replace = self.world.want.replace_unready && self.world.want.order == Order::OrderedReady;
                if replace && self.is_wrong(ordinal, pod) && self.nobody_leaves() {
                    self.delete(ordinal, pod, Why::Broken);
                } else if pod.status.phase == "Pending" {
                    let missing = self.missing(ordinal);
                    if !missing.is_empty() {
                        let claims = missing.into_iter().map(|claim| (claim, ordinal)).collect();
                        self.actions.push(Action::Supply { claims });
                    }
                }
                self.retain(ordinal, pod);
                self.in_order()
            }
            Life::Available => {
                self.identify(ordinal, pod);
                self.retain(ordinal, pod);
                Ok(())
            }
        }
    }

    fn create(&mut self, ordinal: Ordinal) {
        let waits = self.world.want.claims_of(ordinal).any(|name| {
            self.world.claims.get(&name).is_some_and(|claim| claims::is_going(claim, &self.world.want.pod(ordinal)))
        });
        if !waits {
            let (claims, revision) = (self.missing(ordinal), PodRevision(self.revision(ordinal).clone()));
            self.actions.push(Action::Create { ordinal, claims, revision });
        }
    }

    fn missing(&self, ordinal: Ordinal) -> Vec<String> {
        self.world.want.claims_of(ordinal).filter(|name| !self.world.claims.contains_key(name)).collect()
    }

    /// Deletes pods beyond the last ordinal, from the highest. An ordered set waits for each to be gone, and halts at one
    /// that is not available, unless it is the only reason why the set is not, or the set says not to wait for such pods.
    fn scale_down(&mut self) -> Result<(), Wait> {
        let ordinals = self.world.want.ordinals();
        let condemned = || self.world.pods.iter().filter(|(ordinal, _)| !ordinals.contains(ordinal));
        let is_healthy = |pod: &Pod| pod.status.phase == "Running" && pod.is_ready() && !pod.is_being_deleted();
        let first_unhealthy = condemned().find(|(_, pod)| !is_healthy(pod)).map(|(ordinal, _)| *ordinal);
        let waits_for_unready = self.world.want.order == Order::OrderedReady && !self.world.want.replace_unready;
        let condemned: Vec<(Ordinal, Arc<Pod>)> = condemned().rev().map(|(at, pod)| (*at, pod.clone())).collect();
        for (ordinal, pod) in condemned {
            let available = life(&pod, self.world.want.min_ready, self.now) == Life::Available;
            if pod.is_being_deleted() || (waits_for_unready && !available && first_unhealthy != Some(ordinal)) {
                self.in_order()?;
                continue;
            }
            if !self.retain(ordinal, &pod) {
                self.delete(ordinal, &pod, Why::Surplus);
            }
            self.in_order()?;
        }
        Ok(())
    }

    /// Deletes the highest pod that is outdated, and waits at one that is not available.
    fn replace_highest_outdated(&mut self) {
        let want = &self.world.want;
        for ordinal in self.within_reach().rev().filter(|ordinal| !want.is_held_back(*ordinal)) {
            let Some(pod) = self.world.pods.get(&ordinal) else { return };
            match life(pod, want.min_ready, self.now) {
                Life::Failed | Life::Succeeded => return, // deleted above
                Life::Starting | Life::Settling | Life::Available if self.is_wrong(ordinal, pod) => {
                    return self.delete(ordinal, pod, Why::Outdated);
                }
                Life::Available => {}
                Life::Leaving | Life::Starting | Life::Settling => return,
            }
        }
    }

    /// Deletes outdated pods, from the highest, as long as no more than `most` of all pods are not available.
    fn replace_outdated_within(&mut self, most: &IntOrString) {
        let want = &self.world.want;
        let most =
            usize::try_from(int_or_percent::resolve(most, want.replicas, Rounding::Down).max(1)).unwrap_or(usize::MAX);
        let life = |pod: &Arc<Pod>| life(pod, want.min_ready, self.now);
        let missing = self
            .within_reach()
            .filter(|ordinal| self.world.pods.get(ordinal).is_none_or(|pod| life(pod) != Life::Available));
        let room = most.saturating_sub(missing.count());
        let outdated = self.within_reach().rev().filter(|ordinal| !want.is_held_back(*ordinal));
        let outdated = outdated.filter_map(|ordinal| Some((ordinal, self.world.pods.get(&ordinal)?)));
        let outdated = outdated.filter(|(ordinal, pod)| {
            matches!(life(pod), Life::Starting | Life::Settling | Life::Available) && self.is_wrong(*ordinal, pod)
        });
        let outdated: Vec<_> = outdated.take(room).collect();
        outdated.into_iter().for_each(|(ordinal, pod)| self.delete(ordinal, pod, Why::Outdated));
    }

    /// Replaces pods of other revisions, those that are not ready first, so that no more than allowed are missing at once.
    fn replace_outdated_and_unready(&mut self) {
        let want = &self.world.want;
        let Update::Rolling { unavailable, .. } = &want.update else { return };
        let most =
            unavailable.as_ref().map_or(1, |most| int_or_percent::resolve(most, want.replicas, Rounding::Down).max(1));
        let (mut busy, mut absent, mut broken, mut sound) = (0, 0, Vec::new(), Vec::new());
        for ordinal in self.within_reach().rev() {
            let counts = unavailable.is_some() || !want.is_held_back(ordinal);
            let Some(pod) = self.world.pods.get(&ordinal) else {
                (busy, absent) = (busy + i64::from(counts), absent + i64::from(counts));
                continue;
            };
            let wrong = !want.is_held_back(ordinal) && self.is_wrong(ordinal, pod);
            match life(pod, want.min_ready, self.now) {
                Life::Available if wrong => sound.push((ordinal, pod)),
                Life::Available => {}
                Life::Starting if wrong => {
                    absent += i64::from(counts);
                    broken.push((ordinal, pod));
                }
                Life::Leaving | Life::Failed | Life::Succeeded | Life::Starting | Life::Settling => {
                    (busy, absent) = (busy + i64::from(counts), absent + i64::from(counts));
                }
            }
        }
        for (ordinal, pod) in broken {
            if busy < most {
                busy += 1;
                self.delete(ordinal, pod, Why::Broken);
            }
        }
        for (ordinal, pod) in sound {
            if absent < most && busy < most {
                (busy, absent) = (busy + 1, absent + 1);
                self.delete(ordinal, pod, Why::Outdated);
            }
        }
    }

    /// Whether a pod is of another revision than its ordinal should be. Never, where others decide about that.
    fn is_wrong(&self, ordinal: Ordinal, pod: &Pod) -> bool {
        self.world.want.update != Update::OnDelete
            && pod.label(HASH) != Some(controller_history::mark(self.revision(ordinal)))
    }

    /// What the pod of an ordinal is to be made from.
    fn revision(&self, ordinal: Ordinal) -> &Arc<ControllerRevision> {
        if self.world.want.is_held_back(ordinal) { &self.world.current } else { &self.world.template_revision.revision }
    }

    fn nobody_leaves(&self) -> bool {
        !self.world.pods.values().any(|pod| pod.is_being_deleted())
    }

    fn delete(&mut self, ordinal: Ordinal, pod: &Pod, why: Why) {
        let version = (why == Why::Broken).then(|| pod.metadata.resource_version.clone()).flatten();
        self.actions.push(Action::Delete { ordinal, uid: pod.uid().to_owned(), version, why });
    }

    fn identify(&mut self, ordinal: Ordinal, pod: &Pod) {
        let name = self.world.want.pod(ordinal);
        if pod.label(POD_NAME) != Some(&name) {
            let version = pod.metadata.resource_version.clone().unwrap_or_default();
            self.actions.push(Action::Name { ordinal, uid: pod.uid().to_owned(), version });
        }
    }

    /// Whether a claim's owners had to be set right.
    fn retain(&mut self, ordinal: Ordinal, pod: &Pod) -> bool {
        let condemned = !self.world.want.ordinals().contains(&ordinal);
        let before = self.actions.len();
        for name in self.world.want.claims_of(ordinal) {
            let Some(claim) = self.world.claims.get(&name) else { continue };
            let policy = self.world.want.retention;
            if let Some(owners) = claims::owners(claim, policy, &self.world.reference, pod, condemned) {
                let (uid, version) = (claim.metadata.uid.clone(), claim.metadata.resource_version.clone());
                let (uid, version) = (uid.unwrap_or_default(), version.unwrap_or_default());
                self.actions.push(Action::Retain { claim: name, uid, version, owners });
            }
        }
        self.actions.len() > before
    }

    /// Revisions that pods or the set refer to, by name and by hash.
    fn used(&self) -> BTreeSet<String> {
        let pods = self.world.pods.values().filter_map(|pod| pod.label(HASH)).map(str::to_owned);
        let own = [&self.world.current, &self.world.template_revision.revision]
            .map(|revision| controller_history::name(revision).to_owned());
        pods.chain(own).collect()
    }
}

fn status(world: &World, now: Timestamp) -> StatefulSetStatus {
    let World { want, pods, template_revision, current, .. } = world;
    let (update_name, current_name) =
        (controller_history::name(&template_revision.revision), controller_history::name(current));
    let count = |counts: &dyn Fn(&Pod) -> bool| {
        i32::try_from(pods.values().filter(|pod| counts(pod)).count()).unwrap_or(i32::MAX)
    };
    let ready = |pod: &Pod| pod.status.phase == "Running" && pod.is_ready();
    let is_of =
        |pod: &Pod, revision| !pod.is_being_deleted() && pod.label(HASH) == Some(controller_history::mark(revision));
    let mut status = StatefulSetStatus {
        observed_generation: want.generation,
        replicas: count(&|_| true),
        ready_replicas: Some(count(&ready)),
        available_replicas: Some(count(&|pod| {
            ready(pod) && pod.available_at(want.min_ready).is_some_and(|at| at <= now)
        })),
        current_replicas: Some(count(&|pod| is_of(pod, current))),
        updated_replicas: Some(count(&|pod| is_of(pod, &template_revision.revision))),
        current_revision: Some(current_name.to_owned()),
        update_revision: Some(update_name.to_owned()),
        collision_count: Some(template_revision.collisions),
        conditions: world.status.conditions.clone(),
    };
    let all = [Some(status.replicas), status.updated_replicas, status.ready_replicas];
    let rolled = want.update != Update::OnDelete && all.iter().all(|count| count.map(i64::from) == Some(want.replicas));
    if rolled {
        status.current_revision = status.update_revision.clone();
        status.current_replicas = status.updated_replicas;
    }
    status
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
