//! Two served versions of one stored kind.

mod autoscaler;
mod event;
mod metrics;

pub use autoscaler::Autoscaler;
pub use event::NewEvent;
