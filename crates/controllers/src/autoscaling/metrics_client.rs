//! Reads the metrics that an autoscaler names: `metrics.k8s.io`, `custom.metrics.k8s.io`, `external.metrics.k8s.io`.
//!
//! A metric that cannot be read is a value, not an error of the reconcile: the autoscaler decides on the others and
//! says in a condition what is missing. Texts of errors are upstream's.

use std::collections::BTreeMap;

use form_urlencoded::Serializer;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::autoscaling::v2::{CrossVersionObjectReference, MetricIdentifier, MetricSpec},
    apimachinery::pkg::apis::meta::v1::LabelSelector,
};
use kube::{Client, core::GroupVersionKind, discovery};
use mainstay_api::{duration::parse_duration, quantity::Quantity, selector::Labels};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;

use super::replica_calculator::{PodMetric, PodMetrics};
use crate::runtime::error;

const CUSTOM: &str = "custom.metrics.k8s.io";
/// Newest first.
const CUSTOM_VERSIONS: [&str; 2] = ["v1beta2", "v1beta1"];
/// What a sample covers if it does not say so.
const DEFAULT_WINDOW: SignedDuration = SignedDuration::from_mins(1);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetricSample {
    PerPod(PodMetrics),
    /// One value in thousandths.
    Value(i64),
}

/// Reads what one metric of a spec refers to, for the pods of a selector.
pub async fn read(client: &Client, namespace: &str, selector: &str, spec: &MetricSpec) -> Result<MetricSample, String> {
    match spec {
        MetricSpec { resource: Some(source), .. } => {
            resource_metric(client, namespace, selector, &source.name, None).await
        }
        MetricSpec { container_resource: Some(source), .. } => {
            resource_metric(client, namespace, selector, &source.name, Some(&source.container)).await
        }
        MetricSpec { pods: Some(source), .. } => {
            let path = format!("namespaces/{namespace}/pods/*/{}", segment(&source.metric.name)?);
            let list = custom_metric(client, &path, Some(selector), &source.metric).await?;
            pod_samples(list).map(MetricSample::PerPod)
        }
        MetricSpec { object: Some(source), .. } => {
            let path = object_path(client, namespace, &source.described_object).await?;
            let path = format!("{path}/{}", segment(&source.metric.name)?);
            let list = custom_metric(client, &path, None, &source.metric).await?;
            let value = list.items.first().ok_or("no metrics returned from custom metrics API")?;
            Ok(MetricSample::Value(milli(&value.value)?))
        }
        MetricSpec { external: Some(source), .. } => external_metric(client, namespace, &source.metric).await,
        MetricSpec { type_, .. } => Err(format!("unknown metric source type {type_:?}")),
    }
}

#[derive(Deserialize)]
struct List<T> {
    #[serde(default = "Vec::new")]
    items: Vec<T>,
}

#[derive(Deserialize)]
struct PodUsage {
    metadata: Named,
    timestamp: Timestamp,
    #[serde(default)]
    window: String,
    #[serde(default)]
    containers: Vec<ContainerUsage>,
}

#[derive(Deserialize)]
struct Named {
    #[serde(default)]
    name: String,
}

