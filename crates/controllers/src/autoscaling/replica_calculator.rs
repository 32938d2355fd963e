//! How many replicas one metric asks for: the ratio of its current to its target value, applied to the pods that count. Pure.
//!
//! Which pods count is upstream's rule. Pods that are being deleted or failed do not exist for it. Pods without a sample
//! are assumed to use everything when that argues against scaling down, and nothing when it argues against scaling up.
//! Pods that are not ready yet count only when scaling up, as using nothing: they will take their share of the load.
//! A change that these assumptions would reverse is not made.

use std::{collections::BTreeMap, sync::Arc};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::objects::pod::Pod;

/// For this long after a pod started, CPU samples count only from when it is ready.
const CPU_INITIALIZATION_PERIOD: SignedDuration = SignedDuration::from_mins(5);
/// A pod that turned unready within this time of its start has never been ready.
const INITIAL_READINESS_DELAY: SignedDuration = SignedDuration::from_secs(30);

/// What one pod uses, in thousandths of the metric's unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodMetric {
    pub milli: i64,
    /// The end of the interval that was measured.
    pub timestamp: Timestamp,
    pub window: SignedDuration,
}

/// By the name of the pod.
pub type PodMetrics = BTreeMap<String, PodMetric>;

/// How far the ratio may be from one without consequences.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerances {
    pub scale_down: f64,
    pub scale_up: f64,
}

impl Tolerances {
    fn allow(self, ratio: f64) -> bool {
        (1.0 - self.scale_down) <= ratio && ratio <= (1.0 + self.scale_up)
    }
}

/// What a metric leads to, and its current value for the status.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Proposal {
    pub replicas: i32,
    /// The average over the pods, or the value itself where there is no average; in thousandths.
    pub milli: i64,
    /// In percent of the requests.
    pub utilization: Option<i32>,
}

/// Everything but the metric itself that a proposal depends on.
pub struct ReplicaCalculator<'a> {
    /// What the scale selects.
    pub pods: &'a [Arc<Pod>],
    /// As the spec of the scale says.
    pub current: i32,
    /// As the status of the scale says.
    pub observed: i32,
    pub tolerances: Tolerances,
    pub now: Timestamp,
}

/// The pods of a scale by what a metric can say about them.
#[derive(Debug, Default, PartialEq, Eq)]
struct PodGroups<'a> {
    ready: usize,
    unready: Vec<&'a str>,
    missing: Vec<&'a str>,
    ignored: Vec<&'a str>,
}

const NO_PODS: &str = "no pods returned by selector while calculating replica count";
const NO_SAMPLES: &str = "did not receive metrics for targeted pods (pods might be unready)";

