//! autoscaling: HorizontalPodAutoscaler, v1 and v2.

mod kinds;
pub mod rules;
pub mod table;

pub use kinds::kinds;
