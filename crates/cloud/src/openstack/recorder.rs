//! Recorders of calls: who counts what was asked of a cloud, for metrics and for tests.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{
        counter::Counter,
        family::Family,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};

use super::Service;

/// One attempt of one call, and how it ended.
#[derive(Clone, Debug)]
pub struct CallRecord {
    pub service: Service,
    /// What the call does, in the client's words: one of a fixed set.
    pub operation: &'static str,
    /// The HTTP status; none if there was no answer.
    pub status: Option<u16>,
    pub took: Duration,
}

/// Called after every attempt of every call; it must not block.
pub trait CallRecorder: Send + Sync + 'static {
    fn record_call(&self, call: &CallRecord);
}

/// Nobody counts.
impl CallRecorder for () {
    fn record_call(&self, _call: &CallRecord) {}
}

/// Counts attempts by service and operation.
#[derive(Default)]
pub struct CallCounter(Mutex<BTreeMap<(Service, &'static str), u64>>);

impl CallCounter {
    pub fn counts(&self) -> BTreeMap<(Service, &'static str), u64> {
        self.0.lock().clone()
    }

    pub fn total(&self) -> u64 {
        self.0.lock().values().sum()
    }

    /// How often an operation was tried, in whatever service.
    pub fn count(&self, operation: &str) -> u64 {
        self.0.lock().iter().filter(|((_, name), _)| *name == operation).map(|(_, count)| count).sum()
    }
}

impl CallRecorder for CallCounter {
    fn record_call(&self, call: &CallRecord) {
        *self.0.lock().entry((call.service, call.operation)).or_default() += 1;
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabels {
    service: &'static str,
    operation: &'static str,
    status: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ServiceLabel {
    service: &'static str,
}

/// Shows calls as metrics.
#[derive(Clone)]
pub struct CallMetrics {
    calls: Family<CallLabels, Counter>,
    duration: Family<ServiceLabel, Histogram>,
}

impl CallMetrics {
    pub fn register(registry: &mut Registry) -> Arc<Self> {
        let metrics = Self {
            calls: Family::default(),
            duration: Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.005, 3.0, 9))),
        };
        let help = "Attempts of OpenStack calls by service, operation and HTTP status (none: no answer)";
        registry.register("mainstay_openstack_calls", help, metrics.calls.clone());
        let help = "How long OpenStack services took to answer";
        registry.register("mainstay_openstack_call_duration_seconds", help, metrics.duration.clone());
        Arc::new(metrics)
    }
}

impl CallRecorder for CallMetrics {
    fn record_call(&self, call: &CallRecord) {
        let status = call.status.map_or_else(|| "none".to_owned(), |status| status.to_string());
        let labels = CallLabels { service: call.service.name(), operation: call.operation, status };
        self.calls.get_or_create(&labels).inc();
        let service = ServiceLabel { service: call.service.name() };
        self.duration.get_or_create(&service).observe(call.took.as_secs_f64());
    }
}
