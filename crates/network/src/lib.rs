//! Networking of one machine: addresses for pods, and load balancing and DNS for Services.
//!
//! * [`catalogue`]: what is known of Services, EndpointSlices and Nodes
//! * [`services`]: frontends and backends, in the kernel by nftables or through the user-space [`proxy`]
//! * [`dns`]: cluster DNS, at an address on [`loopback`]
//! * [`bridge`]: attaches pods; [`journal`]: which pod has which address; [`bridge_nat`]: masquerading and host ports
//! * [`conntrack`]: connection tracking; [`links`]: interfaces and routes; [`nft`]: nftables over netlink
//! * [`route_probe`]: whether a router routes to this machine's pods
//! * [`netns`]: work inside a pod's network namespace
//! * [`leftovers`]: interfaces, addresses and tables of any instance on the machine, found by their names
//!
//! Machines reach each other's pods by plain routes, so they must be on one network.

mod bridge;
mod bridge_nat;
pub mod catalogue;
pub mod conntrack;
pub mod dns;
mod error;
pub mod journal;
pub mod leftovers;
mod links;
pub mod loopback;
mod netns;
mod nft;
pub mod proxy;
mod range;
pub mod route_probe;
pub mod services;

#[cfg(feature = "fuzzing")]
pub use dns::fuzzing;

pub use bridge::{Bridge, Settings, bridge_name};
pub use error::NetworkError;
pub use journal::{HostPort, Protocol};
pub use nft::check as check_nftables;
pub use range::{InvalidRange, Range};
