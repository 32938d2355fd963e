//! `metrics.k8s.io/v1beta1`: usage of nodes and pods, fetched from the agents when a client asks.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{StreamExt, stream};
use http::{Method, Request, StatusCode, header, request::Parts};
use http_body_util::{BodyExt, Limited};
use mainstay_api::{descriptor::Descriptor, table::PrinterColumns};
use mainstay_store::Entry;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::{Agents, pipe, pod::empty_body, table};
use crate::{
    api::{Api, Target},
    http::{
        negotiate::{self, Shape},
        query::Query,
        reply::{self, RowObject},
        response_body::Response,
        route::ResourceRoute,
        status::{ApiError, ApiResult},
    },
    objects::{filter::Filter, object},
    verbs::list,
};

pub const GROUP: &str = "metrics.k8s.io";
pub const VERSION: &str = "v1beta1";
const API_VERSION: &str = "metrics.k8s.io/v1beta1";

/// The usage that an agent reported is served for this long.
const MAX_AGE: Duration = Duration::from_secs(2);
/// An agent that takes longer is left out.
const SUMMARY_TIMEOUT: Duration = Duration::from_secs(8);
const MAX_SUMMARY: usize = 16 << 20;
/// Agents asked at the same time.
const CONCURRENT_REQUESTS: usize = 64;

/// The resources of the group, as discovery lists them.
pub struct MetricsResource {
    pub plural: &'static str,
    pub kind: &'static str,
    pub namespaced: bool,
}

pub const RESOURCES: [MetricsResource; 2] = [
    MetricsResource { plural: "nodes", kind: "NodeMetrics", namespaced: false },
    MetricsResource { plural: "pods", kind: "PodMetrics", namespaced: true },
];

/// The usage that agents reported, by node.
#[derive(Default)]
pub struct UsageCache(Mutex<HashMap<String, (Instant, Arc<Value>)>>);

impl Agents {
    /// What runs on a node and what it uses, or `None` if its agent cannot be asked.
    async fn summary(&self, api: &Api, node: &str) -> Option<Arc<Value>> {
        if let Some((at, summary)) = self.usage.0.lock().get(node)
            && at.elapsed() < MAX_AGE
        {
            return Some(summary.clone());
        }
        let asked = tokio::time::timeout(SUMMARY_TIMEOUT, self.ask(api, node)).await;
        let summary = match asked {
            Ok(Ok(summary)) => Arc::new(summary),
            Ok(Err(error)) => {
                tracing::debug!(node, error = %error.status()["message"], "cannot read the usage of a node from its agent");
                return None;
            }
            Err(_) => {
                self.observe(node, Err("no answer to GET /stats/summary in time"));
                return None;
            }
        };
        let mut cache = self.usage.0.lock();
        cache.retain(|_, (at, _)| at.elapsed() < MAX_AGE);
        cache.insert(node.to_owned(), (Instant::now(), summary.clone()));
        Some(summary)
    }

    async fn ask(&self, api: &Api, node: &str) -> ApiResult<Value> {
        let agent = self.find(api, node).await?;
        let request = Request::get("/stats/summary").header(header::HOST, "agent").body(empty_body());
        let request = request.map_err(|e| ApiError::internal(e.to_string()))?;
        let response = self.send(&agent, request).await?;
        if !response.status().is_success() {
            return Err(pipe::refusal(response).await);
        }
        let body = Limited::new(response.into_body(), MAX_SUMMARY).collect().await;
        let body = body.map_err(|e| ApiError::internal(e.to_string()))?;
        serde_json::from_slice(&body.to_bytes()).map_err(|e| ApiError::internal(e.to_string()))
    }

    async fn summaries(&self, api: &Api, nodes: Vec<String>) -> Vec<Arc<Value>> {
        let asked = stream::iter(nodes).map(|node| async move { self.summary(api, &node).await });
        asked.buffer_unordered(CONCURRENT_REQUESTS).filter_map(|summary| async { summary }).collect().await
    }
}

pub async fn respond(
    api: &Api,
    agents: &Agents,
    parts: &Parts,
    route: &ResourceRoute<'_>,
    query: &Query,
) -> ApiResult<Response> {
    let resource = RESOURCES.iter().find(|r| r.plural == route.plural && route.version == VERSION);
    let resource = resource.ok_or_else(ApiError::no_such_path)?;
    if route.subresource.is_some() || (!resource.namespaced && route.namespace.is_some()) {
        return Err(ApiError::no_such_path());
    }
    if parts.method != Method::GET || query.watch || route.watch {
        return Err(ApiError::method_not_allowed());
    }
    let d = api.registry.find("", "v1", resource.plural).ok_or_else(ApiError::no_such_path)?.clone();
    let target = Target { d: d.clone(), namespace: route.namespace.as_deref().map(str::to_owned), name: String::new() };
    let by_name;
    let query = match &route.name {
        Some(name) => {
            by_name = Query { field_selector: format!("metadata.name={name}"), ..Query::default() };
            &by_name
        }
        None => query,
    };
    let page = list::page(api, &target, query, &Filter::parse(&d, query)?).await?;
    let mut items = match resource.plural {
        "nodes" => nodes(api, agents, &d, &page.entries).await,
        _ => pods(api, agents, &d, &page.entries).await,
    };
    let accepted = negotiate::accepted(&parts.headers, true)?;
    let shown = match &route.name {
        Some(name) => {
            let full = target.namespace.as_ref().map_or_else(|| name.to_string(), |ns| format!("{ns}/{name}"));
            let missing = || ApiError::not_found_kind(GROUP, &resource.kind.to_lowercase(), &full);
            let item = items.pop().ok_or_else(missing)?;
            match accepted.shape {
                Shape::Table(_) => return as_table(accepted, resource, query, &[item]),
                Shape::Object | Shape::Partial(_) => item,
            }
        }
        None if matches!(accepted.shape, Shape::Table(_)) => return as_table(accepted, resource, query, &items),
        None => json!({
            "kind": format!("{}List", resource.kind), "apiVersion": API_VERSION, "metadata": {}, "items": items,
        }),
    };
    Ok(reply::encoded(StatusCode::OK, accepted.encoding, &shown))
}

