//! Two served versions of one stored kind.

mod autoscaler;
mod event;
mod kluster;
mod metrics;

pub use autoscaler::Autoscaler;
pub use event::NewEvent;
pub use kluster::{KubernikusKluster, list_errors};
