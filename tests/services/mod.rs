//! Services with real things: addresses, names, connections that are held, pods that leave without a request lost.
//!
//! Pods serve and call with small programs of `pods/`; everything else is what people use: curl, dig, NATS, Redis.

mod addresses;
mod drains;
mod faults;
mod host_network;
pub mod lab;
mod leftovers;
mod names;
mod nats;
mod redis;
