//! Hollow nodes: everything of a cluster but the containers, in one process.
//!
//! A hollow node registers, offers what it has free, sends heartbeats, and reports of every pod that it runs; nothing
//! does run. Thousands of them fit into one process, so that the size of a cluster can be tried, and measured, on one
//! machine. They use a `kube::Client`, like the agents they stand for, and therefore work with any Kubernetes API server.
//!
//! * [`hollow_node`]: one node, pure: which pods it holds, what it offers, what it does about a pod
//! * [`fleet`]: many of them, driven together; [`faults`]: those that fall silent, lie or refuse, by a seed
//! * [`load`]: pods created by many clients; [`pod_times`]: when each was created, bound and ready
//! * [`scenario`]: one measurement from beginning to end; [`figures`]: its results
//! * [`propagation`]: how soon every node knows the endpoints of a Service
//! * [`progress`]: a progress line; [`process`]: memory and CPU of a process; [`requests`]: HTTP requests by their bytes

pub mod faults;
pub mod figures;
pub mod fleet;
pub mod hollow_node;
pub mod load;
pub mod pod;
pub mod pod_report;
pub mod pod_times;
pub mod process;
pub mod progress;
pub mod propagation;
pub mod requests;
pub mod scenario;
