//! What the controllers of Klusters share: the ways into Klusters, and metrics.

use std::sync::Arc;

use mainstay_controllers::runtime::metrics::Registry;

use crate::{
    deorbit::metrics::DeorbitMetrics, hammertime::controller::HammertimeMetrics, kluster_access::KlusterAccess,
    pools::metrics::PoolMetrics, servicing::metrics::ServicingMetrics,
};

#[derive(Clone, Default)]
pub struct KlusterParts {
    pub access: Arc<KlusterAccess>,
    pub deorbit: DeorbitMetrics,
    pub pools: PoolMetrics,
    pub hammertime: HammertimeMetrics,
    pub servicing: ServicingMetrics,
}

impl KlusterParts {
    /// With metrics that `registry` shows.
    pub fn register(registry: &mut Registry) -> Self {
        Self {
            deorbit: DeorbitMetrics::register(registry),
            pools: PoolMetrics::register(registry),
            hammertime: HammertimeMetrics::register(registry),
            servicing: ServicingMetrics::register(registry),
            ..Self::default()
        }
    }

    /// The same, with these ways into Klusters.
    pub fn with_access(access: KlusterAccess) -> Self {
        Self { access: Arc::new(access), ..Self::default() }
    }
}
