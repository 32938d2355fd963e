//! Services: load balancing of cluster IPs, external IPs and node ports.
//!
//! [`frontend`] (pure) chooses the backends of every frontend. Two data paths carry it out: nftables in the kernel
//! ([`kernel`]), and the user-space proxy ([`crate::proxy`]) for TCP connections that wait for a backend.
//! [`balancer`] keeps the two together, so that no connection is lost between them.

mod balancer;
pub mod frontend;
mod kernel;

pub use balancer::{Balancer, BalancerSettings};
pub use kernel::{Drift, KernelProxy, KernelSettings};
