//! What `/metrics` tells, under the names dashboards for Kubernetes already use.
//!
//! Labels are enums and names from the registry, never text of a request, so that no client can make
//! the number of series grow.

use std::{borrow::Cow, sync::Arc};

use http::{Method, StatusCode};
use mainstay_api::descriptor::Descriptor;
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
    pub fn of(method: &Method, named: bool, watch: bool) -> Self {
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

/// What a request turned out to be about.
#[derive(Clone)]
pub struct Seen {
    pub verb: Verb,
    /// `None` for requests that are about no resource we serve.
    pub resource: Option<Arc<Descriptor>>,
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

pub struct Metrics {
    registry: Registry,
    requests: Family<RequestLabels, Counter>,
    durations: Family<VerbLabel, Histogram, fn() -> Histogram>,
    watches: Gauge,
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
        Self { registry, requests, durations, watches, others: Vec::new() }
    }
}

impl Metrics {
    pub fn answered(&self, seen: &Seen, code: StatusCode, seconds: f64) {
        let (group, version, resource) = match &seen.resource {
            Some(d) => (d.group.clone(), d.version.clone(), d.plural.clone()),
            None => Default::default(),
        };
        let labels = RequestLabels { verb: seen.verb, group, version, resource, code: code.as_u16() };
        self.requests.get_or_create(&labels).inc();
        if seen.verb != Verb::WATCH {
            self.durations.get_or_create(&VerbLabel { verb: seen.verb }).observe(seconds);
        }
    }

    /// Counts a watch as open until the guard is dropped.
    pub fn watching(&self) -> Watching {
        self.watches.inc();
        Watching(self.watches.clone())
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

pub struct Watching(Gauge);

impl Drop for Watching {
    fn drop(&mut self) {
        self.0.dec();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_counted_by_resource_and_code() {
        let metrics = Metrics::default();
        let pods = mainstay_api::registry::Registry::builtin().find("", "v1", "pods").cloned();
        let seen = Seen { verb: Verb::of(&Method::GET, true, false), resource: pods };
        metrics.answered(&seen, StatusCode::OK, 0.001);
        metrics.answered(&seen, StatusCode::OK, 0.001);
        let text = metrics.text();
        let line = r#"apiserver_request_total{verb="GET",group="",version="v1",resource="pods",code="200"} 2"#;
        assert!(text.contains(line), "{text}");
        let open = metrics.watching();
        assert!(metrics.text().contains("apiserver_longrunning_requests 1"));
        drop(open);
        assert!(metrics.text().contains("apiserver_longrunning_requests 0"));
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
