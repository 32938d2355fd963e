//! discovery.k8s.io: EndpointSlice.

mod kinds;
pub mod rules;
pub mod table;

pub use kinds::kinds;
