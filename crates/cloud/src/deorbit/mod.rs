//! Deorbit: removes what a cluster has in the cloud before it goes, with a receipt.
//!
//! Volumes, load balancers and floating IPs are removed by a cluster's own controllers when their objects are deleted, and not when the cluster disappears. Deorbit
//! deletes these objects while the controllers still run, waits until the cloud has nothing more of it, and records each thing in a TeardownReceipt.
//!
//! * [`plan`]: what is done next, and when it is over; [`notice`]: its stages and their events
//! * [`objects`]: what is read of the cluster; [`inventory`]: what in the cloud belongs to it
//! * [`cluster`]: reads and deletes the objects; [`cloud`]: looks at the cloud
//! * [`controller`]: deorbits Klusters that are deleted; [`laptop`]: any cluster, by a command
//! * [`receipt`]: the receipt's object; [`metrics`]: how often each operation succeeded and failed

pub mod cloud;
pub mod cluster;
pub mod controller;
pub mod inventory;
pub mod laptop;
pub mod metrics;
pub mod notice;
pub mod objects;
pub mod plan;
pub mod receipt;

pub use controller::controller;
