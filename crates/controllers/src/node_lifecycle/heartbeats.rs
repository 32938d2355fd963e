//! Heartbeats of nodes: when each Lease was last seen renewed, and what missing heartbeats prove. Pure.
//!
//! A status that a node posts is no heartbeat: the Lease alone decides who is lost. But it may be seen before the renewal that was sent
//! with it, so it is known how old it is.
//!
//! If one node is silent while others are not, that node is in trouble. If all are silent it may as well be us, and
//! nothing is known of any of them. So a node's silence counts from its last heartbeat or, if that was later, from when
//! heartbeats of any began to arrive again: nodes that come back after such an outage are not judged by which of
//! them was first. If most nodes fell silent together, it is rather the network than all of them ([`MassOutage`]).
//!
//! A renewal is known by its change, never by the clock of the node; when it was seen is boot time, which neither jumps
//! nor stops while this machine sleeps. Who starts knows nothing: its first look at a Lease is that node's first heartbeat.

use std::{collections::HashMap, time::Duration};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use mainstay_api::node_loss::Timing;

/// Time since this machine booted.
pub type BootTime = Duration;

/// Nodes whose last heartbeats are not further apart than so many times [`Timing::unknown_after`] fell silent together.
const TOGETHER: u32 = 4;

pub struct Heartbeats {
    timing: Timing,
    renewals: HashMap<String, Renewal>,
    arrivals: Option<Arrivals>,
}

/// The last renewal by the clock of the node, and when we saw it by ours.
struct Renewal {
    renewed: Option<MicroTime>,
    seen: BootTime,
    /// Since when there was no gap of [`Timing::witness_gap`] between two of them.
    heard_since: BootTime,
    /// Not the first that we saw.
    is_second: bool,
    /// When its status was last seen posted.
    status_posted: Option<BootTime>,
}

/// Since when heartbeats of any node arrive without a break, and when the last of them did.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Arrivals {
    since: BootTime,
    last: BootTime,
}

/// How long a node is silent, and what that proves.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeHeartbeat {
    /// Since its last heartbeat.
    pub silent_for: Duration,
    /// If it was posted after the last heartbeat.
    pub status_posted_ago: Option<Duration>,
    /// The same or less: since heartbeats of any node arrive.
    pub silent_while_others_are_heard: Option<Duration>,
    /// A second heartbeat followed the first that we saw, which may have been an old one.
    pub was_heard: bool,
    pub mass_outage: Option<MassOutage>,
}

/// Most nodes fell silent together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MassOutage {
    pub silent: usize,
    /// Those that were there before.
    pub of: usize,
}

impl Heartbeats {
    pub fn new(timing: Timing) -> Self {
        Self { timing, renewals: HashMap::new(), arrivals: None }
    }

    /// Takes in a renewal. Says whether it ends an outage of all nodes: then every silence has to be judged anew.
    pub fn renew(&mut self, name: &str, renewed: Option<MicroTime>, now: BootTime) -> bool {
        let known = self.renewals.get(name);
        if known.is_some_and(|known| known.renewed == renewed) {
            return false;
        }
        let unbroken = known.filter(|known| {
            now.saturating_sub(known.seen) < self.timing.witness_gap()
                && was_sent_within(self.timing.witness_silence(), known.renewed.as_ref(), renewed.as_ref())
        });
        let heard_since = unbroken.map_or(now, |known| known.heard_since);
        let is_second = known.is_some_and(|known| known.renewed.is_some());
        let status_posted = known.and_then(|known| known.status_posted);
        let renewal = Renewal { renewed, seen: now, heard_since, is_second, status_posted };
        self.renewals.insert(name.to_owned(), renewal);
        let unbroken = self.arrivals.filter(|arrivals| !self.are_all_silent(arrivals, now));
        self.arrivals = Some(Arrivals { since: unbroken.map_or(now, |arrivals| arrivals.since), last: now });
        unbroken.is_none()
    }

