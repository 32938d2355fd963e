//! When machines were last heard of, and what their silence proves. Pure.
//!
//! If one machine is silent while others are heard of, it is the one in trouble. If nobody is heard of, it may as well
//! be us, and nothing is known of anybody. So a machine's silence counts from when it was last heard of or, if that was
//! later, from when we began to hear anybody again: those who come back after such a time are not judged by
//! who of them was first.

use std::collections::HashMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

/// A machine not heard of for this long may be gone.
pub const GRACE: SignedDuration = SignedDuration::from_secs(40);
/// If all are silent for this long, nobody is heard of. Two beats: by when the first of those who fell silent
/// together is out of patience, the last of them has been silent for longer.
const DEAF: SignedDuration = SignedDuration::from_secs(20);

#[derive(Default)]
pub struct Hearing {
    beats: HashMap<String, Beat>,
    times: Option<Times>,
}

/// The last renewal, in the machine's time, and when we saw it, in ours.
struct Beat {
    renewed: Option<MicroTime>,
    seen: Timestamp,
}

/// Since when somebody was heard of without a break, and when somebody was for the last time.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Times {
    since: Timestamp,
    last: Timestamp,
}

/// What was heard of one machine, and of all.
#[derive(Clone, Debug, PartialEq)]
pub struct Heard {
    at: Timestamp,
    anybody: Option<Times>,
}

impl Hearing {
    /// Takes in a heartbeat. Says whether it ends a time in which nobody was heard of: then all silence is to be judged anew.
    pub fn beat(&mut self, name: &str, renewed: Option<MicroTime>, now: Timestamp) -> bool {
        if self.beats.get(name).is_some_and(|known| known.renewed == renewed) {
            return false;
        }
        self.beats.insert(name.to_owned(), Beat { renewed, seen: now });
        let unbroken = self.times.filter(|times| !is_deaf(times, now));
        self.times = Some(Times { since: unbroken.map_or(now, |times| times.since), last: now });
        unbroken.is_none()
    }

    /// What was heard of a machine; as of now, if we do not know it yet.
    pub fn of(&mut self, name: &str, now: Timestamp) -> Heard {
        let beat = self.beats.entry(name.to_owned()).or_insert_with(|| Beat { renewed: None, seen: now });
        Heard { at: beat.seen, anybody: self.times }
    }

    pub fn forget(&mut self, name: &str) {
        self.beats.remove(name);
    }

    pub fn names(&self) -> impl Iterator<Item = &String> {
        self.beats.keys()
    }
}

fn is_deaf(times: &Times, now: Timestamp) -> bool {
    now >= times.last + DEAF
}

impl Heard {
    /// From when the machine is silent.
    pub fn silent_at(&self) -> Timestamp {
        self.at + GRACE
    }

    /// From when its silence proves that the machine is lost; nothing while nobody is heard of.
    pub fn lost_at(&self, now: Timestamp) -> Option<Timestamp> {
        let times = self.anybody.filter(|times| !is_deaf(times, now))?;
        Some(times.since.max(self.at) + GRACE)
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// Of a machine and of anybody: when each was last heard, the latter since when.
    pub fn heard(own: i64, since: i64, last: i64) -> Heard {
        Heard { at: at(own), anybody: Some(Times { since: at(since), last: at(last) }) }
    }

    fn beats(hearing: &mut Hearing, name: &str, seconds: impl IntoIterator<Item = i64>) -> Vec<bool> {
        seconds.into_iter().map(|second| hearing.beat(name, Some(MicroTime(at(second))), at(second))).collect()
    }

    /// Whether a machine's silence proves something at this second.
    fn is_lost(hearing: &mut Hearing, name: &str, second: i64) -> bool {
        hearing.of(name, at(second)).lost_at(at(second)).is_some_and(|lost_at| lost_at <= at(second))
    }

    #[test]
    fn a_machine_is_lost_if_another_is_heard_of_meanwhile() {
        let mut hearing = Hearing::default();
        beats(&mut hearing, "a", [0]);
        beats(&mut hearing, "b", (0..=40).step_by(10));
        assert!(!is_lost(&mut hearing, "a", 39) && is_lost(&mut hearing, "a", 40));
        assert!(!is_lost(&mut hearing, "b", 40));
    }

    #[test]
    fn nobody_is_lost_if_all_fall_silent_at_once_wherever_in_their_beat_they_were() {
        for later in 0..=10 {
            let mut hearing = Hearing::default();
            beats(&mut hearing, "a", [0]);
            beats(&mut hearing, "b", [later]);
            for second in 0..200 {
                assert!(!is_lost(&mut hearing, "a", second) && !is_lost(&mut hearing, "b", second), "{later} {second}");
            }
        }
    }

    #[test]
    fn the_only_machine_is_never_lost() {
        let mut hearing = Hearing::default();
        beats(&mut hearing, "a", [0, 10]);
        assert!((10..500).all(|second| !is_lost(&mut hearing, "a", second)));
    }

    #[test]
    fn after_a_time_without_anybody_silence_counts_anew() {
        let mut hearing = Hearing::default();
        assert_eq!(beats(&mut hearing, "a", [0, 10]), [true, false]);
        assert_eq!(beats(&mut hearing, "b", [5]), [false]);
        assert_eq!(beats(&mut hearing, "a", (100..=140).step_by(10)), [true, false, false, false, false]);
        assert!(!is_lost(&mut hearing, "b", 139), "it has had no time to come back");
        assert!(is_lost(&mut hearing, "b", 140));
    }

    #[test]
    fn a_lease_that_is_told_of_again_is_no_beat() {
        let mut hearing = Hearing::default();
        let lease = Some(MicroTime(at(0)));
        assert!(hearing.beat("a", lease.clone(), at(0)));
        assert!(!hearing.beat("a", lease, at(100)));
        assert_eq!(hearing.of("a", at(100)), heard(0, 0, 0));
    }
}
