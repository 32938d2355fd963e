//! The next step of a Deployment. Pure.
//!
//! One thing at a time, each derived from what is observed: adopting and releasing ReplicaSets, then which revision this
//! is, then sizes. No step of a rollout is stored anywhere, so that it goes on wherever it was left, whoever reconciles
//! next.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::{
    rolling::{self, Resize},
    status,
    view::{Create, DESIRED, Desired, MAX, REVISION, REVISION_HISTORY, Set, Step, World},
};
use crate::{objects::deployment::Status, runtime::Plan};

/// Annotations of a Deployment that are about itself only.
const OWN: [&str; 10] = [
    mainstay_api::wellknown::kubernetes::LAST_APPLIED,
    mainstay_api::config_versions::ROLLED_OUT_ANNOTATION,
    mainstay_api::config_versions::LAST_GOOD_ANNOTATION,
    mainstay_api::wellknown::mainstay::RELEASE_MARK,
    mainstay_api::wellknown::mainstay::RELEASE_TEMPLATES,
    "deprecated.deployment.rollback.to",
    REVISION,
    REVISION_HISTORY,
    DESIRED,
    MAX,
];
/// How much history one ReplicaSet remembers of itself, in characters.
const HISTORY: usize = 2000;

pub fn plan(world: &World, now: Timestamp) -> Plan<Step, Status> {
    let want = &world.want;
    let new = world.sets.iter().find(|set| set.current && !set.leaving);
    let is_new = |set: &Set| new.is_some_and(|new| new.uid == set.uid);
    let old: Vec<&Set> = world.sets.iter().filter(|set| !set.leaving && !is_new(set)).collect();
    let rescaling = want.paused || is_rescaled(world);
    let mut status = status::counts(world, new);
    let requeue_at = status::judge(world, new, !rescaling, &mut status, now);
    let mut plan = Plan { actions: Vec::new(), status: None, requeue_at };
    if want.leaving {
        plan.status = Some(status);
        return plan;
    }
    if !world.claims.is_empty() {
        plan.actions = world.claims.iter().cloned().map(Step::OwnershipChange).collect();
    } else if let Some(step) = new.and_then(|new| revise(want, new, &world.sets)) {
        let itself = matches!(step, Step::Revise { .. });
        plan.actions.push(step);
        if itself {
            return plan; // the Deployment becomes another version: its status waits for the next look
        }
    } else if rescaling {
        plan.actions = resized(want, rolling::rescale(want, new, &old, world.standing.replicas));
        if want.paused && plan.actions.is_empty() {
            plan.actions = forget(want, &old);
        }
    } else if let Some(new) = new {
        plan.actions = roll(world, new, &old);
        if plan.actions.is_empty() && status::is_complete(want, &status) {
            plan.actions = forget(want, &old);
        }
    } else if !want.recreate || may_recreate(world, &old) {
        begin(world, &old, &mut plan, &mut status);
    } else {
        plan.actions = all_to_nothing(want, &old);
    }
    plan.status = Some(status);
    plan
}

/// Whether the wished number changed since the sets were last scaled.
fn is_rescaled(world: &World) -> bool {
    let active: Vec<&Set> = world.sets.iter().filter(|set| set.replicas > 0 && !set.leaving).collect();
    if world.want.recreate && active.len() > 1 {
        return false; // all but one go in any case
    }
    active.iter().filter_map(|set| set.number::<i32>(DESIRED)).any(|desired| desired != world.want.replicas)
}

fn roll(world: &World, new: &Set, old: &[&Set]) -> Vec<Step> {
    let want = &world.want;
    if !want.recreate {
        return resized(want, rolling::roll(want, new, old));
    }
    if !may_recreate(world, old) {
        return all_to_nothing(want, old);
    }
    if new.replicas == want.replicas { Vec::new() } else { resized(want, vec![(new, want.replicas)]) }
}