fn as_table(
    accepted: negotiate::Accepted,
    resource: &MetricsResource,
    query: &Query,
    items: &[Value],
) -> ApiResult<Response> {
    let Shape::Table(version) = accepted.shape else { return Err(ApiError::no_such_path()) };
    let columns = if resource.plural == "nodes" { &table::NODES } else { &table::PODS };
    let row = RowObject::parse(query.include_object.as_deref())?;
    let table = reply::table(version, &PrinterColumns::Builtin(columns), row, json!({}), true, items);
    Ok(reply::encoded(StatusCode::OK, accepted.encoding, &table))
}

async fn nodes(api: &Api, agents: &Agents, d: &Descriptor, entries: &[Arc<Entry>]) -> Vec<Value> {
    let objects: Vec<Value> = entries.iter().filter_map(|entry| object::parse(d, entry).ok()).collect();
    let names = objects.iter().filter_map(|node| node["metadata"]["name"].as_str()).map(str::to_owned).collect();
    let summaries = agents.summaries(api, names).await;
    let of = |node: &Value| {
        let summary = summaries.iter().find(|s| s["node"]["nodeName"] == node["metadata"]["name"])?;
        Some(node_metrics(node, &summary["node"]))
    };
    objects.iter().filter_map(of).collect()
}

async fn pods(api: &Api, agents: &Agents, d: &Descriptor, entries: &[Arc<Entry>]) -> Vec<Value> {
    let objects: Vec<Value> = entries.iter().filter_map(|entry| object::parse(d, entry).ok()).collect();
    let mut names: Vec<String> =
        objects.iter().filter_map(|pod| pod["spec"]["nodeName"].as_str()).map(str::to_owned).collect();
    names.sort();
    names.dedup();
    let summaries = agents.summaries(api, names).await;
    let measured: HashMap<(&str, &str), &Value> = summaries
        .iter()
        .flat_map(|summary| summary["pods"].as_array().into_iter().flatten())
        .filter_map(|pod| Some(((pod["podRef"]["namespace"].as_str()?, pod["podRef"]["name"].as_str()?), pod)))
        .collect();
    let of = |pod: &Value| {
        let metadata = &pod["metadata"];
        let stats = measured.get(&(metadata["namespace"].as_str()?, metadata["name"].as_str()?))?;
        Some(pod_metrics(pod, stats))
    };
    objects.iter().filter_map(of).collect()
}

fn usage(stats: &Value) -> Value {
    let cpu = stats["cpu"]["usageNanoCores"].as_u64().unwrap_or(0);
    let memory = stats["memory"]["workingSetBytes"].as_u64().unwrap_or(0);
    json!({ "cpu": format!("{cpu}n"), "memory": format!("{}Ki", memory / 1024) })
}

fn metrics_object(kind: &str, object: &Value, stats: &Value) -> Value {
    let mut metadata = json!({ "name": object["metadata"]["name"], "creationTimestamp": stats["cpu"]["time"] });
    for field in ["namespace", "labels"] {
        if let Some(value) = object["metadata"].get(field) {
            metadata[field] = value.clone();
        }
    }
    json!({
        "kind": kind, "apiVersion": API_VERSION, "metadata": metadata,
        "timestamp": stats["cpu"]["time"], "window": "10s",
    })
}

fn node_metrics(node: &Value, stats: &Value) -> Value {
    let mut metrics = metrics_object("NodeMetrics", node, stats);
    metrics["usage"] = usage(stats);
    metrics
}

fn pod_metrics(pod: &Value, stats: &Value) -> Value {
    let containers = stats["containers"].as_array().into_iter().flatten();
    let containers: Vec<Value> = containers.map(|c| json!({ "name": c["name"], "usage": usage(c) })).collect();
    let mut metrics = metrics_object("PodMetrics", pod, stats);
    metrics["containers"] = json!(containers);
    metrics
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agents_summary_becomes_metrics_of_the_pod() {
        let pod = json!({ "metadata": { "name": "web", "namespace": "shop", "labels": { "a": "b" }, "uid": "x" } });
        let stats = json!({
            "cpu": { "time": "2024-01-01T00:00:00Z", "usageNanoCores": 5 },
            "containers": [{
                "name": "c",
                "cpu": { "usageNanoCores": 5_000_000 }, "memory": { "workingSetBytes": 1_048_576 },
            }],
        });
        let metrics = pod_metrics(&pod, &stats);
        assert_eq!(metrics["containers"], json!([{ "name": "c", "usage": { "cpu": "5000000n", "memory": "1024Ki" } }]));
        assert_eq!(metrics["metadata"]["labels"], json!({ "a": "b" }));
        assert_eq!(metrics["timestamp"], "2024-01-01T00:00:00Z");
    }
}
