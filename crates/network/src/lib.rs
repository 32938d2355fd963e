//! Addresses for pods: a bridge on each machine, a veth pair and an address for each pod.
//!
//! * [`bridge`]: what is asked of it; [`journal`]: who has which address
//! * [`links`]: interfaces and routes; [`rules`]: packet rules, encoded by [`nft`]
//! * [`netns`]: doing things inside a pod's namespace
//!
//! Machines reach each other's pods by plain routes, which needs them to be neighbours on one network.

mod bridge;
mod error;
mod journal;
mod links;
mod netns;
mod nft;
mod range;
mod rules;

pub use bridge::{Bridge, Settings, bridge_name};
pub use error::NetworkError;
pub use journal::{HostPort, Protocol};
pub use range::{NotARange, Range};
