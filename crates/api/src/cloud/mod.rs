//! Kinds for machines and resources in a cloud: what is asked for, what was created for it, and what became of it.
//!
//! * [`kluster`]: a cluster of its own in a project of the cloud; [`node_pool`]: machines of one flavor in it
//!   [`kubernikus`]: Klusters in the form of Kubernikus; [`version`]: which changes of version are upgrades
//! * [`cloud_resource`]: the ledger: one entry for everything that was created in the cloud, written before it is created
//! * [`teardown_receipt`]: what became of each of them when their owner was torn down

pub mod cloud_resource;
pub mod kluster;
pub mod kubernikus;
pub mod node_pool;
pub mod teardown_receipt;
pub mod version;
