//! What this machine can take, and what of that it takes.
//!
//! The machine, not the centre, knows what it has left: [`Publisher`] tells the API in an Offer, [`Gate`] looks again when
//! a pod arrives, and gives back what does not fit. Both decide by the same arithmetic ([`Room`] and
//! [`Claim`]), so what was offered truthfully is also taken.

pub mod claim;
mod gate;
pub mod host_network;
pub mod host_ports;
mod judge;
mod preempt;
mod publisher;
mod room;
#[cfg(test)]
mod tests;

pub use claim::Claim;
pub use gate::{Gate, Verdict, is_fresh};
pub use judge::{Rejection, judge};
pub use publisher::Publisher;
pub use room::Room;
