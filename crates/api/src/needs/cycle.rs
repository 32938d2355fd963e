//! Cycles of needs: the shortest chain of workloads that wait for each other to be ready and ends where it begins, and how it is written.
//!
//! Whoever looks says what each workload waits for, as far as the search comes: [`CycleSearch::next_workload`] names the workload to look at, [`CycleSearch::expand`]
//! takes what it waits for. So the same search serves a controller that knows all pods and an admission plugin that reads templates one namespace at a time.
//! It ends, since every workload is looked at once.

use std::collections::{BTreeMap, VecDeque};

use super::{EndpointState, NeedTarget};

/// A workload whose pods may wait for others.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkloadId {
    pub namespace: String,
    pub kind: String,
    pub name: String,
}

impl NeedTarget {
    /// Whether pods that need this wait until others are ready. A pod that waits has its address, so needs of addresses make no cycle.
    pub fn waits_for_readiness(&self) -> bool {
        match self {
            Self::Service { state, .. } => *state == EndpointState::Ready,
            Self::Workload { .. } => true,
            Self::Object { .. } => false,
        }
    }
}

/// A breadth-first search from a workload back to itself.
pub struct CycleSearch {
    start: WorkloadId,
    came_from: BTreeMap<WorkloadId, WorkloadId>,
    queue: VecDeque<WorkloadId>,
}

impl CycleSearch {
    pub fn new(start: WorkloadId) -> Self {
        Self { queue: VecDeque::from([start.clone()]), came_from: BTreeMap::new(), start }
    }

    /// The next workload to look at; nothing if there is no cycle.
    pub fn next_workload(&mut self) -> Option<WorkloadId> {
        self.queue.pop_front()
    }

    /// Takes in what a workload waits for. The cycle as text if that closes it: `web → api → web`.
    pub fn expand(&mut self, workload: &WorkloadId, awaited: impl IntoIterator<Item = WorkloadId>) -> Option<String> {
        for next in awaited {
            if next == self.start {
                return Some(self.describe(workload));
            }
            if !self.came_from.contains_key(&next) {
                self.came_from.insert(next.clone(), workload.clone());
                self.queue.push_back(next);
            }
        }
        None
    }

    /// Namespaces are named if there are several.
    fn describe(&self, last: &WorkloadId) -> String {
        let mut members = vec![last];
        while let Some(before) =
            members.last().filter(|member| **member != &self.start).and_then(|member| self.came_from.get(*member))
        {
            members.push(before);
        }
        members.reverse();
        members.push(&self.start);
        let is_local = members.iter().all(|member| member.namespace == self.start.namespace);
        let name = |member: &WorkloadId| match is_local {
            true => member.name.clone(),
            false => format!("{}/{}", member.namespace, member.name),
        };
        members.into_iter().map(name).collect::<Vec<String>>().join(" → ")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn workload(name: &str) -> WorkloadId {
        let (namespace, name) = name.split_once('/').unwrap_or(("a", name));
        WorkloadId { namespace: namespace.to_owned(), kind: "Deployment".to_owned(), name: name.to_owned() }
    }

    /// The cycle from the first workload, by what each waits for.
    fn find(edges: &[(&str, &[&str])], start: &str) -> Option<String> {
        let mut search = CycleSearch::new(workload(start));
        while let Some(next) = search.next_workload() {
            let awaited = edges.iter().filter(|(from, _)| workload(from) == next).flat_map(|(_, to)| to.iter());
            if let Some(cycle) = search.expand(&next, awaited.map(|name| workload(name))) {
                return Some(cycle);
            }
        }
        None
    }

    #[test]
    fn the_shortest_cycle_is_named_from_where_it_was_asked() {
        let edges: [(&str, &[&str]); 4] =
            [("web", &["api", "db"]), ("api", &["db"]), ("db", &["web"]), ("other", &["web"])];
        assert_eq!(find(&edges, "web").as_deref(), Some("web → db → web"));
        assert_eq!(find(&edges, "api").as_deref(), Some("api → db → web → api"));
        assert_eq!(find(&edges, "other"), None, "what only waits for a cycle is no part of it");
        assert_eq!(find(&[("web", &["web"])], "web").as_deref(), Some("web → web"));
        let across: [(&str, &[&str]); 2] = [("web", &["b/api"]), ("b/api", &["web"])];
        assert_eq!(find(&across, "web").as_deref(), Some("a/web → b/api → a/web"));
    }

    proptest! {
        #[test]
        fn a_workload_is_in_a_cycle_exactly_if_it_can_reach_itself(edges in prop::collection::vec((0..6_usize, 0..6_usize), 0..12)) {
            let names = ["a", "b", "c", "d", "e", "f"];
            let mut reach = [[false; 6]; 6];
            let mut awaited: BTreeMap<usize, Vec<&str>> = BTreeMap::new();
            for (from, to) in edges {
                reach[from][to] = true;
                awaited.entry(from).or_default().push(names[to]);
            }
            for via in 0..6 {
                for from in 0..6 {
                    for to in 0..6 {
                        reach[from][to] |= reach[from][via] && reach[via][to];
                    }
                }
            }
            let edges: Vec<(&str, &[&str])> = awaited.iter().map(|(from, to)| (names[*from], to.as_slice())).collect();
            for node in 0..6 {
                prop_assert_eq!(find(&edges, names[node]).is_some(), reach[node][node]);
            }
        }
    }
}
