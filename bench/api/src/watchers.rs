//! How long one write takes to reach a thousand watches.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use bytes::Bytes;
use http::Method;
use http_body_util::BodyExt;
use serde_json::json;
use tokio::sync::mpsc;

use crate::client::Target;

pub struct Delay {
    pub p50: f64,
    pub p99: f64,
}

/// Each of `writes` writes is delivered to `count` watches, each on a connection of its own; the
/// next write waits for the last watch. Delays are from the moment the write was sent.
pub async fn run(target: &Target, namespace: &str, count: usize, writes: usize) -> anyhow::Result<Delay> {
    let path = format!("/api/v1/namespaces/{namespace}/secrets");
    let (seen, mut arrivals) = mpsc::channel::<Instant>(count);
    let mut tasks = Vec::new();
    for _ in 0..count {
        let mut connection = target.connect().await.context("connect a watch")?;
        let response = connection
            .send(
                Method::GET,
                &format!("{path}?watch=1&sendInitialEvents=false&resourceVersionMatch=NotOlderThan"),
                Bytes::new(),
            )
            .await?;
        if !response.status().is_success() {
            bail!("watch: {}", response.status());
        }
        let seen = seen.clone();
        tasks.push(tokio::spawn(async move {
            let _open = connection;
            let mut body = response.into_body();
            while let Some(Ok(frame)) = body.frame().await {
                let lines = frame.data_ref().map_or(0, |data| data.iter().filter(|b| **b == b'\n').count());
                for _ in 0..lines {
                    if seen.send(Instant::now()).await.is_err() {
                        return;
                    }
                }
            }
        }));
    }
    let mut writer = target.connect().await?;
    let mut delays = Vec::new();
    for n in 0..writes {
        let secret = json!({
            "kind": "Secret", "apiVersion": "v1", "metadata": { "name": format!("w{n}") },
            "stringData": { "payload": "x".repeat(1024) },
        });
        let sent = Instant::now();
        writer.call(Method::POST, &path, secret.to_string().into()).await?;
        for _ in 0..count {
            let arrived = tokio::time::timeout(Duration::from_secs(30), arrivals.recv()).await;
            let arrived = arrived.context("a watch did not see the write")?.context("watches ended")?;
            delays.push(arrived.duration_since(sent).as_secs_f64() * 1e3);
        }
    }
    tasks.iter().for_each(tokio::task::JoinHandle::abort);
    delays.sort_by(f64::total_cmp);
    Ok(Delay { p50: delays[delays.len() / 2], p99: delays[delays.len() * 99 / 100] })
}
