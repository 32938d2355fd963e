//! Event recorder: components record events about objects, and one writer per process puts them into the API.
//!
//! * [`Recorder`]: where a component records; recording never waits and never fails
//! * [`EventWriter`]: the task that writes; [`correlator`]: which occurrences share an event, and which are dropped
//!
//! The rules are those of client-go's `EventCorrelator`: the same message again raises a count; beyond ten different
//! messages of one reason about one object within ten minutes, further ones share an event whose message begins with
//! `(combined from similar events)`; and an object has a budget of 25 writes per component that refills by one every
//! five minutes. A count is never lost: what the budget holds back is in the next write.
//!
//! Writes are fenced: a count is only raised on the very event that this process created (by uid). While the API cannot be
//! reached, the newest thousand of the last ten minutes wait for it. Nothing depends on events: one that the API refuses is
//! dropped and logged at debug level.

pub mod correlator;
mod recorder;
mod writer;

pub use recorder::{EventNote, EventSource, EventType, Occurrence, Recorder};
pub use writer::EventWriter;
