//! events.k8s.io: Event.

mod kinds;
pub mod table;

pub use kinds::kinds;
