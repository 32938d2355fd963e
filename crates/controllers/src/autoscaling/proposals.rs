//! What each metric of an autoscaler proposes, and its current value for the status. Pure.

use k8s_openapi::{
    api::autoscaling::v2::{
        ContainerResourceMetricStatus, ExternalMetricStatus, MetricSpec, MetricStatus, MetricTarget, MetricValueStatus,
        ObjectMetricStatus, PodsMetricStatus, ResourceMetricStatus,
    },
    apimachinery::pkg::api::resource::Quantity as ApiQuantity,
};
use mainstay_api::quantity::Quantity;

use super::{
    metrics_client::{self, MetricSample},
    replica_calculator::{PodMetrics, Proposal, ReplicaCalculator},
};

/// A metric that makes no proposal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetricError {
    /// Of the event and the condition.
    pub reason: &'static str,
    pub message: String,
    /// The message with which metric it is about.
    pub context: String,
}

/// The metric that asks for most.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LargestProposal {
    pub replicas: i32,
    /// In words.
    pub metric: String,
}

#[derive(Debug, Default)]
pub struct Proposals {
    pub largest: Option<LargestProposal>,
    /// In the order of the spec's metrics; empty for one that could not be computed.
    pub statuses: Vec<MetricStatus>,
    pub errors: Vec<MetricError>,
}

/// What a metric that could be computed leads to.
struct ComputedMetric {
    replicas: i32,
    metric: String,
    status: MetricStatus,
}

pub fn compute(
    specs: &[MetricSpec],
    samples: &[Result<MetricSample, String>],
    calculator: &ReplicaCalculator<'_>,
) -> Proposals {
    let mut proposals = Proposals::default();
    let unread = Err("the metric was not read".to_owned());
    for (index, spec) in specs.iter().enumerate() {
        let sample = samples.get(index).unwrap_or(&unread);
        match compute_metric(spec, sample, calculator) {
            Ok(ComputedMetric { replicas, metric, status }) => {
                proposals.statuses.push(status);
                if proposals.largest.as_ref().is_none_or(|largest| replicas > largest.replicas) {
                    proposals.largest = Some(LargestProposal { replicas, metric });
                }
            }
            Err(error) => {
                proposals.statuses.push(MetricStatus::default());
                proposals.errors.push(error);
            }
        }
    }
    proposals
}

fn compute_metric(
    spec: &MetricSpec,
    sample: &Result<MetricSample, String>,
    calculator: &ReplicaCalculator<'_>,
) -> Result<ComputedMetric, MetricError> {
    let type_ = spec.type_.clone();
    if let Some(source) = &spec.resource {
        let name = &source.name;
        let failed = |message: String| MetricError {
            reason: "FailedGetResourceMetric",
            context: format!("failed to get {name} resource metric value: {message}"),
            message,
        };
        let (proposal, metric) = resource(calculator, sample, name, None, &source.target).map_err(failed)?;
        let status = ResourceMetricStatus { name: name.clone(), current: current(proposal) };
        let status = MetricStatus { type_, resource: Some(status), ..MetricStatus::default() };
        return Ok(ComputedMetric { replicas: proposal.replicas, metric, status });
    }
    if let Some(source) = &spec.container_resource {
        let (name, container) = (&source.name, &source.container);
        let failed = |message: String| MetricError {
            reason: "FailedGetContainerResourceMetric",
            context: format!("failed to get {name} container metric value: {message}"),
            message,
        };
        let (proposal, metric) = resource(calculator, sample, name, Some(container), &source.target).map_err(failed)?;
        let status = ContainerResourceMetricStatus {
            name: name.clone(),
            container: container.clone(),
            current: current(proposal),
        };
        let status = MetricStatus { type_, container_resource: Some(status), ..MetricStatus::default() };
        return Ok(ComputedMetric { replicas: proposal.replicas, metric, status });
    }
    if let Some(source) = &spec.pods {
        let name = &source.metric.name;
        let failed = |why: String| {
            let message = format!("unable to get metric {name}: {why}");
            let context = format!("failed to get pods metric value: {message}");
            MetricError { reason: "FailedGetPodsMetric", message, context }
        };
        let target = target_milli(source.target.average_value.as_ref()).map_err(failed)?;
        let proposal = per_pod(sample).and_then(|metrics| calculator.by_average(metrics, "", target));
        let proposal = proposal.map_err(failed)?;
        let status = PodsMetricStatus { metric: source.metric.clone(), current: current(proposal) };
        let status = MetricStatus { type_, pods: Some(status), ..MetricStatus::default() };
        return Ok(ComputedMetric { replicas: proposal.replicas, metric: format!("pods metric {name}"), status });
    }
    if let Some(source) = &spec.object {
        let (name, object) = (&source.metric.name, &source.described_object);
        let failed = |why: String| {
            let message = format!("unable to get metric {name}: {} on {}: {why}", object.kind, object.name);
            let context = format!("failed to get object metric value: {message}");
            MetricError { reason: "FailedGetObjectMetric", message, context }
        };
        let (proposal, current) = by_value(calculator, sample, &source.target).map_err(failed)?;
        let status = ObjectMetricStatus { metric: source.metric.clone(), described_object: object.clone(), current };
        let status = MetricStatus { type_, object: Some(status), ..MetricStatus::default() };
        return Ok(ComputedMetric { replicas: proposal.replicas, metric: format!("{name} metric"), status });
    }
    if let Some(source) = &spec.external {
        let name = &source.metric.name;
        let failed = |why: String| {
            let message = format!("unable to get external metric {name}: {why}");
            let context = format!("failed to get {name} external metric value: {message}");
            MetricError { reason: "FailedGetExternalMetric", message, context }
        };
        let (proposal, current) = by_value(calculator, sample, &source.target).map_err(failed)?;
        let status = ExternalMetricStatus { metric: source.metric.clone(), current };
        let status = MetricStatus { type_, external: Some(status), ..MetricStatus::default() };
        return Ok(ComputedMetric { replicas: proposal.replicas, metric: format!("external metric {name}"), status });
    }
    let message = format!("unknown metric source type {type_:?}");
    Err(MetricError { reason: "InvalidMetricSourceType", context: message.clone(), message })
}

