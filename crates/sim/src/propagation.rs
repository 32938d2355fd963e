//! Measures how soon every node knows the endpoints of a Service.
//!
//! One pod of a Service is made ready and then deleted, again and again; the others stay. Measured are the time from
//! writing that it is ready until the last node has it in its table, and the time from deleting it until the pod is
//! drained, which is after every node has acknowledged.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use http::Method;
use kube::Client;
use serde_json::{Value, json};

use crate::{
    fleet::Fleet,
    load,
    requests::{self, CallError, JSON, MERGE, STRATEGIC},
};

const NAMESPACE: &str = "propagation";
const TIMEOUT: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(1);

#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Pods that are endpoints of the Service all the time.
    pub others: usize,
    pub rounds: usize,
}

/// Times of all rounds, sorted.
#[derive(Debug, Default)]
pub struct PropagationTimes {
    /// Until the last node knew.
    pub last_node: Vec<Duration>,
    /// Until a node knew, for all nodes.
    pub each_node: Vec<Duration>,
    /// Until it was ready in an EndpointSlice, as the measuring client saw it.
    pub written: Vec<Duration>,
    pub drained: Vec<Duration>,
}

/// The time that `percent` of all times do not exceed.
pub fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    let at = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
    sorted.get(at).copied().unwrap_or_default()
}

/// The fleet must be running with service tables.
pub async fn measure(client: &Client, fleet: &Fleet, plan: Plan) -> anyhow::Result<PropagationTimes> {
    load::create_namespace(client, NAMESPACE).await.context("create a namespace")?;
    let service = json!({
        "metadata": { "name": "web" },
        "spec": { "selector": { "app": "web" }, "ports": [{ "port": 80, "targetPort": 8080 }] },
    });
    post(client, "services", &service).await?;
    for number in 0..plan.others {
        create_pod(client, fleet, &format!("other-{number}"), number).await?;
        mark_ready(client, &format!("other-{number}")).await?;
    }
    wait_until("all others are in slices", async || Ok(ready_pods_in_slices(client).await?.1.len() >= plan.others))
        .await?;
    let mut times = PropagationTimes::default();
    for round in 0..plan.rounds {
        let name = format!("round-{round}");
        create_pod(client, fleet, &name, plan.others + round % 1000).await?;
        let before = wait_until("it is in a slice", async || slice_version_of_pod(client, &name).await).await?;
        wait_until("every node has applied the slice", async || Ok(fleet.service_tables.oldest_version() >= before))
            .await?;
        fleet.service_tables.clear_history();
        let begun = Instant::now();
        mark_ready(client, &name).await?;
        let version = wait_until("it is ready in a slice", async || {
            let (newest, names) = ready_pods_in_slices(client).await?;
            Ok(names.contains(&name).then_some(newest))
        })
        .await?;
        times.written.push(begun.elapsed());
        wait_until("every node has applied the change", async || Ok(fleet.service_tables.oldest_version() >= version))
            .await?;
        let reached = fleet.service_tables.times_reached(version);
        if reached.len() != fleet.len() {
            bail!("only {} of {} nodes recorded when they applied the change", reached.len(), fleet.len());
        }
        let delays: Vec<Duration> = reached.iter().map(|at| at.saturating_duration_since(begun)).collect();
        times.last_node.extend(delays.iter().max());
        times.each_node.extend(delays);
        let begun = Instant::now();
        call(client, Method::DELETE, &format!("pods/{name}?gracePeriodSeconds=30"), JSON, &Value::Null).await?;
        wait_until("it is drained", async || is_drained(client, &name).await).await?;
        times.drained.push(begun.elapsed());
        call(client, Method::DELETE, &format!("pods/{name}?gracePeriodSeconds=0"), JSON, &Value::Null).await?;
    }
    for times in [&mut times.last_node, &mut times.each_node, &mut times.written, &mut times.drained] {
        times.sort();
    }
    Ok(times)
}

