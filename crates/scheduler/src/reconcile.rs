//! When all objects are listed again and compared with the cache. Pure: time is an argument.
//!
//! Watches report every change; this is for events they might have missed. *Implicit* runs are periodic, *explicit* ones are
//! requested. There is one at a time and a cooldown between two. A request while one is already requested is served by
//! that one. An explicit request aborts an implicit run; an implicit one never aborts an explicit run.

use std::time::{Duration, Instant};

use mainstay_backoff::Backoff;

use crate::{metrics::ReconcileKind, settings::ReconcileSettings};

/// After the first run that was aborted. Without jitter: only the leader runs it.
const FIRST_BACKOFF: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug)]
struct RunningReconcile {
    kind: ReconcileKind,
    since: Instant,
}

pub struct Reconciler {
    times: ReconcileSettings,
    running: Option<RunningReconcile>,
    /// An explicit run was requested and has not started.
    explicit_requested: bool,
    implicit_at: Instant,
    /// No run starts before this.
    pause_until: Instant,
    failures: u32,
}

/// What is to be done now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReconcileStep {
    Start(ReconcileKind),
    /// The run under way takes too long, or an explicit one was requested.
    Abort(ReconcileKind),
}

impl Reconciler {
    pub fn new(times: ReconcileSettings, now: Instant) -> Self {
        Self {
            times,
            running: None,
            explicit_requested: false,
            implicit_at: now + times.first,
            pause_until: now,
            failures: 0,
        }
    }

    /// Requests a run. Returns false if one that is already requested serves it.
    pub fn request(&mut self, kind: ReconcileKind, now: Instant) -> bool {
        match kind {
            ReconcileKind::Explicit => !std::mem::replace(&mut self.explicit_requested, true),
            ReconcileKind::Implicit => {
                let busy = self.explicit_requested || self.running.is_some() || self.implicit_at <= now;
                self.implicit_at = self.implicit_at.min(now);
                !busy
            }
        }
    }

    /// The next step at `now`, until there is none.
    pub fn next_step(&mut self, now: Instant) -> Option<ReconcileStep> {
        if let Some(running) = self.running {
            let is_preempted = running.kind == ReconcileKind::Implicit && self.explicit_requested;
            let late = now >= running.since + self.times.abort;
            if !is_preempted && !late {
                return None;
            }
            self.running = None;
            if late {
                self.back_off(running.kind, now);
            }
            return Some(ReconcileStep::Abort(running.kind));
        }
        if now < self.pause_until {
            return None;
        }
        let kind = match (std::mem::take(&mut self.explicit_requested), self.implicit_at <= now) {
            (true, _) => ReconcileKind::Explicit,
            (false, true) => ReconcileKind::Implicit,
            (false, false) => return None,
        };
        self.running = Some(RunningReconcile { kind, since: now });
        self.implicit_at = now + self.times.every;
        Some(ReconcileStep::Start(kind))
    }

    /// The run under way is done; returns its kind and how long it took.
    pub fn finish(&mut self, now: Instant) -> Option<(ReconcileKind, Duration)> {
        let running = self.running.take()?;
        (self.failures, self.pause_until) = (0, now + self.times.cooldown);
        Some((running.kind, now.saturating_duration_since(running.since)))
    }

    /// When to ask for the next step.
    pub fn next_deadline(&self) -> Instant {
        if let Some(running) = self.running {
            return if self.explicit_requested && running.kind == ReconcileKind::Implicit {
                running.since
            } else {
                running.since + self.times.abort
            };
        }
        if self.explicit_requested { self.pause_until } else { self.implicit_at.max(self.pause_until) }
    }

    fn back_off(&mut self, kind: ReconcileKind, now: Instant) {
        let pause = Backoff::new(FIRST_BACKOFF, self.times.longest_backoff, 0.0).delay(self.failures + 1, 0.0);
        self.failures = self.failures.saturating_add(1);
        self.pause_until = now + pause;
        match kind {
            ReconcileKind::Explicit => self.explicit_requested = true,
            ReconcileKind::Implicit => self.implicit_at = now,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn reconciler() -> (Reconciler, Instant) {
        let now = Instant::now();
        (Reconciler::new(ReconcileSettings::default(), now), now)
    }

    #[test]
    fn implicit_runs_are_periodic() {
        let (mut reconciler, start) = reconciler();
        assert_eq!((reconciler.next_step(start), reconciler.next_deadline()), (None, start + 15 * SECOND));
        let first = start + 15 * SECOND;
        assert_eq!(reconciler.next_step(first), Some(ReconcileStep::Start(ReconcileKind::Implicit)));
        assert_eq!(reconciler.next_step(first), None, "one at a time");
        assert_eq!(reconciler.finish(first + SECOND), Some((ReconcileKind::Implicit, SECOND)));
        assert_eq!(reconciler.next_deadline(), first + 300 * SECOND);
        assert_eq!(reconciler.finish(first + SECOND), None);
    }

    #[test]
    fn requests_while_one_is_requested_are_served_by_that_one_after_the_cooldown() {
        let (mut reconciler, start) = reconciler();
        assert!(reconciler.request(ReconcileKind::Explicit, start));
        assert!(!reconciler.request(ReconcileKind::Explicit, start));
        assert_eq!(reconciler.next_step(start), Some(ReconcileStep::Start(ReconcileKind::Explicit)));
        assert!(!reconciler.request(ReconcileKind::Implicit, start), "skipped while an explicit one runs");
        reconciler.finish(start + SECOND);
        assert!(reconciler.request(ReconcileKind::Explicit, start + 2 * SECOND));
        assert_eq!(
            (reconciler.next_step(start + 2 * SECOND), reconciler.next_deadline()),
            (None, start + 16 * SECOND),
            "there is a cooldown"
        );
        assert_eq!(reconciler.next_step(start + 16 * SECOND), Some(ReconcileStep::Start(ReconcileKind::Explicit)));
    }

    #[test]
    fn an_explicit_request_aborts_an_implicit_run() {
        let (mut reconciler, start) = reconciler();
        assert!(reconciler.request(ReconcileKind::Implicit, start));
        assert_eq!(reconciler.next_step(start), Some(ReconcileStep::Start(ReconcileKind::Implicit)));
        reconciler.request(ReconcileKind::Explicit, start + SECOND);
        assert!(reconciler.next_deadline() <= start + SECOND);
        assert_eq!(reconciler.next_step(start + SECOND), Some(ReconcileStep::Abort(ReconcileKind::Implicit)));
        assert_eq!(reconciler.next_step(start + SECOND), Some(ReconcileStep::Start(ReconcileKind::Explicit)));
    }

    #[test]
    fn a_run_that_takes_too_long_is_aborted_and_retried_with_backoff() {
        let (mut reconciler, start) = reconciler();
        reconciler.request(ReconcileKind::Explicit, start);
        let mut now = start;
        let mut pauses = vec![];
        for _ in 0..10 {
            assert_eq!(reconciler.next_step(now), Some(ReconcileStep::Start(ReconcileKind::Explicit)));
            assert_eq!(reconciler.next_deadline(), now + 30 * SECOND);
            now += 30 * SECOND;
            assert_eq!(reconciler.next_step(now), Some(ReconcileStep::Abort(ReconcileKind::Explicit)));
            pauses.push((reconciler.next_deadline() - now).as_secs());
            now = reconciler.next_deadline();
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 120, 120, 120]);
    }
}