#[derive(Deserialize)]
struct ContainerUsage {
    name: String,
    #[serde(default)]
    usage: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct MetricValue {
    described_object: Named,
    timestamp: Timestamp,
    window_seconds: Option<i64>,
    value: String,
}

#[derive(Deserialize)]
struct ExternalValue {
    value: String,
}

async fn resource_metric(
    client: &Client,
    namespace: &str,
    selector: &str,
    resource: &str,
    container: Option<&str>,
) -> Result<MetricSample, String> {
    let path = format!("/apis/metrics.k8s.io/v1beta1/namespaces/{namespace}/pods");
    let list: List<PodUsage> = match get(client, &path, &[("labelSelector", Some(selector))]).await {
        Ok(list) => list,
        Err(error) => return Err(format!("unable to fetch metrics from resource metrics API: {}", error.message)),
    };
    usage_of_pods(list, namespace, resource, container).map(MetricSample::PerPod)
}

/// The use of a resource by each pod, or by one container of each.
fn usage_of_pods(
    list: List<PodUsage>,
    namespace: &str,
    resource: &str,
    container: Option<&str>,
) -> Result<PodMetrics, String> {
    if list.items.is_empty() {
        return Err("no metrics returned from resource metrics API".to_owned());
    }
    let mut metrics = PodMetrics::new();
    for pod in list.items {
        let counted = || pod.containers.iter().filter(|each| container.is_none_or(|name| name == each.name));
        if container.is_some() && counted().next().is_none() {
            let (name, pod) = (container.unwrap_or_default(), &pod.metadata.name);
            return Err(format!("container {name} not present in metrics for pod {namespace}/{pod}"));
        }
        // A pod of which one container was not measured is a pod without a sample.
        let Some(used) = counted().map(|each| milli(each.usage.get(resource)?).ok()).collect::<Option<Vec<_>>>() else {
            continue;
        };
        let sample = PodMetric {
            milli: used.into_iter().fold(0, i64::saturating_add),
            timestamp: pod.timestamp,
            window: window(&pod.window),
        };
        metrics.insert(pod.metadata.name, sample);
    }
    Ok(metrics)
}

/// Reads a custom metric in the newest version that is served.
async fn custom_metric(
    client: &Client,
    path: &str,
    selector: Option<&str>,
    metric: &MetricIdentifier,
) -> Result<List<MetricValue>, String> {
    let metric_selector = selector_text(metric.selector.as_ref())?;
    let query = [("labelSelector", selector), ("metricLabelSelector", metric_selector.as_deref())];
    let failed = |why: String| format!("unable to fetch metrics from custom metrics API: {why}");
    for version in CUSTOM_VERSIONS {
        match get(client, &format!("/apis/{CUSTOM}/{version}/{path}"), &query).await {
            Ok(list) => return Ok(list),
            Err(error) if error.not_served => {}
            Err(error) => return Err(failed(error.message)),
        }
    }
    Err(failed(format!("no custom metrics API ({CUSTOM}) registered")))
}

fn pod_samples(list: List<MetricValue>) -> Result<PodMetrics, String> {
    if list.items.is_empty() {
        return Err("no metrics returned from custom metrics API".to_owned());
    }
    let sample = |value: MetricValue| {
        let window = value.window_seconds.map_or(DEFAULT_WINDOW, SignedDuration::from_secs);
        let metric = PodMetric { milli: milli(&value.value)?, timestamp: value.timestamp, window };
        Ok((value.described_object.name, metric))
    };
    list.items.into_iter().map(sample).collect()
}

/// Where custom metrics of an object are.
async fn object_path(client: &Client, namespace: &str, object: &CrossVersionObjectReference) -> Result<String, String> {
    let api_version = object.api_version.as_deref().unwrap_or("v1");
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    if (group, object.kind.as_str()) == ("", "Namespace") {
        return Ok(format!("namespaces/{}/metrics", segment(&object.name)?));
    }
    let kind = GroupVersionKind::gvk(group, version, &object.kind);
    let (resource, capabilities) = discovery::pinned_kind(client, &kind)
        .await
        .map_err(|_| format!("no matches for kind {:?} in version {api_version:?}", object.kind))?;
    let plural = if group.is_empty() { resource.plural } else { format!("{}.{group}", resource.plural) };
    let name = segment(&object.name)?;
    Ok(match capabilities.scope {
        discovery::Scope::Namespaced => format!("namespaces/{namespace}/{plural}/{name}"),
        discovery::Scope::Cluster => format!("{plural}/{name}"),
    })
}

/// The sum over everything that the selector of the metric matches.
async fn external_metric(client: &Client, namespace: &str, metric: &MetricIdentifier) -> Result<MetricSample, String> {
    let path = format!("/apis/external.metrics.k8s.io/v1beta1/namespaces/{namespace}/{}", segment(&metric.name)?);
    let selector = selector_text(metric.selector.as_ref())?;
    let list: List<ExternalValue> = match get(client, &path, &[("labelSelector", selector.as_deref())]).await {
        Ok(list) => list,
        Err(error) => return Err(format!("unable to fetch metrics from external metrics API: {}", error.message)),
    };
    if list.items.is_empty() {
        return Err("no metrics returned from external metrics API".to_owned());
    }
    let values = list.items.iter().map(|item| milli(&item.value)).collect::<Result<Vec<_>, _>>()?;
    Ok(MetricSample::Value(values.into_iter().fold(0, i64::saturating_add)))
}

struct ReadError {
    /// The path is not served at all, whatever object it names.
    not_served: bool,
    message: String,
}

async fn get<T: serde::de::DeserializeOwned>(
    client: &Client,
    path: &str,
    query: &[(&str, Option<&str>)],
) -> Result<T, ReadError> {
    let given = query.iter().filter_map(|(name, value)| Some((name, (*value)?)));
    let query = Serializer::new(String::new()).extend_pairs(given).finish();
    let request = http::Request::get(format!("{path}?{query}")).body(Vec::new());
    let request = request.map_err(|error| ReadError { not_served: false, message: error.to_string() })?;
    client.request(request).await.map_err(|error| ReadError {
        not_served: match &error {
            kube::Error::Api(status) => {
                status.code == 404 && status.details.as_ref().is_none_or(|details| details.name.is_empty())
            }
            _ => false,
        },
        message: error::message(&error),
    })
}

fn selector_text(selector: Option<&LabelSelector>) -> Result<Option<String>, String> {
    let Some(selector) = selector else { return Ok(None) };
    let selector = serde_json::to_value(selector).unwrap_or_default();
    let labels = Labels::from_selector(&selector).map_err(|error| format!("invalid metric selector: {error}"))?;
    Ok(Some(labels.to_string()))
}

fn window(text: &str) -> SignedDuration {
    let window = parse_duration(text).and_then(|window| SignedDuration::try_from(window).ok());
    window.unwrap_or(DEFAULT_WINDOW)
}

/// A name that users choose, as one segment of a path and never more.
fn segment(name: &str) -> Result<String, String> {
    const KEPT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b':');
    match name {
        "" | "." | ".." => Err(format!("invalid metric or object name {name:?}")),
        name => Ok(utf8_percent_encode(name, KEPT).to_string()),
    }
}

