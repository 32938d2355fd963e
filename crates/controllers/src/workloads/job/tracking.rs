//! Job tracking with finalizers: every finished pod is counted exactly once, whatever becomes of it meanwhile.
//!
//! A pod bears our finalizer until it is counted, so none vanishes before. Counting takes three
//! steps, each of which follows from what is on record, so that a crash between any two repeats or
//! continues, and never counts again:
//!
//! 1. the uid of a pod that ended goes on record as uncounted (an index that succeeded goes on
//!    record as completed, which is enough: an index counts once however often it succeeds);
//! 2. of pods on record, the finalizer is taken away ([`Tally::releasable`]);
//! 3. uids on record whose pods no longer bear it move into the totals.

use std::collections::{HashMap, HashSet};

use k8s_openapi::api::batch::v1::{JobStatus, UncountedTerminatedPods};

use super::{
    finish::{End, on_record},
    indexes::Indexes,
    policy::FailureAction,
    view::{Desired, Life, View, World},
};

/// How many pods may be on record as uncounted at once.
const MOST_UNCOUNTED: usize = 500;

/// What is known of how pods ended, on record or not.
#[derive(Debug)]
pub struct Tally {
    pub succeeded: i32,
    pub failed: i32,
    pub succeeded_indexes: Indexes,
    /// Only where indexes fail for themselves.
    pub failed_indexes: Option<Indexes>,
    recorded_indexes: Indexes,
    recorded: UncountedPods,
    /// By index, where in the world the failed pod is that its next one replaces.
    to_replace: HashMap<usize, usize>,
}

#[derive(Debug, Default)]
struct UncountedPods {
    succeeded: HashSet<String>,
    failed: HashSet<String>,
}

/// How a pod that ended is to be counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entry {
    Succeeded,
    Failed,
    /// It does not count.
    Nothing,
}

impl Tally {
    pub fn new(world: &World) -> Self {
        let World { want, status, pods, .. } = world;
        let uncounted = status.uncounted_terminated_pods.clone().unwrap_or_default();
        let set = |uids: Option<Vec<String>>| uids.unwrap_or_default().into_iter().collect::<HashSet<String>>();
        let recorded = UncountedPods { succeeded: set(uncounted.succeeded), failed: set(uncounted.failed) };
        let new = |pod: &&View| pod.tracked && want.has_place_for(pod);
        // What was put down as a failure while it was being deleted stays one.
        let well = |pod: &&View| pod.life == Life::Succeeded && !recorded.failed.contains(&pod.uid);
        let new_succeeded = pods.iter().filter(new).filter(well);
        let new_failed = pods.iter().filter(new).filter(|pod| pod.has_failed(want));
        let counts = |pod: &&View| !recorded.failed.contains(&pod.uid) && pod.ruling != FailureAction::Ignore;
        let failed = status.failed.unwrap_or_default()
            + to_i32(recorded.failed.len() + new_failed.clone().filter(counts).count());
        let indexes = |text: &Option<String>| Indexes::parse(text.as_deref().unwrap_or_default(), want.indexes());
        let recorded_indexes = indexes(&status.completed_indexes);
        let succeeded_indexes = recorded_indexes.with(new_succeeded.clone().filter_map(|pod| pod.index));
        let succeeded = if want.indexed {
            to_i32(succeeded_indexes.len())
        } else {
            let new = new_succeeded.filter(|pod| !recorded.succeeded.contains(&pod.uid)).count();
            status.succeeded.unwrap_or_default() + to_i32(recorded.succeeded.len() + new)
        };
        let failed_indexes = want.backoff_limit_per_index.filter(|_| want.indexed).map(|limit| {
            let lost = new_failed.filter(|pod| match pod.ruling {
                FailureAction::FailIndex => true,
                FailureAction::Ignore => false,
                FailureAction::Count | FailureAction::FailJob(_) => pod.index_failures >= limit,
            });
            indexes(&status.failed_indexes).with(lost.filter_map(|pod| pod.index))
        });
        let mut tally = Self {
            succeeded,
            failed,
            succeeded_indexes,
            failed_indexes,
            recorded_indexes,
            recorded,
            to_replace: HashMap::new(),
        };
        tally.to_replace = tally.last_failures(world);
        tally
    }

    /// The last failed pod of each index that is to be tried again.
    fn last_failures(&self, world: &World) -> HashMap<usize, usize> {
        let mut last: HashMap<usize, usize> = HashMap::new();
        let Some(failed_for_good) = &self.failed_indexes else { return last };
        let active: HashSet<usize> =
            world.pods.iter().filter(|pod| pod.is_active()).filter_map(|pod| pod.index).collect();
        let rank = |pod: &View| (pod.index_failures.saturating_add(pod.index_ignored), pod.finished);
        for (at, pod) in world.pods.iter().enumerate().filter(|(_, pod)| pod.tracked && pod.has_failed(&world.want)) {
            let Some(index) = pod.index else { continue };
            let settled = failed_for_good.contains(index) || self.succeeded_indexes.contains(index);
            let replaces = |known: &usize| rank(pod) > rank(&world.pods[*known]);
            if !settled && !active.contains(&index) && last.get(&index).is_none_or(replaces) {
                last.insert(index, at);
            }
        }
        last
    }

