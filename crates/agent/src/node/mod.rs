//! The Node object of this machine: registration, status, Lease, labels, pressure conditions and evictions.
//!
//! * [`reporter`]: registers it, renews its Lease, writes its status; [`status`]: what the status says, from
//!   [`facts`] that stay and what was last seen; [`labels`]: which labels are the agent's
//! * [`sole_agent`]: refuses to be the second agent of a node
//! * [`upkeep`]: watches for shortages ([`measure`], [`pressure`]), removes images ([`images`]) and names the pods
//!   that have to go ([`eviction`]); [`termination_log`] bounds what containers can write beside their volumes

pub mod ended;
pub mod eviction;
mod facts;
mod heartbeat;
mod images;
mod labels;
mod measure;
pub mod pressure;
mod reporter;
pub mod sole_agent;
mod status;
mod termination_log;
mod upkeep;

pub use eviction::{Eviction, Evictions};
pub use facts::{MachineSize, VERSION, machine_size};
pub use reporter::{NodeReporter, Parts};
pub use status::{PodsAfterStop, measured_allocatable};
