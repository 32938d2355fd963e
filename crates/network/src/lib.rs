//! Addresses for pods: a bridge on each machine, a veth pair and an address for each pod. Addresses and names for
//! Services, which stay while pods come and go.
//!
//! * [`catalogue`]: what is known of Services; [`services`]: where their connections go, by the kernel or through
//!   [`proxy`]; [`dns`]: their names, at an address on [`loopback`]
//! * [`bridge`]: what is asked of it; [`journal`]: who has which address
//! * [`conntrack`]: what the kernel remembers of connections
//! * [`links`]: interfaces and routes; [`rules`]: packet rules, encoded by [`nft`]
//! * [`leftovers`]: what instances have here, without any record of theirs
//! * [`netns`]: doing things inside a pod's namespace
//!
//! Machines reach each other's pods by plain routes, which needs them to be neighbours on one network.

mod bridge;
pub mod catalogue;
pub mod conntrack;
pub mod dns;
mod error;
mod journal;
pub mod leftovers;
mod links;
pub mod loopback;
mod netns;
mod nft;
pub mod proxy;
mod range;
mod rules;
pub mod services;

pub use bridge::{Bridge, Settings, bridge_name};
pub use error::NetworkError;
pub use journal::{HostPort, Protocol};
pub use nft::check as check_nftables;
pub use range::{NotARange, Range};
