//! How a pod is healed, as its annotation `mainstay.dev/heal` says.
//!
//! The value is a list of settings, each at most once: `restarts=5/10m, recreate=2/1h, move=on, budget=25%,
//! hold=15s, settle=2m, reset=10m`. What is left out is as in [`Policy::default`].
//!
//! | key | value | meaning |
//! |---|---|---|
//! | `restarts` | `<number>/<time>` or `unlimited` | so many restarts of a container in place within that time; the next failure goes up the ladder |
//! | `recreate` | `<number>/<time>`, `unlimited` or `off` | so many times within that time the pod is made anew on its machine |
//! | `move` | `on` or `off` | after that, the pod is deleted so that its owner makes another one elsewhere |
//! | `budget` | `<number>`, `<number>%` or `off` | how many pods of the set may be restarted for failed liveness at the same time; at least one. Left out: a PodDisruptionBudget's allowance where there is one, else 25% |
//! | `hold` | `<time>` | liveness has to fail for at least this long, however few attempts its threshold asks for |
//! | `settle` | `<time>` | how long a restarted pod may take to be ready before its place in the budget goes to another |
//! | `reset` | `<time>` | after so long in good health the ladder begins anew |
//!
//! A time is a duration of whole seconds such as `90s`, `10m` or `1h30m`.

use std::{fmt, time::Duration};

use crate::duration::parse_duration;

pub const ANNOTATION: &str = "mainstay.dev/heal";
/// On a Lease that is a place of a set's restart budget: the uid of the set's controller.
pub const SET_LABEL: &str = "mainstay.dev/heal-set";
/// On such a Lease: the node whose pod has the place.
pub const NODE_ANNOTATION: &str = "mainstay.dev/heal-node";
const LEASE_PREFIX: &str = "heal-";

const KEYS: &str = "restarts, recreate, move, budget, hold, settle, reset";
const LONGEST: Duration = Duration::from_secs(7 * 24 * 3600);

/// The name of the Lease that is the place with this number of a set's restart budget.
pub fn lease_name(set: &str, number: u32) -> String {
    format!("{LEASE_PREFIX}{set}-{number}")
}

/// The set to whose restart budget a Lease of this name belongs.
pub fn lease_set(name: &str) -> Option<&str> {
    let (set, number) = name.strip_prefix(LEASE_PREFIX)?.rsplit_once('-')?;
    (!set.is_empty() && number.parse::<u32>().is_ok_and(|parsed| parsed.to_string() == number)).then_some(set)
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    pub restarts: Limit,
    pub recreate: Limit,
    pub may_move: bool,
    pub budget: Budget,
    pub hold: Duration,
    pub settle: Duration,
    pub reset: Duration,
}

/// How often something may happen before it no longer helps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    Never,
    Within { times: u32, window: Duration },
    Unlimited,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Budget {
    /// The allowance of the set's PodDisruptionBudget, else 25 %.
    Stock,
    Count(u32),
    Percent(u32),
    /// Every pod is restarted whatever happens to the others.
    Off,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            restarts: Limit::Within { times: 5, window: Duration::from_secs(600) },
            recreate: Limit::Within { times: 2, window: Duration::from_secs(3600) },
            may_move: true,
            budget: Budget::Stock,
            hold: Duration::from_secs(15),
            settle: Duration::from_secs(120),
            reset: Duration::from_secs(600),
        }
    }
}

/// What is wrong with an annotation, and what would be right.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    #[error("{0:?} is not a setting: write key=value, with a key of {KEYS}")]
    NotASetting(String),
    #[error("there is no setting {0:?}: use one of {KEYS}")]
    UnknownKey(String),
    #[error("{0} is set twice")]
    Twice(&'static str),
    #[error("{key}={value} is not understood: {key} must be {right}")]
    Value { key: &'static str, value: String, right: &'static str },
}

impl Policy {
    pub fn parse(text: &str) -> Result<Self, PolicyError> {
        let mut policy = Self::default();
        let mut seen: Vec<&'static str> = Vec::new();
        for setting in text.split(',').map(str::trim).filter(|setting| !setting.is_empty()) {
            let (key, value) = setting.split_once('=').ok_or_else(|| PolicyError::NotASetting(setting.to_owned()))?;
            let key = policy.set(key.trim(), value.trim())?;
            if seen.contains(&key) {
                return Err(PolicyError::Twice(key));
            }
            seen.push(key);
        }
        Ok(policy)
    }

    /// Takes one setting, and says which it was.
    fn set(&mut self, key: &str, value: &str) -> Result<&'static str, PolicyError> {
        let wrong = |key, right| PolicyError::Value { key, value: value.to_owned(), right };
        const TIME: &str = "a time such as 30s, 10m or 1h, at most 168h";
        Ok(match key {
            "restarts" => {
                let right = "a number per time such as 5/10m, or unlimited";
                let limit = limit(value).filter(|limit| *limit != Limit::Never);
                self.restarts = limit.ok_or_else(|| wrong("restarts", right))?;
                "restarts"
            }
            "recreate" => {
                let right = "a number per time such as 2/1h, unlimited or off";
                self.recreate = limit(value).ok_or_else(|| wrong("recreate", right))?;
                "recreate"
            }
            "move" => {
                self.may_move = switch(value).ok_or_else(|| wrong("move", "on or off"))?;
                "move"
            }
            "budget" => {
                let right = "a number of at least 1, a percentage from 1% to 100%, or off";
                self.budget = budget(value).ok_or_else(|| wrong("budget", right))?;
                "budget"
            }
            "hold" => {
                self.hold = parse_time(value).ok_or_else(|| wrong("hold", TIME))?;
                "hold"
            }
            "settle" => {
                self.settle = parse_time(value).ok_or_else(|| wrong("settle", TIME))?;
                "settle"
            }
            "reset" => {
                self.reset = parse_time(value).ok_or_else(|| wrong("reset", TIME))?;
                "reset"
            }
            other => return Err(PolicyError::UnknownKey(other.to_owned())),
        })
    }
}

