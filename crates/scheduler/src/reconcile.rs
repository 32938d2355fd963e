//! When everything is listed again and compared with what is known. Pure: time comes in as an argument.
//!
//! Watches tell of every change; this is for what they might have missed. *Implicit* comparisons come by themselves,
//! every so often; *explicit* ones are asked for. There is one at a time and a pause between two. Whoever asks while
//! one is wanted already is served by that one. One that is asked for takes the place of one that came by itself; one
//! that came by itself never takes the place of one that was asked for.

use std::time::{Duration, Instant};

use crate::{metrics::Kind, settings::Reconcile};

/// Back-off after the first comparison that failed.
const FIRST_BACKOFF: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug)]
struct Running {
    kind: Kind,
    since: Instant,
}

pub struct Reconciler {
    times: Reconcile,
    running: Option<Running>,
    /// One that was asked for and has not begun.
    wanted: bool,
    implicit_at: Instant,
    /// Not before this.
    pause_until: Instant,
    failures: u32,
}

/// What is to happen now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    Begin(Kind),
    /// The one under way takes too long, or makes way.
    Abort(Kind),
}

impl Reconciler {
    pub fn new(times: Reconcile, now: Instant) -> Self {
        Self { times, running: None, wanted: false, implicit_at: now + times.first, pause_until: now, failures: 0 }
    }

    /// Somebody asks for one. False if one that is wanted already will do.
    pub fn request(&mut self, kind: Kind, now: Instant) -> bool {
        match kind {
            Kind::Explicit => !std::mem::replace(&mut self.wanted, true),
            Kind::Implicit => {
                let busy = self.wanted || self.running.is_some() || self.implicit_at <= now;
                self.implicit_at = self.implicit_at.min(now);
                !busy
            }
        }
    }

    /// What is to happen at `now`, one thing at a time until there is nothing.
    pub fn turn(&mut self, now: Instant) -> Option<Turn> {
        if let Some(running) = self.running {
            let makes_way = running.kind == Kind::Implicit && self.wanted;
            let late = now >= running.since + self.times.abort;
            if !makes_way && !late {
                return None;
            }
            self.running = None;
            if late {
                self.failed(running.kind, now);
            }
            return Some(Turn::Abort(running.kind));
        }
        if now < self.pause_until {
            return None;
        }
        let kind = match (std::mem::take(&mut self.wanted), self.implicit_at <= now) {
            (true, _) => Kind::Explicit,
            (false, true) => Kind::Implicit,
            (false, false) => return None,
        };
        self.running = Some(Running { kind, since: now });
        self.implicit_at = now + self.times.every;
        Some(Turn::Begin(kind))
    }

    /// The one under way is done; says which it was and how long it took.
    pub fn done(&mut self, now: Instant) -> Option<(Kind, Duration)> {
        let running = self.running.take()?;
        (self.failures, self.pause_until) = (0, now + self.times.cooldown);
        Some((running.kind, now.saturating_duration_since(running.since)))
    }

    /// When to ask for the next turn.
    pub fn next(&self) -> Instant {
        if let Some(running) = self.running {
            return if self.wanted && running.kind == Kind::Implicit {
                running.since
            } else {
                running.since + self.times.abort
            };
        }
        if self.wanted { self.pause_until } else { self.implicit_at.max(self.pause_until) }
    }

    fn failed(&mut self, kind: Kind, now: Instant) {
        let doubled = 2u32.checked_pow(self.failures).and_then(|times| FIRST_BACKOFF.checked_mul(times));
        let pause = doubled.unwrap_or(self.times.longest_backoff).min(self.times.longest_backoff);
        self.failures = self.failures.saturating_add(1);
        self.pause_until = now + pause;
        match kind {
            Kind::Explicit => self.wanted = true,
            Kind::Implicit => self.implicit_at = now,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn reconciler() -> (Reconciler, Instant) {
        let now = Instant::now();
        (Reconciler::new(Reconcile::default(), now), now)
    }

    #[test]
    fn they_come_by_themselves_every_so_often() {
        let (mut all, start) = reconciler();
        assert_eq!((all.turn(start), all.next()), (None, start + 15 * SECOND));
        let first = start + 15 * SECOND;
        assert_eq!(all.turn(first), Some(Turn::Begin(Kind::Implicit)));
        assert_eq!(all.turn(first), None, "one at a time");
        assert_eq!(all.done(first + SECOND), Some((Kind::Implicit, SECOND)));
        assert_eq!(all.next(), first + 300 * SECOND);
        assert_eq!(all.done(first + SECOND), None);
    }

    #[test]
    fn who_asks_while_one_is_wanted_is_served_by_that_one_after_the_pause() {
        let (mut all, start) = reconciler();
        assert!(all.request(Kind::Explicit, start));
        assert!(!all.request(Kind::Explicit, start));
        assert_eq!(all.turn(start), Some(Turn::Begin(Kind::Explicit)));
        assert!(!all.request(Kind::Implicit, start), "skipped while one runs that was asked for");
        all.done(start + SECOND);
        assert!(all.request(Kind::Explicit, start + 2 * SECOND));
        assert_eq!((all.turn(start + 2 * SECOND), all.next()), (None, start + 16 * SECOND), "there is a pause");
        assert_eq!(all.turn(start + 16 * SECOND), Some(Turn::Begin(Kind::Explicit)));
    }

    #[test]
    fn what_came_by_itself_makes_way_for_what_is_asked_for() {
        let (mut all, start) = reconciler();
        assert!(all.request(Kind::Implicit, start));
        assert_eq!(all.turn(start), Some(Turn::Begin(Kind::Implicit)));
        all.request(Kind::Explicit, start + SECOND);
        assert!(all.next() <= start + SECOND);
        assert_eq!(all.turn(start + SECOND), Some(Turn::Abort(Kind::Implicit)));
        assert_eq!(all.turn(start + SECOND), Some(Turn::Begin(Kind::Explicit)));
    }

    #[test]
    fn one_that_takes_too_long_is_given_up_and_tried_again_ever_later() {
        let (mut all, start) = reconciler();
        all.request(Kind::Explicit, start);
        let mut now = start;
        let mut pauses = vec![];
        for _ in 0..10 {
            assert_eq!(all.turn(now), Some(Turn::Begin(Kind::Explicit)));
            assert_eq!(all.next(), now + 30 * SECOND);
            now += 30 * SECOND;
            assert_eq!(all.turn(now), Some(Turn::Abort(Kind::Explicit)));
            pauses.push((all.next() - now).as_secs());
            now = all.next();
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 120, 120, 120]);
    }
}
