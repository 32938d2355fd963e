//! Hollow machines: everything of a cluster but the containers, in one process.
//!
//! A hollow machine registers, offers what it has free, sends heartbeats, and says of every pod that it
//! runs; nothing does run. Thousands of them fit into one process, so that the size of a cluster
//! can be tried, and measured, on one machine. They go through a `kube::Client`, like the agents they stand for,
//! and therefore work with any Kubernetes API server.
//!
//! * [`machine`]: one machine, pure: what it holds, what it offers, what it answers to a pod
//! * [`fleet`]: many of them, driven together; [`reporter`]: what they tell of their pods
//! * [`conduct`]: machines that fall silent, lie or refuse, by a seed
//! * [`load`]: pods created by many clients, [`ledger`]: when each was created, bound and ready
//! * [`scenario`]: one measurement from beginning to end, [`figures`]: what came out
//! * [`propagation`]: how soon every machine knows who stands behind a Service
//! * [`progress`]: a line that says how far it is; [`process`]: memory and CPU of a process

pub mod conduct;
pub mod figures;
pub mod fleet;
pub mod ledger;
pub mod load;
pub mod machine;
pub mod pod;
pub mod process;
pub mod progress;
pub mod propagation;
mod reporter;
pub mod scenario;
pub mod wire;
