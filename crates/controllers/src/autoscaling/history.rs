//! What an autoscaler remembers between reconciles: recent recommendations, and how it scaled its target.
//!
//! In memory only, as upstream's: after a restart windows and periods begin anew, which makes an autoscaler slower to
//! scale down and never wrong. One entry per second at most, so that nobody makes it grow by changing an autoscaler often.

use std::collections::HashMap;

use jiff::{SignedDuration, Timestamp};
use mainstay_api::selector::Labels;
use parking_lot::Mutex;

use crate::{objects::pod::Pod, runtime::ObjectKey, workloads::controller_ref};

/// The recommendations of one second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Recommendation {
    second: i64,
    lowest: i32,
    highest: i32,
}

/// How much was added (or, below zero, removed) in one second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ScaleEvent {
    second: i64,
    change: i32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScaleHistory {
    recommendations: Vec<Recommendation>,
    events: Vec<ScaleEvent>,
}

impl ScaleHistory {
    pub fn is_empty(&self) -> bool {
        self.recommendations.is_empty()
    }

    /// Adds a recommendation and forgets those older than `window`.
    pub fn recommend(&mut self, replicas: i32, now: Timestamp, window: SignedDuration) {
        let (second, oldest) = (now.as_second(), (now - window).as_second());
        self.recommendations.retain(|known| known.second >= oldest);
        match self.recommendations.last_mut().filter(|last| last.second == second) {
            Some(last) => (last.lowest, last.highest) = (last.lowest.min(replicas), last.highest.max(replicas)),
            None => self.recommendations.push(Recommendation { second, lowest: replicas, highest: replicas }),
        }
    }

    /// Adds a change of the target and forgets those older than `period`.
    pub fn scaled(&mut self, change: i32, now: Timestamp, period: SignedDuration) {
        let (second, oldest) = (now.as_second(), (now - period).as_second());
        self.events.retain(|known| known.second >= oldest);
        match self.events.last_mut().filter(|last| last.second == second) {
            Some(last) => last.change = last.change.saturating_add(change),
            None => self.events.push(ScaleEvent { second, change }),
        }
    }

    pub fn lowest_since(&self, cutoff: Timestamp) -> Option<i32> {
        self.since(cutoff).map(|known| known.lowest).min()
    }

    pub fn highest_since(&self, cutoff: Timestamp) -> Option<i32> {
        self.since(cutoff).map(|known| known.highest).max()
    }

    fn since(&self, cutoff: Timestamp) -> impl Iterator<Item = &Recommendation> {
        let cutoff = cutoff.as_second();
        self.recommendations.iter().filter(move |known| known.second > cutoff)
    }

    /// The sum of all changes after a moment.
    pub fn change_since(&self, cutoff: Timestamp) -> i32 {
        let cutoff = cutoff.as_second();
        let recent = self.events.iter().filter(|event| event.second > cutoff);
        recent.fold(0, |sum, event| sum.saturating_add(event.change))
    }
}

#[derive(Default)]
struct Entry {
    history: ScaleHistory,
    /// What the scale of its target selected last.
    selector: Option<Labels>,
}

/// The histories of all autoscalers, and what they select.
#[derive(Default)]
pub struct HistoryStore(Mutex<HashMap<ObjectKey, Entry>>);

impl HistoryStore {
    pub fn get(&self, key: &ObjectKey) -> ScaleHistory {
        self.0.lock().get(key).map(|entry| entry.history.clone()).unwrap_or_default()
    }

    pub fn update(&self, key: &ObjectKey, change: impl FnOnce(&mut ScaleHistory)) {
        change(&mut self.0.lock().entry(key.clone()).or_default().history);
    }

    pub fn forget(&self, key: &ObjectKey) {
        self.0.lock().remove(key);
    }

    pub fn set_selector(&self, key: &ObjectKey, selector: Option<Labels>) {
        self.0.lock().entry(key.clone()).or_default().selector = selector;
    }

    /// The other autoscalers that scale some of these pods, which are of the namespace of `key`.
    pub fn also_scaling(&self, key: &ObjectKey, pods: &[std::sync::Arc<Pod>]) -> Vec<ObjectKey> {
        let entries = self.0.lock();
        let others = entries.iter().filter(|(other, _)| *other != key && other.namespace == key.namespace);
        let selects = |selector: &Labels| pods.iter().any(|pod| controller_ref::selects(selector, &pod.metadata));
        let mut others: Vec<ObjectKey> = others
            .filter(|(_, entry)| entry.selector.as_ref().is_some_and(selects))
            .map(|(other, _)| other.clone())
            .collect();
        others.sort();
        others
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at_second(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn recommendations_count_within_their_window_only() {
        let (mut history, window) = (ScaleHistory::default(), SignedDuration::from_secs(60));
        for (second, replicas) in [(100, 9), (130, 3), (130, 5), (150, 4)] {
            history.recommend(replicas, at_second(second), window);
        }
        assert_eq!((history.lowest_since(at_second(90)), history.highest_since(at_second(90))), (Some(3), Some(9)));
        assert_eq!(history.highest_since(at_second(100)), Some(5), "what is as old as the window does not count");
        history.recommend(1, at_second(180), window);
        assert_eq!(history.highest_since(at_second(0)), Some(5), "older ones are forgotten");
    }

    #[test]
    fn a_second_has_one_entry_however_often_something_is_recorded() {
        let mut history = ScaleHistory::default();
        for n in 0..1000 {
            history.recommend(n, at_second(1), SignedDuration::from_secs(60));
            history.scaled(1, at_second(1), SignedDuration::from_secs(60));
        }
        assert_eq!((history.recommendations.len(), history.events.len()), (1, 1));
        assert_eq!((history.lowest_since(at_second(0)), history.highest_since(at_second(0))), (Some(0), Some(999)));
        assert_eq!(history.change_since(at_second(0)), 1000);
    }
}