/// Nothing of other templates runs any more, or is about to.
fn may_recreate(world: &World, old: &[&Set]) -> bool {
    !world.old_pods && old.iter().all(|set| set.replicas == 0 && set.seen.replicas == 0)
}

fn all_to_nothing(want: &Desired, old: &[&Set]) -> Vec<Step> {
    resized(want, old.iter().filter(|set| set.replicas > 0).map(|set| (*set, 0)).collect())
}

/// Sizes as steps, where anything changes.
fn resized(want: &Desired, sizes: Vec<Resize<'_>>) -> Vec<Step> {
    let marks = want.marks();
    let changes = sizes.into_iter().filter(|(set, size)| {
        let marked = marks.iter().all(|(name, value)| set.annotations.get(*name) == Some(value));
        set.replicas != *size || !marked
    });
    changes.map(|(set, to)| Step::Scale { set: set.into(), from: set.replicas, to, marks: marks.clone() }).collect()
}

fn forget(want: &Desired, old: &[&Set]) -> Vec<Step> {
    rolling::forgettable(want, old).into_iter().map(|set| Step::Forget(set.into())).collect()
}

/// What must be written so that the new set and the Deployment agree on what they are.
fn revise(want: &Desired, new: &Set, sets: &[Set]) -> Option<Step> {
    let latest = sets.iter().filter(|set| set.uid != new.uid).map(Set::revision).max().unwrap_or(0);
    let mut annotations = inherited(want);
    annotations.retain(|name, value| new.annotations.get(name) != Some(value));
    if new.revision() <= latest {
        annotations.insert(REVISION.to_owned(), (latest + 1).to_string());
        if let Some(before) = new.annotations.get(REVISION) {
            annotations.insert(REVISION_HISTORY.to_owned(), history(new, before));
        }
    }
    if !annotations.is_empty() || new.min_ready_seconds != want.min_ready_seconds {
        let min_ready_seconds = want.min_ready_seconds;
        return Some(Step::Annotate { set: new.into(), annotations, min_ready_seconds });
    }
    let revision = new.revision();
    let known = want.annotations.get(REVISION).is_some_and(|known| *known == revision.to_string());
    (!known).then(|| Step::Revise { version: want.version.clone(), revision })
}

fn history(new: &Set, before: &str) -> String {
    let known = new.annotations.get(REVISION_HISTORY).map(String::as_str).unwrap_or_default();
    let mut all: Vec<&str> = known.split(',').filter(|revision| !revision.is_empty()).chain([before]).collect();
    while all.len() > 1 && all.iter().map(|revision| revision.len() + 1).sum::<usize>() > HISTORY {
        all.remove(0);
    }
    all.join(",")
}

fn inherited(want: &Desired) -> BTreeMap<String, String> {
    let all = want.annotations.iter().filter(|(name, _)| !OWN.contains(&name.as_str()));
    all.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// There is no set of this template yet.
fn begin(world: &World, old: &[&Set], plan: &mut Plan<Step, Status>, status: &mut Status) {
    let want = &world.want;
    let name = want.set_name();
    if world.sets.iter().any(|set| set.name == name && set.current) {
        return; // the last one of that name still goes
    }
    if world.taken.contains(&name) {
        status.collision_count = Some(status.collision_count.unwrap_or(0).saturating_add(1));
        return;
    }
    let latest = world.sets.iter().map(Set::revision).max().unwrap_or(0);
    let mut annotations = inherited(want);
    annotations.insert(REVISION.to_owned(), (latest + 1).to_string());
    annotations.extend(want.marks().map(|(name, value)| (name.to_owned(), value)));
    plan.actions.push(Step::Create(Create {
        name,
        hash: want.hash.clone(),
        replicas: rolling::room(want, old, 0),
        min_ready_seconds: want.min_ready_seconds,
        annotations,
        template: want.template.clone(),
    }));
}

#[cfg(test)]
mod tests;