    /// Takes in that a node posted its status.
    pub fn status_posted(&mut self, name: &str, now: BootTime) {
        if let Some(renewal) = self.renewals.get_mut(name) {
            renewal.status_posted = Some(now);
        }
    }

    /// Of a node that was never seen, silence begins now.
    pub fn heartbeat(&mut self, name: &str, now: BootTime) -> NodeHeartbeat {
        let new = || Renewal { renewed: None, seen: now, heard_since: now, is_second: false, status_posted: None };
        let renewal = self.renewals.entry(name.to_owned()).or_insert_with(new);
        let (seen, was_heard) = (renewal.seen, renewal.is_second);
        let status_posted = renewal.status_posted.filter(|posted| *posted > seen);
        let arrivals = self.arrivals.filter(|arrivals| !self.are_all_silent(arrivals, now));
        let silent_for = now.saturating_sub(seen);
        NodeHeartbeat {
            silent_for,
            status_posted_ago: status_posted.map(|posted| now.saturating_sub(posted)),
            was_heard,
            silent_while_others_are_heard: arrivals.map(|arrivals| now.saturating_sub(arrivals.since.max(seen))),
            mass_outage: if silent_for < self.overdue_after() { None } else { self.mass_outage(seen, now) },
        }
    }

    /// Whether heartbeats of a node have arrived without a longer gap than this for so long.
    pub fn is_heard(&self, name: &str, longest_gap: Duration, for_time: Duration, now: BootTime) -> bool {
        let gap = longest_gap.min(self.timing.witness_gap());
        self.renewals.get(name).is_some_and(|renewal| {
            now.saturating_sub(renewal.seen) < gap && now.saturating_sub(renewal.heard_since) >= for_time
        })
    }

    pub fn forget(&mut self, name: &str) {
        self.renewals.remove(name);
    }

    pub fn names(&self) -> impl Iterator<Item = &String> {
        self.renewals.keys()
    }

    /// By when the first of those that fell silent together counts as silent, the last of them is overdue.
    fn overdue_after(&self) -> Duration {
        self.timing.heartbeat * 2
    }

    fn are_all_silent(&self, arrivals: &Arrivals, now: BootTime) -> bool {
        now.saturating_sub(arrivals.last) >= self.overdue_after()
    }

    /// Whether a node that was last heard at `seen` fell silent together with most of those that were there. A Node without a Lease never was.
    fn mass_outage(&self, seen: BootTime, now: BootTime) -> Option<MassOutage> {
        let window = self.timing.unknown_after * TOGETHER;
        let (mut silent, mut heard) = (0, 0);
        for renewal in self.renewals.values().filter(|renewal| renewal.renewed.is_some()) {
            if now.saturating_sub(renewal.seen) < self.overdue_after() {
                heard += 1;
            } else if renewal.seen.abs_diff(seen) <= window {
                silent += 1;
            }
        }
        (silent > 1 && silent > heard).then_some(MassOutage { silent, of: silent + heard })
    }
}

/// Whether a renewal was sent so soon after another, by the clock of the node: what we take in late looks closer together
/// than it was. A clock that was set may look like a gap, never hide one that we saw.
fn was_sent_within(time: Duration, before: Option<&MicroTime>, after: Option<&MicroTime>) -> bool {
    match (before, after) {
        (Some(MicroTime(before)), Some(MicroTime(after))) => after.duration_since(*before).unsigned_abs() < time,
        _ => true,
    }
}

#[cfg(test)]
pub mod tests {
    use jiff::Timestamp;
    use proptest::prelude::*;

    use super::*;

    fn seconds(second: u64) -> Duration {
        Duration::from_secs(second)
    }

    fn renewed_at(second: u64) -> Option<MicroTime> {
        Some(MicroTime(Timestamp::from_second(i64::try_from(second).unwrap()).unwrap()))
    }

    fn beats(heartbeats: &mut Heartbeats, name: &str, at: impl IntoIterator<Item = u64>) -> Vec<bool> {
        at.into_iter().map(|second| heartbeats.renew(name, renewed_at(second), seconds(second))).collect()
    }

