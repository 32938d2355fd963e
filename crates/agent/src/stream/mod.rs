//! The agent's own HTTPS server: logs, exec, attach, port-forward, statistics, at the paths a kubelet has.
//!
//! Only servers of the cluster and administrators get through the handshake (see [`crate::tls`]). Servers pass on what clients of the API send, upgraded connections included, so
//! the protocols of those are spoken here: [`channels`] (WebSocket) and [`mainstay_spdy`]. Both become a [`remote::Remote`],
//! which is what a process in a container is connected to.

pub mod channels;
mod configz;
mod connection;
pub mod exec;
pub mod find;
pub mod forward;
mod handshakes;
mod host_logs;
mod logs;
pub mod remote;
pub mod response;
pub mod route;
pub mod server;
pub mod stats;
mod tunnel;
pub mod upgrade;

pub use server::{Parts, Server};