/// An amount in thousandths.
pub fn milli(quantity: &str) -> Result<i64, String> {
    let quantity = Quantity::parse(quantity).map_err(|error| format!("invalid quantity {quantity:?}: {error}"))?;
    Ok(i64::try_from(quantity.as_milli()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn usage() -> List<PodUsage> {
        let list = json!({ "items": [
            { "metadata": { "name": "a" }, "timestamp": "2026-01-01T00:00:00Z", "window": "10s", "containers": [
                { "name": "c", "usage": { "cpu": "150500000n", "memory": "1Mi" } },
                { "name": "side", "usage": { "cpu": "50m" } },
            ] },
        ] });
        serde_json::from_value(list).unwrap()
    }

    #[test]
    fn the_use_of_a_pod_is_the_sum_of_its_containers() {
        let metrics = usage_of_pods(usage(), "ns", "cpu", None).unwrap();
        assert_eq!((metrics["a"].milli, metrics["a"].window), (201, SignedDuration::from_secs(10)));
        let metrics = usage_of_pods(usage(), "ns", "memory", None).unwrap();
        assert!(metrics.is_empty(), "a container without a sample makes it a pod without one");
    }

    #[test]
    fn names_stay_one_segment_of_the_path() {
        assert_eq!(segment("requests-per_second"), Ok("requests-per_second".to_owned()));
        assert_eq!(segment("../../secrets?x"), Ok("..%2F..%2Fsecrets%3Fx".to_owned()));
        assert!(segment("..").is_err() && segment("").is_err());
    }

    #[test]
    fn one_container_can_be_named_and_must_be_there() {
        assert_eq!(usage_of_pods(usage(), "ns", "cpu", Some("side")).unwrap()["a"].milli, 50);
        let missing = usage_of_pods(usage(), "ns", "cpu", Some("x"));
        assert_eq!(missing, Err("container x not present in metrics for pod ns/a".to_owned()));
        let none = usage_of_pods(List { items: Vec::new() }, "ns", "cpu", None);
        assert_eq!(none, Err("no metrics returned from resource metrics API".to_owned()));
    }
}
