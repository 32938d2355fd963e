//! What a StatefulSet does next.
//!
//! Ordinals have one pod each, ever: a pod is made only where none is seen, and its name makes a
//! second one impossible. Sets that go one by one do one thing at a time: up to the first ordinal
//! that is not as it should be, nothing behind it is touched. Then what is beyond the last ordinal
//! goes, from the highest, and then pods of old revisions are replaced, from the highest too.
//!
//! A pod that is not ready and of the wrong revision is replaced without waiting for it to become
//! ready, which it may never do: a rollout that got stuck on a bad template goes on as soon as
//! the template is mended. Such a deletion carries the version that was judged, so that a pod
//! that became ready meanwhile is not its victim.

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
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use mainstay_api::share::{self, Round};

use super::{
    claims,
    desired::{Desired, Order, Ordinal, Update},
};
use crate::{
    shell,
    workloads::{
        history::{self, HASH, Place, Write},
        owner::Claim,
        pod::Pod,
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
    pub place: Place,
    /// What pods that are held back are made from; the template's own revision unless an update is under way.
    pub current: Arc<ControllerRevision>,
    /// Pods and revisions that change hands first.
    pub pod_claims: Vec<Claim>,
    pub revision_claims: Vec<Claim>,
    pub status: StatefulSetStatus,
}

#[derive(Debug, PartialEq)]
pub enum Action {
    Revise(Write),
    ClaimRevision(Claim),
    ClaimPod(Claim),
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
        revision: Revision,
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

/// What a pod is made from.
#[derive(Clone, PartialEq)]
pub struct Revision(pub Arc<ControllerRevision>);

impl std::fmt::Debug for Revision {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(history::name(&self.0))
    }
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
        _ if pod.is_leaving() => Life::Leaving,
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

pub fn plan(world: &World, now: Timestamp) -> shell::Plan<Action, StatefulSetStatus> {
    if !world.revision_claims.is_empty() {
        // The history is not known before it is ours.
        return shell::Plan::act(world.revision_claims.iter().cloned().map(Action::ClaimRevision));
    }
    let mut steps = Steps { world, now, actions: Vec::new() };
    if !world.want.leaving {
        let _ = steps.decide();
    }
    let status = status(world, now);
    let settling = world.pods.values().filter_map(|pod| pod.available_at(world.want.min_ready));
    shell::Plan {
        actions: steps.actions,
        status: (status != world.status).then_some(status),
        wake_at: settling.filter(|at| *at > now).min(),
    }
}

impl Steps<'_> {
    fn decide(&mut self) -> Result<(), Wait> {
        self.actions.extend(self.world.place.write.clone().map(Action::Revise));
        if !self.world.pod_claims.is_empty() {
            self.actions.extend(self.world.pod_claims.iter().cloned().map(Action::ClaimPod));
            return Err(Wait); // an ordinal may be taken by one that is about to be ours
        }
        self.actions.extend(
            history::surplus(&self.world.revisions, &self.used(), self.world.want.history)
                .into_iter()
                .map(Action::Revise),
        );
        for ordinal in self.within_reach() {
            self.keep(ordinal)?;
        }
        let beyond = self.world.pods.iter().rev().filter(|(ordinal, _)| !self.world.want.ordinals().contains(ordinal));
        for (ordinal, pod) in beyond {
            self.condemn(*ordinal, pod)?;
        }
        if let Update::Rolling { .. } = self.world.want.update {
            self.renew();
        }
        Ok(())
    }

    fn within_reach(&self) -> std::ops::Range<Ordinal> {
        self.world.want.within_reach(self.world.pods.len())
    }

    /// Ends deciding in sets that go one by one.
    fn in_turn(&self) -> Result<(), Wait> {
        match self.world.want.order {
            Order::OneByOne => Err(Wait),
            Order::AllAtOnce => Ok(()),
        }
    }

    fn keep(&mut self, ordinal: Ordinal) -> Result<(), Wait> {
        let Some(pod) = self.world.pods.get(&ordinal) else {
            self.create(ordinal);
            return self.in_turn();
        };
        match life(pod, self.world.want.min_ready, self.now) {
            Life::Leaving | Life::Settling => self.in_turn(),
            Life::Failed => {
                self.delete(ordinal, pod, Why::Failed);
                self.in_turn()
            }
            Life::Succeeded => {
                self.delete(ordinal, pod, Why::Succeeded);
                self.in_turn()
            }
            Life::Starting => {
                if self.world.want.order == Order::OneByOne && self.is_wrong(ordinal, pod) && self.nobody_leaves() {
                    self.delete(ordinal, pod, Why::Broken);
                } else if pod.status.phase == "Pending" {
                    let missing = self.missing(ordinal);
                    if !missing.is_empty() {
                        let claims = missing.into_iter().map(|claim| (claim, ordinal)).collect();
                        self.actions.push(Action::Supply { claims });
                    }
                }
                self.retain(ordinal, pod);
                self.in_turn()
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
            let (claims, revision) = (self.missing(ordinal), Revision(self.revision(ordinal).clone()));
            self.actions.push(Action::Create { ordinal, claims, revision });
        }
    }

    fn missing(&self, ordinal: Ordinal) -> Vec<String> {
        self.world.want.claims_of(ordinal).filter(|name| !self.world.claims.contains_key(name)).collect()
    }

    fn condemn(&mut self, ordinal: Ordinal, pod: &Arc<Pod>) -> Result<(), Wait> {
        if !pod.is_leaving() && !self.retain(ordinal, pod) {
            self.delete(ordinal, pod, Why::Surplus);
        }
        self.in_turn()
    }

    /// Replaces pods of other revisions, so that no more than allowed are missing at once.
    fn renew(&mut self) {
        let want = &self.world.want;
        let Update::Rolling { unavailable, .. } = &want.update else { return };
        let most = unavailable.as_ref().map_or(1, |most| share::of(most, want.replicas, Round::Down).max(1));
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
        self.world.want.update != Update::OnDelete && pod.label(HASH) != Some(history::mark(self.revision(ordinal)))
    }

    /// What the pod of an ordinal is to be made from.
    fn revision(&self, ordinal: Ordinal) -> &Arc<ControllerRevision> {
        if self.world.want.is_held_back(ordinal) { &self.world.current } else { &self.world.place.revision }
    }

    fn nobody_leaves(&self) -> bool {
        !self.world.pods.values().any(|pod| pod.is_leaving())
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
        let own = [&self.world.current, &self.world.place.revision].map(|revision| history::name(revision).to_owned());
        pods.chain(own).collect()
    }
}

fn status(world: &World, now: Timestamp) -> StatefulSetStatus {
    let World { want, pods, place, current, .. } = world;
    let (update_name, current_name) = (history::name(&place.revision), history::name(current));
    let count = |counts: &dyn Fn(&Pod) -> bool| {
        i32::try_from(pods.values().filter(|pod| counts(pod)).count()).unwrap_or(i32::MAX)
    };
    let ready = |pod: &Pod| pod.status.phase == "Running" && pod.is_ready();
    let is_of = |pod: &Pod, revision| !pod.is_leaving() && pod.label(HASH) == Some(history::mark(revision));
    let mut status = StatefulSetStatus {
        observed_generation: want.generation,
        replicas: count(&|_| true),
        ready_replicas: Some(count(&ready)),
        available_replicas: Some(count(&|pod| {
            ready(pod) && pod.available_at(want.min_ready).is_some_and(|at| at <= now)
        })),
        current_replicas: Some(count(&|pod| is_of(pod, current))),
        updated_replicas: Some(count(&|pod| is_of(pod, &place.revision))),
        current_revision: Some(current_name.to_owned()),
        update_revision: Some(update_name.to_owned()),
        collision_count: Some(place.collisions),
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
