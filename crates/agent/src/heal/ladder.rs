//! The healing ladder: restart the container → recreate the pod on this node → have its owner create one elsewhere.
//!
//! Pure. A failure looks at what was tried within the policy's windows and takes the lowest rung that has not
//! been used up. Making the pod anew gives it its restarts back, so one incarnation's failures do not count
//! against the next; a long enough spell of health forgets everything.

use jiff::Timestamp;
use mainstay_api::heal::{DisplayDuration, Limit, Policy};
use serde::{Deserialize, Serialize};

use super::{Cause, Rung};

/// Older attempts than these decide nothing under any policy that is allowed.
const MAX_ATTEMPTS: usize = 64;

/// What has been tried for one pod since it was last well.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct History {
    /// Restarts in place of the current incarnation.
    #[serde(default)]
    pub restarts: Vec<Timestamp>,
    #[serde(default)]
    pub recreates: Vec<Timestamp>,
    /// Since when all is well, if it is.
    #[serde(default)]
    pub healthy_since: Option<Timestamp>,
}

/// A rung, and the words that go with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    pub rung: Rung,
    /// For the event: what is done, how much of it is left, and why.
    pub message: String,
}

/// What to do about one more failure.
pub fn step(
    policy: &Policy,
    history: &History,
    may_move: bool,
    container: &str,
    cause: &Cause,
    now: Timestamp,
) -> Step {
    let restarts = count_within(&history.restarts, policy.restarts, now);
    let recreates = count_within(&history.recreates, policy.recreate, now);
    let why = cause.to_string();
    if restarts.is_some() {
        // The same words each time, so that the events of a crash loop are one event with a count.
        let message = format!("Restarting container {container}: {why}");
        return Step { rung: Rung::Restart, message };
    }
    let exhausted = format!("container {container} {why}; restarting it did not help ({})", policy.restarts);
    let can_move = may_move && policy.may_move;
    match (recreates, policy.recreate) {
        (Some(used), limit) => {
            let message = format!("Recreating the pod on this machine ({}): {exhausted}", nth(used, limit));
            Step { rung: Rung::Recreate { why: exhausted }, message }
        }
        (None, _) if can_move => {
            let why = format!("{exhausted}, nor did recreating the pod ({})", policy.recreate);
            Step { message: format!("Moving the pod to another machine: {why}"), rung: Rung::Move { why } }
        }
        (None, Limit::Never) => {
            let message = format!("Restarting container {container} (there is no other remedy): {why}");
            Step { rung: Rung::Restart, message }
        }
        (None, Limit::Within { .. } | Limit::Unlimited) => {
            let message = format!("Recreating the pod on this machine (it cannot move): {exhausted}");
            Step { rung: Rung::Recreate { why: exhausted }, message }
        }
    }
}

impl History {
    /// Forgets what a long enough spell of health has made irrelevant.
    pub fn settle(&mut self, policy: &Policy, now: Timestamp) {
        if self.healthy_since.is_some_and(|since| elapsed(since, now) >= policy.reset) {
            self.restarts.clear();
            self.recreates.clear();
        }
    }

    pub fn well(&mut self, now: Timestamp) {
        self.healthy_since.get_or_insert(now);
    }

    pub fn record(&mut self, rung: &Rung, now: Timestamp) {
        self.healthy_since = None;
        match rung {
            Rung::Restart => push(&mut self.restarts, now),
            Rung::Recreate { .. } => {
                self.restarts.clear();
                push(&mut self.recreates, now);
            }
            Rung::Move { .. } => {}
        }
    }

    pub fn is_empty(&self) -> bool {
        self.restarts.is_empty() && self.recreates.is_empty()
    }
}

fn push(times: &mut Vec<Timestamp>, now: Timestamp) {
    if times.len() == MAX_ATTEMPTS {
        times.remove(0);
    }
    times.push(now);
}

/// How many were used, if there is one left.
fn count_within(times: &[Timestamp], limit: Limit, now: Timestamp) -> Option<usize> {
    match limit {
        Limit::Never => None,
        Limit::Unlimited => Some(times.len()),
        Limit::Within { times: most, window } => {
            let used = times.iter().filter(|at| elapsed(**at, now) < window).count();
            (used < (most as usize).min(MAX_ATTEMPTS)).then_some(used)
        }
    }
}

fn nth(used: usize, limit: Limit) -> String {
    match limit {
        Limit::Within { times, window } => format!("{} of {times} in {}", used + 1, DisplayDuration(window)),
        Limit::Unlimited | Limit::Never => format!("for the {}. time", used + 1),
    }
}

fn elapsed(since: Timestamp, now: Timestamp) -> std::time::Duration {
    std::time::Duration::try_from(now.duration_since(since)).unwrap_or_default()
}

impl std::fmt::Display for Cause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Crashed { exit_code } => write!(f, "ended with exit code {exit_code}"),
            Self::OutOfMemory => f.write_str("was killed for want of memory"),
            Self::Unhealthy { why } => write!(f, "was unhealthy: {why}"),
        }
    }
}

#[cfg(test)]
mod tests;
