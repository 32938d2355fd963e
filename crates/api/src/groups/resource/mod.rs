//! resource.k8s.io: devices that nodes offer (ResourceSlice), classes of them, and claims for them.

mod kinds;
pub mod rules;
pub mod table;

pub use kinds::kinds;