    /// The failed pod that the next one of its index replaces. It remembers how often the index failed, and so
    /// must stay until there is a replacement that does.
    pub fn to_replace<'a>(&self, world: &'a World, index: usize) -> Option<&'a View> {
        self.to_replace.get(&index).map(|at| &world.pods[*at])
    }

    /// How this pod counts, if it has come to its end as far as the Job is concerned.
    fn entry(&self, world: &World, pod: &View) -> Option<Entry> {
        let want = &world.want;
        let ended = on_record(&world.status);
        let entry = match (pod.life, &ended) {
            _ if self.recorded.failed.contains(&pod.uid) => Entry::Failed,
            (Life::Succeeded, _) => Entry::Succeeded,
            // It was stopped because the Job is content: that is no failure of its own.
            (_, Some(End { success: true, .. })) if pod.leaving => Entry::Nothing,
            (Life::Failed, _) => Entry::Failed,
            (_, Some(End { success: false, .. })) if pod.leaving => Entry::Failed,
            _ if pod.has_failed(want) => Entry::Failed,
            _ => return None,
        };
        let awaited = || pod.index.and_then(|index| self.to_replace(world, index));
        let kept_back = ended.is_none() && entry == Entry::Failed && awaited().is_some_and(|last| last.uid == pod.uid);
        (!kept_back).then_some(match entry {
            _ if !want.has_place_for(pod) => Entry::Nothing,
            Entry::Failed if pod.ruling == FailureAction::Ignore => Entry::Nothing,
            other => other,
        })
    }

    fn is_recorded(&self, want: &Desired, pod: &View, entry: Entry) -> bool {
        match entry {
            Entry::Nothing => true,
            Entry::Succeeded if want.indexed => pod.index.is_some_and(|i| self.recorded_indexes.contains(i)),
            Entry::Succeeded | Entry::Failed => {
                self.recorded.succeeded.contains(&pod.uid) || self.recorded.failed.contains(&pod.uid)
            }
        }
    }

    /// Pods whose finalizers have done their service, and whether that is so only as long as they do not change:
    /// one that does not count may yet end in a way that does.
    pub fn releasable<'a>(&self, world: &'a World) -> impl Iterator<Item = (&'a View, bool)> {
        let tracked = world.pods.iter().filter(|pod| pod.tracked);
        tracked.filter_map(|pod| {
            let entry = self.entry(world, pod)?;
            self.is_recorded(&world.want, pod, entry).then_some((pod, entry == Entry::Nothing))
        })
    }

    /// Puts into the status what ended, and into the totals what was released. Says whose counting begins by that.
    pub fn record(&self, world: &World, status: &mut JobStatus) -> Vec<NewlyCountedPod> {
        let want = &world.want;
        let tracked: HashSet<&str> = world.pods.iter().filter(|pod| pod.tracked).map(|pod| pod.uid.as_str()).collect();
        let uncounted = status.uncounted_terminated_pods.get_or_insert_default();
        let UncountedTerminatedPods { succeeded, failed } = uncounted;
        let totals = [(&mut status.succeeded, &mut *succeeded), (&mut status.failed, &mut *failed)];
        let mut room = MOST_UNCOUNTED;
        for (total, uids) in totals {
            let before = uids.get_or_insert_default();
            let all = before.len();
            before.retain(|uid| tracked.contains(uid.as_str()));
            add(total, all - before.len());
            room = room.saturating_sub(before.len());
        }
        let mut begun = Vec::new();
        let mut indexes = Vec::new();
        for pod in world.pods.iter().filter(|pod| pod.tracked) {
            let Some(entry) = self.entry(world, pod) else { continue };
            if self.is_recorded(want, pod, entry) {
                continue;
            }
            if room == 0 {
                break;
            }
            room -= 1;
            begun.push(NewlyCountedPod { name: pod.name.clone(), uid: pod.uid.clone() });
            match (entry, pod.index) {
                (Entry::Succeeded, Some(index)) if want.indexed => indexes.push(index),
                (Entry::Succeeded, _) => succeeded.get_or_insert_default().push(pod.uid.clone()),
                (Entry::Failed, _) => failed.get_or_insert_default().push(pod.uid.clone()),
                (Entry::Nothing, _) => {}
            }
        }
        for uids in [succeeded, failed] {
            *uids = uids.take().filter(|uids| !uids.is_empty());
        }
        if want.indexed {
            let completed = self.recorded_indexes.with(indexes);
            status.succeeded = non_zero(to_i32(completed.len()));
            status.completed_indexes = (!completed.is_empty()).then(|| completed.to_string());
            status.failed_indexes = self.failed_indexes.as_ref().map(Indexes::to_string);
        }
        begun
    }
}

/// A pod that goes on record with this status, and was not before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewlyCountedPod {
    pub name: String,
    pub uid: String,
}

fn add(total: &mut Option<i32>, more: usize) {
    *total = non_zero(total.unwrap_or_default().saturating_add(to_i32(more)));
}

/// Zero is not written.
pub fn non_zero(count: i32) -> Option<i32> {
    (count != 0).then_some(count)
}

pub fn to_i32(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}