/// Of a resource that containers request: by average, or in percent of the requests.
fn resource(
    calculator: &ReplicaCalculator<'_>,
    sample: &Result<MetricSample, String>,
    name: &str,
    container: Option<&str>,
    target: &MetricTarget,
) -> Result<(Proposal, String), String> {
    let metrics = || per_pod(sample).map_err(|why| format!("unable to get metrics for resource {name}: {why}"));
    if target.average_value.is_some() {
        let target = target_milli(target.average_value.as_ref())?;
        let proposal = metrics().and_then(|metrics| calculator.by_average(metrics, name, target));
        let proposal = proposal.map_err(|why| format!("failed to get {name} usage: {why}"))?;
        return Ok((proposal, format!("{name} resource")));
    }
    let Some(target) = target.average_utilization.filter(|target| *target > 0) else {
        let neither = "neither an average utilization target nor an average value (usage) target was set";
        return Err(format!("invalid resource metric source: {neither}"));
    };
    let proposal = metrics().and_then(|metrics| calculator.by_utilization(metrics, name, container, target));
    let proposal = proposal.map_err(|why| format!("failed to get {name} utilization: {why}"))?;
    let of = if container.is_some() { "container resource" } else { "resource" };
    Ok((proposal, format!("{name} {of} utilization (percentage of request)")))
}

/// Of one value that is not of the pods: against the value, or against an average over the pods.
fn by_value(
    calculator: &ReplicaCalculator<'_>,
    sample: &Result<MetricSample, String>,
    target: &MetricTarget,
) -> Result<(Proposal, MetricValueStatus), String> {
    let milli = match sample {
        Ok(MetricSample::Value(milli)) => *milli,
        Ok(MetricSample::PerPod(_)) => return Err("one value was expected, and there is one per pod".to_owned()),
        Err(why) => return Err(why.clone()),
    };
    if target.value.is_some() {
        let proposal = calculator.by_value(milli, target_milli(target.value.as_ref())?)?;
        let current = MetricValueStatus { value: Some(quantity(proposal.milli)), ..MetricValueStatus::default() };
        return Ok((proposal, current));
    }
    if target.average_value.is_some() {
        let proposal = calculator.by_value_per_pod(milli, target_milli(target.average_value.as_ref())?);
        return Ok((proposal, current(proposal)));
    }
    Err("neither a value target nor an average value target was set".to_owned())
}

fn per_pod(sample: &Result<MetricSample, String>) -> Result<&PodMetrics, String> {
    match sample {
        Ok(MetricSample::PerPod(metrics)) => Ok(metrics),
        Ok(MetricSample::Value(_)) => Err("a value per pod was expected, and there is one".to_owned()),
        Err(why) => Err(why.clone()),
    }
}

fn target_milli(target: Option<&ApiQuantity>) -> Result<i64, String> {
    let milli = target.map_or(Ok(0), |target| metrics_client::milli(&target.0))?;
    if milli > 0 { Ok(milli) } else { Err("the target must be positive".to_owned()) }
}

fn current(proposal: Proposal) -> MetricValueStatus {
    MetricValueStatus {
        average_utilization: proposal.utilization,
        average_value: Some(quantity(proposal.milli)),
        value: None,
    }
}

/// Thousandths as the API writes them.
fn quantity(milli: i64) -> ApiQuantity {
    let text = format!("{milli}m");
    ApiQuantity(Quantity::parse(&text).map_or(text, |quantity| quantity.canonical()))
}
