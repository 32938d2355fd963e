//! Finds the cycles among workloads that wait for each other, and the pods whose conditions do not say so. Pure.

use std::collections::{BTreeMap, BTreeSet};

use mainstay_api::needs::cycle::{CycleSearch, WorkloadId};

use crate::runtime::ObjectKey;

/// Every pod with needs.
pub struct CycleWorld {
    pub pods: Vec<WaitingPod>,
}

pub struct WaitingPod {
    pub key: ObjectKey,
    pub uid: String,
    pub workload: WorkloadId,
    /// Whose pods would have to be ready first; nothing if it does not wait.
    pub awaited: BTreeSet<WorkloadId>,
    /// The cycle that its condition names.
    pub reported: Option<String>,
}

/// Writes the condition of one pod; without a cycle, that there is none any more.
#[derive(Debug, PartialEq, Eq)]
pub struct SetCycle {
    pub pod: ObjectKey,
    pub uid: String,
    pub cycle: Option<String>,
}

type Edges<'a> = BTreeMap<&'a WorkloadId, BTreeSet<&'a WorkloadId>>;

pub fn plan(world: &CycleWorld) -> Vec<SetCycle> {
    let mut edges = Edges::new();
    for pod in &world.pods {
        edges.entry(&pod.workload).or_default().extend(&pod.awaited);
    }
    let mut cycles: BTreeMap<&WorkloadId, Option<String>> = BTreeMap::new();
    let mut actions = Vec::new();
    for pod in &world.pods {
        let cycle = cycles.entry(&pod.workload).or_insert_with(|| shortest_cycle(&edges, &pod.workload));
        let cycle = cycle.clone().filter(|_| !pod.awaited.is_empty());
        if cycle != pod.reported {
            actions.push(SetCycle { pod: pod.key.clone(), uid: pod.uid.clone(), cycle });
        }
    }
    actions
}

/// The shortest cycle of a workload, if it is in one.
fn shortest_cycle(edges: &Edges<'_>, start: &WorkloadId) -> Option<String> {
    let mut search = CycleSearch::new(start.clone());
    while let Some(workload) = search.next_workload() {
        let awaited = edges.get(&workload).into_iter().flatten().map(|next| (*next).clone());
        if let Some(cycle) = search.expand(&workload, awaited) {
            return Some(cycle);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workload(name: &str) -> WorkloadId {
        let (namespace, name) = name.split_once('/').unwrap_or(("a", name));
        WorkloadId { namespace: namespace.to_owned(), name: name.to_owned(), kind: "Deployment".to_owned() }
    }

    fn world(pods: &[(&str, &[&str], Option<&str>)]) -> CycleWorld {
        let pod = |(name, awaited, reported): &(&str, &[&str], Option<&str>)| WaitingPod {
            key: ObjectKey::new("a", *name),
            uid: String::new(),
            workload: workload(name),
            awaited: awaited.iter().map(|name| workload(name)).collect(),
            reported: reported.map(str::to_owned),
        };
        CycleWorld { pods: pods.iter().map(pod).collect() }
    }

    fn planned(pods: &[(&str, &[&str], Option<&str>)]) -> Vec<(String, Option<String>)> {
        plan(&world(pods)).into_iter().map(|set| (set.pod.name, set.cycle)).collect()
    }

    #[test]
    fn every_member_names_the_cycle_from_its_own_point_of_view() {
        let found = planned(&[("web", &["api"], None), ("api", &["web", "db"], None), ("other", &["web"], None)]);
        assert_eq!(
            found,
            [
                ("web".to_owned(), Some("web → api → web".to_owned())),
                ("api".to_owned(), Some("api → web → api".to_owned())),
            ],
            "what only waits for the cycle is no part of it"
        );
        assert_eq!(planned(&[("web", &["web"], None)])[0].1.as_deref(), Some("web → web"));
    }

    #[test]
    fn a_cycle_that_is_over_is_taken_back_and_one_that_is_known_is_left_alone() {
        let known = "web → api → web";
        assert_eq!(planned(&[("web", &["api"], Some(known)), ("api", &[], None)]), [("web".to_owned(), None)]);
        let both: [(&str, &[&str], Option<&str>); 2] =
            [("web", &["api"], Some(known)), ("api", &["web"], Some("api → web → api"))];
        assert_eq!(planned(&both), []);
    }
}