/// Polls until the condition holds.
async fn wait_until<C: Condition, F: Future<Output = Result<C, CallError>>>(
    what: &str,
    poll: impl Fn() -> F,
) -> anyhow::Result<C::Value> {
    let begun = Instant::now();
    loop {
        if let Some(value) = poll().await?.value() {
            return Ok(value);
        }
        if begun.elapsed() > TIMEOUT {
            bail!("timed out waiting until {what}");
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

trait Condition {
    type Value;
    fn value(self) -> Option<Self::Value>;
}

impl Condition for bool {
    type Value = ();

    fn value(self) -> Option<()> {
        self.then_some(())
    }
}

impl<T> Condition for Option<T> {
    type Value = T;

    fn value(self) -> Option<T> {
        self
    }
}

/// Creates a pod that is bound, has an address and is not ready.
async fn create_pod(client: &Client, fleet: &Fleet, name: &str, number: usize) -> Result<(), CallError> {
    let pod = json!({
        "metadata": { "name": name, "labels": { "app": "web" } },
        "spec": { "nodeName": fleet.name(number % fleet.len()), "containers": [{ "name": "c", "image": "i" }] },
    });
    post(client, "pods", &pod).await?;
    let address = format!("10.200.{}.{}", number / 250, number % 250 + 1);
    let status = json!({ "status": {
        "phase": "Running", "podIP": address, "podIPs": [{ "ip": address }],
        "conditions": [{ "type": "Ready", "status": "False" }],
    } });
    call(client, Method::PATCH, &format!("pods/{name}/status"), MERGE, &status).await.map(drop)
}

async fn mark_ready(client: &Client, name: &str) -> Result<(), CallError> {
    let status = json!({ "status": { "conditions": [{ "type": "Ready", "status": "True" }] } });
    call(client, Method::PATCH, &format!("pods/{name}/status"), STRATEGIC, &status).await.map(drop)
}

async fn list_slices(client: &Client) -> Result<Vec<Value>, CallError> {
    let path = format!("/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices");
    let bytes = requests::call(client, Method::GET, &path, JSON, Vec::new()).await?;
    let list: Value = serde_json::from_slice(&bytes).unwrap_or_default();
    Ok(list["items"].as_array().cloned().unwrap_or_default())
}

/// The version of the slice that has the pod as an endpoint.
async fn slice_version_of_pod(client: &Client, name: &str) -> Result<Option<u64>, CallError> {
    let all = list_slices(client).await?;
    let names = |slice: &Value| {
        let mut endpoints = slice["endpoints"].as_array().into_iter().flatten();
        endpoints.any(|endpoint| endpoint["targetRef"]["name"] == name)
    };
    Ok(all.iter().find(|slice| names(slice)).map(resource_version))
}

/// The newest version of a slice, and the pods that are ready.
async fn ready_pods_in_slices(client: &Client) -> Result<(u64, Vec<String>), CallError> {
    let all = list_slices(client).await?;
    let endpoints = all.iter().flat_map(|slice| slice["endpoints"].as_array().into_iter().flatten());
    let ready = endpoints.filter(|endpoint| endpoint["conditions"]["ready"] == true);
    let names = ready.filter_map(|endpoint| endpoint["targetRef"]["name"].as_str().map(str::to_owned)).collect();
    Ok((all.iter().map(resource_version).max().unwrap_or(0), names))
}

fn resource_version(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"].as_str().and_then(|version| version.parse().ok()).unwrap_or(0)
}

async fn is_drained(client: &Client, name: &str) -> Result<bool, CallError> {
    let pod = call(client, Method::GET, &format!("pods/{name}"), JSON, &Value::Null).await?;
    let mut conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    Ok(conditions.any(|condition| {
        condition["type"] == mainstay_api::wellknown::mainstay::DRAINED_CONDITION && condition["status"] == "True"
    }))
}

async fn post(client: &Client, plural: &str, object: &Value) -> Result<Value, CallError> {
    call(client, Method::POST, plural, JSON, object).await
}

async fn call(client: &Client, method: Method, path: &str, content: &str, body: &Value) -> Result<Value, CallError> {
    let path = format!("/api/v1/namespaces/{NAMESPACE}/{path}");
    let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
    let bytes = requests::call(client, method, &path, content, body).await?;
    Ok(serde_json::from_slice(&bytes).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_those_not_longer() {
        let times: Vec<Duration> = (1..=200).map(Duration::from_millis).collect();
        assert_eq!(percentile(&times, 50), Duration::from_millis(100));
        assert_eq!(percentile(&times, 99), Duration::from_millis(198));
        assert_eq!(percentile(&[], 99), Duration::ZERO);
    }
}
