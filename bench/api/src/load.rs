//! Requests in a closed loop: each client sends the next when the last is answered.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Context;
use bytes::Bytes;
use http::Method;
use serde_json::json;

use crate::client::{Connection, Target};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Create,
    Update,
    /// Server-side apply of a Deployment that is there already, each time with another image.
    Apply,
    Get,
    List,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Update => "update",
            Self::Apply => "apply",
            Self::Get => "GET",
            Self::List => "LIST",
        }
    }
}

/// What was answered, and how long each answer took.
pub struct Done {
    took: Duration,
    /// Sorted, in seconds.
    times: Vec<f64>,
}

impl Done {
    pub fn per_second(&self) -> f64 {
        self.times.len() as f64 / self.took.as_secs_f64()
    }

    /// In milliseconds.
    pub fn percentile(&self, q: f64) -> f64 {
        let at = ((self.times.len() as f64 * q / 100.0) as usize).min(self.times.len().saturating_sub(1));
        self.times.get(at).map_or(f64::NAN, |seconds| seconds * 1e3)
    }
}

pub async fn make_namespace(target: &Target) -> anyhow::Result<String> {
    let name = format!("bench-{:08x}", fastrand::u32(..));
    let body = json!({ "kind": "Namespace", "apiVersion": "v1", "metadata": { "name": name } });
    target.connect().await?.call(Method::POST, "/api/v1/namespaces", body.to_string().into()).await?;
    Ok(name)
}

fn config_map(namespace: &str, name: &str, salt: u64) -> Bytes {
    let payload = format!("{salt:016x}").repeat(64);
    let object = json!({
        "kind": "ConfigMap", "apiVersion": "v1",
        "metadata": { "name": name, "namespace": namespace }, "data": { "payload": payload },
    });
    object.to_string().into()
}

fn deployment(namespace: &str, name: &str, salt: u64) -> Bytes {
    let object = json!({
        "kind": "Deployment", "apiVersion": "apps/v1",
        "metadata": { "name": name, "namespace": namespace, "labels": { "app": name } },
        "spec": {
            // None, so that controllers have nothing to do for it.
            "replicas": 0, "paused": true,
            "selector": { "matchLabels": { "app": name } },
            "template": {
                "metadata": { "labels": { "app": name } },
                "spec": { "containers": [{
                    "name": "web", "image": format!("example.com/web:{salt}"),
                    "ports": [{ "containerPort": 8080, "protocol": "TCP" }],
                    "env": [{ "name": "A", "value": "a" }, { "name": "B", "value": "b" }],
                    "resources": { "limits": { "cpu": "1", "memory": "64Mi" } },
                }] },
            },
        },
    });
    object.to_string().into()
}

fn deployment_path(namespace: &str, name: &str) -> String {
    format!("/apis/apps/v1/namespaces/{namespace}/deployments/{name}?fieldManager=bench")
}

fn collection(namespace: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/configmaps")
}

pub async fn run(target: &Target, namespace: &str, kind: Kind, clients: usize, time: Duration) -> anyhow::Result<Done> {
    let run = format!("{:08x}", fastrand::u32(..));
    let mut connections = Vec::new();
    for client in 0..clients {
        let mut connection = target.connect().await.context("connect")?;
        if matches!(kind, Kind::Update | Kind::Get) {
            let name = format!("{run}-{client}");
            connection.call(Method::POST, &collection(namespace), config_map(namespace, &name, 0)).await?;
        }
        if kind == Kind::Apply {
            let name = format!("a{run}-{client}");
            connection.apply(&deployment_path(namespace, &name), deployment(namespace, &name, 0)).await?;
        }
        connections.push(connection);
    }
    let start = Instant::now();
    let (run, namespace): (Arc<str>, Arc<str>) = (run.into(), namespace.into());
    let tasks = connections.into_iter().enumerate().map(|(client, connection)| {
        let (run, namespace) = (run.clone(), namespace.clone());
        tokio::spawn(async move { one(connection, &namespace, &run, kind, client, start, time).await })
    });
    let tasks: Vec<_> = tasks.collect();
    let mut times = Vec::new();
    for task in tasks {
        times.extend(task.await??);
    }
    let took = start.elapsed();
    times.sort_by(f64::total_cmp);
    Ok(Done { took, times })
}

async fn one(
    mut connection: Connection,
    namespace: &str,
    run: &str,
    kind: Kind,
    client: usize,
    start: Instant,
    time: Duration,
) -> anyhow::Result<Vec<f64>> {
    let mut times = Vec::new();
    let collection = collection(namespace);
    let own = format!("{run}-{client}");
    for n in 0.. {
        if start.elapsed() >= time {
            break;
        }
        let prepared = match kind {
            Kind::Create => (Method::POST, collection.clone(), config_map(namespace, &format!("{own}-{n}"), n)),
            Kind::Update => (Method::PUT, format!("{collection}/{own}"), config_map(namespace, &own, n + 1)),
            Kind::Apply => {
                let name = format!("a{own}");
                (Method::PATCH, deployment_path(namespace, &name), deployment(namespace, &name, n + 1))
            }
            Kind::Get => (Method::GET, format!("{collection}/{own}"), Bytes::new()),
            Kind::List => (Method::GET, collection.clone(), Bytes::new()),
        };
        let sent = Instant::now();
        let (method, path, body) = prepared;
        if kind == Kind::List {
            connection.drain(method, &path).await?;
        } else if kind == Kind::Apply {
            connection.apply(&path, body).await?;
        } else {
            connection.call(method, &path, body).await?;
        }
        times.push(sent.elapsed().as_secs_f64());
    }
    Ok(times)
}

/// A namespace with this many objects of about 1.4 KB; made with 32 clients.
pub async fn fill(target: &Target, near: &str, count: usize) -> anyhow::Result<String> {
    const CLIENTS: usize = 32;
    let namespace = make_namespace(target).await.with_context(|| format!("beside {near}"))?;
    let tasks: Vec<_> = (0..CLIENTS)
        .map(|client| {
            let (target, namespace) = (target.clone(), namespace.clone());
            tokio::spawn(async move {
                let mut connection = target.connect().await?;
                for n in (client..count).step_by(CLIENTS) {
                    let body = config_map(&namespace, &format!("c{n:06}"), n as u64);
                    connection.call(Method::POST, &collection(&namespace), body).await?;
                }
                anyhow::Ok(())
            })
        })
        .collect();
    for task in tasks {
        task.await??;
    }
    Ok(namespace)
}
