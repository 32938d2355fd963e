//! A container runtime in memory, for tests of the agent.
//!
//! Containers are records: they start at once and run until the test says otherwise
//! ([`Fake::exit`], [`Fake::oom`]) or they are stopped. It obeys the same [`suite`](crate::suite) as the real
//! ones, as far as that needs no processes. Share it by `Arc` and hand it to a second agent to play a restart:
//! what it holds outlives whoever asked for it.

mod control;
mod images;
mod runtime;
mod state;

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::{Notify, broadcast};

use crate::{
    observed::{ContainerState, PodUid},
    session::ExecOutput,
};

pub use images::FakeImages;
use state::State;

/// The calls that can be counted and made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    Observe,
    CreateSandbox,
    RemoveSandbox,
    CreateContainer,
    StartContainer,
    StopContainer,
    RemoveContainer,
    UpdateContainer,
    UpdateSandbox,
    ReopenLog,
    Exec,
    OpenExec,
    Attach,
    Connect,
    Stats,
}

/// One call as it was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedCall {
    pub call: Call,
    /// The pod's name for sandboxes, the container's for containers, empty for the rest.
    pub of: String,
    /// An exec's command.
    pub command: Vec<String>,
}

/// What an exec does: it takes this long and answers this.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecResult {
    pub takes: Duration,
    pub output: ExecOutput,
}

impl ExecResult {
    /// Ends at once with this code and no output.
    pub fn code(exit_code: i32) -> Self {
        Self { output: ExecOutput { exit_code, ..ExecOutput::default() }, ..Self::default() }
    }
}

type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

pub struct Fake {
    state: Mutex<State>,
    images: FakeImages,
    wakeups: broadcast::Sender<PodUid>,
    changed: Notify,
    clock: Clock,
}

impl Default for Fake {
    fn default() -> Self {
        Self::new()
    }
}

impl Fake {
    /// Empty but for the image `busybox`.
    pub fn new() -> Self {
        Self::with_clock(Timestamp::now)
    }

    /// With a clock of the test's own.
    pub fn with_clock(clock: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self {
            state: Mutex::default(),
            images: FakeImages::new(),
            wakeups: broadcast::channel(1024).0,
            changed: Notify::new(),
            clock: Arc::new(clock),
        }
    }

    fn now(&self) -> Timestamp {
        (self.clock)()
    }

    /// Changes the state and tells of it.
    fn change<T>(&self, change: impl FnOnce(&mut State, Timestamp) -> (T, Option<PodUid>)) -> T {
        let now = self.now();
        let (answer, whose) = change(&mut self.state.lock(), now);
        if let Some(pod) = whose {
            let _ = self.wakeups.send(pod);
            self.changed.notify_waiters();
        }
        answer
    }
}

fn ended(state: &ContainerState, now: Timestamp, exit_code: i32, oom: bool) -> ContainerState {
    let started_at = match state {
        ContainerState::Running { started_at } => Some(*started_at),
        ContainerState::Created | ContainerState::Exited { .. } | ContainerState::Unknown => None,
    };
    let signal = (exit_code > 128).then_some(exit_code - 128);
    ContainerState::Exited { started_at, finished_at: now, exit_code, signal, oom, message: String::new() }
}

#[cfg(test)]
mod tests;
