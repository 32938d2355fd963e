//! networking.k8s.io: Ingress, NetworkPolicy, ServiceCIDR, IPAddress.

mod kinds;
pub mod rules;
pub mod table;

pub use kinds::kinds;
