//! Which pod runs on which machine.
//!
//! * [`core`]: the decision, pure: machines and pods in, placements and reasons out. No clock, no I/O, no
//!   chance but a seed.
//! * [`queue`]: who waits, and when they are tried again; [`board`]: what machines offer at the moment;
//!   [`reconcile`]: when everything is compared; [`volumes`]: what claims ask of a machine. All pure
//! * [`state`]: all of that together, still without a clock or a socket: news in, work out; [`run`] drives it
//! * [`follow`]: what happens, from the API's bytes ([`wire`]); [`bind`], [`preempt`], [`say`], [`events`]: what is done about it
//! * [`settings`]: what can be tuned, [`ini`]: from a file; [`metrics`]: what is counted; [`handle`]: what can be asked

pub mod bind;
pub mod board;
pub mod core;
pub mod events;
pub mod follow;
pub mod handle;
pub mod ini;
pub mod metrics;
pub mod preempt;
pub mod queue;
pub mod reconcile;
mod run;
pub mod say;
pub mod settings;
pub mod state;
pub mod volumes;
pub mod wire;

pub use handle::{Handle, Reply};
pub use metrics::Metrics;
pub use run::run;
pub use settings::Settings;
