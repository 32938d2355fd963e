//! The loops that keep a cluster as its objects say, as clients of the API.
//!
//! Everything here goes through a `kube::Client`, so it runs within the server's process, in one
//! of its own, and against any Kubernetes API server.
//!
//! * [`shell`]: what a controller is, and one turn of it; [`runner`]: turns, one at a time per key
//! * [`cache`]: the objects of one kind, in memory, never older than what we wrote
//! * [`catalogue`]: which resources the server has; [`monitor`]: what happens to their objects,
//!   seen once for everybody; [`all`]: which news wakes whom, and starting and stopping it all
//! * [`namespace`]: empties a namespace that is being deleted
//! * [`gc`]: deletes what its owners left behind
//! * [`furnish`]: what every namespace contains
//! * [`nodes`]: machines that fell silent
//! * [`services`]: who stands behind a Service, and when a pod that goes is sent nothing any more
//! * [`volumes`]: binds claims to volumes, and makes volumes on machines
//! * [`workloads`]: what runs, how many of it, and for how long
//!
//! With a store that several servers share, one of them runs these controllers at a time. Should two ever overlap,
//! creates collide by name, deletes carry the uid (and the version that was judged), and every other write
//! carries a version: whoever comes second is refused and looks again.

mod all;
pub mod cache;
mod catalogue;
mod failure;
mod furnish;
mod gc;
mod meta;
mod monitor;
mod namespace;
mod nodes;
mod runner;
pub mod services;
mod shell;
mod volumes;
pub mod workloads;

pub use all::{Settings, run};
pub use failure::Failure;
pub use runner::{Limits, Queue};
pub use shell::{Controller, Plan, turn};
