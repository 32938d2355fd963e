//! Metrics of the cloud's controllers, beside those of work queues.

use mainstay_controllers::runtime::metrics::Registry;

use crate::{flight::metrics::FlightMetrics, routes::metrics::RouteMetrics};

/// Cheap to clone: all clones count together.
#[derive(Clone, Default)]
pub struct CloudMetrics {
    pub routes: RouteMetrics,
    pub flight: FlightMetrics,
}

impl CloudMetrics {
    /// Metrics that `registry` shows.
    pub fn register(registry: &mut Registry) -> Self {
        Self { routes: RouteMetrics::register(registry), flight: FlightMetrics::register(registry) }
    }
}
