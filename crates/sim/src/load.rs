//! Creates load: pods and Deployments, by many clients at once.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use anyhow::Context;
use http::Method;
use kube::Client;
use serde_json::{Value, json};

use crate::{
    pod_times::PodTimes,
    requests::{self, JSON, MERGE},
};

/// The container and the labels of every pod.
const CONTAINER: &str = r#"{"name":"pause","image":"registry.k8s.io/pause:3.10","ports":[{"containerPort":80}],"resources":{"requests":{"cpu":"100m","memory":"500Mi"},"limits":{"cpu":"100m","memory":"500Mi"}}}"#;
const LABELS: &str = r#"{"app":"sim"}"#;

fn pod_json(name: &str) -> Vec<u8> {
    format!(
        r#"{{"kind":"Pod","apiVersion":"v1","metadata":{{"name":"{name}","labels":{LABELS}}},"spec":{{"containers":[{CONTAINER}]}}}}"#
    )
    .into_bytes()
}

/// Pods of one namespace, named `<prefix>-<number>`.
#[derive(Clone)]
pub struct Batch {
    pub namespace: String,
    pub prefix: String,
    pub count: usize,
}

impl Batch {
    fn name(&self, number: usize) -> String {
        format!("{}-{number}", self.prefix)
    }

    fn path(&self) -> String {
        format!("/api/v1/namespaces/{}/pods", self.namespace)
    }
}

/// Creates all pods; each client sends the next request when its last is answered.
pub async fn create_pods(
    clients: &[Client],
    batch: &Batch,
    pod_times: &Arc<PodTimes>,
    done: &Arc<AtomicUsize>,
) -> anyhow::Result<Duration> {
    let pod_times = pod_times.clone();
    for_each_pod(clients, batch, done, move |client, batch, number| {
        let (name, pod_times) = (batch.name(number), pod_times.clone());
        async move {
            let body = pod_json(&name);
            pod_times.record_created(&name);
            requests::call(&client, Method::POST, &batch.path(), JSON, body).await.map(drop)
        }
    })
    .await
    .context("create pods")
}

/// Deletes them, with their own grace period.
pub async fn delete_pods(clients: &[Client], batch: &Batch, done: &Arc<AtomicUsize>) -> anyhow::Result<Duration> {
    for_each_pod(clients, batch, done, |client, batch, number| async move {
        let path = format!("{}/{}", batch.path(), batch.name(number));
        requests::call(&client, Method::DELETE, &path, JSON, Vec::new()).await.map(drop)
    })
    .await
    .context("delete pods")
}

async fn for_each_pod<F>(
    clients: &[Client],
    batch: &Batch,
    done: &Arc<AtomicUsize>,
    request: impl Fn(Client, Arc<Batch>, usize) -> F + Clone + Send + 'static,
) -> anyhow::Result<Duration>
where
    F: Future<Output = Result<(), requests::CallError>> + Send,
{
    let started = Instant::now();
    let batch = Arc::new(batch.clone());
    let mut tasks = tokio::task::JoinSet::new();
    for (first, client) in clients.iter().enumerate() {
        let (client, batch, done, request) = (client.clone(), batch.clone(), done.clone(), request.clone());
        let step = clients.len();
        tasks.spawn(async move {
            for number in (first..batch.count).step_by(step) {
                request(client.clone(), batch.clone(), number).await?;
                done.fetch_add(1, Relaxed);
            }
            Ok::<_, requests::CallError>(())
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.context("a client ended badly")??;
    }
    Ok(started.elapsed())
}

pub async fn create_namespace(client: &Client, name: &str) -> anyhow::Result<()> {
    let body = json!({ "kind": "Namespace", "apiVersion": "v1", "metadata": { "name": name } });
    match requests::call(client, Method::POST, "/api/v1/namespaces", JSON, body.to_string().into()).await {
        Err(error) if error.code() != Some(409) => Err(error).context("create a namespace"),
        Ok(_) | Err(_) => Ok(()),
    }
}

/// A Deployment without replicas, to be scaled.
pub async fn create_deployment(client: &Client, namespace: &str, name: &str) -> anyhow::Result<()> {
    let container: Value = serde_json::from_str(CONTAINER).context("the container")?;
    let body = json!({
        "kind": "Deployment", "apiVersion": "apps/v1", "metadata": { "name": name },
        "spec": {
            "replicas": 0, "selector": { "matchLabels": { "deployment": name } },
            "template": {
                "metadata": { "labels": { "deployment": name } }, "spec": { "containers": [container] },
            },
        },
    });
    let path = format!("/apis/apps/v1/namespaces/{namespace}/deployments");
    requests::call(client, Method::POST, &path, JSON, body.to_string().into()).await.context("create a deployment")?;
    Ok(())
}

pub async fn scale_deployment(client: &Client, namespace: &str, name: &str, replicas: usize) -> anyhow::Result<()> {
    let path = format!("/apis/apps/v1/namespaces/{namespace}/deployments/{name}/scale");
    let body = json!({ "spec": { "replicas": replicas } });
    requests::call(client, Method::PATCH, &path, MERGE, body.to_string().into()).await.context("scale a deployment")?;
    Ok(())
}

/// The ready replicas in the Deployment's status; 0 while the status is older than the spec.
pub async fn ready_replicas(client: &Client, namespace: &str, name: &str) -> anyhow::Result<usize> {
    let path = format!("/apis/apps/v1/namespaces/{namespace}/deployments/{name}");
    let answer = requests::call(client, Method::GET, &path, JSON, Vec::new()).await.context("read a deployment")?;
    let deployment: Value = serde_json::from_slice(&answer).context("read a deployment")?;
    Ok(usize::try_from(deployment["status"]["readyReplicas"].as_u64().unwrap_or(0)).unwrap_or(usize::MAX))
}

/// Why a pod that is not bound waits, by its `PodScheduled` condition.
pub async fn unscheduled_reason(client: &Client, namespace: &str) -> Option<String> {
    let path = format!("/api/v1/namespaces/{namespace}/pods?fieldSelector=spec.nodeName%3D&limit=1");
    let answer = requests::call(client, Method::GET, &path, JSON, Vec::new()).await.ok()?;
    let list: Value = serde_json::from_slice(&answer).ok()?;
    let pod = list["items"].get(0)?;
    let conditions = pod["status"]["conditions"].as_array();
    let scheduled = conditions.into_iter().flatten().find(|condition| condition["type"] == "PodScheduled");
    let message =
        scheduled.and_then(|condition| condition["message"].as_str()).unwrap_or("not yet considered by the scheduler");
    Some(format!("{}: {message}", pod["metadata"]["name"].as_str().unwrap_or_default()))
}