    fn stock() -> Heartbeats {
        Heartbeats::new(Timing::default())
    }

    /// Heartbeats of several nodes in the order of time, each until it falls silent.
    fn several(until: &[(&str, u64)]) -> Heartbeats {
        let mut heartbeats = stock();
        for second in (0..=until.iter().map(|(_, last)| *last).max().unwrap_or(0)).step_by(2) {
            for (name, _) in until.iter().filter(|(_, last)| second <= *last) {
                beats(&mut heartbeats, name, [second]);
            }
        }
        heartbeats
    }

    /// Whether the silence of a node proves at this second that it is lost.
    fn is_lost(heartbeats: &mut Heartbeats, name: &str, second: u64) -> bool {
        let heartbeat = heartbeats.heartbeat(name, seconds(second));
        heartbeat.silent_while_others_are_heard.is_some_and(|silent| silent >= seconds(8))
            && heartbeat.mass_outage.is_none()
    }

    #[test]
    fn a_node_is_lost_if_another_has_heartbeats_meanwhile() {
        let mut heartbeats = several(&[("a", 0), ("b", 8)]);
        assert!(!is_lost(&mut heartbeats, "a", 7) && is_lost(&mut heartbeats, "a", 8));
        assert!(!is_lost(&mut heartbeats, "b", 8));
    }

    #[test]
    fn no_node_is_lost_if_all_fall_silent_at_once() {
        for later in 0..=2 {
            let mut heartbeats = stock();
            beats(&mut heartbeats, "a", [0]);
            beats(&mut heartbeats, "b", [later]);
            for second in 0..200 {
                let any = is_lost(&mut heartbeats, "a", second) || is_lost(&mut heartbeats, "b", second);
                assert!(!any, "{later} {second}");
            }
        }
    }

    #[test]
    fn the_only_node_is_never_lost() {
        let mut heartbeats = several(&[("a", 10)]);
        assert!((10..500).all(|second| !is_lost(&mut heartbeats, "a", second)));
    }

    #[test]
    fn after_an_outage_of_all_nodes_silence_counts_anew() {
        let mut heartbeats = several(&[("a", 10), ("b", 10), ("c", 10), ("d", 10)]);
        assert!(beats(&mut heartbeats, "a", [100]) == [true]);
        for second in (102..=108).step_by(2) {
            assert_eq!(beats(&mut heartbeats, "a", [second]), [false]);
            beats(&mut heartbeats, "c", [second]);
            beats(&mut heartbeats, "d", [second]);
        }
        assert!(!is_lost(&mut heartbeats, "b", 107), "it has had no time to come back");
        assert!(is_lost(&mut heartbeats, "b", 108));
    }

    #[test]
    fn if_most_nodes_fall_silent_together_none_of_them_is_lost_until_most_are_back() {
        let mut heartbeats = several(&[("a", 40), ("b", 20), ("c", 20), ("d", 18), ("e", 40)]);
        let outage = heartbeats.heartbeat("b", seconds(40)).mass_outage;
        assert_eq!(outage, Some(MassOutage { silent: 3, of: 5 }));
        assert!(!is_lost(&mut heartbeats, "d", 40));
        for second in (42..=60).step_by(2) {
            ["a", "c", "e"].iter().for_each(|name| drop(beats(&mut heartbeats, name, [second])));
        }
        assert!(is_lost(&mut heartbeats, "b", 60) && is_lost(&mut heartbeats, "d", 60));
    }

    #[test]
    fn nodes_that_fall_silent_one_after_another_are_lost_each() {
        let mut heartbeats = several(&[("a", 200), ("b", 200), ("c", 20), ("d", 100)]);
        assert!(is_lost(&mut heartbeats, "c", 200) && is_lost(&mut heartbeats, "d", 200));
        let mut last = several(&[("a", 300), ("b", 100), ("c", 200)]);
        assert!(is_lost(&mut last, "c", 300), "two of three are silent, but not together");
    }

