//! SPDY/3.1 between bytes and values: what both ends of a connection need. The agent serves it to clients of the Kubernetes
//! API, and speaks it to the streaming server of a CRI runtime.
//!
//! [`frame`] is the wire format, [`headers`] the compressed header blocks.

mod dictionary;
pub mod frame;
pub mod headers;

pub use headers::Headers;
