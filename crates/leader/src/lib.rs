//! One of several servers does a work at a time: whoever holds a Lease.
//!
//! * [`plan`]: whether to take, renew, wait or give up. Pure
//! * [`lead`]: does the work while the lease is held, and stops it before another could begin
//!
//! Clocks need not agree. Who waits measures by its own clock how long the lease has not changed; who leads
//! stops well before that time is over. Whoever stops in order gives the lease back, so that the next begins at once.

mod lead;
pub mod plan;

pub use lead::{Term, lead};
