//! Each rule keeps pods away by itself, and says so in its own words.

use std::sync::Arc;

use serde_json::{Value, json};

use super::build::{asking, cluster, node, on, placed, pod, requests};
use crate::core::view::{NodeTerm, PodView, PortRanges, Requirement};

fn why(pod: PodView, more: Value) -> String {
    placed(&mut cluster([node("n1", more)]), pod)
}

#[test]
fn a_pod_goes_where_there_is_room() {
    let mut two = cluster([node("n1", json!({})), node("n2", json!({}))]);
    assert_eq!(placed(&mut two, asking("a", "3")), "n1");
    assert_eq!(placed(&mut two, asking("b", "3")), "n2");
    let said = placed(&mut two, asking("c", "3"));
    assert_eq!(
        said,
        "0/2 nodes are available: 2 Insufficient cpu. closest: n1 lacks 2 cpu; would fit when pods leave."
    );
}
