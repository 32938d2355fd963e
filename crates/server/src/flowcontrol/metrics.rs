//! What priority and fairness counts, under upstream's names.

use std::sync::Arc;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};

use super::config::ParsedFlowSchema;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FlowLabels {
    priority_level: String,
    flow_schema: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RefusalLabels {
    priority_level: String,
    flow_schema: String,
    reason: &'static str,
}

pub struct FlowMetrics {
    executing: Family<FlowLabels, Gauge>,
    seats: Family<FlowLabels, Gauge>,
    waiting: Family<FlowLabels, Gauge>,
    dispatched: Family<FlowLabels, Counter>,
    refused: Family<RefusalLabels, Counter>,
    waits: Family<FlowLabels, Histogram, fn() -> Histogram>,
}

/// Those of one FlowSchema, looked up once.
pub struct FlowCounters {
    pub executing: Gauge,
    pub seats: Gauge,
    pub waiting: Gauge,
    pub dispatched: Counter,
    pub waits: Histogram,
}

impl Default for FlowMetrics {
    fn default() -> Self {
        Self {
            executing: Family::default(),
            seats: Family::default(),
            waiting: Family::default(),
            dispatched: Family::default(),
            refused: Family::default(),
            waits: Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.000_5, 4.0, 9))),
        }
    }
}

impl FlowMetrics {
    pub fn register(&self, registry: &mut Registry) {
        let mut gauge = |name: &str, help: &str, family: &Family<FlowLabels, Gauge>| {
            registry.register(format!("apiserver_flowcontrol_{name}"), help, family.clone());
        };
        gauge("current_executing_requests", "Requests at work, by priority level and FlowSchema", &self.executing);
        gauge("current_executing_seats", "Seats in use, by priority level and FlowSchema", &self.seats);
        gauge("current_inqueue_requests", "Requests that wait in a queue", &self.waiting);
        let help = "Requests that were let in";
        registry.register("apiserver_flowcontrol_dispatched_requests", help, self.dispatched.clone());
        let help = "Requests that were refused with 429";
        registry.register("apiserver_flowcontrol_rejected_requests", help, self.refused.clone());
        let help = "Time that requests waited in a queue";
        registry.register("apiserver_flowcontrol_request_wait_duration_seconds", help, self.waits.clone());
    }

    pub fn counters_for(&self, schema: &ParsedFlowSchema) -> Arc<FlowCounters> {
        let labels = FlowLabels { priority_level: schema.level.name.to_string(), flow_schema: schema.name.to_string() };
        Arc::new(FlowCounters {
            executing: self.executing.get_or_create_owned(&labels),
            seats: self.seats.get_or_create_owned(&labels),
            waiting: self.waiting.get_or_create_owned(&labels),
            dispatched: self.dispatched.get_or_create_owned(&labels),
            waits: self.waits.get_or_create_owned(&labels),
        })
    }

    pub fn count_refusal(&self, schema: &ParsedFlowSchema, reason: &'static str) {
        let labels = RefusalLabels {
            priority_level: schema.level.name.to_string(),
            flow_schema: schema.name.to_string(),
            reason,
        };
        self.refused.get_or_create(&labels).inc();
    }
}
