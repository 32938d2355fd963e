//! Chooses the witnesses of a node: few, stable, and spread over all nodes. Pure.

use std::collections::BTreeSet;

use mainstay_api::node_loss::MOST_WITNESSES;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Keeps those of `current` that are still candidates; others come by rendezvous hashing, so that every node is the witness of
/// about as many, and one that comes or goes changes few groups. Sorted.
pub fn choose<'a>(own: &str, current: &[String], candidates: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let candidates: BTreeSet<&str> = candidates.into_iter().filter(|name| *name != own).collect();
    let mut chosen: Vec<&str> = candidates.into_iter().collect();
    let seed = xxh3_64_with_seed(own.as_bytes(), 0);
    chosen.sort_by_key(|name| {
        (!current.iter().any(|kept| kept == name), std::cmp::Reverse(xxh3_64_with_seed(name.as_bytes(), seed)))
    });
    chosen.truncate(MOST_WITNESSES);
    chosen.sort_unstable();
    chosen.into_iter().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(count: usize) -> Vec<String> {
        (0..count).map(|index| format!("node-{index}")).collect()
    }

    #[test]
    fn a_node_has_up_to_four_witnesses_and_is_not_its_own() {
        let all = names(10);
        let chosen = choose("node-3", &[], all.iter().map(String::as_str));
        assert_eq!(chosen.len(), MOST_WITNESSES);
        assert!(chosen.is_sorted() && !chosen.contains(&"node-3".to_owned()));
        assert_eq!(choose("node-3", &[], ["node-3"]), Vec::<String>::new());
        assert_eq!(choose("a", &[], ["a", "b"]), ["b"]);
    }

    #[test]
    fn a_group_stays_when_nodes_come_and_changes_by_one_when_a_witness_goes() {
        let all = names(20);
        let before = choose("node-0", &[], all[..10].iter().map(String::as_str));
        assert_eq!(choose("node-0", &before, all.iter().map(String::as_str)), before);
        let gone = before[1].clone();
        let after = choose("node-0", &before, all.iter().map(String::as_str).filter(|name| *name != gone));
        assert_eq!(after.iter().filter(|name| before.contains(name)).count(), MOST_WITNESSES - 1);
    }

    #[test]
    fn all_nodes_are_witnesses_of_some() {
        let all = names(50);
        let mut served = BTreeSet::new();
        for own in &all {
            served.extend(choose(own, &[], all.iter().map(String::as_str)));
        }
        assert!(served.len() > 45, "{}", served.len());
    }
}