impl ReplicaCalculator<'_> {
    /// For a target in percent of what the pods (or one container of each) request.
    pub fn by_utilization(
        &self,
        metrics: &PodMetrics,
        resource: &str,
        container: Option<&str>,
        target: i32,
    ) -> Result<Proposal, String> {
        let (groups, mut metrics) = self.countable(metrics, resource)?;
        let requests = pod_requests(self.pods, resource, container)?;
        let usage = |metrics: &PodMetrics| utilization(metrics, &requests, target);
        let (ratio, current, average) = usage(&metrics)?;
        let proposal = |replicas| Proposal { replicas, milli: average, utilization: Some(current) };
        if groups.is_complete(ratio) {
            return Ok(proposal(self.rounded(ratio, groups.ready)));
        }
        let share = i64::from(target.max(100));
        let full = |pod: &str| requests.get(pod).map_or(0, |request| request.saturating_mul(share) / 100);
        groups.fill(&mut metrics, ratio, full, self.now);
        let (assumed, ..) = usage(&metrics)?;
        Ok(proposal(self.unless_reversed(ratio, assumed, metrics.len())))
    }

    /// For a target that is an average over the pods.
    pub fn by_average(&self, metrics: &PodMetrics, resource: &str, target_milli: i64) -> Result<Proposal, String> {
        let (groups, mut metrics) = self.countable(metrics, resource)?;
        let (ratio, average) = average_ratio(&metrics, target_milli);
        let proposal = |replicas| Proposal { replicas, milli: average, utilization: None };
        if groups.is_complete(ratio) {
            return Ok(proposal(self.rounded(ratio, groups.ready)));
        }
        groups.fill(&mut metrics, ratio, |_| target_milli, self.now);
        let (assumed, _) = average_ratio(&metrics, target_milli);
        Ok(proposal(self.unless_reversed(ratio, assumed, metrics.len())))
    }

    /// For one value that is not of the pods, against a target for the value itself.
    pub fn by_value(&self, milli: i64, target_milli: i64) -> Result<Proposal, String> {
        let ratio = milli as f64 / target_milli as f64;
        let replicas = if self.current == 0 {
            ceil(ratio)
        } else if self.tolerances.allow(ratio) {
            self.current
        } else {
            if self.pods.is_empty() {
                return Err(format!("unable to calculate ready pods: {NO_PODS}"));
            }
            let ready = self.pods.iter().filter(|pod| pod.status.phase == "Running" && pod.is_ready()).count();
            ceil(ratio * ready as f64)
        };
        Ok(Proposal { replicas, milli, utilization: None })
    }

    /// For one value that is not of the pods, against a target for each pod.
    pub fn by_value_per_pod(&self, milli: i64, target_milli: i64) -> Proposal {
        let observed = self.observed.max(0);
        let ratio = milli as f64 / (target_milli as f64 * f64::from(observed));
        let replicas = if self.tolerances.allow(ratio) { observed } else { ceil(milli as f64 / target_milli as f64) };
        let average = (milli as f64 / f64::from(observed)).ceil();
        Proposal { replicas, milli: average.min(i64::MAX as f64) as i64, utilization: None }
    }

    /// The samples that count, and the pods they are of.
    fn countable(&self, metrics: &PodMetrics, resource: &str) -> Result<(PodGroups<'_>, PodMetrics), String> {
        if self.pods.is_empty() {
            return Err(NO_PODS.to_owned());
        }
        let groups = PodGroups::new(self.pods, metrics, resource, self.now);
        let mut metrics = metrics.clone();
        for pod in groups.ignored.iter().chain(&groups.unready) {
            metrics.remove(*pod);
        }
        if metrics.is_empty() { Err(NO_SAMPLES.to_owned()) } else { Ok((groups, metrics)) }
    }

    fn rounded(&self, ratio: f64, pods: usize) -> i32 {
        if self.tolerances.allow(ratio) { self.current } else { ceil(ratio * pods as f64) }
    }

    /// The replicas for a ratio that rests on assumptions, unless these turn the direction around.
    fn unless_reversed(&self, ratio: f64, assumed: f64, pods: usize) -> i32 {
        if self.tolerances.allow(assumed) || (ratio < 1.0 && assumed > 1.0) || (ratio > 1.0 && assumed < 1.0) {
            return self.current;
        }
        let replicas = ceil(assumed * pods as f64);
        if (assumed < 1.0 && replicas > self.current) || (assumed > 1.0 && replicas < self.current) {
            return self.current;
        }
        replicas
    }
}

impl<'a> PodGroups<'a> {
    fn new(pods: &'a [Arc<Pod>], metrics: &PodMetrics, resource: &str, now: Timestamp) -> Self {
        let mut groups = Self::default();
        for pod in pods {
            if pod.is_being_deleted() || pod.status.phase == "Failed" {
                groups.ignored.push(pod.name());
            } else if pod.status.phase == "Pending" {
                groups.unready.push(pod.name());
            } else if let Some(metric) = metrics.get(pod.name()) {
                if resource == "cpu" && is_initializing(pod, metric, now) {
                    groups.unready.push(pod.name());
                } else {
                    groups.ready += 1;
                }
            } else {
                groups.missing.push(pod.name());
            }
        }
        groups
    }

