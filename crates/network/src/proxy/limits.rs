//! How much of the process the proxy may take.

use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, getrlimit};

/// So many wait at one frontend; more are refused. What waits in the queue of a Service that is down for seconds
/// is far less; what would fill this is a flood.
pub const WAITING_PER_FRONT: u32 = 4096;

/// Per thread.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub connections: usize,
}

impl Limits {
    /// Three quarters of the process's files, two for each connection, so that the rest of the process can always open some.
    pub fn of_this_process(threads: usize) -> Self {
        let files = getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(now, _)| now.min(1 << 24) as usize);
        Self { connections: (files / 4 * 3 / 2 / threads).max(8) }
    }
}

/// Says the same thing only once in a while.
#[derive(Default)]
pub struct OnceInAWhile(Option<Instant>);

impl OnceInAWhile {
    const WHILE: Duration = Duration::from_secs(10);

    pub fn is_due(&mut self, now: Instant) -> bool {
        let due = self.0.is_none_or(|last| now.duration_since(last) >= Self::WHILE);
        if due {
            self.0 = Some(now);
        }
        due
    }
}
