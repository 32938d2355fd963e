//! What happened in a run, line by line with the virtual time, and the hash of it: two runs of one seed have the same.

use std::fmt::Display;

use parking_lot::Mutex;
use tokio::time::Instant;
use xxhash_rust::xxh3::xxh3_64_with_seed;

pub struct Trace(Mutex<State>);

struct State {
    started: Instant,
    lines: Vec<String>,
    hash: u64,
    /// The first invariant that did not hold.
    violation: Option<String>,
    /// Written out as it happens, for somebody who reads along.
    printed: bool,
}

impl Trace {
    pub fn new() -> Self {
        let state = State { started: Instant::now(), lines: Vec::new(), hash: 0, violation: None, printed: false };
        Self(Mutex::new(state))
    }

    /// Forgets what was so far and counts time from now.
    pub fn restart(&self, printed: bool) {
        let state = State { started: Instant::now(), lines: Vec::new(), hash: 0, violation: None, printed };
        *self.0.lock() = state;
    }

    pub fn record(&self, what: impl Display) {
        self.0.lock().record(&what);
    }

    /// Something goes into the hash that is of no interest to readers.
    pub fn absorb(&self, bytes: &[u8]) {
        let mut state = self.0.lock();
        state.hash = xxh3_64_with_seed(bytes, state.hash);
    }

    pub fn violate(&self, what: impl Display) {
        let mut state = self.0.lock();
        state.record(&format_args!("INVARIANT BROKEN: {what}"));
        if state.violation.is_none() {
            state.violation = Some(what.to_string());
        }
    }

    pub fn violation(&self) -> Option<String> {
        self.0.lock().violation.clone()
    }

    pub fn hash(&self) -> u64 {
        self.0.lock().hash
    }
}

impl State {
    fn record(&mut self, what: &dyn Display) {
        let at = (Instant::now() - self.started).as_secs_f64();
        let line = format!("{at:9.3}  {what}");
        self.hash = xxh3_64_with_seed(line.as_bytes(), self.hash);
        if self.printed {
            println!("{line}");
        }
        self.lines.push(line);
    }
}
