//! Heartbeats of nodes: when each Lease was last seen renewed, and what missing heartbeats prove. Pure.
//!
//! If one node is silent while others are not, that node is in trouble. If all are silent it may as well be us, and
//! nothing is known of any of them. So a node's silence counts from its last heartbeat or, if that was later, from when
//! heartbeats of of_any began to arrive again: nodes that come back after such an outage are not judged by which of
//! them was first.

use std::collections::HashMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

/// A node without a heartbeat for this long may be gone.
pub const GRACE: SignedDuration = SignedDuration::from_secs(40);
/// If all are silent for this long, no heartbeats arrive at all. Two periods: by when the first of those that fell
/// silent together is overdue, the last of them has been silent for longer.
const ALL_SILENT: SignedDuration = SignedDuration::from_secs(20);

#[derive(Default)]
pub struct Heartbeats {
    renewals: HashMap<String, Renewal>,
    arrivals: Option<Arrivals>,
}

/// The last renewal by the clock of the node, and when we saw it by ours.
struct Renewal {
    renewed: Option<MicroTime>,
    seen: Timestamp,
}

/// Since when heartbeats of any node arrive without a break, and when the last of them did.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Arrivals {
    since: Timestamp,
    last: Timestamp,
}

/// The last heartbeat of one node, and of any.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeHeartbeat {
    at: Timestamp,
    of_any: Option<Arrivals>,
}

impl Heartbeats {
    /// Takes in a renewal. Says whether it ends an outage of all nodes: then every silence has to be judged anew.
    pub fn renew(&mut self, name: &str, renewed: Option<MicroTime>, now: Timestamp) -> bool {
        if self.renewals.get(name).is_some_and(|known| known.renewed == renewed) {
            return false;
        }
        self.renewals.insert(name.to_owned(), Renewal { renewed, seen: now });
        let unbroken = self.arrivals.filter(|arrivals| !are_all_silent(arrivals, now));
        self.arrivals = Some(Arrivals { since: unbroken.map_or(now, |arrivals| arrivals.since), last: now });
        unbroken.is_none()
    }

    /// The last heartbeat of a node; now, if it is not known yet.
    pub fn last_heartbeat(&mut self, name: &str, now: Timestamp) -> NodeHeartbeat {
        let beat = self.renewals.entry(name.to_owned()).or_insert_with(|| Renewal { renewed: None, seen: now });
        NodeHeartbeat { at: beat.seen, of_any: self.arrivals }
    }

    pub fn forget(&mut self, name: &str) {
        self.renewals.remove(name);
    }

    pub fn names(&self) -> impl Iterator<Item = &String> {
        self.renewals.keys()
    }
}

fn are_all_silent(arrivals: &Arrivals, now: Timestamp) -> bool {
    now >= arrivals.last + ALL_SILENT
}

impl NodeHeartbeat {
    /// From when the node is silent.
    pub fn silent_at(&self) -> Timestamp {
        self.at + GRACE
    }

    /// From when its silence proves that the node is lost; nothing while all are silent.
    pub fn lost_at(&self, now: Timestamp) -> Option<Timestamp> {
        let arrivals = self.of_any.filter(|arrivals| !are_all_silent(arrivals, now))?;
        Some(arrivals.since.max(self.at) + GRACE)
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// Of a node and of any: when the last heartbeat was, the latter since when.
    pub fn heartbeat(own: i64, since: i64, last: i64) -> NodeHeartbeat {
        NodeHeartbeat { at: at(own), of_any: Some(Arrivals { since: at(since), last: at(last) }) }
    }

    fn beats(heartbeats: &mut Heartbeats, name: &str, seconds: impl IntoIterator<Item = i64>) -> Vec<bool> {
        seconds.into_iter().map(|second| heartbeats.renew(name, Some(MicroTime(at(second))), at(second))).collect()
    }

    /// Whether the silence of a node proves something at this second.
    fn is_lost(heartbeats: &mut Heartbeats, name: &str, second: i64) -> bool {
        heartbeats.last_heartbeat(name, at(second)).lost_at(at(second)).is_some_and(|lost_at| lost_at <= at(second))
    }

    #[test]
    fn a_node_is_lost_if_another_has_heartbeats_meanwhile() {
        let mut heartbeats = Heartbeats::default();
        beats(&mut heartbeats, "a", [0]);
        beats(&mut heartbeats, "b", (0..=40).step_by(10));
        assert!(!is_lost(&mut heartbeats, "a", 39) && is_lost(&mut heartbeats, "a", 40));
        assert!(!is_lost(&mut heartbeats, "b", 40));
    }

    #[test]
    fn no_node_is_lost_if_all_fall_silent_at_once() {
        for later in 0..=10 {
            let mut heartbeats = Heartbeats::default();
            beats(&mut heartbeats, "a", [0]);
            beats(&mut heartbeats, "b", [later]);
            for second in 0..200 {
                assert!(
                    !is_lost(&mut heartbeats, "a", second) && !is_lost(&mut heartbeats, "b", second),
                    "{later} {second}"
                );
            }
        }
    }

    #[test]
    fn the_only_node_is_never_lost() {
        let mut heartbeats = Heartbeats::default();
        beats(&mut heartbeats, "a", [0, 10]);
        assert!((10..500).all(|second| !is_lost(&mut heartbeats, "a", second)));
    }

    #[test]
    fn after_an_outage_of_all_nodes_silence_counts_anew() {
        let mut heartbeats = Heartbeats::default();
        assert_eq!(beats(&mut heartbeats, "a", [0, 10]), [true, false]);
        assert_eq!(beats(&mut heartbeats, "b", [5]), [false]);
        assert_eq!(beats(&mut heartbeats, "a", (100..=140).step_by(10)), [true, false, false, false, false]);
        assert!(!is_lost(&mut heartbeats, "b", 139), "it has had no time to come back");
        assert!(is_lost(&mut heartbeats, "b", 140));
    }

    #[test]
    fn a_lease_that_was_not_renewed_is_no_heartbeat() {
        let mut heartbeats = Heartbeats::default();
        let lease = Some(MicroTime(at(0)));
        assert!(heartbeats.renew("a", lease.clone(), at(0)));
        assert!(!heartbeats.renew("a", lease, at(100)));
        assert_eq!(heartbeats.last_heartbeat("a", at(100)), heartbeat(0, 0, 0));
    }
}
