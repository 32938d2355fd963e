//! How soon every machine knows who stands behind a Service.
//!
//! One pod of a Service is made ready, and then deleted, again and again; the others stay. Measured are the time from
//! asking the API to write that it is ready to when the last machine has it in its table, and from
//! asking to delete it to when the pod is said to be drained, which is after every machine has acknowledged.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use http::Method;
use kube::Client;
use serde_json::{Value, json};

use crate::{
    fleet::Fleet,
    load,
    wire::{self, CallError, JSON, MERGE, STRATEGIC},
};

const NAMESPACE: &str = "propagation";
const PATIENCE: Duration = Duration::from_secs(30);
const GLANCE: Duration = Duration::from_millis(1);

#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Pods that stand behind the Service all the time.
    pub others: usize,
    pub rounds: usize,
}

/// Times of all rounds, in order of size.
#[derive(Debug, Default)]
pub struct Found {
    /// Until the last machine knew.
    pub known: Vec<Duration>,
    /// Until a machine knew, for all machines.
    pub each: Vec<Duration>,
    /// Until it was written in a slice, as far as the asker saw.
    pub written: Vec<Duration>,
    pub drained: Vec<Duration>,
}

/// Such that so many of a hundred are not longer.
pub fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    let at = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
    sorted.get(at).copied().unwrap_or_default()
}

/// The machines run already, and hold tables.
pub async fn measure(client: &Client, fleet: &Fleet, plan: Plan) -> anyhow::Result<Found> {
    load::namespace(client, NAMESPACE).await.context("create a namespace")?;
    let service = json!({
        "metadata": { "name": "web" },
        "spec": { "selector": { "app": "web" }, "ports": [{ "port": 80, "targetPort": 8080 }] },
    });
    post(client, "services", &service).await?;
    for number in 0..plan.others {
        pod(client, fleet, &format!("other-{number}"), number).await?;
        ready(client, &format!("other-{number}")).await?;
    }
    until("all others are in slices", async || Ok(ready_in_slices(client).await?.1.len() >= plan.others)).await?;
    let mut found = Found::default();
    for round in 0..plan.rounds {
        let name = format!("round-{round}");
        pod(client, fleet, &name, plan.others + round % 1000).await?;
        let before = until("it is in a slice", async || in_slices(client, &name).await).await?;
        until("every machine rests", async || Ok(fleet.tables.least() >= before)).await?;
        fleet.tables.forget();
        let begun = Instant::now();
        ready(client, &name).await?;
        let version = until("it is ready in a slice", async || {
            let (newest, names) = ready_in_slices(client).await?;
            Ok(names.contains(&name).then_some(newest))
        })
        .await?;
        found.written.push(begun.elapsed());
        until("every machine knows", async || Ok(fleet.tables.least() >= version)).await?;
        let came = fleet.tables.came_to(version);
        if came.len() != fleet.len() {
            bail!("only {} of {} machines say when they knew", came.len(), fleet.len());
        }
        let times: Vec<Duration> = came.iter().map(|at| at.saturating_duration_since(begun)).collect();
        found.known.extend(times.iter().max());
        found.each.extend(times);
        let begun = Instant::now();
        call(client, Method::DELETE, &format!("pods/{name}?gracePeriodSeconds=30"), JSON, &Value::Null).await?;
        until("it is drained", async || is_drained(client, &name).await).await?;
        found.drained.push(begun.elapsed());
        call(client, Method::DELETE, &format!("pods/{name}?gracePeriodSeconds=0"), JSON, &Value::Null).await?;
    }
    for times in [&mut found.known, &mut found.each, &mut found.written, &mut found.drained] {
        times.sort();
    }
    Ok(found)
}

/// Asks until there is an answer.
async fn until<A: Answer, F: Future<Output = Result<A, CallError>>>(
    what: &str,
    ask: impl Fn() -> F,
) -> anyhow::Result<A::Said> {
    let begun = Instant::now();
    loop {
        if let Some(said) = ask().await?.said() {
            return Ok(said);
        }
        if begun.elapsed() > PATIENCE {
            bail!("waited in vain until {what}");
        }
        tokio::time::sleep(GLANCE).await;
    }
}

trait Answer {
    type Said;
    fn said(self) -> Option<Self::Said>;
}

impl Answer for bool {
    type Said = ();

    fn said(self) -> Option<()> {
        self.then_some(())
    }
}

impl<T> Answer for Option<T> {
    type Said = T;

    fn said(self) -> Option<T> {
        self
    }
}

/// A pod on a machine that has an address and is not ready.
async fn pod(client: &Client, fleet: &Fleet, name: &str, number: usize) -> Result<(), CallError> {
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

async fn ready(client: &Client, name: &str) -> Result<(), CallError> {
    let status = json!({ "status": { "conditions": [{ "type": "Ready", "status": "True" }] } });
    call(client, Method::PATCH, &format!("pods/{name}/status"), STRATEGIC, &status).await.map(drop)
}

async fn slices(client: &Client) -> Result<Vec<Value>, CallError> {
    let path = format!("/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices");
    let bytes = wire::call(client, Method::GET, &path, JSON, Vec::new()).await?;
    let list: Value = serde_json::from_slice(&bytes).unwrap_or_default();
    Ok(list["items"].as_array().cloned().unwrap_or_default())
}

/// The version of the slice that a pod is in.
async fn in_slices(client: &Client, name: &str) -> Result<Option<u64>, CallError> {
    let all = slices(client).await?;
    let names = |slice: &Value| {
        let mut endpoints = slice["endpoints"].as_array().into_iter().flatten();
        endpoints.any(|endpoint| endpoint["targetRef"]["name"] == name)
    };
    Ok(all.iter().find(|slice| names(slice)).map(version))
}

/// The newest version of a slice, and the pods that are ready.
async fn ready_in_slices(client: &Client) -> Result<(u64, Vec<String>), CallError> {
    let all = slices(client).await?;
    let endpoints = all.iter().flat_map(|slice| slice["endpoints"].as_array().into_iter().flatten());
    let ready = endpoints.filter(|endpoint| endpoint["conditions"]["ready"] == true);
    let names = ready.filter_map(|endpoint| endpoint["targetRef"]["name"].as_str().map(str::to_owned)).collect();
    Ok((all.iter().map(version).max().unwrap_or(0), names))
}

fn version(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"].as_str().and_then(|version| version.parse().ok()).unwrap_or(0)
}

async fn is_drained(client: &Client, name: &str) -> Result<bool, CallError> {
    let pod = call(client, Method::GET, &format!("pods/{name}"), JSON, &Value::Null).await?;
    let mut conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    Ok(conditions.any(|condition| condition["type"] == "mainstay.dev/Drained" && condition["status"] == "True"))
}

async fn post(client: &Client, plural: &str, object: &Value) -> Result<Value, CallError> {
    call(client, Method::POST, plural, JSON, object).await
}

async fn call(client: &Client, method: Method, path: &str, content: &str, body: &Value) -> Result<Value, CallError> {
    let path = format!("/api/v1/namespaces/{NAMESPACE}/{path}");
    let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
    let bytes = wire::call(client, method, &path, content, body).await?;
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
