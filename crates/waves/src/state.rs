//! The outcome of planning a rollout, and how it reads in a condition.

use std::fmt;

use jiff::Timestamp;

/// What to do now.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The members to move, in order.
    pub start: Vec<String>,
    pub state: State,
    /// When to look again although nothing was reported: a soak or a deadline ends.
    pub wake_at: Option<Timestamp>,
}

/// Where a rollout stands. Waves are counted from 0.
#[derive(Clone, Debug, PartialEq)]
pub enum State {
    /// Members move, or are waited for.
    Progressing {
        wave: usize,
        waits: Vec<Wait>,
    },
    /// All of the wave are there and healthy, but not for long enough.
    Soaking {
        wave: usize,
        until: Timestamp,
    },
    /// This wave may not start yet.
    Gated {
        wave: usize,
        why: String,
    },
    Paused {
        why: String,
    },
    /// Nothing more is started, and waiting does not help.
    Stuck {
        wave: usize,
        why: StuckReason,
    },
    /// All members are at the target and healthy, but those that were allowed to fail.
    Complete {
        failed: Vec<String>,
    },
}

/// What a rollout waits for.
#[derive(Clone, Debug, PartialEq)]
pub enum Wait {
    /// They are on their way.
    Moving(Vec<String>),
    /// They arrived and are not healthy.
    Unhealthy(Vec<String>),
    /// Nothing is heard of them; they follow when they return.
    Silent(Vec<String>),
    /// Others wait because these are unavailable, and no more may be.
    MaxUnavailable { limit: usize, unavailable: Vec<String> },
}

#[derive(Clone, Debug, PartialEq)]
pub enum StuckReason {
    TooManyFailed {
        failed: Vec<(String, String)>,
        allowed: usize,
    },
    /// More than the budget of their wave allows.
    WaveFailed {
        failed: Vec<(String, String)>,
        allowed: usize,
    },
}

/// At most so many names are listed in a sentence.
const NAMES_SHOWN: usize = 5;

/// The first of the names, and how many more there are.
pub fn list_names(names: &[impl AsRef<str>]) -> String {
    let shown = names.iter().take(NAMES_SHOWN).map(AsRef::as_ref).collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(NAMES_SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Moving(names) => write!(f, "{} moving", list_names(names)),
            Self::Unhealthy(names) => write!(f, "{} not healthy at the new version", list_names(names)),
            Self::Silent(names) => write!(f, "nothing heard of {}", list_names(names)),
            Self::MaxUnavailable { limit, unavailable } => {
                write!(
                    f,
                    "at most {limit} may be unavailable, and {} are: {}",
                    unavailable.len(),
                    list_names(unavailable)
                )
            }
        }
    }
}

impl fmt::Display for StuckReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (failed, allowed, of) = match self {
            Self::TooManyFailed { failed, allowed } => (failed, allowed, ""),
            Self::WaveFailed { failed, allowed } => (failed, allowed, " of this wave"),
        };
        let causes: Vec<_> = failed.iter().map(|(name, why)| format!("{name} ({why})")).collect();
        write!(f, "{} failed, {allowed}{of} may: {}", failed.len(), list_names(&causes))
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Progressing { wave, waits } if waits.is_empty() => write!(f, "wave {} starts", wave + 1),
            Self::Progressing { wave, waits } => {
                let waits: Vec<_> = waits.iter().map(Wait::to_string).collect();
                write!(f, "wave {}: {}", wave + 1, waits.join("; "))
            }
            Self::Soaking { wave, until } => write!(f, "wave {} is healthy and is watched until {until}", wave + 1),
            Self::Gated { wave, why } => write!(f, "wave {} may not start: {why}", wave + 1),
            Self::Paused { why } => write!(f, "paused: {why}"),
            Self::Stuck { wave, why } => write!(f, "stopped in wave {}: {why}", wave + 1),
            Self::Complete { failed } if failed.is_empty() => f.write_str("complete"),
            Self::Complete { failed } => write!(f, "complete without {}", list_names(failed)),
        }
    }
}
