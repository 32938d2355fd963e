//! What the tests stand on: a cluster, the clients, and bounded waits.

mod cluster;
pub mod command;
mod device_driver;
mod disk;
mod etcd;
mod following;
pub mod host;
pub mod images;
mod javascript;
mod kubectl;
mod link_faults;
mod logind;
pub mod machines;
mod python;
pub mod registry;
mod words;

use std::time::Duration;

pub use cluster::Cluster;
pub use device_driver::DeviceDriver;
pub use disk::SmallDisk;
pub use etcd::Etcd;
pub use following::Following;
pub use javascript::javascript;
pub use kubectl::{Kubectl, Version};
pub use link_faults::LinkFault;
pub use logind::FakeLogind;
pub use machines::Machines;
pub use mainstay_testing::{eventually, tool};
pub use python::python;

/// Longest wait for anything. Generous: a condition that holds is seen at once, and machines get busy.
pub const PATIENCE: Duration = mainstay_testing::DEADLINE;

/// Makes a test per kubectl of each function that takes a [`Kubectl`].
#[macro_export]
macro_rules! with_each_kubectl {
    ($($name:ident),+ $(,)?) => {
        mod v1_20 {
            $(#[test] fn $name() { super::$name(&$crate::harness::Kubectl::start($crate::harness::Version::V1_20)) })+
        }
        mod v1_32 {
            $(#[test] fn $name() { super::$name(&$crate::harness::Kubectl::start($crate::harness::Version::V1_32)) })+
        }
    };
}
