//! Finds the cycles among workloads that wait for each other, and the pods whose conditions do not say so. Pure.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::runtime::ObjectKey;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Workload {
    pub namespace: String,
    pub name: String,
    pub kind: String,
}

/// Every pod with needs.
pub struct CycleWorld {
    pub pods: Vec<WaitingPod>,
}

pub struct WaitingPod {
    pub key: ObjectKey,
    pub uid: String,
    pub workload: Workload,
    /// Whose pods would have to be ready first; nothing if it does not wait.
    pub awaited: BTreeSet<Workload>,
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

type Edges<'a> = BTreeMap<&'a Workload, BTreeSet<&'a Workload>>;

pub fn plan(world: &CycleWorld) -> Vec<SetCycle> {
    let mut edges = Edges::new();
    for pod in &world.pods {
        edges.entry(&pod.workload).or_default().extend(&pod.awaited);
    }
    let mut cycles: BTreeMap<&Workload, Option<String>> = BTreeMap::new();
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

/// The shortest way from a workload back to itself, as text: `web → api → web`.
fn shortest_cycle(edges: &Edges<'_>, start: &Workload) -> Option<String> {
    let mut came_from: BTreeMap<&Workload, &Workload> = BTreeMap::new();
    let mut queue = VecDeque::from([start]);
    while let Some(workload) = queue.pop_front() {
        for next in edges.get(workload).into_iter().flatten().copied() {
            if next == start {
                return Some(describe(start, workload, &came_from));
            }
            if !came_from.contains_key(next) {
                came_from.insert(next, workload);
                queue.push_back(next);
            }
        }
    }
    None
}

fn describe(start: &Workload, last: &Workload, came_from: &BTreeMap<&Workload, &Workload>) -> String {
    let mut members = vec![last];
    while let Some(before) = members.last().filter(|member| **member != start).and_then(|member| came_from.get(*member))
    {
        members.push(before);
    }
    members.reverse();
    members.push(start);
    let is_local = members.iter().all(|member| member.namespace == start.namespace);
    let name = |member: &Workload| match is_local {
        true => member.name.clone(),
        false => format!("{}/{}", member.namespace, member.name),
    };
    members.into_iter().map(name).collect::<Vec<String>>().join(" → ")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn workload(name: &str) -> Workload {
        let (namespace, name) = name.split_once('/').unwrap_or(("a", name));
        Workload { namespace: namespace.to_owned(), name: name.to_owned(), kind: "Deployment".to_owned() }
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
    fn a_cycle_across_namespaces_names_them() {
        let found = plan(&world(&[("web", &["b/api"], None), ("b/api", &["web"], None)]));
        assert_eq!(found[0].cycle.as_deref(), Some("a/web → b/api → a/web"));
    }

    #[test]
    fn a_cycle_that_is_over_is_taken_back_and_one_that_is_known_is_left_alone() {
        let known = "web → api → web";
        assert_eq!(planned(&[("web", &["api"], Some(known)), ("api", &[], None)]), [("web".to_owned(), None)]);
        let both: [(&str, &[&str], Option<&str>); 2] =
            [("web", &["api"], Some(known)), ("api", &["web"], Some("api → web → api"))];
        assert_eq!(planned(&both), []);
    }

    proptest! {
        #[test]
        fn a_workload_is_named_exactly_if_it_can_reach_itself(edges in prop::collection::vec((0..6_usize, 0..6_usize), 0..12)) {
            let names = ["a", "b", "c", "d", "e", "f"];
            let mut awaited: BTreeMap<usize, Vec<&str>> = BTreeMap::new();
            let mut reach = [[false; 6]; 6];
            for (from, to) in edges {
                awaited.entry(from).or_default().push(names[to]);
                reach[from][to] = true;
            }
            for via in 0..6 {
                for from in 0..6 {
                    for to in 0..6 {
                        reach[from][to] |= reach[from][via] && reach[via][to];
                    }
                }
            }
            let pods: Vec<(&str, &[&str], Option<&str>)> =
                awaited.iter().map(|(from, to)| (names[*from], to.as_slice(), None)).collect();
            let found: Vec<String> = planned(&pods).into_iter().map(|(name, _)| name).collect();
            let expected: Vec<&str> = (0..6).filter(|node| reach[*node][*node]).map(|node| names[node]).collect();
            prop_assert_eq!(found, expected);
        }
    }
}
