//! SPDY/3.1 as Kubernetes uses it: a handful of streams on an upgraded HTTP connection, each described by a few headers.
//!
//! [`frame`] is the wire format and [`headers`] the compressed header blocks. [`server`] accepts the streams that clients of the
//! Kubernetes API open; [`client`] opens streams at the streaming server of a CRI runtime.
//!
//! The library that the other ends use neither keeps nor announces flow-control windows: whoever waits for a window of it waits for
//! ever. So nobody here waits for one; what holds a sender up is the connection itself.

pub mod client;
mod dictionary;
pub mod frame;
pub mod headers;
pub mod server;

pub use headers::Headers;
