//! Whether to take a lease, renew it, wait for it or give up. Pure.

use std::time::{Duration, Instant};

/// The lease as it was last read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Nobody if it was given back.
    pub holder: String,
    pub duration: Duration,
    /// The version it had.
    pub version: String,
    /// Since when, by our clock, it has had this version.
    pub since: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// There is no such lease: make it.
    Create,
    /// It is ours, free or abandoned: write our name into it, if it still has that version.
    Take,
    /// Another holds it; look again then, or when it changes.
    Wait(Instant),
}

pub fn step(seen: Option<&Seen>, own: &str, now: Instant) -> Step {
    let Some(seen) = seen else { return Step::Create };
    let abandoned = seen.since + seen.duration;
    if seen.holder == own || seen.holder.is_empty() || abandoned <= now { Step::Take } else { Step::Wait(abandoned) }
}

/// Takes in what was read: the clock of a lease starts anew only when it changed.
pub fn observe(before: Option<Seen>, mut read: Seen) -> Seen {
    if let Some(before) = before.filter(|before| before.version == read.version) {
        read.since = before.since;
    }
    read
}

/// When who leads has to have stopped, if it last renewed at `renewed`: a third of the time is kept for stopping.
pub fn give_up(renewed: Instant, duration: Duration) -> Instant {
    renewed + duration * 2 / 3
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIME: Duration = Duration::from_secs(6);

    fn held(holder: &str, version: &str, since: Instant) -> Seen {
        Seen { holder: holder.to_owned(), duration: TIME, version: version.to_owned(), since }
    }

    #[test]
    fn a_lease_is_taken_when_it_is_missing_ours_free_or_abandoned() {
        let now = Instant::now();
        assert_eq!(step(None, "me", now), Step::Create);
        assert_eq!(step(Some(&held("me", "1", now)), "me", now), Step::Take);
        assert_eq!(step(Some(&held("", "1", now)), "me", now), Step::Take);
        let others = held("other", "1", now);
        assert_eq!(step(Some(&others), "me", now), Step::Wait(now + TIME));
        assert_eq!(step(Some(&others), "me", now + TIME), Step::Take);
    }

    #[test]
    fn only_a_change_starts_the_clock_anew() {
        let now = Instant::now();
        let first = observe(None, held("other", "1", now));
        let same = observe(Some(first.clone()), held("other", "1", now + TIME));
        assert_eq!(same.since, now);
        assert_eq!(observe(Some(same), held("other", "2", now + TIME)).since, now + TIME);
    }

    #[test]
    fn who_leads_stops_before_another_may_begin() {
        let now = Instant::now();
        let renewed = held("me", "1", now);
        assert!(give_up(now, TIME) < renewed.since + renewed.duration);
        assert_eq!(step(Some(&renewed), "other", give_up(now, TIME)), Step::Wait(now + TIME));
    }
}
