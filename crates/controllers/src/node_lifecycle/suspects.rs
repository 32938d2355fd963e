//! Which suspect nodes are tainted: never more than a quarter of all, so that a fault of the pods themselves, which shows
//! everywhere, does not close the cluster. Pure.

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Node, NodeCondition},
    apimachinery::pkg::apis::meta::v1::Time,
};

/// The condition in which a node says that pods of several owners keep failing on it, and the taint that follows.
pub const SUSPECT_CONDITION: &str = "Suspect";
pub const SUSPECT_TAINT: &str = mainstay_api::wellknown::taint::SUSPECT;
/// One of so many nodes.
const SHARE: usize = 4;

/// A suspect node, ordered by how long it has been one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Suspect {
    since: Option<Timestamp>,
    name: String,
}

impl Suspect {
    pub fn from_node(node: &Node) -> Option<Self> {
        let condition = suspicion(node)?;
        let since = condition.last_transition_time.as_ref().map(|Time(at)| *at);
        Some(Self { since, name: node.metadata.name.clone()? })
    }
}

/// The condition, if it holds.
pub fn suspicion(node: &Node) -> Option<&NodeCondition> {
    let mut conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.find(|condition| condition.type_ == SUSPECT_CONDITION && condition.status == "True")
}

/// Whether this node is one of those that are tainted: the first that became suspect, up to the share of all nodes.
pub fn is_tainted(name: &str, mut suspects: Vec<Suspect>, nodes: usize) -> bool {
    suspects.sort();
    suspects.iter().take(nodes / SHARE).any(|suspect| suspect.name == name)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn suspect(name: &str, second: i64) -> Suspect {
        let node = json!({ "metadata": { "name": name }, "status": { "conditions": [{
            "type": "Suspect", "status": "True", "lastTransitionTime": Time(Timestamp::from_second(second).unwrap()),
        }] } });
        Suspect::from_node(&serde_json::from_value(node).unwrap()).unwrap()
    }

    #[test]
    fn at_most_a_quarter_of_the_nodes_is_tainted_the_longest_suspects_first() {
        let suspects = || vec![suspect("c", 30), suspect("b", 10), suspect("a", 20)];
        let tainted = |nodes| ["a", "b", "c"].map(|name| is_tainted(name, suspects(), nodes));
        assert_eq!(tainted(3), [false, false, false]);
        assert_eq!(tainted(7), [false, true, false]);
        assert_eq!(tainted(8), [true, true, false]);
        assert_eq!(tainted(100), [true, true, true]);
        assert!(!is_tainted("d", suspects(), 100), "it is not suspect");
    }

    #[test]
    fn a_node_that_recovered_is_not_suspect() {
        let node = json!({ "metadata": { "name": "a" }, "status": { "conditions": [
            { "type": "Suspect", "status": "False" },
        ] } });
        assert_eq!(Suspect::from_node(&serde_json::from_value(node).unwrap()), None);
    }
}