fn switch(value: &str) -> Option<bool> {
    match value {
        "on" => Some(true),
        "off" => Some(false),
        _ => None,
    }
}

fn limit(value: &str) -> Option<Limit> {
    match value {
        "unlimited" => return Some(Limit::Unlimited),
        "off" => return Some(Limit::Never),
        _ => {}
    }
    let (times, window) = value.split_once('/')?;
    let (times, window) = (number(times)?, parse_time(window)?);
    (!window.is_zero()).then_some(Limit::Within { times, window })
}

fn budget(value: &str) -> Option<Budget> {
    match value.strip_suffix('%') {
        Some(percent) => number(percent).filter(|p| (1..=100).contains(p)).map(Budget::Percent),
        None if value == "off" => Some(Budget::Off),
        None => number(value).filter(|n| *n > 0).map(Budget::Count),
    }
}

/// Whole seconds, so that the policy is written as it was read.
fn parse_time(value: &str) -> Option<Duration> {
    parse_duration(value).filter(|time| *time <= LONGEST && time.subsec_nanos() == 0)
}

/// Digits and nothing else.
fn number(text: &str) -> Option<u32> {
    text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Never => f.write_str("off"),
            Self::Unlimited => f.write_str("unlimited"),
            Self::Within { times, window } => write!(f, "{times} in {}", DisplayDuration(*window)),
        }
    }
}

/// A time as people write it: `90s`, `10m`, `1h`.
#[derive(Clone, Copy)]
pub struct DisplayDuration(pub Duration);

impl fmt::Display for DisplayDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_secs() {
            0 => f.write_str("0s"),
            s if s % 3600 == 0 => write!(f, "{}h", s / 3600),
            s if s % 60 == 0 => write!(f, "{}m", s / 60),
            s => write!(f, "{s}s"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_set_is_parsed_from_a_lease_name() {
        assert_eq!(lease_set(&lease_name("0a-1b", 12)), Some("0a-1b"));
        for other in ["heal-", "heal-0", "heal--0", "heal-x-", "heal-x-01", "heal-x-+1", "leader-x-0"] {
            assert_eq!(lease_set(other), None, "{other}");
        }
    }

    #[test]
    fn missing_settings_have_their_defaults() {
        assert_eq!(Policy::parse(""), Ok(Policy::default()));
        assert_eq!(Policy::parse(" , "), Ok(Policy::default()));
        let moved = Policy::parse("move=off").unwrap();
        assert_eq!(moved, Policy { may_move: false, ..Policy::default() });
    }

    #[test]
    fn every_setting_is_parsed() {
        let text = "restarts=3/5m, recreate=off,move=off , budget=50%, hold=0s, settle=90s, reset=1h";
        let minutes = |n: u64| Duration::from_secs(n * 60);
        assert_eq!(
            Policy::parse(text).unwrap(),
            Policy {
                restarts: Limit::Within { times: 3, window: minutes(5) },
                recreate: Limit::Never,
                may_move: false,
                budget: Budget::Percent(50),
                hold: Duration::ZERO,
                settle: Duration::from_secs(90),
                reset: minutes(60),
            }
        );
        assert_eq!(Policy::parse("budget=2").unwrap().budget, Budget::Count(2));
        assert_eq!(Policy::parse("budget=off").unwrap().budget, Budget::Off);
        assert_eq!(Policy::parse("restarts=unlimited").unwrap().restarts, Limit::Unlimited);
    }

    #[test]
    fn what_is_wrong_is_refused_with_what_would_be_right() {
        let refused = |text: &str| Policy::parse(text).unwrap_err().to_string();
        assert_eq!(
            refused("restarts=5"),
            "restarts=5 is not understood: restarts must be a number per time such as 5/10m, or unlimited"
        );
        assert_eq!(
            refused("restart=5/10m"),
            "there is no setting \"restart\": use one of restarts, recreate, move, budget, hold, settle, reset"
        );
        assert_eq!(refused("hold=15s, hold=1s"), "hold is set twice");
        assert!(refused("always").contains("write key=value"));
        for bad in [
            "budget=0",
            "budget=0%",
            "budget=101%",
            "budget=-1",
            "hold=15",
            "hold=1d",
            "hold=",
            "move=yes",
            "restarts=5/0s",
            "restarts=off",
            "recreate=+2/1h",
            "reset=169h",
            "settle=s",
            "restarts=5/10m/2",
            "hold=１s",
        ] {
            assert!(Policy::parse(bad).is_err(), "{bad} was taken");
        }
    }
}
