//! The agent's own HTTPS server: logs, exec, attach, port-forward, statistics.

pub mod spdy;
