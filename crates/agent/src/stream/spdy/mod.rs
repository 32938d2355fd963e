//! SPDY/3.1 as the server of a connection, as far as clients of the Kubernetes API use it.
//!
//! They open a handful of streams on an upgraded connection, each described by a few headers, and copy
//! bytes. Frames and headers are [`mainstay_runtime::spdy`]'s; [`connection`] turns them into streams.
//!
//! The client library that everyone uses neither keeps nor announces flow-control windows: whoever waits
//! for a window of it waits for ever. So windows are announced for what we take, and not waited for when
//! we send; what holds a sender up is the connection itself.

pub mod connection;

pub use connection::{Connection, Stream, Writer};
