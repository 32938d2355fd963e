//! node.k8s.io: RuntimeClass.

mod kinds;
pub mod rules;
pub mod table;

pub use kinds::kinds;
