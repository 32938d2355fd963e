//! What only one pod of a set does at a time, as its annotation `mainstay.dev/exclusive` says.
//!
//! `drain` is the one value: while a pod of the set is being stopped (its `preStop` hooks and the grace period), no other pod of the set
//! begins to. The turn is a Lease in the namespace of the set, named after the uid of the controller of its pods.

/// On a pod.
pub const ANNOTATION: &str = "mainstay.dev/exclusive";
/// The value of [`ANNOTATION`]: only one pod of the set is being stopped at a time.
pub const DRAIN: &str = "drain";
/// On the Lease: the node whose pod has the turn.
pub const NODE_ANNOTATION: &str = "mainstay.dev/drain-node";
const LEASE_PREFIX: &str = "drain-";

/// The name of the Lease whose holder has the turn in a set.
pub fn lease_name(set: &str) -> String {
    format!("{LEASE_PREFIX}{set}")
}

/// The set in which a Lease of this name gives the turn.
pub fn lease_set(name: &str) -> Option<&str> {
    name.strip_prefix(LEASE_PREFIX).filter(|set| !set.is_empty())
}

pub fn validate(value: &str) -> Result<(), String> {
    if value == DRAIN { Ok(()) } else { Err(format!("must be {DRAIN:?}")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_names_its_set() {
        assert_eq!(lease_set(&lease_name("0a-1b")), Some("0a-1b"));
        for other in ["drain-", "drain", "heal-x-0", "x"] {
            assert_eq!(lease_set(other), None, "{other}");
        }
    }
}