    #[test]
    fn nodes_that_never_had_a_lease_are_no_outage() {
        let mut heartbeats = several(&[("a", 60), ("b", 60), ("c", 20)]);
        for made in 0..10 {
            heartbeats.heartbeat(&format!("made-by-hand-{made}"), seconds(20));
        }
        assert!(is_lost(&mut heartbeats, "c", 60));
        assert!(is_lost(&mut heartbeats, "made-by-hand-0", 60), "of which pods may be taken away as of any other");
    }

    #[test]
    fn one_of_two_nodes_may_be_lost() {
        assert!(is_lost(&mut several(&[("a", 40), ("b", 20)]), "b", 40));
    }

    #[test]
    fn a_lease_that_was_not_renewed_is_no_heartbeat() {
        let mut heartbeats = stock();
        assert!(heartbeats.renew("a", renewed_at(0), seconds(0)));
        assert!(!heartbeats.renew("a", renewed_at(0), seconds(100)));
        assert_eq!(heartbeats.heartbeat("a", seconds(100)).silent_for, seconds(100));
    }

    #[test]
    fn a_posted_status_is_known_until_the_next_renewal_and_is_no_heartbeat() {
        let mut heartbeats = several(&[("a", 10), ("b", 40)]);
        heartbeats.status_posted("a", seconds(40));
        let heartbeat = heartbeats.heartbeat("a", seconds(43));
        assert_eq!(heartbeat.status_posted_ago, Some(seconds(3)));
        assert_eq!(heartbeat.silent_for, seconds(33));
        beats(&mut heartbeats, "a", [50]);
        assert_eq!(heartbeats.heartbeat("a", seconds(52)).status_posted_ago, None);
    }

    #[test]
    fn a_node_is_heard_while_its_heartbeats_have_no_gap() {
        let mut heartbeats = several(&[("a", 20)]);
        let heard = |heartbeats: &Heartbeats, second: u64| {
            heartbeats.is_heard("a", seconds(60), Duration::from_millis(10_200), seconds(second))
        };
        assert!(heard(&heartbeats, 20) && heard(&heartbeats, 22));
        assert!(!heard(&heartbeats, 23), "a gap that has not ended yet");
        beats(&mut heartbeats, "a", [24, 26, 28]);
        assert!(!heard(&heartbeats, 28), "there was a gap of four seconds");
        beats(&mut heartbeats, "a", [30, 32, 34, 36]);
        assert!(heard(&heartbeats, 36));
        let mut late = several(&[("a", 20)]);
        late.renew("a", renewed_at(26), seconds(22));
        assert!(!heard(&late, 22), "by its own clock it was silent for six seconds");
        assert!(!heartbeats.is_heard("a", seconds(1), seconds(1), seconds(37)), "its own promise allows less");
        assert!(!heartbeats.is_heard("nobody", seconds(60), seconds(0), seconds(36)));
    }

    proptest! {
        /// Whatever the gaps: a node of which nothing arrived for `witness_gap` within the time is not heard.
        #[test]
        fn whoever_had_a_gap_is_not_heard(gaps in prop::collection::vec(500u64..6000, 1..30)) {
            let (timing, time) = (Timing::default(), Duration::from_millis(12_750));
            let mut heartbeats = stock();
            let (mut at, mut arrivals) = (Duration::from_secs(1), Vec::new());
            for (number, gap) in gaps.iter().enumerate() {
                at += Duration::from_millis(*gap);
                arrivals.push(at);
                heartbeats.renew("a", renewed_at(number as u64), at);
            }
            let now = at + Duration::from_secs(1);
            let mut recent: Vec<Duration> = arrivals.into_iter().filter(|at| now - *at < time).collect();
            recent.push(now);
            let longest = recent.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(time);
            if longest >= timing.witness_gap() {
                prop_assert!(!heartbeats.is_heard("a", time, time, now));
            }
        }
    }
}
