//! Rollouts in waves: which members of a set (machines of a release, consumers of a configuration) may move to another
//! version now.
//!
//! Pure: everything is derived from the members as they are, so a server that is killed in the middle of a rollout goes on
//! where it was, and nothing stores a step.
//!
//! Guarantees, for whatever the members do:
//! * what is started never makes more members unavailable than `max_unavailable`, whatever the cause of the others;
//! * no member of a wave starts before every earlier wave is at the target, healthy for `soak`, and its gate is open;
//! * a rollout is complete, stuck, or says what it waits for.
//!
//! Going back is the caller's: it sees [`State::Stuck`] and begins a rollout to the last good version.

mod amount;
mod plan;
mod state;

pub use amount::Amount;
pub use plan::{assign, plan};
pub use state::{Plan, State, StuckReason, Wait, list_names};

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};

/// How a set is moved.
#[derive(Clone, Debug, PartialEq)]
pub struct Strategy {
    /// In this order. What no wave has is one more wave at the end.
    pub waves: Vec<Wave>,
    /// Of the whole set, and at least one: with none allowed nothing could ever move.
    pub max_unavailable: Amount,
    /// How long a wave must have been healthy before the next one starts, and the last one before all is complete.
    pub soak: SignedDuration,
    /// A member that moves, or is not healthy after it moved, for longer than this has failed.
    pub progress_deadline: Option<SignedDuration>,
    /// So many members may fail, and are left behind; one more and the rollout is stuck.
    pub max_failed: Amount,
    /// So many members of each wave may fail besides, as a share of that wave; where none is said, and beyond its end, `max_failed`
    /// alone counts.
    pub max_failed_of_waves: Vec<Option<Amount>>,
}

/// One wave of a rollout.
#[derive(Clone, Debug, PartialEq)]
pub enum Wave {
    /// Members by name; names that the set does not have are ignored.
    Named(BTreeSet<String>),
    /// As many members, in their order, as make this share of the whole set together with all waves before.
    UpTo(Amount),
}

/// One of the set, in the order in which they move.
#[derive(Clone, Debug, PartialEq)]
pub struct Member {
    pub name: String,
    pub position: Position,
    pub health: Health,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Position {
    /// At another version, and not asked to leave it.
    Old,
    /// Asked to move and not there yet.
    Moving {
        since: Timestamp,
    },
    AtTarget {
        since: Timestamp,
    },
}

#[derive(Clone, Debug, PartialEq)]
pub enum Health {
    Healthy {
        since: Timestamp,
    },
    /// Out of service, and may recover by itself.
    Unhealthy {
        since: Timestamp,
    },
    /// This rollout failed here, for good.
    Failed {
        since: Timestamp,
        why: String,
    },
    /// Nothing was heard of it: it is not started, and what it does is not known.
    Unknown {
        since: Timestamp,
    },
}

/// What must hold before a wave starts, as found by the caller.
#[derive(Clone, Debug, PartialEq)]
pub enum Gate {
    Open,
    Closed { why: String },
}

/// A rollout as it is.
#[derive(Clone, Copy, Debug)]
pub struct Rollout<'a> {
    pub strategy: &'a Strategy,
    pub members: &'a [Member],
    /// The gate before each wave; waves beyond its end have none.
    pub gates: &'a [Gate],
    /// Why nothing is started at present.
    pub paused: Option<&'a str>,
    /// Since when this version is the target. A member that was there before makes no wave begin.
    pub began: Timestamp,
}
