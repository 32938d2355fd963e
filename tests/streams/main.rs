//! Logs, exec, attach, port-forward, cp, top and proxy, as the clients that people use ask for them.
//!
//! Server, relay, TLS and the agent's own server are the real ones, in this process; in place of containers there
//! are plain processes of this machine, so that nothing but the streams is under test and no privilege is needed.

#[path = "../harness/command.rs"]
#[allow(dead_code, reason = "shared with the black-box tests, which use more of it")]
mod command;
#[path = "../harness/words.rs"]
mod words;

mod cluster;
mod exec;
mod forward;
mod javascript;
mod logs;
mod measure;
mod processes;
mod proxy;
mod python;
mod refusals;
