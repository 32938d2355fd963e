//! Addresses that stay while pods come and go.
//!
//! One table ([`table`], pure) says for every front of every Service where its connections go. Two data paths
//! carry it out: the kernel's packet rules ([`kernel`]), and our own process ([`crate::proxy`]) for TCP connections that wait
//! for a backend. [`balancer`] keeps the two together, so that no connection falls between them.

mod balancer;
pub mod frontend;
mod kernel;
pub mod table;

pub use balancer::{Balancer, BalancerSettings};
pub use kernel::{Drift, Kernel, KernelSettings};