    /// Whether no pod's use has to be assumed.
    fn is_complete(&self, ratio: f64) -> bool {
        self.missing.is_empty() && (self.unready.is_empty() || ratio <= 1.0)
    }

    /// Adds what is assumed of pods without a sample that counts.
    fn fill(&self, metrics: &mut PodMetrics, ratio: f64, full: impl Fn(&str) -> i64, now: Timestamp) {
        let mut assume = |pod: &str, milli| {
            metrics.insert(pod.to_owned(), PodMetric { milli, timestamp: now, window: SignedDuration::ZERO });
        };
        for pod in &self.missing {
            if ratio < 1.0 {
                assume(pod, full(pod));
            } else if ratio > 1.0 {
                assume(pod, 0);
            }
        }
        if ratio > 1.0 {
            self.unready.iter().for_each(|pod| assume(pod, 0));
        }
    }
}

/// Whether a CPU sample may show the start of the program rather than its load.
fn is_initializing(pod: &Pod, metric: &PodMetric, now: Timestamp) -> bool {
    let (Some(ready), Some(Time(started))) = (pod.condition("Ready"), &pod.status.start_time) else { return true };
    let unready = ready.status == "False";
    let since = ready.last_transition_time.as_ref().map_or(Timestamp::MIN, |Time(at)| *at);
    if *started + CPU_INITIALIZATION_PERIOD > now {
        unready || metric.timestamp < since.saturating_add(metric.window).unwrap_or(Timestamp::MAX)
    } else {
        unready && *started + INITIAL_READINESS_DELAY > since
    }
}

/// What each pod requests, in thousandths; of one container, if one is named.
fn pod_requests(pods: &[Arc<Pod>], resource: &str, container: Option<&str>) -> Result<BTreeMap<String, i64>, String> {
    let mut requests = BTreeMap::new();
    for pod in pods {
        let sidecars = pod.spec.init_containers.iter().filter(|container| container.restart_policy == "Always");
        let mut sum: i64 = 0;
        for each in sidecars.chain(&pod.spec.containers) {
            if container.is_some_and(|name| name != each.name) {
                continue;
            }
            let Some(request) = each.requests.get(resource) else {
                return Err(format!("missing request for {resource} in container {} of Pod {}", each.name, pod.name()));
            };
            sum = sum.saturating_add(*request);
        }
        requests.insert(pod.name().to_owned(), sum);
    }
    Ok(requests)
}

/// The ratio to the target, the utilization in percent, and the average use in thousandths.
fn utilization(metrics: &PodMetrics, requests: &BTreeMap<String, i64>, target: i32) -> Result<(f64, i32, i64), String> {
    let counted = || metrics.iter().filter_map(|(pod, metric)| Some((metric.milli, *requests.get(pod)?)));
    let used: i128 = counted().map(|(used, _)| i128::from(used)).sum();
    let requested: i128 = counted().map(|(_, requested)| i128::from(requested)).sum();
    if requested == 0 {
        return Err("no metrics returned matched known pods".to_owned());
    }
    let current = i32::try_from(used * 100 / requested).unwrap_or(i32::MAX);
    let average = i64::try_from(used / counted().count() as i128).unwrap_or(i64::MAX);
    Ok((f64::from(current) / f64::from(target), current, average))
}

/// The ratio to the target, and the average in thousandths.
fn average_ratio(metrics: &PodMetrics, target_milli: i64) -> (f64, i64) {
    let sum: i128 = metrics.values().map(|metric| i128::from(metric.milli)).sum();
    let average = i64::try_from(sum / metrics.len().max(1) as i128).unwrap_or(i64::MAX);
    (average as f64 / target_milli as f64, average)
}

/// Rounded up; what is too large, or divided by nothing, becomes the most there can be.
fn ceil(replicas: f64) -> i32 {
    if replicas.is_nan() { 0 } else { replicas.ceil().clamp(0.0, f64::from(i32::MAX)) as i32 }
}

#[cfg(test)]
mod tests;
