//! mainstay.dev: Offer and ServiceTable, in which nodes state what they can take and where their packet rules are; Machine and
//! Release, which say what is true of machines and which version they get; ConfigTemplate, which renders configuration, and MachineFile,
//! which has a version of it on a machine; Kluster, NodePool, CloudResource and TeardownReceipt, for clusters in a cloud.

mod kinds;
pub mod rules;
pub mod table;

pub use kinds::{KLUSTER_FIELDS, kinds};
