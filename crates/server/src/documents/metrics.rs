//! The metrics of the server, under the names that dashboards for Kubernetes use.
//!
//! Labels are enums and names from the registry, never text of a request, so that no client can make
//! the number of series grow.

use std::borrow::Cow;

use http::{Method, StatusCode};
use prometheus_client::{
    encoding::{
        EncodeLabelSet, EncodeLabelValue,
        text::{encode_eof, encode_registry},
    },
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};

use crate::{
    flowcontrol::FlowControl,
    http::{
        fairness::{PriorityLevel, Rejection},
        request_limits::RequestKind,
        request_log::RequestInfo,
    },
};

type Text = Cow<'static, str>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
#[expect(clippy::upper_case_acronyms, reason = "these are the label values upstream uses")]
pub enum Verb {
    GET,
    LIST,
    WATCH,
    POST,
    PUT,
    PATCH,
    DELETE,
    DELETECOLLECTION,
    OTHER,
}

impl Verb {
    pub fn from_request(method: &Method, named: bool, watch: bool) -> Self {
        match *method {
            Method::GET if watch => Self::WATCH,
            Method::GET if named => Self::GET,
            Method::GET => Self::LIST,
            Method::POST => Self::POST,
            Method::PUT => Self::PUT,
            Method::PATCH => Self::PATCH,
            Method::DELETE if named => Self::DELETE,
            Method::DELETE => Self::DELETECOLLECTION,
            _ => Self::OTHER,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    verb: Verb,
    group: Text,
    version: Text,
    resource: Text,
    code: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct VerbLabel {
    verb: Verb,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabel {
    request_kind: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RejectionLabels {
    priority_level: &'static str,
    reason: &'static str,
}

pub struct Metrics {
    registry: Registry,
    requests: Family<RequestLabels, Counter>,
    durations: Family<VerbLabel, Histogram, fn() -> Histogram>,
    watches: Gauge,
    reading: Gauge,
    writing: Gauge,
    rejections: Family<RejectionLabels, Counter>,
    /// What other parts of the process count.
    others: Vec<Registry>,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::default();
        let requests = Family::default();
        registry.register("apiserver_request", "Requests answered", requests.clone());
        let buckets: fn() -> Histogram = || Histogram::new(exponential_buckets(0.000_1, 4.0, 10));
        let durations = Family::new_with_constructor(buckets);
        registry.register("apiserver_request_duration_seconds", "Time to answer, watches aside", durations.clone());
        let watches = Gauge::default();
        registry.register("apiserver_longrunning_requests", "Watches open", watches.clone());
        let in_flight = Family::<KindLabel, Gauge>::default();
        registry.register("apiserver_current_inflight_requests", "Requests at work, by kind", in_flight.clone());
        let kind = |request_kind| in_flight.get_or_create_owned(&KindLabel { request_kind });
        let (reading, writing) = (kind("readOnly"), kind("mutating"));
        let rejections = Family::default();
        let help = "Streams and bodies refused because their user or their level had its share";
        registry.register("mainstay_rejected_streams", help, rejections.clone());
        let others = Vec::new();
        Self { registry, requests, durations, watches, reading, writing, rejections, others }
    }
}

impl Metrics {
    /// With what priority and fairness counts.
    pub fn with_flow_control(flow_control: &FlowControl) -> Self {
        let mut metrics = Self::default();
        flow_control.register(&mut metrics.registry);
        metrics
    }

    pub fn record_request(&self, info: &RequestInfo, code: StatusCode, seconds: f64) {
        let (group, version, resource) = match &info.resource {
            Some(d) => (d.group.clone(), d.version.clone(), d.plural.clone()),
            None => Default::default(),
        };
        let labels = RequestLabels { verb: info.verb, group, version, resource, code: code.as_u16() };
        self.requests.get_or_create(&labels).inc();
        if info.verb != Verb::WATCH {
            self.durations.get_or_create(&VerbLabel { verb: info.verb }).observe(seconds);
        }
    }

    /// Counts a watch as open until the guard is dropped.
    pub fn watching(&self) -> OpenWatchGauge {
        self.watches.inc();
        OpenWatchGauge(self.watches.clone())
    }

    /// Counts a request as at work until the guard is dropped.
    pub fn in_flight(&self, kind: RequestKind) -> InFlight {
        let by_kind = match kind {
            RequestKind::ReadOnly => Some(self.reading.clone()),
            RequestKind::Mutating => Some(self.writing.clone()),
            RequestKind::LongRunning => None,
        };
        by_kind.iter().for_each(|gauge| _ = gauge.inc());
        InFlight(by_kind)
    }

    pub fn rejected(&self, level: PriorityLevel, why: Rejection) {
        let labels = RejectionLabels { priority_level: level.name(), reason: why.name() };
        self.rejections.get_or_create(&labels).inc();
    }

    /// Shows what another part of the process counts as well.
    pub fn also(&mut self, other: Registry) {
        self.others.push(other);
    }

    pub fn text(&self) -> String {
        let mut text = String::new();
        let mut all = std::iter::once(&self.registry).chain(&self.others);
        match all.try_for_each(|registry| encode_registry(&mut text, registry)).and_then(|()| encode_eof(&mut text)) {
            Ok(()) => text,
            Err(error) => format!("# cannot encode: {error}\n"),
        }
    }
}

pub struct OpenWatchGauge(Gauge);

impl Drop for OpenWatchGauge {
    fn drop(&mut self) {
        self.0.dec();
    }
}

pub struct InFlight(Option<Gauge>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.iter().for_each(|gauge| _ = gauge.dec());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_counted_by_resource_and_code() {
        let metrics = Metrics::default();
        let pods = mainstay_api::registry::Registry::builtin().find("", "v1", "pods").cloned();
        let info = RequestInfo { resource: pods, ..RequestInfo::new(Verb::from_request(&Method::GET, true, false)) };
        metrics.record_request(&info, StatusCode::OK, 0.001);
        metrics.record_request(&info, StatusCode::OK, 0.001);
        let text = metrics.text();
        let line = r#"apiserver_request_total{verb="GET",group="",version="v1",resource="pods",code="200"} 2"#;
        assert!(text.contains(line), "{text}");
        let open = metrics.watching();
        assert!(metrics.text().contains("apiserver_longrunning_requests 1"));
        drop(open);
        assert!(metrics.text().contains("apiserver_longrunning_requests 0"));
    }

    #[test]
    fn requests_at_work_and_refused_streams_are_counted() {
        let metrics = Metrics::default();
        let at_work = metrics.in_flight(RequestKind::Mutating);
        metrics.rejected(PriorityLevel::WorkloadLow, Rejection::FlowLimit);
        let text = metrics.text();
        for line in [
            r#"apiserver_current_inflight_requests{request_kind="mutating"} 1"#,
            r#"apiserver_current_inflight_requests{request_kind="readOnly"} 0"#,
            r#"mainstay_rejected_streams_total{priority_level="workload-low",reason="flow-limit"} 1"#,
        ] {
            assert!(text.contains(line), "no {line} in {text}");
        }
        drop(at_work);
        assert!(metrics.text().contains(r#"current_inflight_requests{request_kind="mutating"} 0"#));
    }

    #[test]
    fn what_others_count_is_shown_before_the_end() {
        let mut metrics = Metrics::default();
        let (mut other, counter) = (Registry::default(), Counter::<u64>::default());
        other.register("other", "Counted elsewhere", counter.clone());
        metrics.also(other);
        counter.inc();
        let text = metrics.text();
        assert!(text.contains("other_total 1") && text.ends_with("# EOF\n"), "{text}");
        assert_eq!(text.matches("# EOF").count(), 1);
    }
}
