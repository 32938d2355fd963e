//! The scheduler: decides which node each pod runs on, and binds it.
//!
//! * [`core`]: the decision, pure: a snapshot of nodes and pods in, placements or reasons out. No clock, no I/O
//! * [`scheduling_queue`]: which pods wait, and when each is tried again; [`offers`]: what nodes offer at the moment;
//!   [`reconcile`]: when all objects are listed again; [`volumes`]: which nodes a pod's claims allow. All pure
//! * [`state`]: all of that together, still without a clock or a socket: events in, actions out; [`run`](run()) drives it
//! * [`reflector`]: lists and watches the API; [`bind`], [`claim_writer`], [`preemptor`], [`status_writer`],
//!   [`event_recorder`]: carry out the actions
//! * [`settings`]: what can be configured, [`config_file`]: from a file; [`metrics`]; [`handle`]: the `/debug` endpoints

pub mod bind;
pub mod claim_writer;
pub mod config_file;
pub mod core;
pub mod event_recorder;
pub mod handle;
pub mod metrics;
pub mod offers;
mod pod_requests;
pub mod preemptor;
pub mod reconcile;
pub mod reflector;
mod run;
pub mod scheduling_queue;
pub mod settings;
pub mod state;
pub mod status_writer;
pub mod volumes;

pub use handle::{DebugReply, Handle};
pub use metrics::Metrics;
pub use run::run;
pub use settings::Settings;
