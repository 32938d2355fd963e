//! Whom a change could help.
//!
//! Whoever fits nowhere is looked at again when a machine changed that could take it now, or when a pod came or went that
//! its rules speak of, or whose rules speak of it. That is asked once for each class of equal pods.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
    time::Instant,
};

use super::State;
use crate::core::view::{Labels, Near, PodView};

/// Equal pods: the same rules, the same namespace and labels. Should two kinds of pods ever share a number, they only
/// wake together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Class(u64);

impl Class {
    pub fn of(pod: &PodView) -> Self {
        let mut hasher = DefaultHasher::new();
        (*pod.shape).hash(&mut hasher);
        pod.tags.namespace().hash(&mut hasher);
        pod.tags.labels().hash(&mut hasher);
        Self(hasher.finish())
    }
}

/// What changed since hints were last given.
#[derive(Default)]
pub(super) struct Changes {
    /// Machines that may be able to take more or other pods than before; true for those whose pods might now be
    /// asked to make way where they could not before.
    pub machines: BTreeMap<String, bool>,
    /// Pods that came, went or are about to go.
    pub pods: Vec<Arc<PodView>>,
    /// The labels of machines or namespaces: rules about what runs near are to be asked again.
    pub neighbourhoods: bool,
    /// Something else.
    pub anything: bool,
}

impl Changes {
    pub fn machine(&mut self, name: &str, contested: bool) {
        *self.machines.entry(name.to_owned()).or_default() |= contested;
    }

    fn is_empty(&self) -> bool {
        self.machines.is_empty() && self.pods.is_empty() && !self.neighbourhoods && !self.anything
    }
}

impl State {
    /// Makes ready whom the changes since the last time could help.
    pub(super) fn wake(&mut self, now: Instant) {
        let changes = std::mem::take(&mut self.changes);
        if changes.is_empty() || !self.queue.has_unfit() {
            return;
        }
        let (cluster, models) = (&mut self.cluster, &self.models);
        // The classes of pods that came or went, each once: a thousand replicas are one question.
        let mut kinds = BTreeSet::new();
        let news: Vec<&Arc<PodView>> = changes.pods.iter().filter(|pod| kinds.insert(Class::of(pod).0)).collect();
        // What is kept for a pod is kept from its equals as well, as far as a class can tell.
        let awaited: HashSet<(Class, &str)> = self
            .awaited
            .iter()
            .filter_map(|(pod, machine)| Some((Class::of(&self.pods.get(pod)?.view), machine.as_str())))
            .collect();
        self.queue.wake(now, |class| {
            let Some(pod) = models.get(class) else { return true };
            (changes.neighbourhoods && is_social(pod))
                || news.iter().any(|other| concerns(other, pod))
                || changes.machines.iter().any(|(machine, contested)| {
                    let displaces = |other: &PodView| other.shape.priority < pod.shape.priority;
                    awaited.contains(&(*class, machine.as_str()))
                        || cluster.could_take(machine, pod)
                        || (*contested && !pod.shape.never_preempts && cluster.pods_on(machine).any(displaces))
                })
        });
    }
}

/// Its rules speak of other pods.
fn is_social(pod: &PodView) -> bool {
    let together = &pod.shape.together;
    !together.required.is_empty() || !together.forbidden.is_empty() || pod.shape.spread.iter().any(|rule| rule.hard)
}

/// The rules of one speak of the other.
fn concerns(other: &PodView, pod: &PodView) -> bool {
    let spread = pod.shape.spread.iter().filter(|rule| rule.hard).map(|rule| &rule.pods);
    let near = pod.shape.together.required.iter().chain(&pod.shape.together.forbidden).map(|near| &near.pods);
    // What a namespace's labels say does not matter here: to ask too often is no harm.
    let anywhere = |_: &str| None::<&Labels>;
    let speaks = |pods: &crate::core::view::PodSelector, of: &PodView| {
        pods.namespaces_like.is_some() || pods.matches(of.tags.namespace(), of.tags.labels(), anywhere)
    };
    let keeps_away = |near: &Near| speaks(&near.pods, pod);
    spread.chain(near).any(|pods| speaks(pods, other)) || other.shape.together.forbidden.iter().any(keeps_away)
}
